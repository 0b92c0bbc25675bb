//! What is set of a card and put back, on a card in memory: every way in which it can go wrong.

use plimsoll_power::{HoldError, Knob, KnobError, Knobs, PutBack, Range, Settlement, Step, Store, Wish, hold, settle};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

const UUID: &str = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6";

/// A card in memory, which several may have a hand on.
#[derive(Clone, Default)]
struct Card(Arc<Mutex<Values>>);

#[derive(Default)]
struct Values {
    power_mw: i64,
    clock_mhz: i64,
    /// It takes whole watts.
    rounds: bool,
    refuses: Option<KnobError>,
    /// What was set, in order.
    set: Vec<(Knob, i64)>,
    /// Looked at before each set.
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

    fn refuse(&self, error: Option<KnobError>) {
        self.0.lock().unwrap().refuses = error;
    }

    fn boxed(&self) -> Box<dyn Knobs> {
        Box::new(self.clone())
    }
}

impl Knobs for Card {
    fn range(&self, _: Knob) -> Result<Range, KnobError> {
        Ok(Range { least: 100_000, most: 200_000, usual: Some(170_000) })
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
        if let Some(error) = values.refuses.clone() {
            return Err(error);
        }
        if let Some(record) = &values.record {
            let text = fs::read_to_string(record).expect("nothing is set before it is on disk");
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

/// Makes a record one of a process that ended.
fn orphan(folder: &Path) {
    let file = record(folder);
    let mut text: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    text["owner"]["started"] = 1.into();
    fs::write(&file, text.to_string()).unwrap();
}

#[test]
fn what_was_before_is_on_disk_before_anything_is_set_and_is_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.0.lock().unwrap().record = Some(record(folder.path()));
    let wishes = [power(140_000), Wish { knob: Knob::ClockOffset, value: 50 }];
    let (held, came, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &wishes).unwrap();
    assert_eq!(came, [(Knob::PowerLimit, Ok(140_000)), (Knob::ClockOffset, Ok(50))]);
    assert_eq!(held.step(Knob::PowerLimit, 120_000), Step::Set(120_000));
    assert_eq!(held.step(Knob::PowerLimit, 120_000), Step::Nothing);
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
    assert_eq!((held.step(Knob::PowerLimit, 120_000), held.put_back()), (Step::Nothing, vec![]));
    drop(held);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn a_panic_puts_it_back_too() {
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
fn a_second_run_is_refused_and_never_takes_the_firsts_value_for_the_cards() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (first, ..) = hold(&store(folder.path()), UUID, card.boxed(), "the first", &[power(140_000)]).unwrap();
    let second = hold(&store(folder.path()), UUID, card.boxed(), "the second", &[power(120_000)]);
    assert!(matches!(&second, Err(HoldError::InUse { owner }) if owner.what == "the first"), "{second:?}");
    assert_eq!(card.power(), 140_000);
    let settled = settle(&store(folder.path()), true, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(settled[..], [ref one] if matches!(one.came, Settlement::InUse { is_alive: true, .. })));
    drop(first);
    assert_eq!(card.power(), 170_000);
    let (again, ..) = hold(&store(folder.path()), UUID, card.boxed(), "the second", &[power(120_000)]).unwrap();
    drop(again);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn a_crash_is_put_right_by_the_next_start_which_then_keeps_the_cards_own_value() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a crash", &[power(140_000)]).unwrap();
    held.step(Knob::PowerLimit, 111_000);
    std::mem::forget(held);
    orphan(folder.path());
    // It can't be put back at first: then nothing is set either, and the value before is not lost.
    card.refuse(Some(KnobError::NoPermission));
    let refused = hold(&store(folder.path()), UUID, card.boxed(), "the next", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::LeftBehind { error: KnobError::NoPermission, .. })), "{refused:?}");
    card.refuse(None);
    let (held, _, back) = hold(&store(folder.path()), UUID, card.boxed(), "the next", &[power(120_000)]).unwrap();
    assert_eq!(back, [PutBack::Done { knob: Knob::PowerLimit, value: 170_000 }]);
    assert_eq!(card.power(), 120_000);
    std::mem::forget(held);
    orphan(folder.path());
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(&settled[0].came, Settlement::Tried { back, .. } if back.len() == 1), "{settled:?}");
    assert_eq!(card.power(), 170_000);
    assert!(settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap().is_empty());
}

