//! What changes is told, to those who come back too.

use crate::support::Runs;
use serde_json::Value;

fn points(data: &Value) -> (u64, usize) {
    let part = &data["curves"]["loss"];
    (part["from"].as_u64().expect("a place"), part["points"].as_array().expect("a list").len())
}

#[test]
fn a_live_run_is_followed_and_only_what_is_new_of_its_curves_is_sent() {
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
    assert_eq!(from, 0, "stretches were joined, so that all are others");
    assert!((100..=400).contains(&count), "{count}");
    runs.add("b", 1);
    events.until("runs", |data| data["runs"].as_array().is_some_and(|runs| runs.len() == 2));
}

#[test]
fn who_comes_back_gets_what_it_missed_and_nothing_twice() {
    let runs = Runs::new();
    let mut a = runs.add("a", 5);
    let server = runs.serve();
    let query = format!("?run={}", server.id("a"));
    let mut events = server.events(&query, "");
    let had = events.until("run", |data| data["run"]["step"] == 5);
    drop(events);
    // Nothing of the run has changed: only the machine is told.
    let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {}", had.id));
    let told = events.next().expect("the machine changes");
    assert_eq!(told.name, "machine");
    a.step(6);
    let told = events.until("run", |_| true);
    assert_eq!(points(&told.data), (5, 1), "it has the first five");
    drop(events);
    a.step(7);
    while server.get("/api/runs").json()["runs"][0]["step"] != 7 {}
    // What changed meanwhile is sent whole, since nobody knows any more what it had.
    let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {}", had.id));
    assert_eq!(points(&events.until("run", |data| data["run"]["step"] == 7).data), (0, 7));
    // Numbers of another start of the server, and what are none, are nobody's.
    for id in ["ffffffffffff-99999", "x", "-", "99999"] {
        let mut events = server.events(&query, &format!("\r\nLast-Event-ID: {id}"));
        assert_eq!(points(&events.until("run", |_| true).data), (0, 7), "{id}");
    }
}

#[test]
fn a_server_that_ends_ends_its_streams_and_its_next_start_goes_on() {
    let runs = Runs::new();
    let _a = runs.add("a", 5);
    let server = runs.serve();
    let (cookie, address) = (server.cookie(), server.address);
    let mut events = server.events("", "");
    events.until("runs", |_| true);
    let began = std::time::Instant::now();
    drop(server);
    assert!(began.elapsed().as_secs_f64() < 2.5, "open pages keep nobody waiting");
    while events.next().is_some() {}
    // The same port and token: links and cookies are as good as before.
    let server = runs.serve_at(&address.to_string(), plimsoll_serve::Limits::default());
    assert_eq!(server.ask("/api/runs", &cookie).status, 200);
}
