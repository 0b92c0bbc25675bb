//! Server-sent events, also after a reconnect.

use crate::support::Runs;
use serde_json::Value;

fn points(data: &Value) -> (u64, usize) {
    let part = &data["curves"]["loss"];
    (part["from"].as_u64().expect("a place"), part["points"].as_array().expect("a list").len())
}

#[test]
fn a_live_run_sends_only_the_new_points_of_its_curves() {
    let runs = Runs::new();
    let mut a = runs.add("a", 5);
    let server = runs.serve();
    let mut events = server.events(&format!("?run={}", server.id("a")), "");
    let first = events.until("run", |_| true);
    assert_eq!(points(&first.data), (0, 5));
    a.step(6);
    let next = events.until("run", |data| data["run"]["step"] == 6);
    assert_eq!(points(&next.data), (5, 1));
    (7..=1000).for_each(|step| a.step(step));
    let many = events.until("run", |data| data["run"]["step"] == 1000);
    let (from, count) = points(&many.data);
    assert_eq!(from, 0, "stretches were joined, so all have changed");
    assert!((100..=400).contains(&count), "{count}");
    runs.add("b", 1);
    events.until("runs", |data| data["runs"].as_array().is_some_and(|runs| runs.len() == 2));
}

#[test]
fn a_client_that_reconnects_receives_only_what_it_missed() {
    let runs = Runs::new();
    let mut a = runs.add("a", 5);
    let server = runs.serve();
    let query = format!("?run={}", server.id("a"));
    let mut events = server.events(&query, "");
    let had = events.until("run", |data| data["run"]["step"] == 5);
    drop(events);
    // The run has not changed: only the machine is sent.
    let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {}", had.id));
    let told = events.next().expect("the machine changes");
    assert_eq!(told.name, "machine");
    a.step(6);
    let told = events.until("run", |_| true);
    assert_eq!(points(&told.data), (5, 1), "the client has the first five");
    drop(events);
    a.step(7);
    while server.get("/api/runs").json()["runs"][0]["step"] != 7 {}
    // After a missed change the whole curve is sent, since the server no longer knows which points the client has.
    let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {}", had.id));
    assert_eq!(points(&events.until("run", |data| data["run"]["step"] == 7).data), (0, 7));
    // Ids of another start of the server and invalid ids are ignored.
    for id in ["ffffffffffff-99999", "x", "-", "99999"] {
        let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {id}"));
        assert_eq!(points(&events.until("run", |_| true).data), (0, 7), "{id}");
    }
}

#[test]
fn a_server_that_stops_ends_its_streams_and_its_next_start_accepts_old_cookies() {
    let runs = Runs::new();
    let _a = runs.add("a", 5);
    let server = runs.serve();
    let (cookie, address) = (server.cookie(), server.address);
    let mut events = server.events("", "");
    events.until("runs", |_| true);
    let began = std::time::Instant::now();
    drop(server);
    assert!(began.elapsed().as_secs_f64() < 2.5, "open pages do not delay the stop");
    while events.next().is_some() {}
    // With the same port and token, old links and cookies stay valid.
    let server = runs.serve_at(&address.to_string(), plimsoll_serve::Limits::default());
    assert_eq!(server.ask("/api/runs", &cookie).status, 200);
}
