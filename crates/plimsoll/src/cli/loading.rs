//! Loads a plan onto its device, and plans again if less memory is free than when the plan was made.

use super::Failure;
use super::budget::BudgetArgs;
use super::cards::{DeviceArgs, FoundDevice, Opened};
use super::device::Device;
use crate::streams::talk;
use ::plimsoll_plan::Found;
use ::plimsoll_train::{Engine, TrainError};
use plimsoll_exec::DeviceError;
use plimsoll_exec::cuda::CudaError;

/// The maximum number of new plans.
const PLANNED_AGAIN: usize = 2;

/// The flags with which the device was opened.
#[derive(Clone, Copy)]
pub(super) struct Flags<'a> {
    pub(super) device: &'a DeviceArgs,
    pub(super) budget: &'a BudgetArgs,
}

impl Flags<'_> {
    /// Loads the plan onto its device. If its memory is no longer free, `plan_for` plans again for the free memory and
    /// replaces `found`, except on the CPU with `--vram`. Errors: the memory is not enough; the device refuses something;
    /// those of `plan_for`.
    pub(super) fn load(
        self,
        mut opened: Opened,
        found: &mut Found,
        mut plan_for: impl FnMut(&Device) -> Result<Found, Failure>,
    ) -> Result<Engine, Failure> {
        for _ in 0..PLANNED_AGAIN {
            let (card, before) = (opened.reopening(), opened.device.budget.bytes);
            let refused = match self.reserve(opened, found) {
                Err(TrainError::Device(refused @ DeviceError::NoRoom { .. }))
                    if card.is_some() || self.budget.vram.is_none() =>
                {
                    refused
                }
                loaded => return Ok(loaded?),
            };
            let is_of_card = matches!(refused, DeviceError::NoRoom { card: Some(_), .. });
            (opened, *found) = match card {
                Some(card) if is_of_card => {
                    let again = match self.device.again(&card) {
                        Err(CudaError::NoRoomForDriver { .. }) => return Err(TrainError::from(refused).into()),
                        again => again?,
                    };
                    let opened = card.opened(again, self.device, self.budget).map_err(|_| TrainError::from(refused))?;
                    let found =
                        plan_for(&opened.device).map_err(|failure| failure.naming_holders(&card.card().uuid))?;
                    (opened, found)
                }
                // The host memory of a plan for a GPU.
                Some(_) => return Err(TrainError::from(refused).into()),
                None => {
                    let opened = self.device.open_found(FoundDevice::Processor, self.budget, None)?;
                    let found = plan_for(&opened.device)?;
                    (opened, found)
                }
            };
            opened.check_free(self.budget, &found.plan)?;
            let kind = if is_of_card { "GPU memory" } else { "memory" };
            talk(format_args!(
                "less {kind} is free than when the run was planned for {before}; planned again for {}",
                opened.device.budget.bytes
            ));
        }
        Ok(self.reserve(opened, found)?)
    }

    fn reserve(self, opened: Opened, found: &Found) -> Result<Engine, TrainError> {
        Engine::new(opened.into_device(self.budget), &found.graph, found.plan.clone())
    }
}
