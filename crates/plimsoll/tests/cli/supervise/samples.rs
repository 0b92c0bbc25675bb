//! Samples while a program runs, with the NVML stand-in: memory of the card in the run's reports, and status messages.

use super::heat::{on_card, set_reading};
use super::*;
use crate::support::receiver::MessageServer;

/// Prints steps until a file exists.
const STEPS: &str = "i=0; while [ ! -e done ]; do i=$((i+1)); echo \"step $i/1000\"; sleep 0.02; done";

#[test]
fn the_peak_memory_of_a_card_is_in_the_runs_reports() {
    let sandbox = Sandbox::new();
    let mut command = on_card(&sandbox, "0 0 used 300\n", "--sample-every 0.02s", STEPS);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let samples = || plimsoll_telemetry::history(&sandbox.path("runs/it"), 0.0..f64::INFINITY).unwrap_or_default();
    let is_sampled = |mib| {
        samples().iter().flat_map(|sample| &sample.cards).any(|card| card.used == Some(plimsoll_units::Bytes::mib(mib)))
    };
    until("memory is sampled", || is_sampled(300));
    set_reading(&sandbox, "used", 5000);
    until("more memory is sampled", || is_sampled(5000));
    let running = sandbox.run("report runs/it");
    assert!(running.code == Some(0) && running.stdout_text().contains("running"), "{}", running.stderr);
    set_reading(&sandbox, "used", 200);
    until("less memory is sampled", || is_sampled(200));
    sandbox.write("done", "");
    assert_eq!(end_of(child).code, Some(0));
    let peak = 5000_u64 << 20;
    assert_eq!(report(&sandbox)["cards"][0]["peak_bytes"], peak);
    assert_eq!(listed(&sandbox, "--all")[0]["cards"][0]["peak_bytes"], peak);
    assert!(sandbox.run("ps --all").stdout_text().contains("4.88 GiB"));
    let said = sandbox.run("report runs/it");
    for words in ["# it", "finished, exit code 0", "| NVIDIA GeForce RTX 3060 | 4.88 GiB | 12.0 GiB |", "## Attempts"] {
        assert!(said.stdout_text().contains(words), "{words} is not in {}", said.stdout_text());
    }
    let json = sandbox.run("report runs/it --json").json();
    assert_eq!((&json["cards"][0]["peak_bytes"], &json["report"]["status"]), (&peak.into(), &"finished".into()));
    assert!(!json["cards"][0]["memory"].as_array().expect("a list").is_empty());
    assert_eq!(sandbox.run("report runs/it --html x.html").code, Some(2));
}

/// As with `train`, a status message has the step from the output, and the cards.
#[test]
fn a_status_is_sent_while_a_program_runs() {
    let (sandbox, server) = (Sandbox::new(), MessageServer::start(200));
    let flags = "--sample-every 0.02s --notify webhook --notify-every 2";
    let mut command = on_card(&sandbox, "0 0 used 300\n", flags, STEPS);
    command.env("PLIMSOLL_WEBHOOK_URL", format!("{}/hook", server.url));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let status = server.requests.iter().find_map(|request| {
        let (_, body) = request.split_once("\r\n\r\n").expect("a body");
        let message = serde_json::from_str::<Value>(body).expect("JSON");
        (message["kind"] == "progress").then_some(message)
    });
    sandbox.write("done", "");
    let status = status.expect("a status");
    assert!(status["step"].as_u64().is_some_and(|step| step >= 2), "{status}");
    assert_eq!((&status["last_step"], &status["cards"][0]["used_bytes"]), (&1000.into(), &(300_u64 << 20).into()));
    assert!(status["text"].as_str().is_some_and(|text| text.starts_with("Running for ")), "{status}");
    let said = end_of(child);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}
