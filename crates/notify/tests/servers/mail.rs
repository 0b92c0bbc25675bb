//! Mail to a server with TLS and AUTH.

use crate::smtp_server::{Mood, Offers, SmtpServer};
use crate::{LONG, message, secrets, settings};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plimsoll_notify::{
    Encryption, Kind, LossPoint, MailSettings, Notifier, NotifyError, NotifySettings, Report, Service,
};
use plimsoll_secrets::Secrets;
use plimsoll_units::Seconds;
use std::time::{Duration, Instant};

fn login() -> Secrets {
    secrets(&[("PLIMSOLL_SMTP_USER", "CANARY-user"), ("PLIMSOLL_SMTP_PASSWORD", "CANARY-password")])
}

fn to(server: &SmtpServer, encryption: Encryption, every_s: f64) -> NotifySettings {
    let mail = MailSettings::new(
        &["me@example.com, you@example.com".to_owned()],
        Some("Plimsoll <plimsoll@example.com>"),
        &format!("localhost:{}", server.port),
        Some(encryption),
        Seconds(every_s),
        Some(server.authority.clone()),
    );
    NotifySettings { mail: Some(mail.expect("settings of mail")), ..settings(&[Service::Mail]) }
}

fn send(settings: &NotifySettings, timeout: Duration) -> Report {
    let notifier = Notifier::start(settings, &login()).expect("a notifier");
    let mut end = message(Kind::End, 9);
    end.text = "Finished & done.\n.\n..dots".to_owned();
    end.curve = (1..=50).map(|step| LossPoint { step, loss: 5.0 / step as f64 }).collect();
    notifier.send(&end);
    notifier.finish(timeout)
}

#[test]
fn a_mail_with_its_image_arrives_over_tls() {
    for (offers, encryption) in
        [(Offers::Tls, Encryption::Tls), (Offers::StartTls, Encryption::StartTls), (Offers::Plain, Encryption::None)]
    {
        let server = SmtpServer::start(offers, Mood::Good);
        let report = send(&to(&server, encryption, 600.0), LONG);
        assert!(report.all_arrived() && report.senders[0].sent == 1, "{offers:?}: {report:?}");
        let plain = STANDARD.encode("\0CANARY-user\0CANARY-password");
        assert_eq!(server.logins(), [format!("AUTH PLAIN {plain}")]);
        let [mail] = <[String; 1]>::try_from(server.mails()).expect("one mail");
        let (head, body) = mail.split_once("\n\n").expect("a head");
        for line in [
            "Subject: nano-1: ended",
            "From: Plimsoll <plimsoll@example.com>",
            "To: me@example.com, you@example.com",
            "Auto-Submitted: auto-generated",
            "Date: Tue, 14 Nov 2023 22:13:20 +0000",
        ] {
            assert!(head.lines().any(|found| found == line), "no `{line}` in\n{head}");
        }
        assert!(head.contains("Message-ID: <") && body.contains("Finished &amp; done."), "{mail}");
        assert!(
            body.contains("Finished & done.\n.\n..dots") && body.contains("<img src=3D\"cid:loss-curve\"")
                || body.contains("<img src=\"cid:loss-curve\""),
            "{body}"
        );
        let picture =
            body.split("Content-ID: <loss-curve>").nth(1).expect("a picture").split_once("\n\n").expect("data").1;
        let encoded = picture.split("\n--").next().expect("its end").replace('\n', "");
        let png = STANDARD.decode(encoded.trim()).expect("base64");
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.ends_with(b"IEND\xaeB`\x82"), "{} bytes", png.len());
    }
}

#[test]
fn nothing_is_sent_without_a_valid_certificate() {
    let server = SmtpServer::start(Offers::Tls, Mood::Good);
    let mut other = SmtpServer::start(Offers::Tls, Mood::Good);
    other.port = server.port;
    let report = send(&to(&other, Encryption::Tls, 600.0), Duration::from_secs(1));
    assert!(report.senders[0].failed == 1 && server.logins().is_empty() && server.mails().is_empty(), "{report:?}");
    let error = report.senders[0].last_error.as_deref();
    assert!(error.is_some_and(|error| error.contains("TLS") && error.contains("certificate")), "{report:?}");
    // Chat services use another HTTP and TLS library.
    let url = format!("https://localhost:{}/CANARY", server.port);
    let notifier = Notifier::start(&settings(&[Service::Webhook]), &secrets(&[("PLIMSOLL_WEBHOOK_URL", &url)]));
    let notifier = notifier.expect("a notifier");
    notifier.send(&message(Kind::End, 1));
    let report = notifier.finish(LONG);
    assert_eq!(report.senders[0].failed, 1, "{report:?}");
    assert!(report.senders[0].last_error.as_ref().is_some_and(|error| error.contains("certificate")), "{report:?}");
}

