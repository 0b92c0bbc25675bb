//! `/metrics` and its dashboard, requested as Prometheus and Grafana do. `src/metrics/tests.rs` tests their contents.

use crate::support::{Runs, bearer};

#[test]
fn metrics_have_the_requested_format_and_the_dashboard_is_served() {
    let runs = Runs::new();
    let _run = runs.add("a", 10);
    let server = runs.serve();
    for (accept, kind, end) in [
        (
            "application/openmetrics-text;version=1.0.0",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            true,
        ),
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8", false),
    ] {
        let answer = server.ask("/metrics", &format!("{}\r\nAccept: {accept}", bearer()));
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)));
        let step = answer.body.lines().find(|line| line.starts_with("plimsoll_run_step{run=\"a\"")).expect("a line");
        assert!(step.ends_with(" 10.0"), "{step}");
        assert_eq!(answer.body.ends_with("# EOF\n"), end);
    }
    assert_eq!(server.get("/grafana.json").json()["title"], "Plimsoll");
    assert_eq!(server.ask("/grafana.json", "").status, 401);
}
