//! Chats, push messages and webhooks.

use crate::http_server::{Answer, HttpServer};
use crate::{LONG, message, secrets, settings};
use plimsoll_notify::{Kind, Notifier, Report, Service};
use plimsoll_secrets::Secrets;
use std::time::{Duration, Instant, SystemTime};

fn ok() -> Answer {
    Answer::Status(200, String::new(), "ok".to_owned())
}

fn status(status: u16, headers: &str, body: &str) -> Answer {
    Answer::Status(status, headers.to_owned(), body.to_owned())
}

fn webhook(server: &HttpServer) -> Secrets {
    secrets(&[("PLIMSOLL_WEBHOOK_URL", &server.url("/hook/CANARY"))])
}

fn notifier(server: &HttpServer) -> Notifier {
    Notifier::start(&settings(&[Service::Webhook]), &webhook(server)).expect("a notifier")
}

/// Sends one `End` message to a server with these responses.
fn end_to(answers: &[Answer]) -> (Report, HttpServer) {
    let server = HttpServer::start(answers);
    let notifier = notifier(&server);
    notifier.send(&message(Kind::End, 9));
    (notifier.finish(LONG), server)
}

/// The secrets of all services, for one server.
fn all_services(server: &HttpServer) -> Secrets {
    secrets(&[
        ("PLIMSOLL_DISCORD_WEBHOOK", &server.url("/api/webhooks/1/d")),
        ("PLIMSOLL_SLACK_WEBHOOK", &server.url("/services/s")),
        ("PLIMSOLL_TELEGRAM_SERVER", &server.url("/")),
        ("PLIMSOLL_TELEGRAM_TOKEN", "12:Token_-"),
        ("PLIMSOLL_TELEGRAM_CHAT", "-100"),
        ("PLIMSOLL_NTFY_SERVER", &server.url("")),
        ("PLIMSOLL_NTFY_TOPIC", "topic"),
        ("PLIMSOLL_NTFY_TOKEN", "tk_1"),
        ("PLIMSOLL_WEBHOOK_URL", &server.url("/hook?key=1")),
    ])
}

const SERVICES: [Service; 5] = [Service::Discord, Service::Slack, Service::Telegram, Service::Ntfy, Service::Webhook];

#[test]
fn each_service_receives_its_own_format() {
    let server = HttpServer::start(&[Answer::Service]);
    let (secrets, services) = (all_services(&server), SERVICES);
    // A service that is named twice receives one message.
    let named = [&services[..], &services[..2]].concat();
    let notifier = Notifier::start(&settings(&named), &secrets).expect("a notifier");
    notifier.send(&message(Kind::Failure, 7));
    let report = notifier.finish(LONG);
    assert!(report.all_arrived(), "{report:?}");
    assert_eq!(
        report.senders.iter().map(|sender| (sender.service, sender.sent)).collect::<Vec<_>>(),
        services.map(|s| (s, 1))
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 5);
    let of = |path: &str| {
        let line = format!("POST {path} HTTP/1.1");
        let found = requests.iter().find(|request| request.head.starts_with(&line));
        let found = found.unwrap_or_else(|| panic!("nothing for {path}"));
        assert!(found.head.to_ascii_lowercase().contains("content-type: application/json"), "{}", found.head);
        found
    };
    assert_eq!(of("/api/webhooks/1/d").json()["embeds"][0]["title"], "nano-1: failed");
    assert_eq!(of("/services/s").json()["text"], "nano-1: failed");
    assert_eq!(of("/bot12:Token_-/sendMessage").json()["chat_id"], "-100");
    assert_eq!(of("/").json()["topic"], "topic");
    assert!(of("/").head.to_ascii_lowercase().contains("authorization: bearer tk_1"));
    assert_eq!(of("/hook?key=1").json()["kind"], "failure");
}

#[test]
fn temporary_failures_are_retried() {
    for broken in [
        status(500, "", "<html>CANARY</html>"),
        status(429, "", "slow down"),
        Answer::Hang,
        Answer::Drip,
        Answer::Reset,
        Answer::MidBody(502),
        Answer::Endless(503),
        Answer::Noise,
    ] {
        let (report, server) = end_to(&[broken.clone(), broken, ok()]);
        assert!(report.all_arrived(), "{report:?}");
        let sender = &report.senders[0];
        assert_eq!((sender.sent, server.requests().len()), (1, 3), "{report:?}");
        assert!(sender.last_error.is_some());
    }
}

