//! Copies to the card by way of pinned memory, so that the writing thread does not wait until all earlier work is done.

use super::context::Context;
use super::error::CallError;
use super::memory::PinnedMemory;
use super::streams::{Event, Stream};
use std::sync::Arc;

/// Number of concurrent copies, and bytes of each. A step's inputs are a few short copies.
const SLOTS: usize = 8;
const SLOT_BYTES: usize = 256 << 10;

/// Pinned memory in slots, used one after the other.
#[derive(Debug)]
pub(super) struct Staging {
    memory: PinnedMemory,
    /// The event of the end of the copy from each slot.
    done: Vec<Event>,
    next: usize,
}

impl Staging {
    /// Allocates its memory. Errors: the driver's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        let memory = PinnedMemory::take(context, SLOTS * SLOT_BYTES)?;
        let done = (0..SLOTS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { memory, done, next: 0 })
    }

    /// Enqueues a copy of bytes to the card. Waits if all slots are in use.
    ///
    /// # Safety
    /// The card's bytes may be written until the stream has done the copy.
    pub(super) unsafe fn send(&mut self, stream: &Stream, to: u64, bytes: &[u8]) -> Result<(), CallError> {
        for (index, part) in bytes.chunks(SLOT_BYTES).enumerate() {
            let slot = self.next;
            self.next = (slot + 1) % SLOTS;
            self.done[slot].synchronize()?;
            // SAFETY: the slot is within the memory.
            let at = unsafe { self.memory.at().add(slot * SLOT_BYTES) };
            // SAFETY: the slot has space for a part, and the last copy from it is done.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len()) };
            // SAFETY: the slot is not written until the event after this copy; the caller guarantees the card's bytes.
            unsafe { stream.copy_to_card(to + (index * SLOT_BYTES) as u64, at, part.len()) }?;
            stream.record(&self.done[slot])?;
        }
        Ok(())
    }
}
