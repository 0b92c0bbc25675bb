//! The page of real runs: its figures equal those of the journal and the report.

use crate::support::Sandbox;
use serde_json::Value;
use std::fs;

/// The text of a figure on the page.
fn figure<'p>(page: &'p str, what: &str) -> &'p str {
    let rest = page.split(&format!("<dt>{what}</dt><dd>")).nth(1).unwrap_or_else(|| panic!("no {what}: {page}"));
    rest.split('<').next().expect("a figure ends")
}

fn events(sandbox: &Sandbox, run: &str) -> Vec<Value> {
    let journal = sandbox.text(&format!("{run}/journal.jsonl"));
    journal.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_run_leaves_a_page_whose_figures_are_its_journal_s() {
    let sandbox = Sandbox::new();
    let said = sandbox.must_train("--name run --eval-every 10 --sample-tokens 16");
    assert!(said.stderr.contains("\npage       runs/run/report.html\n"), "{}", said.stderr);
    let page = sandbox.text("runs/run/report.html");
    assert!(page.starts_with("<!DOCTYPE html>") && page.len() < 300_000);
    let events = events(&sandbox, "runs/run");
    let of = |name: &str, key: &str| {
        let found = events.iter().filter(|event| event["event"] == *name);
        found.map(|event| event[key].as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let losses = of("step", "loss");
    assert_eq!(figure(&page, "steps"), losses.len().to_string());
    assert_eq!(figure(&page, "loss"), format!("{:.4}", losses[losses.len() - 1]));
    let lowest = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(page.contains(&format!("lowest {lowest:.4} after step ")), "{page}");
    for (index, loss) in losses.iter().enumerate() {
        let row = format!("<th scope=\"row\">{}</th><td>{loss:.4}</td>", index + 1);
        assert!(page.contains(&row), "the page lacks step {}: {row}", index + 1);
    }
    for (step, loss) in of("evaluated", "step").iter().zip(of("evaluated", "loss")) {
        assert!(page.contains(&format!("<th scope=\"row\">{step}</th><td>{loss:.4}</td>")), "step {step}");
    }
    let report = sandbox.json("runs/run/report.json");
    let bytes = |value: &Value| {
        let digits = value.as_u64().expect("bytes").to_string();
        let groups = digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).expect("digits"));
        groups.collect::<Vec<_>>().join(",")
    };
    for value in [&report["plan"]["peak_bytes"], &report["measured"]["touched_bytes"], &report["plan"]["budget_bytes"]]
    {
        assert!(page.contains(&format!("<td>{}</td>", bytes(value))), "the page lacks {value} bytes");
    }
    assert_eq!(
        figure(&page, "tokens/s").replace(',', ""),
        format!("{}", report["measured"]["tokens_per_s"].as_f64().expect("a number") as u64)
    );
    assert!(page.contains("weight_decay: ") && page.contains("max_steps: 20"), "its settings");
    assert!(page.contains("A sample after step 20"), "{page}");
    assert_eq!(sandbox.json("runs/run/sample.json")["step"], 20);
    // The command makes the same page.
    let again = sandbox.run("report");
    assert_eq!((again.code, again.stdout_text()), (Some(0), "runs/run/report.html\n"), "{}", again.stderr);
    assert_eq!(sandbox.text("runs/run/report.html"), page);
    let there = sandbox.run("report runs/run --html page.html");
    assert_eq!((there.code, there.stdout_text()), (Some(0), "page.html\n"), "{}", there.stderr);
    assert_eq!(sandbox.text("page.html"), page);
}

#[test]
fn a_page_follows_its_run_through_resumes() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run --max-steps 10");
    sandbox.must_train("--resume runs/run --max-steps 20");
    let page = sandbox.text("runs/run/report.html");
    assert_eq!((figure(&page, "steps"), page.contains("in 2 sessions")), ("20", true));
    let attempts = &sandbox.json("runs/run/report.json")["attempts"];
    assert_eq!((&attempts["count"], &attempts["success_rate"]), (&2.into(), &1.0.into()), "{attempts}");
    // Killed in its next session: the last report's memory figures belong to an earlier one.
    let journal = sandbox.text("runs/run/journal.jsonl");
    let started = journal.lines().rfind(|line| line.contains("\"run_started\"")).expect("it started");
    sandbox.write("runs/run/journal.jsonl", format!("{journal}{started}\n{{\"torn\":"));
    let said = sandbox.run("report runs/run");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let page = sandbox.text("runs/run/report.html");
    assert!(page.contains("<h1>run: cut short") && page.contains("in 3 sessions"), "{page}");
    assert!(page.contains("<th scope=\"row\">success rate</th><td>67 %</td>"), "{page}");
    let resumed = sandbox.train("--resume runs/run --max-steps 30");
    assert!(resumed.stderr.contains("attempts   4; 75 %"), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("failures: 1 × cut short"), "{}", resumed.stderr);
    assert!(page.contains("<th scope=\"row\">touched (the device, by its highest region)</th><td>-</td><td>-</td>"));
}

#[test]
fn folders_that_are_not_runs_have_no_page() {
    let sandbox = Sandbox::new();
    for (arguments, code, words) in [
        ("report", 2, "error: there is no run in `runs`\nhint: "),
        ("report tiny", 4, "error: tiny is not the folder of a run: it has no journal.jsonl\nhint: "),
        ("report nowhere", 4, "error: nowhere is not the folder of a run"),
        ("report text.txt", 4, "error: text.txt is not the folder of a run"),
    ] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        assert!(said.stderr.starts_with(words), "{arguments}: {}", said.stderr);
    }
    sandbox.must_train("--name run --max-steps 1");
    let said = sandbox.run("report runs/run --html no/such/folder/page.html");
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: no/such/folder/page.html: "), "{}", said.stderr);
}

/// A folder of another user cannot redirect the page, neither with links nor with pipes.
#[cfg(unix)]
#[test]
fn the_page_of_a_received_folder_is_written_only_inside_it() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run --max-steps 2");
    sandbox.write("precious", "precious");
    for name in ["report.html", ".report.html.writing"] {
        let _ = fs::remove_file(sandbox.path(&format!("runs/run/{name}")));
        std::os::unix::fs::symlink(sandbox.path("precious"), sandbox.path(&format!("runs/run/{name}")))
            .expect("a link");
    }
    let said = sandbox.run("report runs/run");
    assert_eq!((said.code, sandbox.text("precious").as_str()), (Some(0), "precious"), "{}", said.stderr);
    assert!(sandbox.text("runs/run/report.html").starts_with("<!DOCTYPE html>"));
    for (name, code) in [("config.yaml", 0), ("report.json", 0), ("sample.json", 0), ("lock", 0), ("journal.jsonl", 4)]
    {
        let path = sandbox.path(&format!("runs/run/{name}"));
        let _ = fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        let said = sandbox.run("report runs/run");
        assert_eq!(said.code, Some(code), "{name}: {}", said.stderr);
        if code == 0 && name != "lock" {
            let words = format!("{name} can&#39;t be read: it is a named pipe, not a regular file");
            assert!(sandbox.text("runs/run/report.html").contains(&words), "{name}");
        }
    }
}
