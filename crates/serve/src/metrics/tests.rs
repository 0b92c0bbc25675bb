//! The metrics of a machine and of runs on disk. `scripts/check_metrics.py` feeds the texts that `prints_for_the_check`
//! writes to other parsers.

use super::{Format, metrics};
use plimsoll_files::Disk;
use plimsoll_telemetry::{CardLimits, CardSample, Event, Journal, Sample, Sink, SystemSample};
use plimsoll_units::Bytes;
use plimsoll_watch::{MachineView, RunFollower, RunView};
use std::collections::BTreeSet;
use std::path::Path;

/// A name with characters that are special in labels.
const NAME: &str = "a\"} 1\n# EOF\\";

fn run(folder: &Path, name: &str, loss: f64, last: Option<Event>) -> RunView {
    std::fs::create_dir_all(folder).expect("a folder");
    let mut journal = Journal::open(&Disk::default(), &folder.join("journal.jsonl")).expect("a journal");
    let started = Event::RunStarted {
        name: name.to_owned(),
        model: "nano".to_owned(),
        parameters: 12,
        planned_bytes: 1 << 20,
        budget_bytes: 1 << 21,
        first_step: 1,
        last_step: Some(10),
    };
    let step = Event::Step {
        step: 7,
        loss,
        learning_rate: 1e-3,
        grad_norm: 0.5,
        step_ms: 250.0,
        tokens_per_s: 64.0,
        memory_bytes: 4096,
    };
    let evaluated = Event::Evaluated { step: 7, loss: 2.5, average_loss: None, tokens: 10 };
    for event in [started, step, evaluated].into_iter().chain(last) {
        journal.take(&event);
    }
    let mut follower = RunFollower::open(folder).expect("a run");
    follower.refresh().expect("readable");
    RunView { seconds_left: Some(60.0), ..follower.view().as_ref().clone() }
}

fn card() -> CardSample {
    CardSample {
        index: 0,
        uuid: "GPU-1".to_owned(),
        name: "RTX \"X\"".to_owned(),
        pci_bus_id: Some("00000000:01:00.0".to_owned()),
        limits: CardLimits { slowdown_c: Some(93.0), shutdown_c: Some(98.0), ..CardLimits::default() },
        temperature_c: Some(61.0),
        memory_temperature_c: Some(70.0),
        power_w: Some(250.5),
        power_limit_w: Some(350.0),
        energy_j: Some(12.5),
        sm_clock_mhz: Some(1800),
        memory_clock_mhz: Some(9000),
        fan_percent: Some(40),
        busy_percent: Some(97),
        memory_busy_percent: Some(30),
        encoder_percent: Some(0),
        decoder_percent: Some(0),
        performance_state: Some(2),
        total: Some(Bytes(24 << 30)),
        used: Some(Bytes(10 << 30)),
        free: Some(Bytes(13 << 30)),
        reserved: Some(Bytes(1 << 30)),
        pcie_generation: Some(4),
        pcie_lanes: Some(16),
        pcie_replays: Some(3),
        ecc_corrected: Some(1),
        ecc_uncorrected: Some(0),
        xids: vec![31, 79],
        throttling: Some(plimsoll_telemetry::Throttling::default()),
        ..CardSample::default()
    }
}

/// A machine and runs with every kind of value.
fn all(folder: &Path) -> (MachineView, Vec<RunView>) {
    let bytes = Some(Bytes(1 << 30));
    let system = SystemSample {
        cpu_percent: Some(50.0),
        memory_total: bytes,
        memory_available: bytes,
        swap_used: bytes,
        cpu_pressure_percent: Some(1.0),
        memory_pressure_percent: Some(2.0),
        io_pressure_percent: Some(3.0),
        group_limit: bytes,
        group_used: bytes,
        disk_total: bytes,
        disk_free: bytes,
        ..SystemSample::default()
    };
    // The newest sample has no errors of the first one.
    let cards = vec![CardSample { xids: vec![], ..card() }];
    let first = Sample { time_s: 1e9 - 1.0, cards: vec![card()], ..Sample::default() };
    let machine = MachineView::of([first, Sample { time_s: 1e9, cards, system }]);
    let finished = Event::Finished { step: 7, seconds: 1.0 };
    let runs = vec![
        run(&folder.join("a"), "nano-1", 3.25, Some(finished)),
        run(&folder.join("b"), NAME, f64::MAX, None),
        run(&folder.join("c"), NAME, 1.0, None),
    ];
    (machine, runs)
}

fn text(folder: &Path, format: Format) -> String {
    let (machine, runs) = all(folder);
    metrics(&machine, runs.iter(), "host-1", format)
}

