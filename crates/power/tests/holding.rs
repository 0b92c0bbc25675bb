//! Changes and restores settings of a card in memory, with every kind of failure.

use plimsoll_power::{
    HoldError, Knob, KnobError, Knobs, PutBack, Range, Settlement, StepOutcome, Store, Wish, hold, settle,
};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

const UUID: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";

/// A card in memory, shared by several owners.
#[derive(Clone, Default)]
struct Card(Arc<Mutex<Values>>);

#[derive(Default)]
struct Values {
    power_mw: i64,
    clock_mhz: i64,
    /// Whether it rounds to whole watts.
    rounds: bool,
    error: Option<KnobError>,
    /// The changes, in order.
    set: Vec<(Knob, i64)>,
    /// A record that must exist before each change.
    record: Option<std::path::PathBuf>,
}

impl Card {
    fn new(power_mw: i64) -> Self {
        let card = Self::default();
        card.0.lock().unwrap().power_mw = power_mw;
        card
    }

    fn power(&self) -> i64 {
        self.0.lock().unwrap().power_mw
    }

    fn fail_with(&self, error: Option<KnobError>) {
        self.0.lock().unwrap().error = error;
    }

    fn boxed(&self) -> Box<dyn Knobs> {
        Box::new(self.clone())
    }
}

impl Knobs for Card {
    fn range(&self, _: Knob) -> Result<Range, KnobError> {
        Ok(Range { min: 100_000, max: 200_000, default: Some(170_000) })
    }

    fn get(&self, knob: Knob) -> Result<i64, KnobError> {
        let values = self.0.lock().unwrap();
        match knob {
            Knob::PowerLimit => Ok(values.power_mw),
            Knob::ClockOffset => Ok(values.clock_mhz),
            Knob::MemoryClockOffset => Err(KnobError::NotSupported),
        }
    }

    fn set(&self, knob: Knob, value: i64) -> Result<(), KnobError> {
        let mut values = self.0.lock().unwrap();
        if let Some(error) = values.error.clone() {
            return Err(error);
        }
        if let Some(record) = &values.record {
            let text = fs::read_to_string(record).expect("it is recorded before it is set");
            assert!(text.contains(&value.to_string()), "{value} is not in the record: {text}");
        }
        values.set.push((knob, value));
        let made = if values.rounds { value / 1000 * 1000 } else { value };
        match knob {
            Knob::PowerLimit => values.power_mw = made,
            _ => values.clock_mhz = made,
        }
        Ok(())
    }
}

fn power(value: i64) -> Wish {
    Wish { knob: Knob::PowerLimit, value }
}

fn store(folder: &Path) -> Store {
    Store::new(folder.join("power"))
}

fn record(folder: &Path) -> std::path::PathBuf {
    folder.join("power").join(format!("{UUID}.json"))
}

/// Changes the owner of a record to a process that ended.
fn orphan(folder: &Path) {
    let file = record(folder);
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    text["owner"]["started"] = 1.into();
    fs::write(&file, text.to_string()).unwrap();
}

#[test]
fn old_values_are_recorded_before_a_change_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.0.lock().unwrap().record = Some(record(folder.path()));
    let wishes = [power(140_000), Wish { knob: Knob::ClockOffset, value: 50 }];
    let (held, outcomes, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &wishes).unwrap();
    assert_eq!(outcomes, [(Knob::PowerLimit, Ok(140_000)), (Knob::ClockOffset, Ok(50))]);
    assert_eq!(held.step(Knob::PowerLimit, 120_000), StepOutcome::Set(120_000));
    assert_eq!(held.step(Knob::PowerLimit, 120_000), StepOutcome::Nothing);
    let text = fs::read_to_string(record(folder.path())).unwrap();
    assert!(text.contains("\"before\": 170000") && text.contains("a test"), "{text}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&record(folder.path())), mode(&folder.path().join("power"))), (0o600, 0o700));
    }
    card.0.lock().unwrap().record = None;
    let back = held.put_back();
    assert!(back.contains(&PutBack::Done { knob: Knob::PowerLimit, value: 170_000 }), "{back:?}");
    assert_eq!((card.power(), card.0.lock().unwrap().clock_mhz), (170_000, 0));
    assert!(!record(folder.path()).exists());
    assert_eq!((held.step(Knob::PowerLimit, 120_000), held.put_back()), (StepOutcome::Nothing, vec![]));
    drop(held);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn a_panic_restores_too() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let theirs = card.clone();
    let path = folder.path().to_owned();
    let panicked = std::thread::spawn(move || {
        let _held = hold(&store(&path), UUID, theirs.boxed(), "a test", &[power(140_000)]).unwrap();
        assert_eq!(theirs.power(), 140_000);
        panic!("as a run may");
    });
    assert!(panicked.join().is_err());
    assert_eq!(card.power(), 170_000);
}