/// The status confirms delivery. Reading the rest could block, and failing on it would send the message twice.
#[test]
fn the_body_of_a_success_is_not_read() {
    for answer in [Answer::MidBody(200), Answer::Endless(204), Answer::Endless(200)] {
        let begun = Instant::now();
        let (report, server) = end_to(&[answer]);
        assert!(report.all_arrived() && report.senders[0].last_error.is_none(), "{report:?}");
        assert_eq!(server.requests().len(), 1);
        assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
    }
}

/// A message may quote a program's output.
#[test]
fn no_message_contains_a_secret() {
    let server = HttpServer::start(&[ok()]);
    let secrets = secrets(&[("PLIMSOLL_WEBHOOK_URL", &server.url("/hook")), ("HF_TOKEN", "hf_CANARY")]);
    let notifier = Notifier::start(&settings(&[Service::Webhook]), &secrets).expect("a notifier");
    let mut failure = message(Kind::Failure, 1);
    (failure.text, failure.advice) = ("401 for hf_CANARY".to_owned(), Some("is hf_CANARY valid?".to_owned()));
    notifier.send(&failure);
    assert!(notifier.finish(LONG).all_arrived());
    let sent = server.requests()[0].json();
    assert_eq!((&sent["text"], &sent["advice"]), (&"401 for …".into(), &"is … valid?".into()));
}

