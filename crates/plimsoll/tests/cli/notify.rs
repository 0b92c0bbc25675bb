//! `plimsoll notify test` and notifications of a run: recipients, messages, and secrets that must not appear.
#![cfg(unix)]

use crate::support::receiver::MessageServer;
use crate::support::{Said, Sandbox};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Receiver, channel};

/// Writes a file of secrets with this mode.
fn write(sandbox: &Sandbox, name: &str, text: &str, mode: u32) {
    sandbox.write(name, text);
    fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(mode)).expect("a mode");
}

/// The output of a command, which must not contain a canary.
fn said(sandbox: &Sandbox, arguments: &str) -> Said {
    let said = sandbox.run(arguments);
    for text in [said.stdout_text(), said.stderr.as_str()] {
        assert!(!text.contains("CANARY"), "{arguments}: {text}");
    }
    said
}

#[test]
fn every_configured_service_gets_a_message() {
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(200));
    let url = &server.url;
    let secrets = format!(
        "PLIMSOLL_DISCORD_WEBHOOK={url}/discord/CANARY\nPLIMSOLL_SLACK_WEBHOOK={url}/slack/CANARY\n\
         PLIMSOLL_TELEGRAM_TOKEN=1:CANARY\nPLIMSOLL_TELEGRAM_CHAT=CANARY\nPLIMSOLL_TELEGRAM_SERVER={url}\n\
         PLIMSOLL_NTFY_TOPIC=CANARY\nPLIMSOLL_NTFY_SERVER={url}/ntfy\nPLIMSOLL_WEBHOOK_URL={url}/hook/CANARY\n"
    );
    write(&sandbox, ".env", &secrets, 0o600);
    let all = said(&sandbox, "notify test");
    assert_eq!(all.code, Some(0), "{}", all.stderr);
    let lines = ["discord   sent", "slack     sent", "telegram  sent", "ntfy      sent", "webhook   sent"];
    assert_eq!(all.stdout_text().lines().collect::<Vec<_>>(), lines);
    let mut paths = (0..5).map(|_| server.requests.recv().expect("a request")).collect::<Vec<_>>();
    assert!(paths.iter().all(|request| request.contains("test message")), "{paths:?}");
    paths.sort();
    assert!(paths[0].starts_with("POST /bot1:CANARY/sendMessage ") && paths[3].starts_with("POST /ntfy "), "{paths:?}");
    let two = said(&sandbox, "notify test --notify ntfy,slack --json");
    let value = serde_json::from_str::<serde_json::Value>(two.stdout_text()).expect("JSON");
    let expected = serde_json::json!({ "senders": [
        { "service": "ntfy", "sent": true, "error": null }, { "service": "slack", "sent": true, "error": null },
    ] });
    assert_eq!((two.code, value), (Some(0), expected));
}

#[test]
fn a_run_sends_its_events_and_no_file_of_it_has_a_secret() {
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(200));
    let flags = "--name told --max-steps 600 --checkpoint-every 300 --notify-every 2 --sample-every 0.05s";
    let mut command = sandbox.command(Sandbox::train_arguments(flags));
    command.env("PLIMSOLL_WEBHOOK_URL", format!("{}/hook/CANARY", server.url));
    let said = Said::of(command.output().expect("the binary runs"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let kinds = server.requests.try_iter().map(|request| {
        let (_, body) = request.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str::<serde_json::Value>(body).expect("JSON")["kind"].as_str().expect("a kind").to_owned()
    });
    let kinds = kinds.collect::<Vec<_>>();
    // At the end of a run its last message precedes waiting ones, and waiting progress is dropped; there is so much
    // progress that some was sent before.
    assert_eq!(kinds.first().map(String::as_str), Some("start"), "{kinds:?}");
    for (kind, times) in [("start", 1..=1), ("progress", 1..=300), ("checkpoint", 1..=2), ("end", 1..=1)] {
        let told = kinds.iter().filter(|told| *told == kind).count();
        assert!(times.contains(&told), "{kind}: {kinds:?}");
    }
    for file in ["config.yaml", "journal.jsonl", "report.json", "report.html"] {
        assert!(!sandbox.text(&format!("runs/told/{file}")).contains("CANARY"), "{file}");
    }
    // Missing secrets are reported before any file is written.
    let refused = said_of_train(&sandbox, "--name none --notify slack");
    assert!(refused.code == Some(4) && refused.stderr.contains("PLIMSOLL_SLACK_WEBHOOK"), "{}", refused.stderr);
    assert!(!sandbox.path("runs/none").exists());
}

/// A mail server that refuses every client, and counts connections.
fn refusing_mail_server() -> (String, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (sender, came) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // Count the connection before the client sees the answer.
            let _ = sender.send(());
            let _ = stream.write_all(b"554 no\r\n");
        }
    });
    (address, came)
}