#[test]
fn a_second_run_is_rejected_and_never_records_the_firsts_value() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (first, ..) = hold(&store(folder.path()), UUID, card.boxed(), "the first", &[power(140_000)]).unwrap();
    let second = hold(&store(folder.path()), UUID, card.boxed(), "the second", &[power(120_000)]);
    assert!(matches!(&second, Err(HoldError::InUse { owner }) if owner.what == "the first"), "{second:?}");
    assert_eq!(card.power(), 140_000);
    let settled = settle(&store(folder.path()), true, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(settled[..], [ref one] if matches!(one.outcome, Settlement::InUse { is_alive: true, .. })));
    drop(first);
    assert_eq!(card.power(), 170_000);
    let (again, ..) = hold(&store(folder.path()), UUID, card.boxed(), "the second", &[power(120_000)]).unwrap();
    drop(again);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn the_next_start_restores_after_a_crash_and_records_the_original_value() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a crash", &[power(140_000)]).unwrap();
    held.step(Knob::PowerLimit, 111_000);
    std::mem::forget(held);
    orphan(folder.path());
    // If restoring fails, nothing is changed either, and the original value is not lost.
    card.fail_with(Some(KnobError::NoPermission));
    let refused = hold(&store(folder.path()), UUID, card.boxed(), "the next", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::LeftBehind { error: KnobError::NoPermission, .. })), "{refused:?}");
    card.fail_with(None);
    let (held, _, back) = hold(&store(folder.path()), UUID, card.boxed(), "the next", &[power(120_000)]).unwrap();
    assert_eq!(back, [PutBack::Done { knob: Knob::PowerLimit, value: 170_000 }]);
    assert_eq!(card.power(), 120_000);
    std::mem::forget(held);
    orphan(folder.path());
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(&settled[0].outcome, Settlement::Tried { back, .. } if back.len() == 1), "{settled:?}");
    assert_eq!(card.power(), 170_000);
    assert!(settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap().is_empty());
}

#[test]
fn a_value_changed_by_another_process_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(140_000)]).unwrap();
    card.0.lock().unwrap().power_mw = 155_000;
    assert_eq!(held.step(Knob::PowerLimit, 130_000), StepOutcome::ChangedByOthers(155_000));
    assert_eq!(held.step(Knob::PowerLimit, 130_000), StepOutcome::Nothing);
    let changed = PutBack::ChangedByOthers { knob: Knob::PowerLimit, now: 155_000, before: 170_000 };
    assert_eq!(held.put_back(), [changed]);
    assert_eq!(card.power(), 155_000);
    assert!(!record(folder.path()).exists());
}

