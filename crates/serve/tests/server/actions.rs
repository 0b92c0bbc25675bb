//! The buttons' actions.

use crate::support::{Runs, bearer};
use plimsoll_orders::Order;
use plimsoll_telemetry::Event;

#[test]
fn buttons_send_orders_and_a_paused_run_has_other_buttons() {
    let runs = Runs::new();
    let mut a = runs.add("a", 3);
    let server = runs.serve();
    let id = server.id("a");
    let press = |body: &str| server.post(&format!("/api/runs/{id}/order"), &bearer(), body);
    for (body, order) in [
        ("{\"action\":\"pause\"}", Order::Pause),
        ("{\"action\":\"resume\"}", Order::Resume),
        ("{\"action\":\"budget\",\"budget\":\"6\"}", Order::Budget { bytes: 6 << 30 }),
        ("{\"action\":\"budget\",\"budget\":\"600MiB\"}", Order::Budget { bytes: 600 << 20 }),
        ("{\"action\":\"stop\"}", Order::Stop),
    ] {
        let answer = press(body);
        assert_eq!(answer.status, 202, "{answer:?}");
        assert!(!answer.json()["said"].as_str().expect("words").is_empty());
        assert_eq!(a.inbox.poll().orders.into_iter().map(|(_, order)| order).collect::<Vec<_>>(), [order]);
    }
    let mut events = server.events(&format!("?run={id}"), "");
    events.until("run", |_| true);
    a.take(&Event::Paused { step: 4, order: 1 });
    let told = events.until("run", |data| data["run"]["is_paused"] == true);
    assert_eq!(told.data["run"]["actions"], serde_json::json!(["resume", "stop"]));
    assert_eq!(told.data["run"]["standing_words"], "paused");
    a.take(&Event::Unpaused { step: 4, order: Some(2), seconds: 1.0 });
    events.until("run", |data| data["run"]["is_paused"] == false);
    a.take(&Event::OrderRefused { step: 4, order: Some(9), reason: "nothing fits".to_owned() });
    let told = events.until("run", |data| data["run"]["events"].to_string().contains("nothing fits"));
    assert_eq!(told.data["run"]["events"].as_array().expect("a list").last().expect("one")["level"], "warn");
}

#[test]
fn invalid_and_impossible_orders_are_refused_with_a_message() {
    let runs = Runs::new();
    let mut a = runs.add("a", 1);
    let server = runs.serve();
    let path = format!("/api/runs/{}/order", server.id("a"));
    for body in [
        "",
        "{}",
        "[]",
        "{\"action\":\"rm\"}",
        "{\"action\":\"stop\",\"x\":1}",
        "{\"action\":\"budget\",\"budget\":\"much\"}",
        "{\"action\":\"budget\"}",
    ] {
        let answer = server.post(&path, &bearer(), body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(!answer.json()["error"].as_str().expect("words").is_empty());
    }
    let large = format!("{{\"action\":\"{}\"}}", "x".repeat(10_000));
    assert_eq!(server.post(&path, &bearer(), &large).status, 413);
    assert_eq!(server.post("/api/runs/0123/order", &bearer(), "{\"action\":\"stop\"}").status, 404);
    assert_eq!(a.inbox.poll().orders, []);
    let folder = a.folder.clone();
    drop(a);
    let answer = server.post(&path, &bearer(), "{\"action\":\"stop\"}");
    assert_eq!((answer.status, answer.json()["error"].as_str()), (409, Some("nothing trains there")));
    assert!(folder.join("orders.jsonl").is_file());
}

/// In a shared folder another user could have created the run, with the id of any process of this user.
#[cfg(unix)]
#[test]
fn orders_to_a_run_that_another_user_controls_are_refused() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    let runs = Runs::new();
    let mut a = runs.add("a", 1);
    let b = runs.add("b", 1);
    // A supervised run whose folder names this test's process.
    std::fs::remove_file(b.folder.join("journal.jsonl")).expect("the journal exists");
    let command = vec!["python3".to_owned()];
    let entry = plimsoll_registry::Entry::new(plimsoll_registry::RunKind::Supervised, &b.folder, command);
    entry.write().expect("written");
    [&a, &b].into_iter().for_each(|run| set_permissions(&run.folder, Permissions::from_mode(0o777)).expect("changed"));
    let server = runs.serve();
    for name in ["a", "b"] {
        let path = format!("/api/runs/{}/order", server.id(name));
        for action in ["pause", "resume", "stop"] {
            let answer = server.post(&path, &bearer(), &format!("{{\"action\":\"{action}\"}}"));
            let told = answer.json()["error"].as_str().expect("words").to_owned();
            assert!(answer.status == 409 && told.contains("other users can write to"), "{name}, {action}: {told}");
        }
    }
    assert_eq!(a.inbox.poll().orders, []);
}