/// An attacker who removes `STARTTLS` from a server's offer must not receive the password.
#[test]
fn a_server_without_tls_is_not_used() {
    let server = SmtpServer::start(Offers::Plain, Mood::Good);
    let report = send(&to(&server, Encryption::StartTls, 600.0), Duration::from_secs(1));
    assert!(!report.all_arrived() && server.logins().is_empty() && server.mails().is_empty(), "{report:?}");
}

#[test]
fn temporary_failures_are_retried() {
    for mood in [Mood::Busy, Mood::Closes] {
        let server = SmtpServer::start(Offers::Plain, mood);
        let report = send(&to(&server, Encryption::None, 600.0), LONG);
        assert!(report.all_arrived(), "{mood:?}: {report:?}");
        assert_eq!((server.mails().len(), report.senders[0].sent), (1, 1));
        assert!(report.senders[0].last_error.is_some());
    }
}

#[test]
fn a_server_that_hangs_or_floods_does_not_block() {
    for mood in [Mood::Hangs, Mood::Endless] {
        let server = SmtpServer::start(Offers::Plain, mood);
        let begun = Instant::now();
        let report = send(&to(&server, Encryption::None, 600.0), Duration::from_millis(100));
        assert!(begun.elapsed() < Duration::from_millis(500), "{mood:?}: {:?}", begun.elapsed());
        assert!(!report.all_arrived(), "{mood:?}: {report:?}");
    }
}

#[test]
fn a_rejected_password_is_not_retried() {
    let server = SmtpServer::start(Offers::StartTls, Mood::Quotes);
    let report = send(&to(&server, Encryption::StartTls, 600.0), LONG);
    let sender = &report.senders[0];
    assert_eq!((sender.sent, sender.failed), (0, 1), "{report:?}");
    let error = sender.last_error.as_deref().unwrap_or_default();
    assert!(error.contains("535") && error.contains("not known: AUTH PLAIN …"), "{error}");
    assert!(!error.contains(&STANDARD.encode("\0CANARY-user\0CANARY-password")), "{error}");
}

/// Failures immediately, progress at intervals, checkpoints never.
#[test]
fn mails_are_rate_limited() {
    let server = SmtpServer::start(Offers::Plain, Mood::Good);
    let notifier = Notifier::start(&to(&server, Encryption::None, 1e9), &login()).expect("a notifier");
    assert!(!notifier.is_progress_due(1_000_000));
    for kind in [Kind::Progress, Kind::Checkpoint, Kind::Failure] {
        notifier.send(&message(kind, 1));
    }
    let report = notifier.finish(LONG);
    assert_eq!((report.senders[0].sent, server.mails().len()), (1, 1));
    assert!(server.mails()[0].contains("nano-1: failed"));
    let often = Notifier::start(&to(&server, Encryption::None, 0.0), &login()).expect("a notifier");
    assert!(often.is_progress_due(1));
    often.send(&message(Kind::Progress, 1));
    assert!(often.finish(LONG).all_arrived());
    assert!(server.mails()[1].contains("Subject: nano-1: step 1"));
}

#[test]
fn an_incomplete_login_is_rejected() {
    let server = SmtpServer::start(Offers::Plain, Mood::Good);
    let half = secrets(&[("PLIMSOLL_SMTP_USER", "me")]);
    let started = Notifier::start(&to(&server, Encryption::None, 1.0), &half);
    assert!(matches!(started, Err(NotifyError::MissingSecret { .. })));
    let none = Notifier::start(&settings(&[Service::Mail]), &half);
    assert!(matches!(none, Err(NotifyError::NoMail)));
}
