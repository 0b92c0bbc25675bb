//! The flags for messages about a run, and `plimsoll notify test`, which checks that messages arrive.
//! Secrets are not flags: every user of a machine can see the flags of all processes.

use super::Failure;
use super::failure::{exit_code, line, no_threads};
use super::named::{Named, absolute_path, remember, unknown};
use crate::streams::{talk, write_data};
use clap::{Args, Subcommand, ValueEnum};
use plimsoll_notify::{
    Encryption, Kind, MailSettings, Message, Notifier, NotifyError, NotifySettings, Report, SenderReport, Service,
    Timing,
};
use plimsoll_render::printable_line;
use plimsoll_secrets::{Secrets, SecretsError, VARIABLES};
use plimsoll_telemetry::now_s;
use plimsoll_units::Seconds;
use serde_json::json;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest time of the slowest server, with one retry.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Read from the working folder, as other programs do.
const DOT_ENV: &str = ".env";

#[derive(Debug, Args)]
pub(super) struct NotifyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send a test message by every configured service, and print each result
    Test(TestArgs),
}

#[derive(Debug, Args)]
struct TestArgs {
    #[command(flatten)]
    recipients: Recipients,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The recipients of messages, and their servers.
#[derive(Debug, Clone, Args)]
pub(super) struct Recipients {
    /// Services to notify, separated by commas: mail, discord, slack, telegram, ntfy, webhook [default: all configured
    /// ones]
    #[arg(long, value_name = "SERVICE", value_delimiter = ',')]
    notify: Vec<Service>,
    /// Recipient of mail; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    mail_to: Vec<String>,
    /// Sender of mail [default: the first recipient]
    #[arg(long, value_name = "ADDRESS")]
    mail_from: Option<String>,
    /// Mail server: TLS on port 465, STARTTLS on other ports
    #[arg(long, value_name = "HOST:PORT")]
    smtp: Option<String>,
    /// Encryption of mail, if the port does not imply it; `none` only for a server on this machine
    #[arg(long, value_name = "KIND")]
    smtp_encryption: Option<SmtpEncryption>,
    /// PEM file of the certificate authority of the mail server, if it is not a public one
    #[arg(long, value_name = "FILE")]
    smtp_ca: Option<PathBuf>,
    /// File of secrets, one KEY=VALUE per line, readable only by you [default: `.env`, and the environment]
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
}

/// The messages of a run, and their times.
#[derive(Debug, Clone, Args)]
pub(super) struct TellArgs {
    #[command(flatten)]
    recipients: Recipients,
    /// Steps between messages of progress; 0 sends none. Start, checkpoints, heat, failures and the end are always sent
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count, default_value = "0")]
    notify_every: u64,
    /// Time between mails with the run's state; 0 sends none. Failures, heat and the end are mailed at once
    #[arg(long, value_name = "TIME", default_value = "10m")]
    mail_every: Seconds,
}

/// Time limit for the last messages of a run.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The same for a run that was asked to stop, whose sender may kill it soon.
const LAST_WORDS_OF_STOPPED: Duration = Duration::from_millis(1500);

impl TellArgs {
    /// Starts the notifier; `None` if no service is configured. Errors: a secret is missing or invalid.
    pub(super) fn start(&self) -> Result<Option<Notifier>, Failure> {
        self.recipients.started(self.notify_every, self.mail_every)
    }

    /// As [`Recipients::without_unknown`].
    pub(super) fn without_unknown(self, folder: &Path) -> Self {
        Self { recipients: self.recipients.without_unknown(folder), ..self }
    }

    /// The secrets of the environment, the file of `--secrets`, and `.env`.
    pub(super) fn secrets(&self) -> Result<Secrets, Failure> {
        self.recipients.secrets()
    }

    /// The settings with which a resumed run sends the same messages. Secrets are not among them.
    pub(super) fn resolved(&self) -> Map<String, Value> {
        let Recipients { notify, mail_to, mail_from, smtp, smtp_encryption, smtp_ca, secrets } = &self.recipients;
        let path = |path: &PathBuf| absolute_path(path).to_string_lossy().into_owned();
        let encryption = smtp_encryption.and_then(|kind| Some(kind.to_possible_value()?.get_name().to_owned()));
        let names = notify.iter().map(|service| service.name()).collect::<Vec<_>>().join(",");
        let told = [
            ("notify", (!names.is_empty()).then_some(names)),
            ("mail_to", (!mail_to.is_empty()).then(|| mail_to.join(","))),
            ("mail_from", mail_from.clone()),
            ("smtp", smtp.clone()),
            ("smtp_encryption", encryption),
            ("smtp_ca", smtp_ca.as_ref().map(path)),
            ("secrets", secrets.as_ref().map(path)),
            ("notify_every", Some(self.notify_every.to_string())),
            ("mail_every", Some(format!("{}s", self.mail_every.0))),
        ];
        told.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))).collect()
    }
}

