//! Settings: services, frequency and timeouts. Not here: secrets (`plimsoll-secrets`).

use crate::service::Service;
use lettre::message::Mailbox;
use plimsoll_secrets::is_loopback;
use plimsoll_units::Seconds;
use std::path::PathBuf;
use std::time::Duration;

/// Which services receive messages, and how often.
#[derive(Debug, Clone)]
pub struct NotifySettings {
    /// The services.
    pub services: Vec<Service>,
    /// Steps between two progress messages, except for mail; 0 for none.
    pub every_steps: u64,
    /// Mail settings; required for [`Service::Mail`].
    pub mail: Option<MailSettings>,
    /// Timeouts and retries.
    pub timing: Timing,
}

/// Timeouts and retries.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Timeout of a connection.
    pub connect: Duration,
    /// Timeout of a whole request; for mail, of each response of the server.
    pub total: Duration,
    /// Delay before the first retry; it doubles each time.
    pub first_delay: Duration,
    /// Upper bound of that delay.
    pub longest_delay: Duration,
    /// Longest accepted delay that a server requests.
    pub longest_asked: Duration,
    /// Maximum number of attempts per message. Failures and ends are retried until the run ends.
    pub attempts: u32,
    /// Maximum queue length per service.
    pub waiting_max: usize,
    /// Factor on the intervals that services require between messages; 1 except for self-hosted servers.
    pub pace: f64,
    /// Seed for the random part of delays.
    pub seed: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            total: Duration::from_secs(15),
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(120),
            longest_asked: Duration::from_secs(3600),
            attempts: 6,
            waiting_max: 32,
            pace: 1.0,
            seed: std::process::id().into(),
        }
    }
}

/// How the connection to a mail server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// TLS from the first byte.
    Tls,
    /// TLS after `STARTTLS`; a server without it is not used.
    StartTls,
    /// No encryption, only for a server on this machine.
    None,
}

/// Mail settings.
#[derive(Debug, Clone)]
pub struct MailSettings {
    pub(crate) to: Vec<Mailbox>,
    pub(crate) from: Mailbox,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) encryption: Encryption,
    pub(crate) every: Duration,
    pub(crate) authority: Option<PathBuf>,
}

/// Why notifications cannot be sent. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    /// A service without its secrets.
    #[error("{service} needs {}", variables.join(" and "))]
    MissingSecret {
        /// The service.
        service: Service,
        /// The missing variables.
        variables: Vec<&'static str>,
    },
    /// Mail without a recipient or a server.
    #[error("mail needs a recipient and an SMTP server")]
    NoMail,
    /// An invalid mail address.
    #[error("`{address}` is not a mail address such as me@example.com")]
    BadMailAddress {
        /// The given address.
        address: String,
    },
    /// An invalid mail server. Its value is not shown, since it may contain a password.
    #[error("the mail server must be a host and a port such as smtp.example.com:465")]
    BadMailServer,
    /// Mail to another machine without TLS.
    #[error("mail to {host} requires TLS; only a server on this machine may be used without it")]
    Unencrypted {
        /// The mail server.
        host: String,
    },
    /// An invalid URL. It is not shown, since it is a secret.
    #[error("{variable} {reason}")]
    BadAddress {
        /// The variable that contains it.
        variable: &'static str,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// An invalid certificate.
    #[error("{}: {reason}", path.display())]
    Certificate {
        /// Its file.
        path: PathBuf,
        /// Why it is invalid.
        reason: String,
    },
    /// The system cannot start a thread.
    #[error("cannot start the thread for {service}: {source}")]
    Thread {
        /// The service.
        service: Service,
        /// The system's error.
        source: std::io::Error,
    },
}

