//! Clients that are slow, numerous, or send too much.

use crate::support::{Runs, bearer};
use plimsoll_serve::{Limits, Options, ServeError, Server, Token};
use plimsoll_watch::Places;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

fn limits() -> Limits {
    let [request, stalled] = [300, 300].map(Duration::from_millis);
    Limits { connections: 4, streams: 2, request, stalled }
}

#[test]
fn silent_clients_and_half_requests_lose_their_slots() {
    let runs = Runs::new();
    let server = runs.serve_at("127.0.0.1:0", limits());
    let mut idle = (0..4).map(|_| server.connect()).collect::<Vec<_>>();
    idle[0].write_all(b"GET /api/runs HTTP/1.1\r\nHost: loc").expect("the server reads");
    assert_eq!(server.get("/api/runs").status, 200, "a slot is free once the others are closed");
    for stream in &mut idle {
        let mut rest = Vec::new();
        // The server closed the connection, with or without a response.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"), "{rest:?}");
    }
}

#[test]
fn event_streams_are_limited_and_a_closed_one_makes_room() {
    let runs = Runs::new();
    let _a = runs.add("a", 1);
    let server = runs.serve_at("127.0.0.1:0", Limits { connections: 8, ..limits() });
    let open = [0; 2].map(|_| {
        let mut events = server.events("", "");
        events.until("runs", |_| true);
        events
    });
    let refused = server.get("/api/events");
    assert_eq!(
        (refused.status, refused.json()["error"].as_str()),
        (503, Some("too many pages are open; close one and retry"))
    );
    assert_eq!(server.get("/api/runs").status, 200, "other requests are served");
    drop(open);
    // The server notices the closed stream at its next write.
    while server.say(&format!("HEAD /api/events HTTP/1.1\r\nHost: {}{}", server.address, bearer()), "").status == 503 {}
}

#[test]
fn a_client_that_does_not_read_blocks_no_other_and_is_closed() {
    let runs = Runs::new();
    let mut a = runs.add("a", 1);
    let server = runs.serve_at("127.0.0.1:0", Limits { connections: 8, ..limits() });
    let id = server.id("a");
    let mut deaf = server.connect();
    let head = format!("GET /api/events?run={id} HTTP/1.1\r\nHost: {}{}\r\n\r\n", server.address, bearer());
    deaf.write_all(head.as_bytes()).expect("the server reads");
    let mut events = server.events(&format!("?run={id}"), "");
    // Far more than the system buffers for a connection.
    for round in 0..400_u64 {
        (1..=50).for_each(|step| a.step(1 + round * 50 + step));
        if round % 40 == 0 {
            events.until("run", |data| data["run"]["step"].as_u64() >= Some(1 + round * 50 + 50));
        }
    }
    assert_eq!(server.get("/api/runs").status, 200);
}

#[test]
fn requests_that_are_too_long_are_refused() {
    let runs = Runs::new();
    let server = runs.serve();
    let long = "x".repeat(100_000);
    assert!([400, 431, 0].contains(&server.ask("/api/runs", &format!("\r\nX-Long: {long}{}", bearer())).status));
    assert!([414, 400, 431, 0].contains(&server.get(&format!("/api/runs?{long}")).status));
    let many = (0..500).map(|n| format!("\r\nX-{n}: 1")).collect::<String>();
    assert!([400, 431].contains(&server.ask("/api/runs", &format!("{many}{}", bearer())).status));
    for nonsense in ["\u{0}\u{1}", "GET", "GET / HTTP/9.9", "PRI * HTTP/2.0"] {
        assert_ne!(server.say(nonsense, "").status, 200, "{nonsense:?}");
    }
    assert_eq!(server.get("/api/runs").status, 200);
}

#[test]
fn a_port_in_use_is_an_error_and_ipv4_and_ipv6_addresses_work() {
    let runs = Runs::new();
    let server = runs.serve();
    let options = Options {
        listen: server.address,
        token: Token::parse("another-token").expect("fit"),
        hosts: vec![],
        places: Places::default(),
        named: vec![],
        every: Duration::from_secs(1),
        limits: Limits::default(),
        report: Box::new(|_| Err(String::new())),
    };
    match Server::start(options) {
        Err(ServeError::Listen { address, source }) => {
            assert_eq!((address, source.kind()), (server.address, ErrorKind::AddrInUse));
        }
        other => panic!("{:?}", other.map(|_| "a server").err()),
    }
    // Some machines have no IPv6.
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        let server = runs.serve_at("[::1]:0", Limits::default());
        assert_eq!(server.get("/api/runs").status, 200);
    }
}

/// Hundreds of connections from the user's own address: silent ones, heads that arrive byte by byte, bodies that never
/// end, with and without the token. The time limits are the defaults.
#[test]
fn a_user_is_served_whatever_other_clients_do() {
    let runs = Runs::new();
    let server = runs.serve_at("127.0.0.1:0", Limits::default());
    let cookie = server.cookie();
    let mut streams = vec![];
    for kind in 0..300 {
        let mut stream = server.connect();
        let said = match kind % 4 {
            0 => String::new(),
            1 => "GET /api/runs HTTP/1.1\r\nHost: lo".to_owned(),
            2 => format!(
                "POST /api/runs/x/order HTTP/1.1\r\nHost: {}{}\r\nContent-Length: 4000\r\n\r\n{{",
                server.address,
                bearer()
            ),
            _ => format!("POST / HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", server.address),
        };
        let _ = stream.write_all(said.as_bytes());
        streams.push(stream);
        if kind % 50 == 49 {
            // Send one more byte to the open connections.
            streams.iter_mut().for_each(|stream| drop(stream.write_all(b"c")));
            let begun = std::time::Instant::now();
            assert_eq!(server.ask("/api/runs", &cookie).status, 200);
            assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        }
    }
}

#[test]
fn a_body_that_does_not_end_is_refused() {
    let runs = Runs::new();
    let server = runs.serve_at("127.0.0.1:0", Limits { connections: 8, ..limits() });
    let mut stream = server.connect();
    let head = format!("POST /api/runs/x/order HTTP/1.1\r\nHost: {}{}\r\n", server.address, bearer());
    stream.write_all(format!("{head}Content-Length: 4000\r\n\r\n{{").as_bytes()).expect("the server reads");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert_eq!(server.post("/api/runs/x/order", &bearer(), &"x".repeat(5000)).status, 413);
}
