//! The logs that sessions leave, and how resumed sessions continue them.

use crate::readers::{
    self, Field, blobs, event_file, event_files, fields, items, messages, of, texts, wandb_log, wandb_records,
};
use crate::{evaluated, session, settings, started, step, whole_session};
use plimsoll_secrets::Secrets;
use plimsoll_telemetry::{CardSample, Event, Sample, Sink};
use plimsoll_trackers::{Tracker, Trackers};
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

#[test]
fn every_tracker_has_every_log() {
    let folder = folder();
    let settings = settings(folder.path());
    whole_session(&settings, 1..=10, 0.5);
    for (name, read) in readers::ALL {
        let points = read(&settings.folder);
        assert_eq!(of(&points, "train/loss"), (1..=10).map(|n| (n, n as f64 + 0.5)).collect::<Vec<_>>(), "{name}");
        assert_eq!(of(&points, "train/epoch")[3], (4, 1.0), "{name}");
        assert_eq!(of(&points, "eval/loss"), [(10, 0.5)], "{name}");
        for metric in ["learning_rate", "grad_norm", "tokens_per_second", "step_ms", "memory_bytes"] {
            assert_eq!(of(&points, &format!("train/{metric}")).len(), 10, "{name} of {metric}");
        }
    }
}

#[test]
fn settings_are_logged_as_hyperparameters() {
    let folder = folder();
    let settings = settings(folder.path());
    whole_session(&settings, 1..=2, 0.0);
    let events = event_file(&event_files(&settings.folder)[0]);
    let values = events.iter().flat_map(|event| messages(event, 5)).flat_map(|summary| messages(&summary, 1));
    let start = values.clone().find(|value| texts(value, 1) == ["_hparams_/session_start_info"]).expect("a start");
    let plugin = messages(&messages(&start, 9)[0], 1).remove(0);
    assert_eq!(texts(&plugin, 1), ["hparams"]);
    let start = messages(&fields(&blobs(&plugin, 2)[0]), 3).remove(0);
    let entries = messages(&start, 1);
    let entry =
        |key: &str| entries.iter().find(|entry| texts(entry, 1) == [key]).map(|entry| messages(entry, 2).remove(0));
    assert_eq!(entry("seed"), Some(vec![(2, Field::Double(1337.0))]));
    assert_eq!(entry("autotune"), Some(vec![(4, Field::Integer(1))]));
    assert_eq!(entry("learning_rate"), Some(vec![(3, Field::Bytes(b"0.001".to_vec()))]));
    assert_eq!(entry("data"), Some(vec![(3, Field::Bytes(b"[\"a\",\"b\"]".to_vec()))]));
    assert!(values.clone().any(|value| texts(&value, 1) == ["_hparams_/session_end_info"]));
    // W&B's run contains them with its name and project.
    let records = wandb_records(&settings.folder);
    let run = records.iter().flat_map(|record| messages(record, 17)).next().expect("a run");
    assert_eq!((texts(&run, 3), texts(&run, 8)), (vec!["my: project".to_owned()], vec!["nano-1".to_owned()]));
    let config = items(&messages(&run, 4)[0], 1);
    assert_eq!((&*config["seed"], &*config["model_name"], &*config["odd/key"]), ("1337", "\"nano\"", "\"<b>: 'x'\""));
    let summary = records.iter().flat_map(|record| messages(record, 3)).last().expect("a summary");
    assert_eq!(items(&summary, 1)["train/loss"], "2.0");
    // MLflow has a file for each; slashes in names are replaced.
    let run = readers::mlflow_run(&settings.mlruns);
    let param = |name: &str| fs::read_to_string(run.join("params").join(name)).expect("a parameter");
    assert_eq!((&*param("learning_rate"), &*param("odd_key"), &*param("seed")), ("0.001", "<b>: 'x'", "1337"));
    let meta = fs::read_to_string(run.join("meta.yaml")).expect("a description");
    assert!(meta.contains("\nstatus: 5\n") && meta.contains("\nrun_name: \"nano-1\"\n"), "{meta}");
}