impl MailSettings {
    /// Mail settings. `to`: recipients, each of which may be a comma-separated list; `from`: the sender, by default the
    /// first recipient; `smtp`: a host, or a host and a port. Port 465 means TLS, all others mean `STARTTLS`.
    /// Errors: an invalid address or server; a server on another machine without encryption.
    pub fn new(
        to: &[String],
        from: Option<&str>,
        smtp: &str,
        encryption: Option<Encryption>,
        every: Seconds,
        authority: Option<PathBuf>,
    ) -> Result<Self, NotifyError> {
        let mailbox = |text: &str| {
            let address = || NotifyError::BadMailAddress { address: text.to_owned() };
            text.trim().parse::<Mailbox>().map_err(|_| address())
        };
        let to = to.iter().flat_map(|text| text.split(',')).map(mailbox).collect::<Result<Vec<_>, _>>()?;
        let from = match (from, to.first()) {
            (Some(from), _) => mailbox(from)?,
            (None, Some(first)) => first.clone(),
            (None, None) => return Err(NotifyError::NoMail),
        };
        if to.is_empty() {
            return Err(NotifyError::NoMail);
        }
        let (host, port) = host_and_port(smtp, encryption).ok_or(NotifyError::BadMailServer)?;
        let encryption = encryption.unwrap_or(if port == 465 { Encryption::Tls } else { Encryption::StartTls });
        if encryption == Encryption::None && !is_loopback(&host) {
            return Err(NotifyError::Unencrypted { host });
        }
        let every = Duration::try_from_secs_f64(every.0).unwrap_or(Duration::MAX);
        Ok(Self { to, from, host, port, encryption, every, authority })
    }
}

/// The default port is 465, or 587 for `STARTTLS`. Source: RFC 8314.
fn host_and_port(text: &str, encryption: Option<Encryption>) -> Option<(String, u16)> {
    let text = text.trim();
    let inside = text.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, port) = match inside {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
        None if text.matches(':').count() > 1 => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let usual = match encryption {
        Some(Encryption::StartTls) => 587,
        Some(Encryption::None) => 25,
        Some(Encryption::Tls) | None => 465,
    };
    let port = port.map_or(Some(usual), |port| port.parse().ok().filter(|&port| port > 0))?;
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "-._:".contains(c));
    is_name.then(|| (host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_with_their_port_and_encryption() {
        let read = |smtp: &str| {
            let every = Seconds(600.0);
            let mail = MailSettings::new(&["a@b.example, c@d.example".to_owned()], None, smtp, None, every, None)?;
            assert_eq!((mail.to.len(), mail.from.email.to_string().as_str()), (2, "a@b.example"));
            Ok((mail.host, mail.port, mail.encryption))
        };
        for (smtp, host, port, encryption) in [
            ("smtp.example.com", "smtp.example.com", 465, Encryption::Tls),
            ("smtp.example.com:465", "smtp.example.com", 465, Encryption::Tls),
            ("smtp.example.com:587", "smtp.example.com", 587, Encryption::StartTls),
            ("[::1]:2525", "::1", 2525, Encryption::StartTls),
            ("::1", "::1", 465, Encryption::Tls),
        ] {
            let read: Result<_, NotifyError> = read(smtp);
            assert_eq!(read.ok(), Some((host.to_owned(), port, encryption)), "{smtp}");
        }
        for smtp in
            ["", ":465", "host:", "host:0", "host:70000", "a b", "smtp://host", "[::1", "[::1]465", "u:p@host:1"]
        {
            let read: Result<_, NotifyError> = read(smtp);
            assert!(matches!(read, Err(NotifyError::BadMailServer)), "{smtp}");
        }
    }

    #[test]
    fn mail_to_another_machine_must_be_encrypted() {
        let new = |to: &str, smtp| {
            MailSettings::new(&[to.to_owned()], None, smtp, Some(Encryption::None), Seconds(1.0), None)
        };
        assert!(new("a@b.example", "127.0.0.1:2525").is_ok());
        assert!(matches!(new("a@b.example", "mail.example:25"), Err(NotifyError::Unencrypted { .. })));
        for to in ["", "no-address", "a@b.example,", "a@b.example\r\nBcc: c@d.example"] {
            assert!(matches!(new(to, "localhost"), Err(NotifyError::BadMailAddress { .. })), "{to}");
        }
        assert!(matches!(
            MailSettings::new(&[], Some("a@b.example"), "localhost", None, Seconds(1.0), None),
            Err(NotifyError::NoMail)
        ));
    }
}
