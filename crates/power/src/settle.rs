//! Records of runs that crashed: restores their old values at the next start, or on the user's request.

use crate::knob::{KnobError, Knobs};
use crate::owner::{Life, Owner};
use crate::record::{PutBack, RecordError};
use crate::store::Store;

/// A record and its outcome.
#[derive(Debug)]
pub struct Settled {
    /// The card's UUID.
    pub card: String,
    /// The outcome.
    pub outcome: Settlement,
}

/// The outcome of settling a record.
#[derive(Debug)]
pub enum Settlement {
    /// All settings were tried. Failed ones are retried next time.
    Tried {
        /// The owner of the record.
        owner: Owner,
        /// The outcome of each setting.
        back: Vec<PutBack>,
    },
    /// The owner still runs, or is not visible from here.
    InUse {
        /// The owner.
        owner: Owner,
        /// Whether it certainly runs.
        is_alive: bool,
    },
    /// The card is missing or does not answer. Retried next time.
    NoCard {
        /// The driver's error.
        error: KnobError,
    },
    /// The record can't be read or written.
    Failed {
        /// The error.
        error: RecordError,
    },
}

/// Settles all records. `open` opens the card with a UUID. `force` also restores values of owners that are not visible
/// from here. A missing folder has no records. Errors: the folder can't be read or locked.
pub fn settle(
    store: &Store,
    force: bool,
    open: impl Fn(&str) -> Result<Box<dyn Knobs>, KnobError>,
) -> Result<Vec<Settled>, RecordError> {
    if store.cards()?.is_empty() {
        return Ok(vec![]);
    }
    let _lock = store.lock()?;
    let of_card = |card: String| {
        let outcome =
            settle_card(store, &card, force, &open).unwrap_or_else(|error| Some(Settlement::Failed { error }));
        outcome.map(|outcome| Settled { card, outcome })
    };
    Ok(store.cards()?.into_iter().filter_map(of_card).collect())
}

fn settle_card(
    store: &Store,
    uuid: &str,
    force: bool,
    open: impl Fn(&str) -> Result<Box<dyn Knobs>, KnobError>,
) -> Result<Option<Settlement>, RecordError> {
    let Some(mut record) = store.read(uuid)? else { return Ok(None) };
    let life = record.owner.life();
    if life == Life::Alive || (life == Life::Unknown && !force) {
        return Ok(Some(Settlement::InUse { owner: record.owner, is_alive: life == Life::Alive }));
    }
    let card = match open(uuid) {
        Ok(card) => card,
        Err(error) => return Ok(Some(Settlement::NoCard { error })),
    };
    let back = record.put_back(card.as_ref());
    if record.kept.is_empty() {
        store.remove(uuid)?
    } else {
        store.write(&record)?
    }
    Ok(Some(Settlement::Tried { owner: record.owner, back }))
}
