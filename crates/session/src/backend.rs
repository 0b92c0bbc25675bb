//! What plans a session's run and puts plans on a device.

use crate::error::SessionError;
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::MemoryId;
use plimsoll_plan::{Found, Plan, Request, SequenceTile, search};
use plimsoll_train::{Engine, RunFolder, TrainError};
use plimsoll_units::Bytes;
use std::fmt::Display;

/// Plans a session's run for another budget, and puts plans on a device.
pub trait Backend {
    /// The error of the session's calls.
    type Error: From<SessionError> + Display;

    /// Plans the run of `current` for another budget of the device, in bytes, so that it computes the same sums
    /// ([`same_sums`]). Called on the thread that trains, while `current` is on the device. Errors: why there is no such plan,
    /// in words for the journal.
    fn plan(&self, current: &Found, budget: Bytes) -> Result<Found, String>;

    /// Replaces the plan on the device by one that takes over its state ([`Engine::can_exchange`]), for this budget in bytes.
    /// The inner error: there is no room for it, and the plan and the budget before stay. Errors: the device fails.
    fn exchange(
        &mut self,
        engine: &mut Engine,
        found: &Found,
        _budget: Bytes,
    ) -> Result<Result<(), DeviceError>, Self::Error> {
        exchange(engine, found).map_err(Self::Error::from)
    }

    /// Puts a plan on the device: when the session begins, and for each change of plan, after the engine of the plan before
    /// was dropped. `budget`: the budget in bytes that `found` was planned for, if it is another than before; on an error the
    /// one before stays. May replace `found` by a plan that fits if less memory is free by now. Errors: there is no room for
    /// it, or the device refuses it.
    fn load(&mut self, folder: &RunFolder, found: &mut Found, budget: Option<Bytes>) -> Result<Engine, Self::Error>;
}

/// The request with everything that decides the order of sums as `found` has it: a plan for another budget then trains the
/// same model to the bit.
pub fn same_sums(request: &Request, found: &Found) -> Request {
    let mut request = request.clone();
    request.micro_batch = Some(found.plan.micro_batch);
    request.levers.head_chunk = Some(found.settings.head_chunk);
    request.levers.attention_rows = Some(found.settings.levers.attention_rows);
    request.levers.sequence_tile =
        Some(found.settings.levers.sequence_tile.map_or(SequenceTile::Off, SequenceTile::Rows));
    request
}

/// [`Engine::exchange`]. The inner error: there is no room for the plan, and the plan before stays. Errors: the device fails.
pub fn exchange(engine: &mut Engine, found: &Found) -> Result<Result<(), DeviceError>, SessionError> {
    match engine.exchange(&found.graph, found.plan.clone()) {
        Ok(()) => Ok(Ok(())),
        Err(TrainError::Device(refused @ DeviceError::NoRoom { .. })) => Ok(Err(refused)),
        Err(error) => Err(error.into()),
    }
}

/// Bytes of a plan's arenas, on the device and on the host.
pub fn arenas(plan: &Plan) -> Bytes {
    plan.peak() + plan.host()
}

/// A backend on devices that a function opens, without any check of what is free.
pub struct OnDevice<F> {
    request: Request,
    open: F,
}

impl<F: FnMut() -> Result<Box<dyn Device>, DeviceError>> OnDevice<F> {
    /// Plans by `request`; `open` opens the device again for each plan.
    pub fn new(request: Request, open: F) -> Self {
        Self { request, open }
    }
}

impl<F: FnMut() -> Result<Box<dyn Device>, DeviceError>> Backend for OnDevice<F> {
    type Error = SessionError;

    fn plan(&self, current: &Found, budget: Bytes) -> Result<Found, String> {
        let budget = self.request.budget.with(MemoryId::DEVICE, budget);
        let request = Request { budget, ..same_sums(&self.request, current) };
        match search(&request) {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(misfit)) => {
                let needed = misfit.plan.needed();
                let [device, host] = [MemoryId::DEVICE, MemoryId::HOST].map(|memory| needed[memory]);
                Err(format!("the smallest plan needs {device} on the device and {host} on the host"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn load(&mut self, _: &RunFolder, found: &mut Found, _: Option<Bytes>) -> Result<Engine, SessionError> {
        let device = (self.open)().map_err(TrainError::from)?;
        Ok(Engine::new(device, &found.graph, found.plan.clone())?)
    }
}