#[test]
fn readings_have_the_names_of_dcgm_where_it_has_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = text(folder.path(), Format::OpenMetrics);
    let labels = "gpu=\"0\",UUID=\"GPU-1\",device=\"nvidia0\",modelName=\"RTX \\\"X\\\"\",Hostname=\"host-1\",\
        pci_bus_id=\"00000000:01:00.0\"";
    for line in [
        format!("DCGM_FI_DEV_GPU_TEMP{{{labels}}} 61.0"),
        format!("DCGM_FI_DEV_FB_USED{{{labels}}} 10240.0"),
        format!("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} 12500.0"),
        format!("DCGM_FI_DEV_XID_ERRORS{{{labels}}} 79.0"),
        "plimsoll_gpu_up{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"host-1\"} 1.0".to_owned(),
        "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION unknown".to_owned(),
        "# TYPE plimsoll_run_skipped_updates counter".to_owned(),
        "# UNIT plimsoll_run_planned_bytes bytes".to_owned(),
        "plimsoll_system_cpu_ratio{} 0.5".to_owned(),
        "plimsoll_system_pressure_ratio{resource=\"io\"} 0.03".to_owned(),
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
    }
    let of_run = |metric: &str| {
        let start = format!("{metric}{{run=\"nano-1\",id=\"");
        let line =
            text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {start} in\n{text}"));
        line.rsplit(' ').next().expect("a value").to_owned()
    };
    let found = ["loss", "eval_loss", "step", "step_duration_seconds", "planned_bytes", "skipped_updates_total"];
    let found = found.map(|name| of_run(&format!("plimsoll_run_{name}")));
    assert_eq!(found, ["3.25", "2.5", "7.0", "0.25", "1048576.0", "0.0"]);
    let finished = text.lines().filter(|line| line.contains("plimsoll_run_standing=\"finished\"} 1.0")).count();
    assert_eq!(finished, 1);
    assert!(text.ends_with("\n# EOF\n") && text.matches("\n# EOF\n").count() == 1, "a name must not end the text");
}

#[test]
fn an_unknown_reading_has_no_line() {
    let lost = CardSample { index: 1, uuid: "GPU-2".to_owned(), lost: Some("gone".to_owned()), ..card() };
    let silent = CardSample { index: 2, uuid: "GPU-3".to_owned(), ..CardSample::default() };
    let machine = MachineView::of([
        Sample { time_s: 1.0, cards: vec![CardSample { uuid: "GPU-4".to_owned(), ..card() }], ..Sample::default() },
        Sample { time_s: 2.0, cards: vec![lost, silent], ..Sample::default() },
    ]);
    let text = metrics(&machine, [].iter(), "h", Format::Text);
    assert!(!text.contains("DCGM_") && !text.contains("plimsoll_system") && !text.contains("plimsoll_run"), "{text}");
    let up = text
        .lines()
        .filter(|line| line.starts_with("plimsoll_gpu_up{"))
        .map(|line| line.ends_with(" 1.0"))
        .collect::<Vec<_>>();
    assert_eq!(up.iter().filter(|up| **up).count(), 1, "{text}");
    assert_eq!(up.len(), 3);
    assert_eq!(metrics(&MachineView::default(), [].iter(), "h", Format::OpenMetrics), "# EOF\n");
}

/// Each series occurs once, whatever the names of cards and runs.
#[test]
fn no_series_occurs_twice() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut machine, mut runs) = all(folder.path());
    machine.cards.push(machine.cards[0].clone());
    runs.push(runs[1].clone());
    for format in [Format::OpenMetrics, Format::Text] {
        let text = metrics(&machine, runs.iter(), "h", format);
        let series = text.lines().map(|line| line.rsplit_once(' ').map_or(line, |(series, _)| series));
        let mut seen = BTreeSet::new();
        for line in series.filter(|line| !line.starts_with('#')) {
            assert!(seen.insert(line), "{line} twice");
        }
    }
}

#[test]
fn clients_receive_the_format_that_they_accept() {
    // The header that Prometheus 2.42 sends.
    let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
        text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    for (accept, format) in [
        (prometheus, Format::OpenMetrics),
        ("", Format::Text),
        ("*/*", Format::Text),
        ("text/plain", Format::Text),
        ("application/openmetrics-text; version=1.0.0", Format::OpenMetrics),
        ("application/openmetrics-text;q=0.2, text/plain", Format::Text),
        ("application/openmetrics-text;q=0", Format::Text),
        ("application/openmetrics-text;q=x,,;;q=", Format::OpenMetrics),
    ] {
        assert_eq!(Format::accepted(accept), format, "{accept}");
    }
}

/// The dashboard uses only existing metrics, with their labels.
#[test]
fn the_dashboard_uses_only_existing_metrics() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = text(folder.path(), Format::Text);
    let made = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split('{').next());
    let made = made.collect::<BTreeSet<_>>();
    let dashboard = include_str!("../../../../docs/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("JSON");
    let targets =
        dashboard["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array()).flatten();
    let mut expressions = targets.map(|target| target["expr"].as_str().expect("an expression")).collect::<Vec<_>>();
    let variables = dashboard["templating"]["list"].as_array().expect("variables").iter();
    expressions.extend(variables.filter_map(|variable| variable["query"]["query"].as_str()));
    let mut named = BTreeSet::new();
    for expression in &expressions {
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        // The label of a state set has the name of the metric.
        named.extend(words.filter(|word| word.starts_with("DCGM_") || word.starts_with("plimsoll_")));
    }
    assert!(named.len() > 25, "{named:?}");
    for name in named {
        assert!(made.contains(name), "there is no metric {name}");
    }
    let ids = dashboard["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .map(|panel| panel["id"].as_u64())
        .collect::<BTreeSet<_>>();
    assert_eq!(ids.len(), dashboard["panels"].as_array().expect("panels").len());
}

/// Writes texts for `scripts/check_metrics.py`, which sets a folder.
#[test]
fn prints_for_the_check() {
    let Some(folder) = std::env::var_os("PLIMSOLL_METRICS_OUT").map(std::path::PathBuf::from) else { return };
    let runs = tempfile::tempdir().expect("a temporary folder");
    let (machine, runs) = all(runs.path());
    for (name, format) in [("metrics.openmetrics", Format::OpenMetrics), ("metrics.txt", Format::Text)] {
        std::fs::write(folder.join(name), metrics(&machine, runs.iter(), "host-1", format)).expect("written");
    }
}
