//! Every secret is a canary. Nothing that this crate shows contains one, whatever a server does.

use crate::http_server::{Answer, HttpServer};
use crate::{message, secrets, settings};
use plimsoll_notify::{Kind, MailSettings, Notifier, NotifyError, Service};
use plimsoll_secrets::{Secret, Secrets, SecretsError, VARIABLES};
use plimsoll_units::Seconds;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

const SERVICES: [Service; 5] = [Service::Discord, Service::Slack, Service::Telegram, Service::Ntfy, Service::Webhook];

/// All secrets, for this server.
fn canaries(server: &str) -> Vec<(&'static str, String)> {
    let value = |variable: &'static str| match variable {
        "PLIMSOLL_TELEGRAM_SERVER" => format!("{server}/CANARY-server"),
        "PLIMSOLL_TELEGRAM_TOKEN" => "123456:CANARY-telegram".to_owned(),
        "PLIMSOLL_NTFY_SERVER" => format!("{server}/"),
        "PLIMSOLL_DISCORD_WEBHOOK" | "PLIMSOLL_SLACK_WEBHOOK" | "PLIMSOLL_WEBHOOK_URL" => {
            format!("{server}/hooks/CANARY-{}?key=CANARY-key", variable.to_lowercase())
        }
        other => format!("CANARY-{}", other.to_lowercase()),
    };
    VARIABLES.map(|(variable, _)| (variable, value(variable))).to_vec()
}

fn all(server: &str) -> Secrets {
    let pairs = canaries(server);
    secrets(&pairs.iter().map(|(key, value)| (*key, value.as_str())).collect::<Vec<_>>())
}

fn assert_hidden(text: &str) {
    assert!(!text.contains("CANARY"), "{text}");
}

#[test]
fn no_failure_of_any_sender_shows_a_secret() {
    let broken = [
        Answer::Echo(400),
        Answer::Echo(404),
        Answer::Echo(503),
        Answer::Status(302, "location: http://CANARY.example/\r\n".to_owned(), "see CANARY-telegram".to_owned()),
        Answer::Status(429, "retry-after: CANARY\r\n".to_owned(), String::new()),
        Answer::Hang,
        Answer::Reset,
        Answer::MidBody(500),
        Answer::Noise,
    ];
    for answer in broken {
        let server = HttpServer::start(&[answer]);
        let secrets = all(&server.url(""));
        let settings = settings(&SERVICES);
        let notifier = Notifier::start(&settings, &secrets).expect("a notifier");
        notifier.send(&message(Kind::Test, 1));
        let mut shown = format!("{notifier:?}{secrets:?}{settings:#?}{:?}", message(Kind::End, 1));
        let report = notifier.finish(Duration::from_millis(800));
        assert!(report.senders.iter().all(|sender| sender.sent == 0 && sender.last_error.is_some()), "{report:?}");
        write!(shown, "{report:?}").expect("into memory");
        assert_hidden(&shown);
    }
    // No server listens on this port, and this host does not exist.
    for server in ["http://127.0.0.1:1", "https://canary.invalid", "https://127.0.0.1:1"] {
        let notifier = Notifier::start(&settings(&SERVICES), &all(server)).expect("a notifier");
        notifier.send(&message(Kind::Test, 1));
        let report = notifier.finish(Duration::from_millis(800));
        assert!(report.senders.iter().all(|sender| sender.sent == 0), "{report:?}");
        let shown = format!("{report:?}");
        assert_hidden(&shown);
        assert!(!shown.contains("canary.invalid"), "{shown}");
    }
}

#[test]
fn no_rejected_setting_shows_a_secret() {
    for server in
        ["http://CANARY.example", "CANARY", "https://", "ftp://CANARY", "https://CANARY CANARY", "http://[CANARY"]
    {
        for service in SERVICES {
            let pairs = canaries(server);
            let error = Notifier::start(
                &settings(&[service]),
                &secrets(&pairs.iter().map(|(k, v)| (*k, v.as_str())).collect::<Vec<_>>()),
            );
            let error = error.expect_err("an address that can't be used");
            assert!(matches!(error, NotifyError::BadAddress { .. }), "{server} {service}: {error}");
            assert_hidden(&format!("{error} {error:?}"));
        }
    }
    let odd = secrets(&[("PLIMSOLL_TELEGRAM_TOKEN", "CANARY/../x"), ("PLIMSOLL_TELEGRAM_CHAT", "CANARY")]);
    let error = Notifier::start(&settings(&[Service::Telegram]), &odd).expect_err("no token");
    assert_hidden(&format!("{error} {error:?}"));
    for service in SERVICES {
        let error = Notifier::start(&settings(&[service]), &secrets(&[])).expect_err("no secret");
        assert!(matches!(error, NotifyError::MissingSecret { .. }), "{error}");
    }
    // A password in the address of a mail server, where it does not belong.
    let mail = MailSettings::new(&["a@b.example".into()], None, "smtp://me:CANARY@host:1", None, Seconds(1.0), None);
    let error = mail.expect_err("no server");
    assert_hidden(&format!("{error} {error:?}"));
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }
}

