//! Pins the host's arena, whole or in pieces, so that copies between it and the card run asynchronously.
//!
//! Drivers limit how much memory they pin, under WSL2 to about a gibibyte, and don't tell how much. If the arena is refused as a
//! whole, its beginning is pinned piece by piece until a piece is refused. Copies of the rest go through a small pinned buffer,
//! which the driver fills or empties in the stream's order: they overlap with kernels too, at a lower rate.

use super::context::Context;
use super::error::CallError;
use super::memory::{Pin, PinnedMemory};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// The arena is pinned in at most this many pieces, of whole pages.
const PIECES: usize = 64;
const PAGE: usize = 64 << 10;

/// Bytes of the buffer of each direction.
const BUFFER: usize = 2 << 20;

/// The directions of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToDevice,
    ToHost,
}

/// How copies from and to the host's arena run.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    /// Pieces from the beginning of the arena, each of `piece` bytes, and the last one what is left.
    pins: Vec<Pin>,
    piece: usize,
    /// Bytes of the pieces.
    pinned: usize,
    /// Both buffers; `None` if all is pinned, or if the driver pins nothing.
    buffers: Option<PinnedMemory>,
}

impl Pinning {
    /// Pins an arena, or as much of it as the driver pins. Returns why that is not all.
    ///
    /// # Safety
    /// The bytes don't move until this is dropped.
    pub(super) unsafe fn of(context: &Arc<Context>, at: *mut u8, bytes: usize) -> (Self, Option<CallError>) {
        if bytes == 0 {
            return (Self::default(), None);
        }
        // SAFETY: the caller's promise.
        let refused = match unsafe { Pin::new(context, at, bytes) } {
            Ok(pin) => return (Self { pins: vec![pin], piece: bytes, pinned: bytes, buffers: None }, None),
            Err(refused) => refused,
        };
        // First, since a driver that has reached its limit would refuse them.
        let Ok(buffers) = PinnedMemory::take(context, 2 * BUFFER) else { return (Self::default(), Some(refused)) };
        let piece = bytes.div_ceil(PIECES).next_multiple_of(PAGE);
        let mut pinning = Self { pins: Vec::with_capacity(PIECES), piece, pinned: 0, buffers: Some(buffers) };
        while pinning.pinned < bytes {
            let length = piece.min(bytes - pinning.pinned);
            // SAFETY: the piece is within the arena.
            match unsafe { Pin::new(context, at.add(pinning.pinned), length) } {
                Ok(pin) => pinning.pins.push(pin),
                Err(_) => break,
            }
            pinning.pinned += length;
        }
        (pinning, Some(refused))
    }

    /// Whether copies run asynchronously.
    pub(super) fn is_asynchronous(&self) -> bool {
        !self.pins.is_empty() || self.buffers.is_some()
    }

    /// The bytes that are pinned.
    pub(super) fn pinned_bytes(&self) -> u64 {
        self.pinned as u64
    }

    /// The parts of a copy of these bytes of the arena, in order: each is within a piece, or goes through a buffer, whose address
    /// is then with it.
    pub(super) fn parts(&self, bytes: Range<usize>, direction: Direction) -> Vec<(Range<usize>, Option<*mut u8>)> {
        let mut parts = Vec::new();
        let mut start = bytes.start;
        while start < bytes.end {
            let (end, buffer) = match &self.buffers {
                _ if start < self.pinned => (((start / self.piece + 1) * self.piece).min(self.pinned), None),
                Some(buffers) => {
                    let offset = if direction == Direction::ToDevice { 0 } else { BUFFER };
                    // SAFETY: both buffers are within the memory.
                    (start + BUFFER, Some(unsafe { buffers.at().add(offset) }))
                }
                None => (bytes.end, None),
            };
            let end = end.min(bytes.end);
            parts.push((start..end, buffer));
            start = end;
        }
        parts
    }
}

/// A copy within the host's memory that the driver makes when its stream comes to it. It does not move while a stream may call it.
#[derive(Debug)]
pub(super) struct HostCopy {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

// SAFETY: the addresses are only used by the driver's call, whose creator guarantees the memory.
unsafe impl Send for HostCopy {}
// SAFETY: as above.
unsafe impl Sync for HostCopy {}

impl HostCopy {
    /// A copy of bytes that exist, and that nothing else accesses, while the driver makes it.
    pub(super) fn new(from: *const u8, to: *mut u8, bytes: usize) -> Box<Self> {
        Box::new(Self { from, to, bytes })
    }
}

/// Makes the [`HostCopy`] at this address.
///
/// # Safety
/// The argument is the address of a `HostCopy`, whose bytes exist and are accessed by nothing else now.
pub(super) unsafe extern "C" fn run_host_copy(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let copy = unsafe { &*argument.cast::<HostCopy>() };
    // SAFETY: the caller's promise; one side is a buffer, so they don't overlap.
    unsafe { std::ptr::copy_nonoverlapping(copy.from, copy.to, copy.bytes) };
}