/// A login page, or a proxy that responds for another server.
#[test]
fn an_unexpected_response_is_not_a_success() {
    for body in ["<html>Please log in</html>", r#"{"ok":false,"error":"no"}"#, "{}", "null"] {
        let server = HttpServer::start(&[status(200, "", body)]);
        let notifier = Notifier::start(&settings(&SERVICES), &all_services(&server)).expect("a notifier");
        notifier.send(&message(Kind::End, 9));
        let report = notifier.finish(LONG);
        for sender in &report.senders {
            let arrived = sender.service == Service::Webhook;
            assert_eq!((sender.sent, sender.failed), (u64::from(arrived), u64::from(!arrived)), "{body}: {report:?}");
            let error = sender.last_error.as_deref().unwrap_or_default();
            assert!(arrived || error.contains(&format!("but not a response of {}", sender.service)), "{error}");
        }
    }
    // A service that sent half of a response may have accepted the message.
    for broken in [Answer::MidBody(200), Answer::Endless(200)] {
        let server = HttpServer::start(&[broken]);
        let notifier = Notifier::start(&settings(&[Service::Ntfy]), &all_services(&server)).expect("a notifier");
        notifier.send(&message(Kind::End, 9));
        assert!(notifier.finish(LONG).all_arrived());
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn permanent_failures_are_given_up_and_quote_the_server() {
    let body = r#"{"ok":false,"description":"Bad Request: chat not found"}"#;
    let (report, server) = end_to(&[status(400, "", body), ok()]);
    let sender = &report.senders[0];
    assert_eq!((sender.sent, sender.failed, server.requests().len()), (0, 1, 1));
    let error = "the server returned status 400: Bad Request: chat not found";
    assert_eq!(sender.last_error.as_deref(), Some(error));
}

#[test]
fn retries_respect_the_time_that_a_server_requests() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    for (answer, least_ms) in [
        // First, while the date is in the future. Dates are whole seconds, so two seconds may be little more than one.
        (status(429, &format!("retry-after: {date}\r\n"), ""), 1000),
        (status(429, "retry-after: 0.3\r\n", ""), 300),
        (status(503, "Retry-After: 0.3\r\n", ""), 300),
        (status(429, "", r#"{"ok":false,"parameters":{"retry_after":0.3}}"#), 300),
        (status(429, "", r#"{"message":"You are being rate limited.","retry_after":0.3}"#), 300),
    ] {
        let (report, server) = end_to(&[answer, ok()]);
        assert!(report.all_arrived(), "{report:?}");
        let requests = server.requests();
        let waited = requests[1].at - requests[0].at;
        // The server records the time after reading the request, the client after reading the response.
        assert!(waited >= Duration::from_millis(least_ms - 50), "{waited:?} of {least_ms} ms");
    }
}

#[test]
fn redirects_are_not_followed() {
    for code in [301, 302, 303, 307, 308] {
        let other = HttpServer::start(&[ok()]);
        let (report, server) = end_to(&[status(code, &format!("location: {}\r\n", other.url("/stolen")), "")]);
        assert_eq!((server.requests().len(), other.requests().len()), (1, 0), "{code}");
        assert_eq!(report.senders[0].failed, 1);
        assert!(report.senders[0].last_error.as_ref().is_some_and(|error| error.contains("redirects")), "{report:?}");
    }
}

#[test]
fn sending_never_blocks_whatever_the_server_does() {
    for answer in
        [Answer::Hang, Answer::Drip, Answer::Reset, status(500, "", ""), status(429, "retry-after: 3600\r\n", "")]
    {
        let server = HttpServer::start(&[answer]);
        let notifier = notifier(&server);
        let kinds = [Kind::Progress, Kind::Failure, Kind::Heat];
        let begun = Instant::now();
        for step in 1..=3000u64 {
            assert!(notifier.is_progress_due(step));
            notifier.send(&message(kinds[step as usize % 3], step));
        }
        let sent = begun.elapsed();
        assert!(sent < Duration::from_millis(400), "3,000 messages took {sent:?}");
        server.wait_for(1);
        notifier.send(&message(Kind::End, 3001));
        let begun = Instant::now();
        let report = notifier.finish(Duration::from_millis(100));
        assert!(begun.elapsed() < Duration::from_millis(300), "the end took {:?}", begun.elapsed());
        let sender = &report.senders[0];
        assert!(!report.all_arrived() && sender.sent == 0 && sender.unsent <= 33, "{report:?}");
        assert!(sender.dropped + sender.unsent + sender.failed >= 2000, "{report:?}");
    }
}

#[test]
fn the_next_message_reports_dropped_messages() {
    let server = HttpServer::start(&[Answer::Hang, ok()]);
    let notifier = notifier(&server);
    notifier.send(&message(Kind::Start, 0));
    server.wait_for(1);
    for step in 1..=10 {
        notifier.send(&message(Kind::Progress, step));
    }
    notifier.send(&message(Kind::End, 10));
    let report = notifier.finish(LONG);
    let sent = server.requests().into_iter().skip(1).map(|request| {
        let json = request.json();
        (json["kind"].as_str().expect("a kind").to_owned(), json["dropped_messages"].as_u64().expect("a count"))
    });
    let sent = sent.collect::<Vec<_>>();
    let all = sent.iter().map(|(_, dropped)| dropped).sum::<u64>();
    assert_eq!(all, report.senders[0].dropped, "{sent:?} {report:?}");
    assert!(all == 10 && sent.iter().any(|(kind, _)| kind == "end"), "{sent:?}");
}

#[test]
fn failures_are_retried_until_they_arrive_and_progress_is_not() {
    let down = status(503, "", "");
    let mut answers = vec![down; 20];
    answers.push(ok());
    let server = HttpServer::start(&answers);
    let of_failure = notifier(&server);
    of_failure.send(&message(Kind::Failure, 1));
    assert_eq!(server.wait_for(21).len(), 21);
    let report = of_failure.finish(LONG);
    assert_eq!((report.senders[0].sent, report.senders[0].failed), (1, 0), "{report:?}");
    let server = HttpServer::start(&answers);
    let of_progress = notifier(&server);
    of_progress.send(&message(Kind::Progress, 1));
    server.wait_for(3);
    of_progress.send(&message(Kind::Heat, 2));
    server.wait_for(6);
    let report = of_progress.finish(LONG);
    assert_eq!((report.senders[0].sent, report.senders[0].failed), (0, 2), "{report:?}");
}

#[test]
fn progress_is_sent_at_the_set_interval() {
    let server = HttpServer::start(&[ok()]);
    let mut settings = settings(&[Service::Webhook]);
    settings.every_steps = 100;
    let notifier = Notifier::start(&settings, &webhook(&server)).expect("a notifier");
    let mut sent = 0;
    for step in 1..=350 {
        if notifier.is_progress_due(step) {
            notifier.send(&message(Kind::Progress, step));
            sent += 1;
            server.wait_for(sent);
        }
    }
    notifier.finish(LONG);
    let steps = server.requests().iter().map(|request| request.json()["step"].as_u64()).collect::<Vec<_>>();
    assert_eq!(steps, [Some(100), Some(200), Some(300)]);
    settings.every_steps = 0;
    let notifier = Notifier::start(&settings, &webhook(&server)).expect("a notifier");
    assert!(!(1..=350).any(|step| notifier.is_progress_due(step)));
}
