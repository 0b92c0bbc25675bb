//! The process's context on a card. Everything else on the card belongs to it and keeps it alive.

use super::card::{Card, ComputeMode};
use super::driver::call;
use super::error::{CallError, CudaError};
use super::library::Driver;
use crate::Room;
use cudarc::driver::sys::CUcontext;
use plimsoll_units::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// The primary context of a card, released on drop.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    card: Card,
    handle: CUcontext,
    /// Number of calls that allocated memory.
    asked: AtomicU64,
}

// SAFETY: the driver's functions may be called from any thread, and the handle is only passed to them.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a card. Errors: those of `Card::check`, `InUse`, `NoRoomForDriver`.
    pub(super) fn open(driver: &'static Driver, card: Card) -> Result<Self, CudaError> {
        /// `CUDA_ERROR_DEVICE_UNAVAILABLE`
        const UNAVAILABLE: u32 = 46;
        card.check()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the card's handle came from the driver; the destination is on this stack.
        let retained = unsafe { call!(cuDevicePrimaryCtxRetain(&mut handle, card.handle)) };
        retained.map_err(|error| match error.code {
            UNAVAILABLE if card.mode == ComputeMode::Exclusive => CudaError::InUse { name: card.name.clone() },
            _ if error.is_out_of_memory() => {
                CudaError::NoRoomForDriver { name: card.name.clone(), uuid: card.uuid.clone() }
            }
            _ => error.into(),
        })?;
        let context = Self { driver, card, handle, asked: AtomicU64::new(0) };
        context.enter()?;
        Ok(context)
    }

    /// Makes it this thread's current context, which the following calls use.
    pub(super) fn enter(&self) -> Result<(), CallError> {
        // SAFETY: the context is retained until `self` is dropped.
        unsafe { call!(cuCtxSetCurrent(self.handle)) }
    }

    /// The card.
    pub(super) fn card(&self) -> &Card {
        &self.card
    }

    /// The driver.
    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The card's memory, as the driver reports it now.
    pub(super) fn room(&self) -> Result<Room, CallError> {
        let (mut free, mut total) = (0, 0);
        self.enter()?;
        // SAFETY: the destinations are on this stack.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok(Room { free: Bytes(free as u64), total: Bytes(total as u64) })
    }

    /// Counts a call that allocates memory; precedes each such call.
    pub(super) fn count_request(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of calls that allocated memory.
    pub(super) fn requests(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and everything that belongs to it keeps it alive, so it is gone. If the driver
        // fails here, nothing more can be done.
        let _ = unsafe { call!(cuDevicePrimaryCtxRelease_v2(self.card.handle)) };
    }
}
