//! Mail: SMTP with TLS, as plain text, and as the same text with the loss curve below it.
//! Sources: RFC 8314 (ports), RFC 2387 and 2392 (images in mails), RFC 3834 (`Auto-Submitted`).

use crate::curve::{caption, png};
use crate::message::Message;
use crate::send_error::SendError;
use crate::settings::{Encryption, MailSettings, NotifyError, Timing};
use crate::words::{body, shortened, title};
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, Mailboxes, MultiPart, SinglePart};
use lettre::transport::smtp;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{SmtpTransport, Transport};
use plimsoll_files::read_at_most;
use plimsoll_secrets::Secrets;
use plimsoll_units::Bytes;
use std::error::Error;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// Maximum size of a certificate file, far more than it needs.
const AUTHORITY_MAX: Bytes = Bytes::mib(1);

/// Name of the image within a mail.
const PICTURE: &str = "loss-curve";

/// Sends mails, one per connection.
pub(crate) struct Mailer {
    transport: SmtpTransport,
    from: Mailbox,
    to: Mailboxes,
}

impl Mailer {
    pub(crate) fn new(settings: &MailSettings, secrets: &Secrets, timing: &Timing) -> Result<Self, NotifyError> {
        let parameters = || tls(&settings.host, settings.authority.as_deref());
        let encryption = match settings.encryption {
            Encryption::Tls => Tls::Wrapper(parameters()?),
            Encryption::StartTls => Tls::Required(parameters()?),
            Encryption::None => Tls::None,
        };
        let builder = SmtpTransport::builder_dangerous(&settings.host);
        let builder = builder.port(settings.port).tls(encryption).timeout(Some(timing.total));
        let builder = match (secrets.get("PLIMSOLL_SMTP_USER"), secrets.get("PLIMSOLL_SMTP_PASSWORD")) {
            (Some(user), Some(password)) => {
                builder.credentials(Credentials::new(user.expose().to_owned(), password.expose().to_owned()))
            }
            (None, None) => builder,
            (user, _) => {
                let variables = vec![if user.is_some() { "PLIMSOLL_SMTP_PASSWORD" } else { "PLIMSOLL_SMTP_USER" }];
                return Err(NotifyError::MissingSecret { service: crate::Service::Mail, variables });
            }
        };
        Ok(Self { transport: builder.build(), from: settings.from.clone(), to: settings.to.iter().cloned().collect() })
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<(), SendError> {
        let mail = mail(message, &self.from, &self.to);
        let mail = mail.map_err(|error| SendError::never(format!("cannot compose the mail: {error}")))?;
        self.transport.send(&mail).map(drop).map_err(|error| in_words(&error))
    }
}

/// TLS with the public certificate authorities, and an additional one if a file is given.
fn tls(host: &str, authority: Option<&Path>) -> Result<TlsParameters, NotifyError> {
    let mut builder = TlsParameters::builder(host.to_owned());
    if let Some(path) = authority {
        let rejected = |reason: String| NotifyError::Certificate { path: path.to_owned(), reason };
        let pem = read_at_most(path, AUTHORITY_MAX).map_err(|error| rejected(error.to_string()))?;
        // lettre accepts a file without a certificate.
        let has_any = String::from_utf8_lossy(&pem).contains("-BEGIN CERTIFICATE-");
        let certificate = Certificate::from_pem(&pem).ok().filter(|_| has_any);
        let certificate = certificate.ok_or_else(|| rejected("not a PEM certificate".to_owned()))?;
        builder = builder.add_root_certificate(certificate);
    }
    builder.build_rustls().map_err(|_| NotifyError::BadMailServer)
}

fn mail(message: &Message, from: &Mailbox, to: &Mailboxes) -> Result<lettre::Message, lettre::error::Error> {
    let picture = png(&message.curve);
    let caption = picture.as_ref().and_then(|_| caption(&message.curve));
    let text = [body(message), caption.clone().unwrap_or_default()].join("\n\n").trim().to_owned() + "\n";
    let sent = UNIX_EPOCH + Duration::try_from_secs_f64(message.time_s).unwrap_or_default();
    let mut builder = lettre::Message::builder()
        .from(from.clone())
        .subject(shortened(&title(message), 200))
        .date(sent)
        .message_id(None)
        // Suppresses automatic replies.
        .raw_header(HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".to_owned()));
    for recipient in to.iter() {
        builder = builder.to(recipient.clone());
    }
    let Some(picture) = picture else { return builder.singlepart(SinglePart::plain(text)) };
    let page = format!(
        "<pre style=\"font-family:inherit\">{}</pre><p><img src=\"cid:{PICTURE}\" alt=\"{}\"></p>",
        escaped(&text),
        escaped(&caption.unwrap_or_default())
    );
    let picture = Attachment::new_inline_with_name(PICTURE.to_owned(), format!("{PICTURE}.png"))
        .body(picture, ContentType::parse("image/png").expect("a valid type"));
    let with_picture = MultiPart::related().singlepart(SinglePart::html(page)).singlepart(picture);
    builder.multipart(MultiPart::alternative().singlepart(SinglePart::plain(text)).multipart(with_picture))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// rustls reports its errors through the connection's: an invalid certificate is `InvalidData` there.
fn is_of_tls(error: &smtp::Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::InvalidData)
}

fn in_words(error: &smtp::Error) -> SendError {
    let cause = error.source().map(|source| format!(": {}", shortened(&source.to_string(), 200))).unwrap_or_default();
    match error.status().map(u16::from) {
        Some(status) if error.is_permanent() => {
            SendError::never(format!("the mail server rejected the mail ({status}){cause}"))
        }
        Some(status) => SendError::later(format!("the mail server is temporarily unavailable ({status}){cause}")),
        None if error.is_timeout() => SendError::later("the mail server did not respond in time"),
        None if error.is_tls() || is_of_tls(error) => {
            SendError::never(format!("TLS handshake with the mail server failed{cause}"))
        }
        None if error.is_client() => SendError::never(format!("the mail server lacks a required feature{cause}")),
        None => SendError::later(format!("the connection to the mail server failed{cause}")),
    }
}