/// The settings in a run's folder may come from another user.
#[test]
fn mail_goes_only_to_servers_that_this_user_named() {
    let sandbox = Sandbox::new();
    let (server, came) = refusing_mail_server();
    let of_user = |flags: &str| {
        let mut command = sandbox.command(Sandbox::train_arguments(flags));
        command.env("PLIMSOLL_SMTP_USER", "me").env("PLIMSOLL_SMTP_PASSWORD", "CANARY");
        let said = Said::of(command.output().expect("the binary runs"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        (said.stderr, came.try_iter().count())
    };
    let mail = format!("--mail-to a@b.example --smtp {server}");
    let (_, visits) = of_user(&format!("--name own --max-steps 5 {mail} --smtp-encryption none"));
    assert!(visits > 0, "no mail is sent");
    let (said, visits) = of_user("--resume runs/own --max-steps 6");
    assert!(visits > 0 && !said.contains("never named"), "a run of this machine is resumed without its mail: {said}");
    let forget = || fs::remove_dir_all(sandbox.path(".local/state/plimsoll")).expect("it was there");
    forget();
    let (said, visits) = of_user("--resume runs/own --max-steps 7");
    assert_eq!(visits, 0, "the password of this user was sent to a server that a folder names: {said}");
    let warning = "runs/own/config.yaml names a mail server or recipients that were never named on this machine; continuing \
                   without mail";
    assert!(
        said.contains(warning) && said.contains(&format!("hint: `--smtp {server} --mail-to a@b.example` allows it")),
        "{said}"
    );
    // A server that was allowed once stays allowed.
    let allowed = format!("--resume runs/own --max-steps 8 {mail} --smtp-encryption none");
    assert!(of_user(&allowed).1 > 0);
    assert!(of_user("--resume runs/own --max-steps 9").1 > 0);
    forget();
    sandbox.write("runs/own/mine", format!("PLIMSOLL_WEBHOOK_URL=http://{server}/\n"));
    fs::set_permissions(sandbox.path("runs/own/mine"), fs::Permissions::from_mode(0o600)).expect("permissions");
    let config = sandbox
        .text("runs/own/config.yaml")
        .lines()
        .filter(|line| !line.contains("mail") && !line.starts_with("smtp"))
        .collect::<Vec<_>>()
        .join("\n");
    sandbox.write("runs/own/config.yaml", format!("{config}\nsecrets: runs/own/mine\n"));
    let (said, visits) = of_user("--resume runs/own --max-steps 10");
    assert!(
        visits == 0 && said.contains("names a file of secrets that was never named on this machine; it is not read"),
        "{said}"
    );
}

fn said_of_train(sandbox: &Sandbox, flags: &str) -> Said {
    Said::of(sandbox.command(Sandbox::train_arguments(flags)).output().expect("the binary runs"))
}

#[test]
fn failed_messages_are_reported_without_secrets() {
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(404));
    write(&sandbox, "mine", &format!("PLIMSOLL_WEBHOOK_URL={}/hook/CANARY?key=CANARY\n", server.url), 0o400);
    let refused = said(&sandbox, "notify test --secrets mine");
    assert_eq!(refused.code, Some(5));
    let line = refused.stdout_text();
    assert!(line.starts_with("webhook   failed: the server returned status 404: POST /…"), "{line}");
    assert_eq!(
        refused.stderr,
        "sending a test message by webhook; this can take up to 30 s\nerror: 1 of 1 test messages did not arrive\n"
    );
    // The environment overrides the file.
    let mut command = sandbox.command(["notify", "test", "--secrets", "mine"]);
    command.env("PLIMSOLL_WEBHOOK_URL", "http://CANARY.example/");
    let refused = Said::of(command.output().expect("the binary runs"));
    assert_eq!(refused.code, Some(4));
    assert_eq!(refused.stderr, "error: PLIMSOLL_WEBHOOK_URL does not use TLS, so others could read it; use https://\n");
}

#[test]
fn unusable_settings_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let unset = said(&sandbox, "notify test");
    assert_eq!(unset.code, Some(4));
    assert!(
        unset
            .stderr
            .starts_with("error: no service is configured, so no message is sent\nhint: for mail, use `--mail-to")
    );
    write(&sandbox, "open", "PLIMSOLL_NTFY_TOPIC=CANARY\n", 0o644);
    let open = said(&sandbox, "notify test --secrets open");
    assert_eq!(open.code, Some(4));
    assert_eq!(
        open.stderr,
        "error: open is readable by other users (mode 644)\nhint: `chmod 600 open` lets only you read it\n"
    );
    for (arguments, code, message) in [
        ("notify test --notify telegram", 4, "telegram needs PLIMSOLL_TELEGRAM_TOKEN and PLIMSOLL_TELEGRAM_CHAT"),
        ("notify test --notify mail", 2, "mail needs a recipient and an SMTP server"),
        ("notify test --mail-to me@example.com", 2, "mail needs a recipient and an SMTP server"),
        ("notify test --mail-to me --smtp localhost", 2, "`me` is not a mail address such as me@example.com"),
        (
            "notify test --mail-to a@b.example --smtp smtp://me:CANARY@host:465",
            2,
            "the mail server must be a host and a port such as smtp.example.com:465",
        ),
        (
            "notify test --mail-to a@b.example --smtp mail.example:25 --smtp-encryption none",
            2,
            "mail to mail.example requires TLS; only a server on this machine may be used without it",
        ),
        ("notify test --mail-to a@b.example --smtp localhost --smtp-ca open", 4, "open: not a PEM certificate"),
        ("notify test --secrets nothing", 4, "nothing: No such file or directory (os error 2)"),
    ] {
        let refused = said(&sandbox, arguments);
        assert_eq!((refused.code, refused.stderr.lines().next()), (Some(code), Some(&*format!("error: {message}"))));
    }
    let unknown = said(&sandbox, "notify test --notify pigeon");
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("unknown service `pigeon`; use mail, discord"), "{}", unknown.stderr);
    let help = said(&sandbox, "notify test --help");
    assert!(help.code == Some(0) && !help.stdout_text().contains("password"), "{}", help.stdout_text());
}
