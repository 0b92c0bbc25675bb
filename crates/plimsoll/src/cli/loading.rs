//! How a plan comes onto its device, and what is done where others took of a card's memory since it was made.

use super::Failure;
use super::budget::BudgetArgs;
use super::cards::{DeviceArgs, Opened};
use super::device::Device;
use crate::streams::talk;
use ::plimsoll_plan::Found;
use ::plimsoll_train::{Engine, TrainError};
use plimsoll_exec::DeviceError;

/// How often a run is planned again.
const PLANNED_AGAIN: usize = 2;

/// By which flags a device was opened.
#[derive(Clone, Copy)]
pub(super) struct Flags<'a> {
    pub(super) device: &'a DeviceArgs,
    pub(super) budget: &'a BudgetArgs,
}

impl Flags<'_> {
    /// The plan on its device. Where there is no room for it on a card any more, and no budget was named, `plan_for` plans
    /// again for what is left, and `found` becomes that. Errors: there is no room, or nothing fits in it; what the device
    /// refuses; those of `plan_for`.
    pub(super) fn load(
        self,
        mut opened: Opened,
        found: &mut Found,
        mut plan_for: impl FnMut(&Device) -> Result<Found, Failure>,
    ) -> Result<Engine, Failure> {
        for _ in 0..PLANNED_AGAIN {
            let (card, before) = (opened.reopening(), opened.device.budget.bytes);
            match (self.reserve(opened, found), card) {
                (Err(TrainError::Device(refused @ DeviceError::NoRoom { card: Some(_), .. })), Some(card))
                    if self.budget.vram.is_none() =>
                {
                    let again = self.device.again(&card)?;
                    opened = card.opened(again, self).map_err(|_| TrainError::from(refused))?;
                    *found = plan_for(&opened.device).map_err(|failure| failure.naming_holders(&card.card().uuid))?;
                    opened.check_free(self.budget, &found.plan)?;
                    talk(format_args!(
                        "others took memory of the card since the run was planned, for {before}: planned again for {}",
                        opened.device.budget.bytes
                    ));
                }
                (loaded, _) => return Ok(loaded?),
            }
        }
        Ok(self.reserve(opened, found)?)
    }

    fn reserve(self, opened: Opened, found: &Found) -> Result<Engine, TrainError> {
        Engine::new(opened.into_device(self.budget), &found.graph, found.plan.clone())
    }
}
