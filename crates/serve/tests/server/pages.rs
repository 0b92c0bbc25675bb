//! Responses about runs and the machine.

use crate::support::Runs;
use plimsoll_telemetry::Event;

#[test]
fn listed_runs_have_null_for_unknown_values() {
    let runs = Runs::new();
    let _a = runs.add("a", 10);
    let mut b = runs.add("b", 0);
    b.take(&Event::Interrupted { step: 0 });
    let server = runs.serve();
    let list = server.get("/api/runs").json();
    let run = |name: &str| {
        list["runs"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|run| run["name"] == name)
            .expect("the run is listed")
            .clone()
    };
    let (a, b) = (run("a"), run("b"));
    assert_eq!(
        (&a["standing"], &a["step"], &a["last_step"], &a["loss"]),
        (&"running".into(), &10.into(), &100.into(), &0.5.into())
    );
    assert_eq!((&a["planned_bytes"], &a["sparkline"].as_array().map(Vec::len)), (&(1 << 20).into(), &Some(10)));
    assert_eq!(
        (b["standing"].as_str(), b["loss"].is_null(), b["tokens_per_s"].is_null()),
        (Some("interrupted"), true, true)
    );
    let detail = server.get(&format!("/api/runs/{}", server.id("a"))).json();
    assert_eq!(detail["curves"]["loss"]["points"].as_array().map(Vec::len), Some(10));
    assert_eq!(detail["curves"]["loss"]["points"][9], serde_json::json!([10, 0.5, 0.5, 0.5]));
    assert_eq!(detail["run"]["actions"], serde_json::json!(["pause", "budget", "stop"]));
    assert!(detail["run"]["events"][0]["text"].as_str().expect("text").starts_with("started: nano"));
}

#[test]
fn the_machine_lists_no_processes() {
    let runs = Runs::new();
    let server = runs.serve();
    // The first sample may come after the first request.
    let machine = loop {
        let machine = server.get("/api/machine").json();
        if !machine["now"]["system"].is_null() {
            break machine;
        }
    };
    assert!(machine["now"]["system"]["cores"].as_u64().is_some_and(|cores| cores > 0));
    assert!(
        machine["now"]["cards"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|card| card["card"]["processes"] == serde_json::json!([]))
    );
}

#[test]
fn the_page_fetches_nothing_from_other_servers() {
    let runs = Runs::new();
    let server = runs.serve();
    let page = server.get("/").body;
    for path in ["/app.js", "/charts.js", "/map.js", "/theme.js", "/uplot.js", "/app.css", "/uplot.css", "/icon.svg"] {
        assert!(path == "/" || page.contains(&path[1..]), "{path} is not on the page");
        let file = server.get(path);
        assert_eq!(file.status, 200);
        for word in ["https://", "http://", "@import", "importScripts", "innerHTML", "eval(", "document.write"] {
            let is_name = |line: &&str| line.contains("www.w3.org/2000/svg") || line.contains("github.com/leeoniya");
            // The library sets its own markup and names its source.
            let is_library = path.starts_with("/uplot") && ["innerHTML", "https://", "http://"].contains(&word);
            let bad = file.body.lines().filter(|line| !is_name(line)).find(|line| line.contains(word));
            assert!(is_library || bad.is_none(), "{path}: {bad:?}");
        }
    }
}

/// A field that the server no longer sends would stop the page's script with a TypeError.
#[test]
fn the_page_reads_only_fields_of_a_run_that_the_server_sends() {
    let runs = Runs::new();
    let _a = runs.add("a", 1);
    let server = runs.serve();
    let run = server.get(&format!("/api/runs/{}", server.id("a"))).json()["run"].take();
    let script = server.get("/app.js").body;
    let fields = script.match_indices("run.").filter(|(at, _)| !script[..*at].ends_with(char::is_alphanumeric));
    let fields = fields.map(|(at, start)| {
        let rest = &script[at + start.len()..];
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    });
    // A sentence of a comment can end in "run.".
    let fields = fields.filter(|field| !field.is_empty()).collect::<std::collections::BTreeSet<_>>();
    assert!(fields.contains("standing") && fields.contains("checkpoints"), "{fields:?}");
    for field in fields {
        assert!(run.get(field).is_some(), "app.js reads run.{field}, which the server does not send");
    }
}

#[test]
fn reports_run_no_scripts() {
    let runs = Runs::new();
    let _a = runs.add("a", 1);
    let server = runs.serve();
    let report = server.get(&format!("/api/runs/{}/report", server.id("a")));
    assert_eq!((report.status, report.body.as_str()), (200, "<p>report of a</p>"));
    let policy = report.header("content-security-policy").expect("a policy");
    assert!(policy.contains("sandbox") && !policy.contains("script-src"), "{policy}");
}

#[test]
fn names_and_texts_of_runs_are_sent_as_json() {
    let runs = Runs::new();
    let name = "<img src=x onerror=alert(1)>";
    let mut training = runs.add(name, 1);
    training.take(&Event::CheckpointFailed { step: 1, reason: "</script><script>alert(1)</script>".to_owned() });
    let server = runs.serve();
    for path in ["/api/runs".to_owned(), format!("/api/runs/{}", server.id(name))] {
        let answer = server.get(&path);
        assert_eq!(answer.header("content-type"), Some("application/json"), "browsers do not render JSON");
        assert!(answer.body.contains("onerror"));
    }
}

#[test]
fn invalid_plans_are_not_found() {
    let runs = Runs::new();
    let training = runs.add("a", 1);
    let plan = training.folder.join("plan.json");
    let server = runs.serve();
    let path = format!("/api/runs/{}/plan", server.id("a"));
    assert_eq!(server.get(&path).status, 404, "the run has no plan");
    for text in ["", "{}", "[[[[", "null", "\u{0}"] {
        std::fs::write(&plan, text).expect("written");
        assert_eq!(server.get(&path).status, 404, "{text}");
    }
    let huge = std::fs::File::create(&plan).expect("a file");
    huge.set_len(200 << 20).expect("a sparse file");
    assert_eq!(server.get(&path).status, 404);
    #[cfg(unix)]
    {
        std::fs::remove_file(&plan).expect("the plan exists");
        std::os::unix::fs::symlink("/dev/zero", &plan).expect("a link");
        assert_eq!(server.get(&path).status, 404);
    }
    for id in ["..", "%2e%2e", "../../etc/passwd", "a", "%00", &"f".repeat(5000)] {
        assert!([404, 400, 431].contains(&server.get(&format!("/api/runs/{id}")).status), "{id}");
    }
    assert_eq!(server.get("/api/runs").status, 200);
}
