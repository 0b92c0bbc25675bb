//! Chats, push messages and webhooks.

use crate::http_server::{Answer, HttpServer};
use crate::{LONG, message, secrets, settings};
use plimsoll_notify::{Kind, Notifier, Report, Secrets, Service};
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
    Notifier::start(&settings(&[Service::Webhook]), &webhook(server)).expect("it starts")
}

/// One message of an end to a server with these answers.
fn end_to(answers: &[Answer]) -> (Report, HttpServer) {
    let server = HttpServer::start(answers);
    let notifier = notifier(&server);
    notifier.tell(&message(Kind::End, 9));
    (notifier.finish(LONG), server)
}

/// The secrets of all services, on one server.
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
fn each_service_is_asked_as_it_wants_to_be() {
    let server = HttpServer::start(&[Answer::Service]);
    let (secrets, services) = (all_services(&server), SERVICES);
    // A service that is named twice is told once.
    let named = [&services[..], &services[..2]].concat();
    let notifier = Notifier::start(&settings(&named), &secrets).expect("it starts");
    notifier.tell(&message(Kind::Failure, 7));
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
fn what_may_work_later_is_tried_again() {
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

/// The status says that it arrived. Who read the rest would wait for it, and who failed on it would send it twice.
#[test]
fn of_a_success_nothing_more_is_read() {
    for answer in [Answer::MidBody(200), Answer::Endless(204), Answer::Endless(200)] {
        let begun = Instant::now();
        let (report, server) = end_to(&[answer]);
        assert!(report.all_arrived() && report.senders[0].last_error.is_none(), "{report:?}");
        assert_eq!(server.requests().len(), 1);
        assert!(begun.elapsed() < Duration::from_millis(400), "{:?}", begun.elapsed());
    }
}

/// A message may quote what a program said.
#[test]
fn no_message_has_a_secret_in_it() {
    let server = HttpServer::start(&[ok()]);
    let secrets = secrets(&[("PLIMSOLL_WEBHOOK_URL", &server.url("/hook")), ("HF_TOKEN", "hf_CANARY")]);
    let notifier = Notifier::start(&settings(&[Service::Webhook]), &secrets).expect("it starts");
    let mut failure = message(Kind::Failure, 1);
    (failure.text, failure.advice) = ("401 for hf_CANARY".to_owned(), Some("is hf_CANARY valid?".to_owned()));
    notifier.tell(&failure);
    assert!(notifier.finish(LONG).all_arrived());
    let sent = server.requests()[0].json();
    assert_eq!((&sent["text"], &sent["advice"]), (&"401 for …".into(), &"is … valid?".into()));
}

/// As of a login page, or of a proxy that answers for another server.
#[test]
fn an_answer_that_a_service_does_not_give_is_no_success() {
    for body in ["<html>Please log in</html>", r#"{"ok":false,"error":"no"}"#, "{}", "null"] {
        let server = HttpServer::start(&[status(200, "", body)]);
        let notifier = Notifier::start(&settings(&SERVICES), &all_services(&server)).expect("it starts");
        notifier.tell(&message(Kind::End, 9));
        let report = notifier.finish(LONG);
        for sender in &report.senders {
            let arrived = sender.service == Service::Webhook;
            assert_eq!((sender.sent, sender.failed), (u64::from(arrived), u64::from(!arrived)), "{body}: {report:?}");
            let error = sender.last_error.as_deref().unwrap_or_default();
            assert!(arrived || error.contains(&format!("but not as {} does", sender.service)), "{error}");
        }
    }
    // A service that sent half of an answer may have sent the message.
    for broken in [Answer::MidBody(200), Answer::Endless(200)] {
        let server = HttpServer::start(&[broken]);
        let notifier = Notifier::start(&settings(&[Service::Ntfy]), &all_services(&server)).expect("it starts");
        notifier.tell(&message(Kind::End, 9));
        assert!(notifier.finish(LONG).all_arrived());
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn what_will_not_work_is_given_up_with_what_the_server_says() {
    let body = r#"{"ok":false,"description":"Bad Request: chat not found"}"#;
    let (report, server) = end_to(&[status(400, "", body), ok()]);
    let sender = &report.senders[0];
    assert_eq!((sender.sent, sender.failed, server.requests().len()), (0, 1, 1));
    let error = "the server answers with status 400: Bad Request: chat not found";
    assert_eq!(sender.last_error.as_deref(), Some(error));
}

#[test]
fn servers_say_when_to_come_back() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(2));
    for (answer, least_ms) in [
        // First, while it lies ahead. Dates are whole seconds, so two may be a little more than one.
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
        // The server's clock is read when the request has come, ours when the answer has.
        assert!(waited >= Duration::from_millis(least_ms - 50), "{waited:?} of {least_ms} ms");
    }
}

#[test]
fn nothing_is_sent_where_a_server_redirects_to() {
    for code in [301, 302, 303, 307, 308] {
        let other = HttpServer::start(&[ok()]);
        let (report, server) = end_to(&[status(code, &format!("location: {}\r\n", other.url("/stolen")), "")]);
        assert_eq!((server.requests().len(), other.requests().len()), (1, 0), "{code}");
        assert_eq!(report.senders[0].failed, 1);
        assert!(report.senders[0].last_error.as_ref().is_some_and(|error| error.contains("redirects")), "{report:?}");
    }
}

#[test]
fn telling_never_waits_whatever_the_server_does() {
    for answer in
        [Answer::Hang, Answer::Drip, Answer::Reset, status(500, "", ""), status(429, "retry-after: 3600\r\n", "")]
    {
        let server = HttpServer::start(&[answer]);
        let notifier = notifier(&server);
        let kinds = [Kind::Progress, Kind::Failure, Kind::Heat];
        let begun = Instant::now();
        for step in 1..=3000u64 {
            assert!(notifier.is_progress_due(step));
            notifier.tell(&message(kinds[step as usize % 3], step));
        }
        let told = begun.elapsed();
        assert!(told < Duration::from_millis(400), "3,000 messages took {told:?}");
        server.wait_for(1);
        notifier.tell(&message(Kind::End, 3001));
        let begun = Instant::now();
        let report = notifier.finish(Duration::from_millis(100));
        assert!(begun.elapsed() < Duration::from_millis(300), "the end took {:?}", begun.elapsed());
        let sender = &report.senders[0];
        assert!(!report.all_arrived() && sender.sent == 0 && sender.unsent <= 33, "{report:?}");
        assert!(sender.dropped + sender.unsent + sender.failed >= 2000, "{report:?}");
    }
}

#[test]
fn what_was_dropped_is_said_in_the_next_message() {
    let server = HttpServer::start(&[Answer::Hang, ok()]);
    let notifier = notifier(&server);
    notifier.tell(&message(Kind::Start, 0));
    server.wait_for(1);
    for step in 1..=10 {
        notifier.tell(&message(Kind::Progress, step));
    }
    notifier.tell(&message(Kind::End, 10));
    let report = notifier.finish(LONG);
    let told = server.requests().into_iter().skip(1).map(|request| {
        let json = request.json();
        (json["kind"].as_str().expect("a kind").to_owned(), json["dropped_messages"].as_u64().expect("a count"))
    });
    let told = told.collect::<Vec<_>>();
    let all = told.iter().map(|(_, dropped)| dropped).sum::<u64>();
    assert_eq!(all, report.senders[0].dropped, "{told:?} {report:?}");
    assert!(all == 10 && told.iter().any(|(kind, _)| kind == "end"), "{told:?}");
}

#[test]
fn failures_are_tried_until_they_arrive_and_progress_is_not() {
    let down = status(503, "", "");
    let mut answers = vec![down; 20];
    answers.push(ok());
    let server = HttpServer::start(&answers);
    let of_failure = notifier(&server);
    of_failure.tell(&message(Kind::Failure, 1));
    assert_eq!(server.wait_for(21).len(), 21);
    let report = of_failure.finish(LONG);
    assert_eq!((report.senders[0].sent, report.senders[0].failed), (1, 0), "{report:?}");
    let server = HttpServer::start(&answers);
    let of_progress = notifier(&server);
    of_progress.tell(&message(Kind::Progress, 1));
    server.wait_for(3);
    of_progress.tell(&message(Kind::Heat, 2));
    server.wait_for(6);
    let report = of_progress.finish(LONG);
    assert_eq!((report.senders[0].sent, report.senders[0].failed), (0, 2), "{report:?}");
}

#[test]
fn progress_is_told_every_so_many_steps() {
    let server = HttpServer::start(&[ok()]);
    let mut settings = settings(&[Service::Webhook]);
    settings.every_steps = 100;
    let notifier = Notifier::start(&settings, &webhook(&server)).expect("it starts");
    let mut told = 0;
    for step in 1..=350 {
        if notifier.is_progress_due(step) {
            notifier.tell(&message(Kind::Progress, step));
            told += 1;
            server.wait_for(told);
        }
    }
    notifier.finish(LONG);
    let steps = server.requests().iter().map(|request| request.json()["step"].as_u64()).collect::<Vec<_>>();
    assert_eq!(steps, [Some(100), Some(200), Some(300)]);
    settings.every_steps = 0;
    let notifier = Notifier::start(&settings, &webhook(&server)).expect("it starts");
    assert!(!(1..=350).any(|step| notifier.is_progress_due(step)));
}
