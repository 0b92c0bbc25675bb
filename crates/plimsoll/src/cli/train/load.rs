//! How a run's plan comes onto its device, and what is done where others took of a card's memory meanwhile.

use super::Session;
use crate::cli::Failure;
use crate::cli::cards::Opened;
use crate::cli::misfit::misfit_of;
use crate::streams::talk;
use ::plimsoll_plan::search;
use ::plimsoll_train::{Engine, TrainError};
use plimsoll_exec::{Device, DeviceError};

/// How often a run is planned again.
const PLANNED_AGAIN: usize = 2;

impl Session {
    /// The plan on its device. Where there is no room for it on a card any more, and no budget was named, the run is
    /// planned again for what is left: as it was asked for, so that a resumed run keeps what decides its sums.
    /// Errors: there is no room, or nothing fits in it; what the device refuses.
    pub(super) fn load(&mut self, mut device: Box<dyn Device>) -> Result<Engine, Failure> {
        for _ in 0..PLANNED_AGAIN {
            match Engine::new(device, &self.found.graph, self.found.plan.clone()) {
                Err(TrainError::Device(refused @ DeviceError::NoRoom { card: Some(_), .. }))
                    if self.args.budget.vram.is_none() =>
                {
                    device = self.plan_again(refused)?;
                }
                loaded => return Ok(loaded?),
            }
        }
        Ok(Engine::new(device, &self.found.graph, self.found.plan.clone())?)
    }

    /// Plans for what is free on the card now, and opens it. Errors: `refused`, if nothing is free; nothing fits.
    fn plan_again(&mut self, refused: DeviceError) -> Result<Box<dyn Device>, Failure> {
        let Some(card) = &self.card else { return Err(TrainError::from(refused).into()) };
        let again = self.args.device.again(card, self.library)?;
        let opened = Opened::of(again, &self.args.budget, self.args.device.tf32(), None);
        let Ok(mut opened) = opened else { return Err(TrainError::from(refused).into()) };
        opened.choose_products(self.products.clone(), self.args.tune.autotune);
        let on = &opened.device;
        self.request.budget = on.budget.with_host(on.targets.device.kind(), self.args.request.levers.host_ram)?;
        self.found = match search(&self.request)? {
            Ok(found) => found,
            Err(misfit) => {
                return Err(misfit_of(&self.chosen.name, &misfit, &on.budget).naming_holders(&card.uuid));
            }
        };
        opened.check_free(&self.args.budget, &self.found.plan)?;
        let before = std::mem::replace(&mut self.budget, on.budget.clone());
        talk(format_args!(
            "others took memory of the card since the run was planned, for {}: planned again for {}",
            before.bytes, self.budget.bytes
        ));
        talk(self.plan_table());
        Ok(opened.into_device(&self.args.budget))
    }
}