#[test]
fn rounded_values_are_recognized() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.0.lock().unwrap().rounds = true;
    let (held, outcomes, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(140_750)]).unwrap();
    assert_eq!(outcomes, [(Knob::PowerLimit, Ok(140_000))]);
    assert_eq!(held.step(Knob::PowerLimit, 130_600), StepOutcome::Set(130_000));
    assert_eq!(held.step(Knob::PowerLimit, 120_300), StepOutcome::Set(120_000));
    drop(held);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn without_rights_nothing_is_held_or_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.fail_with(Some(KnobError::NoPermission));
    let wishes = [power(140_000), Wish { knob: Knob::MemoryClockOffset, value: 100 }];
    let (held, outcomes, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &wishes).unwrap();
    let refused = |error| Err(error);
    assert_eq!(
        outcomes,
        [
            (Knob::MemoryClockOffset, refused(KnobError::NotSupported)),
            (Knob::PowerLimit, refused(KnobError::NoPermission))
        ]
    );
    assert!(!record(folder.path()).exists());
    assert_eq!(held.step(Knob::PowerLimit, 120_000), StepOutcome::Nothing);
}

#[test]
fn damaged_records_prevent_changes_and_are_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(140_000);
    fs::create_dir(folder.path().join("power")).unwrap();
    let good = |uuid: &str| {
        format!(
            r#"{{"v":1,"card":"{uuid}","owner":{{"pid":1,"started":1,"boot":"","numbers":"","what":""}},"kept":[]}}"#
        )
    };
    let twice = good(UUID)
        .replace("[]", r#"[{"knob":"power_limit","before":1,"ours":[]},{"knob":"power_limit","before":2,"ours":[]}]"#);
    let texts = [String::new(), "{".to_owned(), "[]".to_owned(), good("GPU-other"), "x".repeat(70_000), twice];
    for text in texts {
        fs::write(record(folder.path()), &text).unwrap();
        let refused = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(120_000)]);
        assert!(matches!(refused, Err(HoldError::Record(_))), "{text:.60}: {refused:?}");
        let settled = settle(&store(folder.path()), true, |_| Ok(card.boxed())).unwrap();
        assert!(matches!(settled[0].outcome, Settlement::Failed { .. }), "{text:.60}: {settled:?}");
        assert!(record(folder.path()).exists());
    }
    assert_eq!(card.power(), 140_000);
    // A name with a path is not a card.
    let refused = hold(&store(folder.path()), "../../etc/x", card.boxed(), "a test", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::Record(_))), "{refused:?}");
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(140_000);
    fs::create_dir(folder.path().join("power")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", record(folder.path())).unwrap();
    let refused = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::Record(_))), "{refused:?}");
}

#[test]
fn a_missing_card_is_retried_and_a_reboot_drops_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a crash", &[power(140_000)]).unwrap();
    std::mem::forget(held);
    orphan(folder.path());
    let gone = KnobError::Failed { reason: "lost".to_owned() };
    let settled = settle(&store(folder.path()), false, |_| Err(gone.clone())).unwrap();
    assert!(matches!(settled[0].outcome, Settlement::NoCard { .. }), "{settled:?}");
    card.fail_with(Some(gone));
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(
        matches!(&settled[0].outcome, Settlement::Tried { back, .. } if matches!(back[..], [PutBack::Failed { .. }]))
    );
    card.fail_with(None);
    let text = fs::read_to_string(record(folder.path())).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["owner"]["boot"] = "another".into();
    fs::write(record(folder.path()), value.to_string()).unwrap();
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    let forgotten = PutBack::Forgotten { knob: Knob::PowerLimit };
    assert!(matches!(&settled[0].outcome, Settlement::Tried { back, .. } if *back == [forgotten]), "{settled:?}");
    assert_eq!(card.power(), 140_000);
    assert!(!record(folder.path()).exists());
}

/// Values that another container set are restored only on request.
#[test]
fn invisible_owners_are_respected_unless_forced() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "elsewhere", &[power(140_000)]).unwrap();
    std::mem::forget(held);
    let text = fs::read_to_string(record(folder.path())).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["owner"]["numbers"] = "pid:[1]".into();
    fs::write(record(folder.path()), value.to_string()).unwrap();
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(settled[0].outcome, Settlement::InUse { is_alive: false, .. }), "{settled:?}");
    assert_eq!(card.power(), 140_000);
    settle(&store(folder.path()), true, |_| Ok(card.boxed())).unwrap();
    assert_eq!(card.power(), 170_000);
}
