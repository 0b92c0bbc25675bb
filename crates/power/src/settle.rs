//! Records that runs left behind: what they set is put back by the next start, or when somebody asks for it.

use crate::knob::{KnobError, Knobs};
use crate::owner::{Life, Owner};
use crate::record::{PutBack, RecordError};
use crate::store::Store;

/// What came of a record.
#[derive(Debug)]
pub struct Settled {
    /// The card's UUID.
    pub card: String,
    /// What came of it.
    pub came: Settlement,
}

/// What came of a record.
#[derive(Debug)]
pub enum Settlement {
    /// Everything was looked at, and what failed is tried again the next time.
    Tried {
        /// Who had set it.
        owner: Owner,
        /// What came of each setting.
        back: Vec<PutBack>,
    },
    /// Who set it runs still, or can't be seen from here.
    InUse {
        /// Who.
        owner: Owner,
        /// Whether it certainly runs.
        is_alive: bool,
    },
    /// The card is not there, or does not answer; tried again the next time.
    NoCard {
        /// What the driver said.
        error: KnobError,
    },
    /// The record can't be read or written.
    Failed {
        /// Why.
        error: RecordError,
    },
}

/// Looks at all records. `open` gives the card of a UUID. With `insists`, what was set by somebody who can't be seen from here is
/// put back as well. Errors: the folder can't be read or locked; one that is not there has no records.
pub fn settle(
    store: &Store,
    insists: bool,
    open: impl Fn(&str) -> Result<Box<dyn Knobs>, KnobError>,
) -> Result<Vec<Settled>, RecordError> {
    if store.cards()?.is_empty() {
        return Ok(vec![]);
    }
    let _lock = store.lock()?;
    let of_card = |card: String| {
        let came = settle_card(store, &card, insists, &open).unwrap_or_else(|error| Some(Settlement::Failed { error }));
        came.map(|came| Settled { card, came })
    };
    Ok(store.cards()?.into_iter().filter_map(of_card).collect())
}

fn settle_card(
    store: &Store,
    uuid: &str,
    insists: bool,
    open: impl Fn(&str) -> Result<Box<dyn Knobs>, KnobError>,
) -> Result<Option<Settlement>, RecordError> {
    let Some(mut record) = store.read(uuid)? else { return Ok(None) };
    let life = record.owner.life();
    if life == Life::Alive || (life == Life::Unknown && !insists) {
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