#[test]
fn values_that_are_not_finite_are_logged_as_such() {
    let folder = folder();
    let settings = settings(folder.path());
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, -0.0];
    let mut events = vec![started(1)];
    events.extend(odd.iter().zip(1..).map(|(loss, n)| step(n, *loss)));
    events.push(Event::Diverged { step: 6, loss: None, grad_norm: None, weights_whole: true, tensor: None });
    session(&settings, &events);
    for (name, read) in readers::ALL {
        let found = of(&read(&settings.folder), "train/loss").into_iter().map(|(_, value)| value).collect::<Vec<_>>();
        let expected = odd.map(|value| match name {
            "jsonl" if !value.is_finite() => f64::NAN,
            "tensorboard" => f64::from(value as f32),
            _ => value,
        });
        assert_eq!(format!("{found:?}"), format!("{:?}", [&expected[..], &[f64::NAN]].concat()), "{name}");
    }
}

/// The losses of a run in which a second session repeated the steps from `from` on.
fn replaced(from: u64, last: u64) -> Vec<(u64, f64)> {
    (1..=last).map(|n| (n, n as f64 + if n < from { 0.25 } else { 0.75 })).collect()
}

#[test]
fn a_resumed_run_replaces_the_steps_that_it_repeats() {
    for (from, last) in [(6, 8), (6, 12), (11, 12), (1, 3)] {
        let folder = folder();
        let settings = settings(folder.path());
        whole_session(&settings, 1..=10, 0.25);
        whole_session(&settings, from..=last, 0.75);
        for (name, read) in readers::ALL {
            let points = read(&settings.folder);
            assert_eq!(of(&points, "train/loss"), replaced(from, last), "{name} from {from}");
            let first_eval = (from == 11).then_some((10, 0.25));
            let evals = first_eval.into_iter().chain([(last, 0.75)]).collect::<Vec<_>>();
            assert_eq!(of(&points, "eval/loss"), evals, "{name} from {from}");
        }
        assert_eq!(event_files(&settings.folder).len(), 2);
        let records = wandb_records(&settings.folder);
        assert_eq!(records.iter().filter(|record| !messages(record, 18).is_empty()).count(), 1, "one end");
        assert_eq!(records.iter().filter(|record| !messages(record, 17).is_empty()).count(), 1, "one run");
    }
}

/// All files of a run's logs that grow.
fn growing(logs: &Path) -> Vec<PathBuf> {
    let metrics = readers::mlflow_run(&logs.join("mlruns")).join("metrics");
    let files = [logs.join("metrics.jsonl"), logs.join("metrics.csv"), wandb_log(logs), metrics.join("train/loss")];
    files.into_iter().chain(event_files(logs)).collect()
}

#[test]
fn a_run_killed_in_the_middle_of_a_record_continues() {
    // Its checkpoint was after step 6; each file may have been cut at a different point.
    for torn in [1, 7, 11, 30, 75] {
        let folder = folder();
        let settings = settings(folder.path());
        whole_session(&settings, 1..=30, 0.25);
        for file in growing(&settings.folder) {
            let length = fs::metadata(&file).expect("a file").len();
            fs::OpenOptions::new().write(true).open(&file).expect("a file").set_len(length - torn).expect("cut");
        }
        whole_session(&settings, 7..=9, 0.75);
        for (name, read) in readers::ALL {
            assert_eq!(of(&read(&settings.folder), "train/loss"), replaced(7, 9), "{name}, {torn} bytes short");
        }
    }
}

#[test]
fn foreign_files_are_not_trusted() {
    let folder = folder();
    let settings = settings(folder.path());
    whole_session(&settings, 1..=2, 0.25);
    let metrics = readers::mlflow_run(&settings.mlruns).join("metrics");
    for file in [settings.folder.join("metrics.jsonl"), metrics.join("train/loss"), wandb_log(&settings.folder)] {
        fs::write(&file, [&b"\xff\xfe\x00garbage\n"[..], &[b'x'; 3 << 20], b"\n1 2"].concat()).expect("written");
    }
    fs::write(settings.folder.join("tensorboard/events.out.tfevents.99999999999999999999.x"), "x").expect("written");
    fs::write(settings.folder.join("metrics.csv"), "other,columns\r\n").expect("written");
    let reports = session(&settings, &[started(3), step(3, 1.0), evaluated(3, 2.0)]);
    for report in reports {
        let error = report.last_error.unwrap_or_default();
        match report.tracker {
            Tracker::Csv => assert!(report.lost == 2 && error.contains("other columns; move it away"), "{error}"),
            _ => assert_eq!((report.written, report.lost, &*error), (2, 0, ""), "{}", report.tracker),
        }
    }
    assert_eq!(fs::read(settings.folder.join("metrics.csv")).expect("there"), b"other,columns\r\n");
    assert_eq!(of(&readers::wandb(&settings.folder), "train/loss"), [(3, 1.0)]);
}

