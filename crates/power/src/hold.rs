//! A card's settings while a run lasts. They are put back when this is dropped: at a normal end, an error, a panic. Before the
//! process leaves in any other way it calls [`put_back_all`]; after SIGKILL or a power cut the next start does (`settle.rs`).

use crate::knob::{Knob, KnobError, Knobs};
use crate::owner::{Life, Owner};
use crate::record::{Kept, PutBack, Record, RecordError, VERSION};
use crate::store::Store;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is to be set, in the setting's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Which.
    pub knob: Knob,
    /// To what.
    pub value: i64,
}

/// Why nothing of a card is set.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another run has set something of it: what that put there is not the card's own.
    #[error("{} (process {}) has set the card's power or clocks", owner.what, owner.pid)]
    InUse {
        /// Who.
        owner: Box<Owner>,
    },
    /// A run that ended left something set, and that can't be put back.
    #[error("{} left the card's power or clocks changed, and they can't be put back: {error}", owner.what)]
    LeftBehind {
        /// Who.
        owner: Box<Owner>,
        /// What the card said.
        error: KnobError,
    },
    /// What was there can't be kept, so nothing is set.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What came of another value of a setting that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is set, to what the card made of it.
    Set(i64),
    /// It was that already, or is not held.
    Nothing,
    /// Somebody else changed it, to this: from now on it is left alone. Told once.
    ChangedByOthers(i64),
    /// The card does not take it, or the record does not: from now on it is left alone. Told once.
    Failed(String),
}

/// A card's settings that are ours.
#[derive(Debug)]
pub struct Held(Arc<Mutex<State>>);

struct State {
    store: Store,
    card: Box<dyn Knobs>,
    record: Record,
    /// Settings that were given up, for somebody else's or for an error.
    left_alone: Vec<Knob>,
    is_over: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("record", &self.record).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// All that this process holds.
static HELD: Mutex<Vec<Weak<Mutex<State>>>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What came of each wish: what is set now, or why it is not.
pub type Came = Vec<(Knob, Result<i64, KnobError>)>;

/// Sets what is wished of the card of this UUID, after what was there is on disk. `what` is this run, for others to read. What the
/// card does not take is told and left as it was; nothing is held then but what it took.
/// Errors: somebody else holds it; something was left behind that can't be put back; the record can't be written.
pub fn hold(
    store: &Store,
    uuid: &str,
    card: Box<dyn Knobs>,
    what: &str,
    wishes: &[Wish],
) -> Result<(Held, Came, Vec<PutBack>), HoldError> {
    let lock = store.lock()?;
    let put_back = make_free(store, uuid, card.as_ref())?;
    let mut came = Came::new();
    let mut record = Record { v: VERSION, card: uuid.to_owned(), owner: Owner::own(what), kept: vec![] };
    for Wish { knob, value } in wishes {
        match card.get(*knob) {
            Ok(before) => record.kept.push(Kept { knob: *knob, before, ours: vec![*value] }),
            Err(error) => came.push((*knob, Err(error))),
        }
    }
    if !record.kept.is_empty() {
        store.write(&record)?;
    }
    let mut refused = Vec::new();
    for kept in &mut record.kept {
        let value = *kept.ours.last().expect("the wish");
        let set = card.set(kept.knob, value).map(|()| card.get(kept.knob).unwrap_or(value));
        match &set {
            // What the card made of it is ours too.
            Ok(now) => kept.will_be(*now),
            Err(_) => refused.push(kept.knob),
        }
        came.push((kept.knob, set));
    }
    record.kept.retain(|kept| !refused.contains(&kept.knob));
    let mut state = State { store: store.clone(), card, record, left_alone: vec![], is_over: false };
    if let Err(error) = state.keep() {
        // Without a record that tells ours from others', nothing stays set.
        state.record.put_back(state.card.as_ref());
        return Err(error.into());
    }
    drop(lock);
    let state = Arc::new(Mutex::new(state));
    locked(&HELD).push(Arc::downgrade(&state));
    Ok((Held(state), came, put_back))
}

/// Puts back what a run that ended left of this card.
fn make_free(store: &Store, uuid: &str, card: &dyn Knobs) -> Result<Vec<PutBack>, HoldError> {
    let Some(mut record) = store.read(uuid)? else { return Ok(vec![]) };
    if matches!(record.owner.life(), Life::Alive | Life::Unknown) {
        return Err(HoldError::InUse { owner: Box::new(record.owner) });
    }
    let done = record.put_back(card);
    let failed = done.iter().find_map(|came| match came {
        PutBack::Failed { error, .. } => Some(error.clone()),
        _ => None,
    });
    if let Some(error) = failed {
        store.write(&record)?;
        return Err(HoldError::LeftBehind { owner: Box::new(record.owner), error });
    }
    store.remove(uuid)?;
    Ok(done)
}

impl State {
    /// Puts the record on disk, or takes it away if nothing is held. Errors: the disk does not take it.
    fn keep(&self) -> Result<(), RecordError> {
        if self.record.kept.is_empty() { self.store.remove(&self.record.card) } else { self.store.write(&self.record) }
    }

    fn step(&mut self, knob: Knob, value: i64) -> Step {
        let at = self.record.kept.iter().position(|kept| kept.knob == knob);
        let Some(at) = at.filter(|_| !self.is_over && !self.left_alone.contains(&knob)) else { return Step::Nothing };
        let came = self.try_step(at, value);
        if matches!(came, Step::ChangedByOthers(_) | Step::Failed(_)) {
            self.left_alone.push(knob);
        }
        came
    }

    fn try_step(&mut self, at: usize, value: i64) -> Step {
        let knob = self.record.kept[at].knob;
        let now = match self.card.get(knob) {
            Ok(now) if now == value => return Step::Nothing,
            Ok(now) if !self.record.kept[at].knows(now) => return Step::ChangedByOthers(now),
            Ok(_) => value,
            Err(error) => return Step::Failed(error.to_string()),
        };
        self.record.kept[at].will_be(now);
        if let Err(error) = self.keep() {
            return Step::Failed(error.to_string());
        }
        if let Err(error) = self.card.set(knob, value) {
            return Step::Failed(error.to_string());
        }
        let made = self.card.get(knob).unwrap_or(value);
        if made != value {
            self.record.kept[at].will_be(made);
            if let Err(error) = self.keep() {
                return Step::Failed(error.to_string());
            }
        }
        Step::Set(made)
    }

    fn put_back(&mut self) -> Vec<PutBack> {
        if std::mem::replace(&mut self.is_over, true) || self.record.kept.is_empty() {
            return vec![];
        }
        // Whoever has the folder meanwhile has no part in this card; waiting for it must not keep the card changed.
        let _lock = self.store.lock();
        let done = self.record.put_back(self.card.as_ref());
        // A record that stays is settled by the next start.
        let _ = self.keep();
        done
    }
}

impl Held {
    /// Sets another value of something that is held.
    pub fn step(&self, knob: Knob, value: i64) -> Step {
        locked(&self.0).step(knob, value)
    }

    /// Puts everything back. What came of it; nothing the second time.
    pub fn put_back(&self) -> Vec<PutBack> {
        locked(&self.0).put_back()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.put_back();
        locked(&HELD).retain(|held| held.strong_count() > 0 && !held.ptr_eq(&Arc::downgrade(&self.0)));
    }
}

/// Puts back all that this process holds: for ways out that run no destructors.
pub fn put_back_all() {
    let held = locked(&HELD).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
    held.iter().for_each(|state| drop(locked(state).put_back()));
}