#[cfg(unix)]
#[test]
fn files_readable_by_other_users_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secrets");
    let named = |mode| {
        write(&path, "# mine\nPLIMSOLL_NTFY_TOPIC='CANARY topic'\nOTHER=1\n", mode);
        Secrets::load(|_| None, Some(&path), None)
    };
    for mode in [0o600, 0o400, 0o700] {
        let secrets = named(mode).expect("a private file");
        assert!(secrets.has("PLIMSOLL_NTFY_TOPIC") && !secrets.has("PLIMSOLL_NTFY_TOKEN"));
        assert_hidden(&format!("{secrets:?}"));
    }
    for mode in [0o644, 0o640, 0o604, 0o620, 0o601, 0o666] {
        let error = named(mode).expect_err("readable by other users");
        assert!(matches!(error, SecretsError::NotPrivate { mode: found, .. } if found == mode), "{error}");
        assert_hidden(&format!("{error} {error:?}"));
        // Also rejected as a `.env`, unless it contains no variable of Plimsoll.
        assert!(matches!(Secrets::load(|_| None, None, Some(&path)), Err(SecretsError::NotPrivate { .. })));
        write(&path, "OTHER=CANARY\nnot a line\n", mode);
        let others = Secrets::load(|_| None, None, Some(&path)).expect("another program's file");
        assert!(!VARIABLES.iter().any(|(variable, _)| others.has(variable)));
    }
}

#[test]
fn invalid_files_are_rejected_without_quoting_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secrets");
    let refused = |text: &str| {
        write(&path, text, 0o600);
        let error = Secrets::load(|_| None, Some(&path), None).expect_err(text);
        assert_hidden(&format!("{error} {error:?}"));
        error.to_string()
    };
    assert!(refused("A=1\nCANARY\n").ends_with("line 2 is not KEY=VALUE"));
    assert!(refused("PLIMSOLL_NTFY_TOPIK=CANARY\n").contains("sets no known variable"));
    assert!(refused("PLIMSOLL_NTFY_TOPIC=CANARY\u{7}bell\n").contains("PLIMSOLL_NTFY_TOPIC contains line breaks"));
    assert!(refused(&"CANARY=1\n".repeat(10_000)).contains("too large"));
    let error = Secrets::load(|_| None, Some(folder.path()), None).expect_err("a folder");
    assert!(error.to_string().contains("it is a folder"), "{error}");
    assert!(Secrets::load(|_| None, None, Some(&folder.path().join(".env"))).is_ok(), "a `.env` may be absent");
    let odd = Secrets::load(|_| Some("CANARY\nx".into()), None, None).expect_err("a line break");
    assert_hidden(&format!("{odd} {odd:?}"));
}

/// A `.env` may come from another person's folder.
#[cfg(unix)]
#[test]
fn a_dot_env_cannot_redirect_a_secret_from_another_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let dot_env = folder.path().join(".env");
    for (server, secret) in [
        ("PLIMSOLL_NTFY_SERVER", "PLIMSOLL_NTFY_TOKEN"),
        ("PLIMSOLL_NTFY_SERVER", "PLIMSOLL_NTFY_TOPIC"),
        ("PLIMSOLL_TELEGRAM_SERVER", "PLIMSOLL_TELEGRAM_TOKEN"),
        ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"),
        ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_PASSWORD"),
    ] {
        write(&dot_env, &format!("{server}=https://evil.example\n"), 0o600);
        let of = |variables: &'static [&'static str]| {
            move |name: &str| (name == secret || variables.contains(&name)).then(|| "CANARY".into())
        };
        let error = Secrets::load(of(&[]), None, Some(&dot_env)).expect_err("the server is not the user's");
        assert!(matches!(error, SecretsError::ForeignServer { server: found, .. } if found == server), "{error}");
        assert_hidden(&format!("{error} {error:?}"));
        let named = Secrets::load(
            of(&["PLIMSOLL_NTFY_SERVER", "PLIMSOLL_TELEGRAM_SERVER", "MLFLOW_TRACKING_URI"]),
            None,
            Some(&dot_env),
        );
        assert_eq!(named.expect("the user named a server").get(server).map(Secret::expose), Some("CANARY"));
        write(&dot_env, &format!("{server}=https://mine.example\n{secret}=CANARY\n"), 0o600);
        assert!(Secrets::load(|_| None, None, Some(&dot_env)).expect("server and secret").has(server));
    }
}

/// The environment takes precedence over a named file, and that over a `.env`.
#[test]
fn the_source_of_highest_priority_wins() {
    let server = [(); 3].map(|()| HttpServer::start(&[Answer::Status(200, String::new(), String::new())]));
    let folder = tempfile::tempdir().expect("a folder");
    let line = |n: usize| format!("PLIMSOLL_WEBHOOK_URL={}\n", server[n].url("/"));
    let (named, dot_env) = (folder.path().join("named"), folder.path().join(".env"));
    write(&named, &line(1), 0o600);
    write(&dot_env, &line(2), 0o600);
    let from_environment = |name: &str| (name == "PLIMSOLL_WEBHOOK_URL").then(|| server[0].url("/").into());
    let all = Secrets::load(from_environment, Some(&named), Some(&dot_env));
    let two = Secrets::load(|_| None, Some(&named), Some(&dot_env));
    let one = Secrets::load(|_| None, None, Some(&dot_env));
    for (place, secrets) in [all, two, one].into_iter().enumerate() {
        let notifier = Notifier::start(&settings(&[Service::Webhook]), &secrets.expect("secrets")).expect("a notifier");
        notifier.send(&message(Kind::Test, 1));
        assert!(notifier.finish(crate::LONG).all_arrived());
        let counts = [0, 1, 2].map(|n| server[n].requests().len());
        assert_eq!(counts, [1, usize::from(place > 0), usize::from(place > 1)]);
    }
}