/// Sends pending messages at the end of a run, and reports messages that did not arrive.
pub(super) fn finish_messages(notifier: Notifier, is_stopped: bool) {
    let limit = if is_stopped { LAST_WORDS_OF_STOPPED } else { LAST_WORDS };
    for sender in notifier.finish(limit).senders {
        if sender.failed > 0 || sender.unsent > 0 {
            let error =
                sender.last_error.as_deref().map_or(String::new(), |error| format!(": {}", printable_line(error)));
            talk(format_args!(
                "warning: {} messages to {} did not arrive{error}",
                sender.failed + sender.unsent,
                sender.service.name()
            ));
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SmtpEncryption {
    Tls,
    Starttls,
    None,
}

impl Recipients {
    fn secrets(&self) -> Result<Secrets, Failure> {
        let environment = |name: &str| std::env::var_os(name);
        Ok(Secrets::load(environment, self.secrets.as_deref(), Some(Path::new(DOT_ENV)))?)
    }

    /// The values that decide where secrets are sent.
    fn named(&self) -> Vec<Named> {
        let paths = |path: &Option<PathBuf>| path.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        let values: [(&str, Vec<String>); 4] = [
            ("smtp", self.smtp.iter().cloned().collect()),
            ("mail_to", self.mail_to.clone()),
            ("smtp_ca", paths(&self.smtp_ca)),
            ("secrets", paths(&self.secrets)),
        ];
        values.iter().flat_map(|(flag, values)| Named::of(flag, values.iter().map(String::as_str))).collect()
    }

    /// Removes the recipients that only a run's folder names, with a warning: the folder may come from another person.
    fn without_unknown(mut self, folder: &Path) -> Self {
        let unknown = unknown(&self.named());
        if unknown.is_empty() {
            return self;
        }
        warn_of_unknown(folder, &unknown);
        if unknown.iter().any(|named| named.flag == "secrets") {
            self.secrets = None;
        }
        if unknown.iter().any(|named| named.flag != "secrets") {
            (self.smtp, self.mail_to, self.mail_from, self.smtp_ca) = (None, vec![], None, None);
            self.notify.retain(|service| *service != Service::Mail);
        }
        self
    }

    fn started(&self, every_steps: u64, mail_every: Seconds) -> Result<Option<Notifier>, Failure> {
        let (settings, secrets) = self.resolve(every_steps, mail_every)?;
        if settings.services.is_empty() { Ok(None) } else { Ok(Some(Notifier::start(&settings, &secrets)?)) }
    }

    /// The settings and secrets, for the named services or else for all that have their secrets.
    pub(super) fn resolve(&self, every_steps: u64, mail_every: Seconds) -> Result<(NotifySettings, Secrets), Failure> {
        let secrets = self.secrets()?;
        remember(&self.named());
        let mail = match (&self.smtp, self.mail_to.is_empty()) {
            (Some(smtp), false) => {
                let encryption = self.smtp_encryption.map(|kind| match kind {
                    SmtpEncryption::Tls => Encryption::Tls,
                    SmtpEncryption::Starttls => Encryption::StartTls,
                    SmtpEncryption::None => Encryption::None,
                });
                let (from, authority) = (self.mail_from.as_deref(), self.smtp_ca.clone());
                Some(MailSettings::new(&self.mail_to, from, smtp, encryption, mail_every, authority)?)
            }
            (None, true) => None,
            _ => return Err(NotifyError::NoMail.into()),
        };
        let services = match self.notify.is_empty() {
            false => self.notify.clone(),
            true => Service::ALL.into_iter().filter(|service| is_set_up(*service, mail.is_some(), &secrets)).collect(),
        };
        Ok((NotifySettings { services, every_steps, mail, timing: Timing::default() }, secrets))
    }
}

/// Warns about settings of a file or folder that are ignored, and names the flags that allow them.
pub(super) fn warn_of_unknown(path: &Path, unknown: &[Named]) {
    let flags = unknown.iter().map(Named::as_flag).collect::<Vec<_>>().join(" ");
    let what = match (unknown.iter().any(|named| named.flag == "secrets"), unknown.iter().all(|n| n.flag == "secrets"))
    {
        (_, true) => "a file of secrets that was never named on this machine; it is not read",
        (true, _) => {
            "a file of secrets and a mail server or recipients that were never named on this machine; continuing \
                      without them"
        }
        (false, _) => "a mail server or recipients that were never named on this machine; continuing without mail",
    };
    talk(format_args!("warning: {} names {what}\nhint: `{flags}` allows it", path.display()));
}

fn is_set_up(service: Service, has_mail: bool, secrets: &Secrets) -> bool {
    match service {
        Service::Mail => has_mail,
        Service::Discord => secrets.has("PLIMSOLL_DISCORD_WEBHOOK"),
        Service::Slack => secrets.has("PLIMSOLL_SLACK_WEBHOOK"),
        Service::Telegram => secrets.has("PLIMSOLL_TELEGRAM_TOKEN"),
        Service::Ntfy => secrets.has("PLIMSOLL_NTFY_TOPIC"),
        Service::Webhook => secrets.has("PLIMSOLL_WEBHOOK_URL"),
    }
}

pub(super) fn run(args: &NotifyArgs) -> Result<u8, Failure> {
    let Command::Test(args) = &args.command;
    let (settings, secrets) = args.recipients.resolve(0, Seconds(0.0))?;
    if settings.services.is_empty() {
        let names = VARIABLES.map(|(name, what)| format!("{name} ({what})")).join(", ");
        return Err(Failure::bad_input("no service is configured, so no message is sent")
            .hint("for mail, use `--mail-to me@example.com --smtp smtp.example.com:465`")
            .hint(format!("for others, set in the environment or in a file for `--secrets`: {names}")));
    }
    let notifier = Notifier::start(&settings, &secrets)?;
    let names = settings.services.iter().map(|service| service.name()).collect::<Vec<_>>().join(", ");
    talk(format_args!("sending a test message by {names}; this can take up to {} s", TEST_TIMEOUT.as_secs()));
    let text = "Messages from plimsoll arrive here.";
    notifier.send(&Message::new(Kind::Test, "plimsoll", text, now_s()));
    let report = notifier.finish(TEST_TIMEOUT);
    write_data(if args.json { as_json(&report) } else { as_text(&report) })?;
    let failed = report.senders.iter().filter(|sender| sender.sent == 0).count();
    if failed > 0 {
        let of = report.senders.len();
        return Err(Failure::device(format!("{failed} of {of} test messages did not arrive")));
    }
    Ok(exit_code::DONE)
}

/// A server's error as one line.
fn problem(sender: &SenderReport) -> Option<String> {
    let error = sender.last_error.as_deref().unwrap_or("no answer in time");
    (sender.sent == 0).then(|| printable_line(error).into_owned())
}

fn as_text(report: &Report) -> String {
    let of_sender = |sender: &SenderReport| match problem(sender) {
        None => format!("{:<10}sent", sender.service.name()),
        Some(problem) => format!("{:<10}failed: {problem}", sender.service.name()),
    };
    report.senders.iter().map(of_sender).collect::<Vec<_>>().join("\n")
}

fn as_json(report: &Report) -> String {
    let of_sender = |sender: &SenderReport| json!({ "service": sender.service.name(), "sent": sender.sent > 0, "error": problem(sender) });
    let senders = report.senders.iter().map(of_sender).collect::<Vec<_>>();
    serde_json::to_string_pretty(&json!({ "senders": senders })).expect("plain data")
}

impl From<SecretsError> for Failure {
    fn from(error: SecretsError) -> Self {
        let failure = Self::bad_input(line(&error));
        match error {
            SecretsError::NotPrivate { path, .. } => failure
                .hint(format!("`chmod 600 {}` lets only you read it", printable_line(&path.display().to_string()))),
            SecretsError::ForeignServer { server, .. } => failure.hint(format!(
                "if you want that server to receive it, set {server} in the environment, or in the file of `--secrets`"
            )),
            _ => failure,
        }
    }
}

impl From<NotifyError> for Failure {
    fn from(error: NotifyError) -> Self {
        let message = line(&error);
        match error {
            NotifyError::MissingSecret { .. } => Self::bad_input(message)
                .hint("set it in the environment, or in a file that only you can read, named by `--secrets`"),
            NotifyError::NoMail => {
                Self::bad_flag(message).hint("use `--mail-to me@example.com --smtp smtp.example.com:465`")
            }
            NotifyError::BadMailAddress { .. } | NotifyError::BadMailServer => Self::bad_flag(message),
            NotifyError::Unencrypted { .. } => {
                Self::bad_flag(message).hint("use `--smtp-encryption starttls` or `tls`")
            }
            NotifyError::BadAddress { .. } | NotifyError::Certificate { .. } => Self::bad_input(message),
            NotifyError::Thread { .. } => no_threads(1, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::options::tests::assert_resumed_alike;

    #[test]
    fn a_resumed_run_has_every_setting_of_messages() {
        assert_resumed_alike(
            &[
                "--notify=mail,ntfy",
                "--mail-to=a@b.example,c@d.example",
                "--mail-to=e@f.example",
                "--mail-from=g@h.example",
                "--smtp=mail.example:2525",
                "--smtp-encryption=starttls",
                "--smtp-ca=/etc/ca.pem",
                "--secrets=/home/me/mine",
                "--notify-every=7",
                "--mail-every=90s",
            ],
            TellArgs::resolved,
        );
    }
}