#[test]
fn another_run_with_the_same_name_is_left_alone() {
    let folder = folder();
    let first = settings(folder.path());
    whole_session(&first, 1..=4, 0.25);
    let mut second = first.clone();
    second.run = folder.path().join("other");
    fs::create_dir(&second.run).expect("a folder");
    let reports = session(&second, &[started(1), step(1, 9.0)]);
    assert!(reports.iter().all(|report| report.written == 1));
    assert_eq!(of(&readers::jsonl(&first.folder), "train/loss").len(), 4);
    assert_eq!(of(&readers::jsonl(&folder.path().join("logs-2")), "train/loss"), [(1, 9.0)]);
}

#[test]
fn machine_metrics_have_wandb_names_and_are_not_logged_per_sample() {
    let folder = folder();
    let settings = settings(folder.path());
    let mut trackers = Trackers::start(settings.clone(), &Secrets::default()).expect("threads");
    let tap = trackers.machine_tap();
    // The machine is sampled before the first step, when no log exists yet.
    let early = CardSample { temperature_c: Some(1.0), ..CardSample::default() };
    tap.take(&Sample { time_s: 990.0, cards: vec![early], ..Sample::default() });
    trackers.take(&started(5));
    trackers.take(&step(5, 1.0));
    for second in 0..31 {
        let card = CardSample {
            index: 0,
            temperature_c: Some(60.0 + f64::from(second)),
            power_w: Some(100.0),
            ..CardSample::default()
        };
        tap.take(&Sample { time_s: 1000.0 + f64::from(second), cards: vec![card], ..Sample::default() });
    }
    let reports = trackers.finish(crate::LONG);
    assert!(reports.iter().all(|report| (report.written, report.lost) == (4, 0)), "{reports:?}");
    let stats = wandb_records(&settings.folder).iter().flat_map(|record| messages(record, 7)).collect::<Vec<_>>();
    let found = stats.iter().map(|stats| items(stats, 3)).collect::<Vec<_>>();
    assert_eq!(found.iter().map(|items| &*items["gpu.0.temp"]).collect::<Vec<_>>(), ["60.0", "75.0", "90.0"]);
    assert_eq!(found[0]["gpu.0.powerWatts"], "100.0");
    for read in [readers::tensorboard, readers::jsonl, readers::mlflow] {
        assert_eq!(of(&read(&settings.folder), "system/gpu.0.temp"), [(5, 60.0), (5, 75.0), (5, 90.0)]);
    }
    assert_eq!(of(&readers::csv(&settings.folder), "train/loss"), [(5, 1.0)]);
}

#[test]
fn training_is_logged_every_so_many_steps_and_evaluations_always() {
    let folder = folder();
    let mut settings = settings(folder.path());
    settings.every_steps = 4;
    let mut events = vec![started(1)];
    events.extend((1..=10).map(|n| step(n, n as f64)));
    events.push(evaluated(10, 3.0));
    session(&settings, &events);
    for (name, read) in readers::ALL {
        let points = read(&settings.folder);
        assert_eq!(of(&points, "train/loss"), [(4, 4.0), (8, 8.0)], "{name}");
        assert_eq!(of(&points, "eval/loss"), [(10, 3.0)], "{name}");
    }
}

/// A log of more than one block.
#[test]
fn long_runs_cross_the_blocks_of_logs() {
    let folder = folder();
    let settings = settings(folder.path());
    whole_session(&settings, 1..=700, 0.25);
    assert!(fs::metadata(wandb_log(&settings.folder)).expect("a log").len() > 3 * 32_768);
    whole_session(&settings, 301..=600, 0.75);
    assert_eq!(of(&readers::wandb(&settings.folder), "train/loss"), replaced(301, 600));
}
