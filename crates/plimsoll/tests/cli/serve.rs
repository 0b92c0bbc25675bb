//! `plimsoll serve`: its link, its token, its end. Its own crate tests its responses.

#![cfg(unix)]

use crate::interrupt::{end_of, signal};
use crate::support::{Said, Sandbox};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

/// A server, and the link that it printed.
struct Serving {
    child: Child,
    link: String,
}

impl Serving {
    fn start(sandbox: &Sandbox, flags: &str) -> Self {
        let arguments = ["serve"].into_iter().chain(flags.split_whitespace());
        let mut command = sandbox.command(arguments);
        command.env_remove("PLIMSOLL_TOKEN");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let mut link = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut link).expect("a line");
        assert!(link.starts_with("http://"), "{link}: {}", end_of(child).stderr);
        Self { child, link: link.trim().to_owned() }
    }

    /// The address and the token of the link.
    fn parts(&self) -> (&str, &str) {
        self.link.trim_start_matches("http://").split_once("/?token=").expect("a link with a token")
    }

    /// The response for a path.
    fn get(&self, path: &str) -> String {
        let (address, token) = self.parts();
        let mut stream = TcpStream::connect(address).expect("it listens");
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("the peer reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn end(self, by: &str) -> Said {
        signal(&self.child, by);
        end_of(self.child)
    }
}

/// The parent prints the server's link and ends, or shows its error with its exit code.
#[test]
fn a_server_in_the_background_outlives_its_parent() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("serve --detach --listen 127.0.0.1:0 --token my-own-token");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let link = said.stdout_text().trim().to_owned();
    assert!(link.starts_with("http://127.0.0.1:") && said.stdout_text().lines().count() == 1, "{link}");
    assert!(!said.stderr.contains("my-own-token"), "only stdout has the token: {}", said.stderr);
    let address = link.trim_start_matches("http://").split('/').next().expect("an address").to_owned();
    TcpStream::connect(&address).expect("it listens");
    let other = sandbox.run(&format!("serve --detach --listen {address} --token my-own-token"));
    assert!(other.code == Some(5) && other.stderr.contains("in use"), "{}", other.stderr);
    let (_, rest) = said.stderr.split_once("`kill ").expect("how to stop it");
    let pid = rest.split('`').next().expect("a process");
    assert!(std::process::Command::new("kill").arg(pid).status().expect("kill").success());
    let mode = std::fs::metadata(sandbox.path(".local/state/plimsoll/serve.log")).expect("a log").permissions().mode();
    assert_eq!(mode & 0o077, 0, "the log has the token");
}

#[test]
fn it_serves_the_runs_of_a_folder_until_a_signal() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name served --max-steps 3");
    for by in ["INT", "TERM"] {
        let serving = Serving::start(&sandbox, "--listen 127.0.0.1:0 --token my-own-token");
        assert_eq!(serving.parts().1, "my-own-token");
        assert!(serving.get("/api/runs").contains("\"served\""));
        let list = serving.get("/api/runs");
        let id = list.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id").to_owned();
        let plan = serving.get(&format!("/api/runs/{id}/plan"));
        assert!(plan.starts_with("HTTP/1.1 200") && plan.contains("\"rects\":[{"), "{}", &plan[..300.min(plan.len())]);
        let report = serving.get(&format!("/api/runs/{id}/report"));
        assert!(report.contains("<!DOCTYPE html>") && report.contains("served"), "the page of `plimsoll report`");
        assert!(serving.get("/metrics").contains("plimsoll_"));
        // An open page does not delay the end.
        let mut open = TcpStream::connect(serving.parts().0).expect("it listens");
        let head = format!(
            "GET /api/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer my-own-token\r\n\r\n",
            serving.parts().0
        );
        open.write_all(head.as_bytes()).expect("the peer reads");
        open.read_exact(&mut [0; 15]).expect("it answers");
        let ended = serving.end(by);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains("my-own-token"), "{}", ended.stderr);
    }
}

#[test]
fn a_generated_token_is_private_and_makes_the_same_link_again() {
    let sandbox = Sandbox::new();
    let token = || {
        let serving = Serving::start(&sandbox, "--listen [::ffff:127.0.0.1]:0");
        let token = serving.parts().1.to_owned();
        assert_eq!(serving.end("TERM").code, Some(0));
        token
    };
    let (first, again) = (token(), token());
    assert_eq!(first, again);
    assert!(first.len() >= 32, "{first}");
    let kept = sandbox.path(".local/state/plimsoll/serve-token");
    assert_eq!(std::fs::metadata(&kept).expect("it is kept").permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let said = sandbox.run("serve --listen 127.0.0.1:0");
    assert!(said.code == Some(4) && said.stderr.contains("other users can read this file"), "{}", said.stderr);
    assert!(said.stderr.contains("hint: ") && !said.stderr.contains(&first), "{}", said.stderr);
}

#[test]
fn an_unavailable_address_is_an_error_with_a_hint() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let said = sandbox.run(&format!("serve --listen {address} --token my-own-token"));
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("{address} is in use")) && said.stderr.contains("hint: "), "{}", said.stderr);
    for (flags, code, words) in [
        ("--listen nowhere", 2, "address with a port"),
        ("--listen 127.0.0.1", 2, "address with a port"),
        ("--listen 203.0.113.7:7077 --token my-own-token", 2, "--listen 0.0.0.0:7077"),
        ("--listen 0 --token short", 2, "8 to 200"),
        ("--listen 0 --token has/slash", 2, "letters"),
        ("--listen 0 --token my-own-token --run nothing", 4, "plimsoll ps"),
    ] {
        let said = sandbox.run(&format!("serve {flags}"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
}

#[test]
fn listening_beyond_this_machine_warns_and_prints_a_working_link() {
    let sandbox = Sandbox::new();
    let serving = Serving::start(&sandbox, "--listen 0.0.0.0:0 --token my-own-token");
    assert!(serving.link.starts_with("http://127.0.0.1:"), "{}", serving.link);
    assert!(serving.get("/api/runs").starts_with("HTTP/1.1 200"));
    let ended = serving.end("TERM");
    assert!(
        ended.stderr.contains("warning: listening on 0.0.0.0") && ended.stderr.contains("ssh -L"),
        "{}",
        ended.stderr
    );
    let serving = Serving::start(&sandbox, "--listen 127.0.0.1:0 --token my-own-token");
    assert!(!serving.end("TERM").stderr.contains("warning"));
}
