//! Followed runs: after any append, replacement or damage, the view equals that of a first read of the folder, and its
//! size is bounded.

use plimsoll_telemetry::{EnergySource, EnergyUse, Event, Level, Record, SCHEMA_VERSION};
use plimsoll_watch::{Kind, Places, RunFollower, RunView, Runs, RunsFollower, Standing, WatchError};
use proptest::prelude::*;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

struct Run {
    _parent: tempfile::TempDir,
    folder: PathBuf,
}

fn record(time_s: f64, branch: u64, event: Event) -> String {
    let record = Record { v: SCHEMA_VERSION, time_s, branch, event };
    serde_json::to_string(&record).expect("plain data") + "\n"
}

fn started(first_step: u64, last_step: Option<u64>) -> Event {
    let (name, model) = ("nano".to_owned(), "gpt2".to_owned());
    Event::RunStarted { name, model, parameters: 10, planned_bytes: 1_000, budget_bytes: 2_000, first_step, last_step }
}

fn step(step: u64, loss: f64) -> Event {
    let (learning_rate, grad_norm, step_ms, tokens_per_s) = (1e-3, 0.5, 100.0, 640.0);
    Event::Step { step, loss, learning_rate, grad_norm, step_ms, tokens_per_s, memory_bytes: 900 }
}

impl Run {
    fn new() -> Self {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = parent.path().join("run");
        fs::create_dir_all(folder.join("checkpoints")).expect("a folder");
        Self { _parent: parent, folder }
    }

    fn append(&self, text: &str) {
        let mut journal =
            File::options().append(true).create(true).open(self.folder.join("journal.jsonl")).expect("a file");
        journal.write_all(text.as_bytes()).expect("appended");
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.join(name), text).expect("written");
    }

    fn follow(&self) -> RunFollower {
        RunFollower::open(&self.folder).expect("a run")
    }
}

fn losses(view: &RunView) -> Vec<(u64, f64)> {
    view.losses.stretches().iter().map(|stretch| (stretch.first.step, stretch.mean)).collect()
}

