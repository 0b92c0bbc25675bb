//! Bytes on their way to the card: copied into pinned memory first, so that whoever writes need not wait until all that
//! runs before is done.

use super::context::Context;
use super::error::CallError;
use super::memory::PinnedMemory;
use super::streams::{Event, Stream};
use std::sync::Arc;

/// Copies that may be on their way, and bytes of each. A step's inputs are a handful of short ones.
const SLOTS: usize = 8;
const SLOT_BYTES: usize = 256 << 10;

/// Pinned memory in slots, used one after the other.
#[derive(Debug)]
pub(super) struct Staging {
    memory: PinnedMemory,
    /// When the copy from each slot is done.
    done: Vec<Event>,
    next: usize,
}

impl Staging {
    /// Takes its memory. Errors: the driver's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        let memory = PinnedMemory::take(context, SLOTS * SLOT_BYTES)?;
        let done = (0..SLOTS).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Self { memory, done, next: 0 })
    }

    /// Copies bytes to the card when the stream gets there. Waits where all slots are in use.
    ///
    /// # Safety
    /// The card's bytes can be written until the stream is done with it.
    pub(super) unsafe fn send(&mut self, stream: &Stream, to: u64, bytes: &[u8]) -> Result<(), CallError> {
        for (index, part) in bytes.chunks(SLOT_BYTES).enumerate() {
            let slot = self.next;
            self.next = (slot + 1) % SLOTS;
            self.done[slot].synchronize()?;
            // SAFETY: the slot lies in the memory.
            let at = unsafe { self.memory.at().add(slot * SLOT_BYTES) };
            // SAFETY: the slot has room for a part, and the copy that used it last is done.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len()) };
            // SAFETY: the slot is not written until the event behind this copy has happened; the card's bytes are the
            // caller's promise.
            unsafe { stream.copy_to_card(to + (index * SLOT_BYTES) as u64, at, part.len()) }?;
            stream.record(&self.done[slot])?;
        }
        Ok(())
    }
}
