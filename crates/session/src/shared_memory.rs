//! What a session and its memory watcher share. Not here: the watcher (`memory.rs`).

use plimsoll_plan::{HeldMemory, Refusal};
use plimsoll_units::Bytes;

/// Where a run's plan is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Residence {
    /// On its way to or from the device.
    #[default]
    Changing,
    /// On the device.
    Loaded(HeldMemory),
    /// Nowhere: the run waits for memory.
    Waiting,
}

/// What a session and its memory watcher share.
#[derive(Default)]
pub(crate) struct SharedMemory {
    pub(crate) residence: Residence,
    /// The watcher's order that is neither followed nor refused yet.
    pub(crate) order: Option<u64>,
    /// Why its last order was refused, if it was.
    pub(crate) refused: Option<Refusal>,
    /// A user's order of a budget that is neither followed nor refused yet.
    pub(crate) ordered: Option<(u64, Bytes)>,
    /// The budget that a user ordered and got, above which the watcher does not grow.
    pub(crate) most: Option<Bytes>,
    /// Whether the run is to save a checkpoint after its step.
    pub(crate) wants_checkpoint: bool,
}

impl SharedMemory {
    /// Records that the watcher gave an order.
    pub(crate) fn gave(&mut self, order: u64) {
        self.order = Some(order);
    }

    /// Records that an order is settled.
    pub(crate) fn settle(&mut self, order: u64, refused: Option<Refusal>) {
        let ordered = self.ordered.take_if(|(number, _)| *number == order);
        self.most = ordered.filter(|_| refused.is_none()).map(|(_, bytes)| bytes).or(self.most);
        if self.order.take_if(|own| *own == order).is_some() {
            self.refused = refused;
        }
    }
}
