//! A card's settings while a run lasts. They are restored on drop: at a normal end, an error, a panic. A process that
//! exits without running destructors calls [`put_back_all`] first. After SIGKILL or a power cut, the next start
//! restores them (`settle.rs`).

use crate::knob::{Knob, KnobError, Knobs};
use crate::owner::{Life, Owner};
use crate::record::{PutBack, Record, RecordError, SavedSetting, VERSION};
use crate::store::Store;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A requested value, in the setting's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The setting.
    pub knob: Knob,
    /// The value.
    pub value: i64,
}

/// Why no setting of a card was changed.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another run has changed the card, so its current values are not the original ones.
    #[error("{} (process {}) has set the GPU's power or clocks", owner.what, owner.pid)]
    InUse {
        /// The owner.
        owner: Box<Owner>,
    },
    /// A run that ended left the card changed, and the old values can't be restored.
    #[error("{} left the GPU's power or clocks changed, and they can't be restored: {error}", owner.what)]
    LeftBehind {
        /// The owner.
        owner: Box<Owner>,
        /// The card's error.
        error: KnobError,
    },
    /// The old values can't be recorded, so nothing is changed.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// The outcome of changing a held setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepOutcome {
    /// It is set. The card may have rounded it to this value.
    Set(i64),
    /// It has this value already, or is not held.
    Nothing,
    /// Another process changed it to this value. It is no longer touched. Returned once.
    ChangedByOthers(i64),
    /// The card or the record failed. It is no longer touched. Returned once.
    Failed(String),
}

/// The settings of a card that this process has changed.
#[derive(Debug)]
pub struct HeldSettings(Arc<Mutex<State>>);

struct State {
    store: Store,
    card: Box<dyn Knobs>,
    record: Record,
    /// Settings that are no longer touched, because another process changed them or because of an error.
    abandoned: Vec<Knob>,
    is_over: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("record", &self.record).field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// Everything that this process holds.
static HELD: Mutex<Vec<Weak<Mutex<State>>>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outcome of each wish: the value that is set now, or an error.
pub type HoldOutcomes = Vec<(Knob, Result<i64, KnobError>)>;

/// Sets values of the card with this UUID, after recording the old values on disk. `what`: a name of this run for other
/// processes. A value that the card rejects is reported and not held.
/// Errors: another process holds the card; values that an earlier run left can't be restored; the record can't be
/// written.
pub fn hold(
    store: &Store,
    uuid: &str,
    card: Box<dyn Knobs>,
    what: &str,
    wishes: &[Wish],
) -> Result<(HeldSettings, HoldOutcomes, Vec<PutBack>), HoldError> {
    let lock = store.lock()?;
    let put_back = make_free(store, uuid, card.as_ref())?;
    let mut outcomes = HoldOutcomes::new();
    let mut record = Record { v: VERSION, card: uuid.to_owned(), owner: Owner::own(what), kept: vec![] };
    for Wish { knob, value } in wishes {
        match card.get(*knob) {
            Ok(before) => record.kept.push(SavedSetting { knob: *knob, before, ours: vec![*value] }),
            Err(error) => outcomes.push((*knob, Err(error))),
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
            // The card may have rounded the value. Remember that one as well.
            Ok(now) => kept.will_be(*now),
            Err(_) => refused.push(kept.knob),
        }
        outcomes.push((kept.knob, set));
    }
    record.kept.retain(|kept| !refused.contains(&kept.knob));
    let mut state = State { store: store.clone(), card, record, abandoned: vec![], is_over: false };
    if let Err(error) = state.keep() {
        // Without a record that distinguishes our values from others, restore everything.
        state.record.put_back(state.card.as_ref());
        return Err(error.into());
    }
    drop(lock);
    let state = Arc::new(Mutex::new(state));
    locked(&HELD).push(Arc::downgrade(&state));
    Ok((HeldSettings(state), outcomes, put_back))
}

/// Restores values that a run that ended left on this card.
fn make_free(store: &Store, uuid: &str, card: &dyn Knobs) -> Result<Vec<PutBack>, HoldError> {
    let Some(mut record) = store.read(uuid)? else { return Ok(vec![]) };
    if matches!(record.owner.life(), Life::Alive | Life::Unknown) {
        return Err(HoldError::InUse { owner: Box::new(record.owner) });
    }
    let done = record.put_back(card);
    let failed = done.iter().find_map(|outcomes| match outcomes {
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
    /// Writes the record, or removes it if nothing is held. Errors: the disk fails.
    fn keep(&self) -> Result<(), RecordError> {
        if self.record.kept.is_empty() { self.store.remove(&self.record.card) } else { self.store.write(&self.record) }
    }

    fn step(&mut self, knob: Knob, value: i64) -> StepOutcome {
        let at = self.record.kept.iter().position(|kept| kept.knob == knob);
        let Some(at) = at.filter(|_| !self.is_over && !self.abandoned.contains(&knob)) else {
            return StepOutcome::Nothing;
        };
        let outcomes = self.try_step(at, value);
        if matches!(outcomes, StepOutcome::ChangedByOthers(_) | StepOutcome::Failed(_)) {
            self.abandoned.push(knob);
        }
        outcomes
    }

    fn try_step(&mut self, at: usize, value: i64) -> StepOutcome {
        let knob = self.record.kept[at].knob;
        let now = match self.card.get(knob) {
            Ok(now) if now == value => return StepOutcome::Nothing,
            Ok(now) if !self.record.kept[at].knows(now) => return StepOutcome::ChangedByOthers(now),
            Ok(_) => value,
            Err(error) => return StepOutcome::Failed(error.to_string()),
        };
        self.record.kept[at].will_be(now);
        if let Err(error) = self.keep() {
            return StepOutcome::Failed(error.to_string());
        }
        if let Err(error) = self.card.set(knob, value) {
            return StepOutcome::Failed(error.to_string());
        }
        let made = self.card.get(knob).unwrap_or(value);
        if made != value {
            self.record.kept[at].will_be(made);
            if let Err(error) = self.keep() {
                return StepOutcome::Failed(error.to_string());
            }
        }
        StepOutcome::Set(made)
    }

    fn put_back(&mut self) -> Vec<PutBack> {
        if std::mem::replace(&mut self.is_over, true) || self.record.kept.is_empty() {
            return vec![];
        }
        // Restore the card even without the lock: the process that holds the folder does not use this card.
        let _lock = self.store.lock();
        let done = self.record.put_back(self.card.as_ref());
        // The next start settles a record that could not be removed.
        let _ = self.keep();
        done
    }
}

impl HeldSettings {
    /// Changes a held setting.
    pub fn step(&self, knob: Knob, value: i64) -> StepOutcome {
        locked(&self.0).step(knob, value)
    }

    /// Restores everything. Returns the outcomes; empty the second time.
    pub fn put_back(&self) -> Vec<PutBack> {
        locked(&self.0).put_back()
    }
}

impl Drop for HeldSettings {
    fn drop(&mut self) {
        self.put_back();
        locked(&HELD).retain(|held| held.strong_count() > 0 && !held.ptr_eq(&Arc::downgrade(&self.0)));
    }
}

/// Restores everything that this process holds. Call before an exit that runs no destructors.
pub fn put_back_all() {
    let held = locked(&HELD).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
    held.iter().for_each(|state| drop(locked(state).put_back()));
}