#[test]
fn what_somebody_else_set_meanwhile_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(140_000)]).unwrap();
    card.0.lock().unwrap().power_mw = 155_000;
    assert_eq!(held.step(Knob::PowerLimit, 130_000), Step::ChangedByOthers(155_000));
    assert_eq!(held.step(Knob::PowerLimit, 130_000), Step::Nothing);
    let changed = PutBack::ChangedByOthers { knob: Knob::PowerLimit, now: 155_000, before: 170_000 };
    assert_eq!(held.put_back(), [changed]);
    assert_eq!(card.power(), 155_000);
    assert!(!record(folder.path()).exists());
}

#[test]
fn what_a_card_made_of_a_value_is_known_again() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.0.lock().unwrap().rounds = true;
    let (held, came, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(140_750)]).unwrap();
    assert_eq!(came, [(Knob::PowerLimit, Ok(140_000))]);
    assert_eq!(held.step(Knob::PowerLimit, 130_600), Step::Set(130_000));
    assert_eq!(held.step(Knob::PowerLimit, 120_300), Step::Set(120_000));
    drop(held);
    assert_eq!(card.power(), 170_000);
}

#[test]
fn without_rights_nothing_is_held_and_nothing_stays_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    card.refuse(Some(KnobError::NoPermission));
    let wishes = [power(140_000), Wish { knob: Knob::MemoryClockOffset, value: 100 }];
    let (held, came, _) = hold(&store(folder.path()), UUID, card.boxed(), "a test", &wishes).unwrap();
    let refused = |error| Err(error);
    assert_eq!(
        came,
        [
            (Knob::MemoryClockOffset, refused(KnobError::NotSupported)),
            (Knob::PowerLimit, refused(KnobError::NoPermission))
        ]
    );
    assert!(!record(folder.path()).exists());
    assert_eq!(held.step(Knob::PowerLimit, 120_000), Step::Nothing);
}

#[test]
fn records_that_are_none_stop_everything_and_stay() {
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
        assert!(matches!(settled[0].came, Settlement::Failed { .. }), "{text:.60}: {settled:?}");
        assert!(record(folder.path()).exists());
    }
    assert_eq!(card.power(), 140_000);
    // A name that leads elsewhere is no card's.
    let refused = hold(&store(folder.path()), "../../etc/x", card.boxed(), "a test", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::Record(_))), "{refused:?}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_are_no_records() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(140_000);
    fs::create_dir(folder.path().join("power")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", record(folder.path())).unwrap();
    let refused = hold(&store(folder.path()), UUID, card.boxed(), "a test", &[power(120_000)]);
    assert!(matches!(refused, Err(HoldError::Record(_))), "{refused:?}");
}

#[test]
fn a_card_that_is_gone_is_tried_again_and_one_of_before_a_restart_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "a crash", &[power(140_000)]).unwrap();
    std::mem::forget(held);
    orphan(folder.path());
    let gone = KnobError::Failed { reason: "lost".to_owned() };
    let settled = settle(&store(folder.path()), false, |_| Err(gone.clone())).unwrap();
    assert!(matches!(settled[0].came, Settlement::NoCard { .. }), "{settled:?}");
    card.refuse(Some(gone));
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(&settled[0].came, Settlement::Tried { back, .. } if matches!(back[..], [PutBack::Failed { .. }])));
    card.refuse(None);
    let text = fs::read_to_string(record(folder.path())).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["owner"]["boot"] = "another".into();
    fs::write(record(folder.path()), value.to_string()).unwrap();
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    let forgotten = PutBack::Forgotten { knob: Knob::PowerLimit };
    assert!(matches!(&settled[0].came, Settlement::Tried { back, .. } if *back == [forgotten]), "{settled:?}");
    assert_eq!(card.power(), 140_000);
    assert!(!record(folder.path()).exists());
}

/// What another container set is only put back by somebody who asks for it.
#[test]
fn owners_that_cannot_be_seen_are_left_alone_unless_somebody_insists() {
    let folder = tempfile::tempdir().unwrap();
    let card = Card::new(170_000);
    let (held, ..) = hold(&store(folder.path()), UUID, card.boxed(), "elsewhere", &[power(140_000)]).unwrap();
    std::mem::forget(held);
    let text = fs::read_to_string(record(folder.path())).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["owner"]["numbers"] = "pid:[1]".into();
    fs::write(record(folder.path()), value.to_string()).unwrap();
    let settled = settle(&store(folder.path()), false, |_| Ok(card.boxed())).unwrap();
    assert!(matches!(settled[0].came, Settlement::InUse { is_alive: false, .. }), "{settled:?}");
    assert_eq!(card.power(), 140_000);
    settle(&store(folder.path()), true, |_| Ok(card.boxed())).unwrap();
    assert_eq!(card.power(), 170_000);
}