#[test]
fn a_run_is_followed_as_its_journal_grows() {
    let run = Run::new();
    run.append(&record(100.0, 0, started(1, Some(10))));
    run.write("config.yaml", "model: gpt2\ndevice: \"cuda:1\"\n");
    let mut follower = run.follow();
    assert_eq!((follower.view().name.as_str(), follower.view().step), ("nano", 0));
    let before = follower.view().clone();
    assert!(!follower.refresh().expect("readable"), "nothing has changed");
    assert!(Arc::ptr_eq(&before, follower.view()), "the view is not rebuilt");
    for made in 1..=4 {
        run.append(&record(100.0 + made as f64 * 2.0, 0, step(made, 5.0 - made as f64)));
        assert!(follower.refresh().expect("readable"));
    }
    run.append(&record(109.0, 0, Event::Heat { card: "GPU 1".to_owned(), what: "slowed to 60 %".to_owned() }));
    run.append(&record(
        110.0,
        0,
        Event::CheckpointSaved { step: 4, checkpoint: "c".into(), bytes: 7, milliseconds: 1.0 },
    ));
    fs::create_dir(run.folder.join("checkpoints/step-000004")).expect("a folder");
    assert!(follower.refresh().expect("readable"));
    let view = follower.view();
    assert_eq!(losses(view), [(1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)]);
    assert_eq!((view.step, view.last_step, view.done()), (4, Some(10), Some(0.4)));
    assert_eq!((view.planned_bytes, view.budget_bytes), (Some(1_000), Some(2_000)));
    assert_eq!((view.device.as_deref(), view.kind), (Some("cuda:1"), Kind::Train));
    assert_eq!((view.first_s, view.last_s, view.seconds), (Some(100.0), Some(110.0), 10.0));
    assert_eq!(view.last.map(|last| (last.step, last.memory_bytes)), Some((4, 900)));
    assert_eq!((view.checkpoints[0].step, view.checkpoints[0].is_there), (4, true));
    assert_eq!((view.heat[0].card.as_str(), view.heat[0].what.as_str()), ("GPU 1", "slowed to 60 %"));
    let lines = view.events.iter().map(|line| (line.level, line.text.as_str())).collect::<Vec<_>>();
    assert_eq!(
        lines[1..],
        [(Level::Warn, "GPU 1: slowed to 60 %"), (Level::Info, "step 4: checkpoint saved, 7 B in 0.0 s")]
    );
    // The journal has no new record, and a checkpoint was deleted.
    fs::remove_dir(run.folder.join("checkpoints/step-000004")).expect("exists");
    assert!(follower.refresh().expect("readable"));
    let view = follower.view();
    assert!(!view.checkpoints[0].is_there);
    // No process is running.
    assert_eq!((view.standing, view.seconds_left, view.process), (Standing::CutShort, None, None));
    run.append(&record(112.0, 0, Event::Finished { step: 4, seconds: 12.0 }));
    run.write("sample.json", r#"{"step": 4, "prompt": "Once", "text": " upon"}"#);
    follower.refresh().expect("readable");
    assert_eq!(follower.view().standing, Standing::Finished);
    assert_eq!(follower.view().sample.as_ref().map(|sample| sample.prompt.as_str()), Some("Once"));
}

#[test]
fn notes_and_energy_are_bounded_and_safe_to_show() {
    let run = Run::new();
    run.append(&record(1.0, 0, started(1, Some(10))));
    let flood = (0..40).map(|n| Event::Heat { card: "GPU 0".to_owned(), what: format!("slowed {n}") });
    let health = Event::Health {
        card: Some("card\u{1b} 1".to_owned()),
        kind: "xid".to_owned(),
        what: "Xid 79".to_owned(),
        advice: Some("restart it".to_owned()),
        level: Level::Error,
    };
    let energy = |currency: &str| {
        let (by, currency) = (EnergySource::Counter, Some(currency.to_owned()));
        Event::Energy(EnergyUse { energy_j: 7.0, by, missed_s: 0.0, cost: Some(0.5), currency })
    };
    let averted = Event::OutOfMemoryAverted { what: "a micro-batch of 4".to_owned() };
    let events = flood.chain([health, averted, energy("EUR")]);
    run.append(&events.map(|event| record(2.0, 0, event)).collect::<String>());
    let mut follower = run.follow();
    let view = follower.view();
    assert_eq!((view.notes.len(), view.more_notes), (30, 12));
    let newest = view.notes.iter().rev().take(3);
    let newest = newest.map(|note| (note.level, note.what.as_str(), note.advice.as_deref())).collect::<Vec<_>>();
    let expected = [
        (Level::Warn, "out of memory averted: a micro-batch of 4", None),
        (Level::Error, "card\u{fffd} 1: Xid 79", Some("restart it")),
        (Level::Warn, "GPU 0: slowed 39", None),
    ];
    assert_eq!(newest, expected);
    let currency = |view: &RunView| view.energy.as_ref().and_then(|energy| energy.currency.clone());
    assert_eq!(currency(view).as_deref(), Some("EUR"));
    assert!(view.at(1.5).notes.is_empty() && view.at(1.5).energy.is_none());
    run.append(&record(3.0, 0, energy(&"x".repeat(100_000))));
    follower.refresh().expect("readable");
    assert_eq!(currency(follower.view()), None);
}

/// A run whose lock is held is running; its remaining time is estimated from its last steps.
#[test]
fn a_running_run_estimates_its_remaining_time() {
    let run = Run::new();
    let lock = File::create(run.folder.join("lock")).expect("a file");
    lock.lock().expect("not locked");
    run.append(&record(0.0, 0, started(1, Some(100))));
    (1..=40).for_each(|made| run.append(&record(made as f64 * 3.0, 0, step(made, 1.0))));
    let mut follower = run.follow();
    assert_eq!((follower.view().standing, follower.view().seconds_left), (Standing::Running, Some(180.0)));
    // Resumed: the time between the sessions does not count for the pace.
    run.append(&record(9_000.0, 0, started(41, Some(100))));
    follower.refresh().expect("readable");
    assert_eq!(follower.view().seconds_left, None);
    run.append(&(record(9_001.0, 0, step(41, 1.0)) + &record(9_002.0, 0, step(42, 1.0))));
    follower.refresh().expect("readable");
    assert_eq!(follower.view().seconds_left, Some(58.0));
    drop(lock);
    assert!(follower.refresh().expect("readable"));
    assert_eq!(follower.view().standing, Standing::CutShort);
}

#[test]
fn repeated_steps_replace_earlier_ones() {
    let run = Run::new();
    run.append(&record(0.0, 0, started(1, None)));
    (1..=9).for_each(|made| run.append(&record(1.0, 0, step(made, 9.0))));
    let mut follower = run.follow();
    assert_eq!(losses(follower.view()).len(), 9);
    run.append(&record(2.0, 0, started(6, None)));
    run.append(&record(3.0, 0, step(6, 1.0)));
    follower.refresh().expect("readable");
    assert_eq!(losses(follower.view()), [(1, 9.0), (2, 9.0), (3, 9.0), (4, 9.0), (5, 9.0), (6, 1.0)]);
    assert_eq!((follower.view().step, follower.view().sessions), (6, 2));
    // A branch from step 2 excludes later steps of the old branch, including the ones that are written afterwards.
    run.write("checkpoints/branches.json", r#"{"branches":[{"number":1,"from":{"branch":0,"step":2}}]}"#);
    run.append(&(record(4.0, 1, started(3, None)) + &record(5.0, 1, step(3, 7.0)) + &record(5.0, 0, step(8, 3.0))));
    follower.refresh().expect("readable");
    assert_eq!(losses(follower.view()), [(1, 9.0), (2, 9.0), (3, 7.0)]);
    run.write("checkpoints/branches.json", "{");
    follower.refresh().expect("readable");
    assert!(follower.view().problems[0].contains("branches cannot be read"), "{:?}", follower.view().problems);
    assert_eq!(*follower.view(), *run.follow().view());
}

#[test]
fn a_replaced_journal_is_another_run() {
    let run = Run::new();
    run.append(&(record(0.0, 0, started(1, None)) + &record(1.0, 0, step(1, 9.0))));
    let mut follower = run.follow();
    run.write("journal.jsonl", &(record(0.0, 0, started(1, None)) + &record(2.0, 0, step(1, 2.0))));
    follower.refresh().expect("readable");
    assert_eq!(losses(follower.view()), [(1, 2.0)]);
    run.write("journal.jsonl", "");
    follower.refresh().expect("readable");
    assert_eq!(losses(follower.view()), []);
    // If the journal is deleted, the last view stays; the journal may come back.
    run.append(&(record(0.0, 0, started(1, None)) + &record(2.0, 0, step(1, 3.0))));
    follower.refresh().expect("readable");
    fs::remove_file(run.folder.join("journal.jsonl")).expect("exists");
    assert!(matches!(follower.refresh(), Err(WatchError::Journal(_))));
    assert_eq!(losses(follower.view()), [(1, 3.0)]);
    run.append(&(record(0.0, 0, started(1, None)) + &record(2.0, 0, step(1, 4.0))));
    follower.refresh().expect("readable");
    assert_eq!(losses(follower.view()), [(1, 4.0)]);
}

/// Half a million steps, and equally many other events.
#[test]
fn a_view_is_small_for_a_long_journal() {
    let run = Run::new();
    let mut text = record(0.0, 0, started(1, None));
    let long = "x".repeat(5_000);
    for made in 1..=100_000_u64 {
        text += &record(made as f64, 0, step(made, if made == 54_321 { 99.0 } else { 2.0 }));
        if made % 20 == 0 {
            text +=
                &record(made as f64, 0, Event::Evaluated { step: made, loss: 1.0, average_loss: Some(2.0), tokens: 9 });
            text += &record(made as f64, 0, Event::Heat { card: long.clone(), what: long.clone() });
            text += &record(made as f64, 0, Event::EventsLost { events: made, reason: long.clone() });
            let saved = Event::CheckpointSaved { step: made, checkpoint: "c".into(), bytes: 7, milliseconds: 1.0 };
            text += &record(made as f64, 0, saved);
        }
    }
    run.append(&text);
    let follower = run.follow();
    let view = follower.view();
    assert_eq!(
        (view.step, view.losses.whole().map(|whole| (whole.count, whole.highest.step))),
        (100_000, Some((100_000, 54_321)))
    );
    assert_eq!((view.checkpoints.len(), view.more_checkpoints), (30, 4_970));
    let bytes = serde_json::to_string(&**view).expect("plain data").len();
    assert!(bytes < 2_000_000, "{bytes} bytes of a journal of {}", text.len());
}

/// A hostile folder from another user.
#[test]
fn hostile_folders_are_harmless() {
    let run = Run::new();
    assert!(matches!(RunFollower::open(&run.folder), Err(WatchError::NotARun { .. })));
    assert!(matches!(RunFollower::open(&run.folder.join("nothing")), Err(WatchError::NotARun { .. })));
    fs::create_dir(run.folder.join("journal.jsonl")).expect("a folder");
    assert!(matches!(RunFollower::open(&run.folder), Err(WatchError::Journal(_))));
    fs::remove_dir(run.folder.join("journal.jsonl")).expect("exists");
    #[cfg(unix)]
    for target in ["/dev/zero", "/dev/stdin", "/proc/self/mem", "journal.jsonl"] {
        std::os::unix::fs::symlink(target, run.folder.join("journal.jsonl")).expect("a link");
        assert!(matches!(RunFollower::open(&run.folder), Err(WatchError::Journal(_))), "{target}");
        fs::remove_file(run.folder.join("journal.jsonl")).expect("exists");
    }
    let name = "\u{1b}]0;owned\u{7}\u{202e}<script>".to_owned();
    let Event::RunStarted { planned_bytes, .. } = started(1, None) else { unreachable!("made so above") };
    let begun = Event::RunStarted {
        name: name.clone(),
        model: name.clone(),
        parameters: u64::MAX,
        planned_bytes,
        budget_bytes: u64::MAX,
        first_step: u64::MAX,
        last_step: Some(u64::MAX),
    };
    run.append(&(record(f64::MAX, u64::MAX, begun.clone()) + &record(-1e300, 0, begun.clone()) + "\u{0}\n[[[[\n"));
    for made in [0, 1, u64::MAX, 1 << 36] {
        run.append(&record(f64::MIN, 0, step(made, 1e308)));
        run.append(&record(1.0, 0, Event::Undoing { from: u64::MAX, to: 0 }));
    }
    run.append(&record(
        f64::MAX,
        0,
        Event::CheckpointSkipped { checkpoint: name.clone().into(), reason: name.clone() },
    ));
    for file in ["config.yaml", "sample.json"] {
        // A file above the size limit that takes no disk space.
        File::create(run.folder.join(file)).and_then(|file| file.set_len(1 << 40)).expect("a file with a hole");
    }
    for file in ["process.json", "lock", "supervisor.jsonl"] {
        fs::create_dir(run.folder.join(file)).expect("a folder");
    }
    let mut follower = run.follow();
    follower.refresh().expect("readable");
    let view = follower.view();
    assert!(!view.name.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{:?}", view.name);
    assert!(view.events.iter().all(|line| !line.text.chars().any(char::is_control)), "{:?}", view.events);
    assert!(view.problems.iter().any(|problem| problem.contains("config.yaml can't be read")), "{:?}", view.problems);
    assert_eq!((view.settings.as_ref(), view.sample.as_ref()), (None, None));
    for time_s in [f64::MIN, -1.0, 0.0, 1e12, f64::INFINITY, f64::NAN] {
        let _ = view.at(time_s);
    }
}

#[test]
fn a_view_can_be_shown_as_of_an_earlier_time() {
    let run = Run::new();
    run.append(&record(100.0, 0, started(1, Some(100))));
    for made in 1..=100 {
        run.append(&record(100.0 + made as f64, 0, step(made, 5.0 - made as f64 / 100.0)));
        if made % 50 == 0 {
            run.append(&record(
                100.0 + made as f64,
                0,
                Event::Heat { card: "c".to_owned(), what: format!("at {made}") },
            ));
        }
    }
    run.append(&record(200.0, 0, Event::Finished { step: 100, seconds: 100.0 }));
    let follower = run.follow();
    let at = |time_s: f64| follower.view().at(time_s);
    let early = at(120.5);
    assert_eq!((early.step, early.standing, early.seconds_left), (20, Standing::Running, Some(80.0)));
    assert_eq!((losses(&early).len(), early.heat.len(), early.events.len()), (20, 0, 1));
    assert_eq!(early.last.map(|last| (last.step, last.loss)), Some((20, 4.8)));
    assert_eq!((at(99.0).standing, at(99.0).step), (Standing::NotStarted, 0));
    assert_eq!((at(160.0).heat.len(), at(199.5).standing), (1, Standing::Running));
    assert_eq!(at(200.0), **follower.view());
}

#[test]
fn runs_are_found_and_the_newest_are_followed() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let runs = parent.path().join("runs");
    for (number, name) in ["old", "new", "empty", "a\u{1b}[2J"].iter().enumerate() {
        fs::create_dir_all(runs.join(name)).expect("a folder");
        if *name == "empty" {
            continue;
        }
        let journal = File::create(runs.join(name).join("journal.jsonl")).expect("a file");
        let changed = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000 + number as u64);
        journal.set_modified(changed).expect("a time");
    }
    fs::write(runs.join("file"), "").expect("written");
    let places = Places { roots: vec![runs.clone(), parent.path().join("nothing")], state: None };
    let found = Runs::discover(&places);
    let names = found.found.iter().map(|run| (run.name.as_str(), run.changed_s, run.is_running)).collect::<Vec<_>>();
    assert_eq!(names, [("a\u{fffd}[2J", 1_003.0, false), ("new", 1_001.0, false), ("old", 1_000.0, false)]);
    // A running one comes first, however old it is.
    let lock = File::create(runs.join("old/lock")).expect("a file");
    lock.lock().expect("not locked");
    let names = Runs::discover(&places).found.into_iter().map(|run| run.name).collect::<Vec<_>>();
    assert_eq!(names, ["old", "a\u{fffd}[2J", "new"]);
    let mut follower = RunsFollower::new(places.clone(), vec![], 2).expect("no names");
    assert!(follower.refresh());
    let names = |follower: &RunsFollower| follower.views().map(|view| view.name.clone()).collect::<Vec<_>>();
    assert_eq!((names(&follower), follower.all().found.len()), (vec!["old".to_owned(), "a\u{fffd}[2J".to_owned()], 3));
    let mut named = RunsFollower::new(places, vec![runs.join("new")], 2).expect("it is a run");
    named.refresh();
    assert_eq!(names(&named), ["new"]);
    assert!(RunsFollower::new(Places::default(), vec![runs.join("empty")], 2).is_err());
}

/// A session of a random journal: first step, number of steps, branch.
fn sessions() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((1_u64..30, 0_u64..30, 0_u64..2), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// However a journal was split while it grew, the view equals that of the complete journal.
    #[test]
    fn following_equals_reading_at_once(sessions in sessions(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let mut text = String::new();
        for (number, (first, steps, branch)) in sessions.iter().enumerate() {
            let time_s = number as f64 * 100.0;
            text += &record(time_s, *branch, started(*first, Some(60)));
            for made in *first..first + steps {
                text += &record(time_s + made as f64, *branch, step(made, number as f64));
            }
            text += &record(time_s + 90.0, *branch, Event::Interrupted { step: first + steps });
        }
        let run = Run::new();
        run.write("checkpoints/branches.json", r#"{"branches":[{"number":1,"from":{"branch":0,"step":9}}]}"#);
        run.append("");
        let mut follower = run.follow();
        let mut cuts = cuts.iter().map(|cut| cut.index(text.len())).collect::<Vec<_>>();
        cuts.sort_unstable();
        let mut from = 0;
        for to in cuts.into_iter().chain([text.len()]) {
            run.append(&text[from..to]);
            follower.refresh().expect("readable");
            from = to;
        }
        let fresh = run.follow();
        prop_assert_eq!(follower.view(), fresh.view());
    }

    /// Modified, truncated or invented files: there is always a view, and no refresh fails except because of the
    /// journal itself.
    #[test]
    fn any_files_of_a_run_are_followed(
        pieces in prop::collection::vec(
            (0_usize..6, "[{}\\[\\]\":,a-z0-9_.-]{0,40}|\\PC{0,20}", any::<prop::sample::Index>(), any::<u8>()),
            1..12,
        ),
    ) {
        let run = Run::new();
        let whole = record(1.0, 0, started(1, Some(60))) + &record(2.0, 0, step(1, 2.5)) + &record(3.0, 0, step(2, 2.0));
        run.append(&whole);
        let mut follower = run.follow();
        for (place, invented, at, byte) in pieces {
            let mut text = whole.clone().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            match place {
                0 => run.append(&String::from_utf8_lossy(&text)),
                1 => run.append(&whole[..at]),
                2 => run.append(&invented),
                3 => run.write("checkpoints/branches.json", &invented),
                4 => run.write("process.json", &invented),
                _ => ["config.yaml", "sample.json", "supervisor.jsonl", "orders.jsonl"].iter().for_each(|name| run.write(name, &invented)),
            }
            prop_assert!(follower.refresh().is_ok());
            prop_assert!(follower.view().events.iter().all(|line| !line.text.chars().any(char::is_control)));
        }
        prop_assert!(run.follow().refresh().is_ok());
    }
}
