//! The device of a run: plans for its free memory, loads plans, and opens the device again.

use super::args::TrainArgs;
use super::folder::kept_products;
use super::safe::SafeStart;
use crate::cli::Failure;
use crate::cli::budget::{Budget, BudgetArgs};
use crate::cli::cards::{DeviceArgs, FoundDevice, Opened, Reopening};
use crate::cli::device::Device;
use crate::cli::limits::Limits;
use crate::cli::loading::Flags;
use crate::cli::misfit::misfit_of;
use crate::streams::talk;
use ::plimsoll_plan::{Found, Machine, Plan, Request, search};
use ::plimsoll_train::{Engine, RunFolder};
use plimsoll_exec::DeviceError;
use plimsoll_graph::{DeviceKind, MemoryId};
use plimsoll_render::plan_table;
use plimsoll_session::{Backend, arenas, exchange, same_sums};
use plimsoll_units::Bytes;
use std::path::Path;

/// The device that a run was started on.
pub(super) struct Hardware {
    device_args: DeviceArgs,
    pub(super) budget_args: BudgetArgs,
    pub(super) host_ram: Option<Bytes>,
    autotune: bool,
    pub(super) budget: Budget,
    /// The model's name.
    model: String,
    /// The device's name.
    name: String,
    /// The source of predicted times.
    times: String,
    /// The request to the planner.
    pub(super) request: Request,
    /// The same with what decides the rounding of sums as the first plan has it; `None` before that is loaded.
    pub(super) first_sums: Option<Request>,
    /// Whether a plan may round sums in another way if none that rounds like the first one fits.
    may_round: bool,
    /// Whether the first plan is small and can be smaller.
    pub(super) rises: bool,
    /// What failed before.
    limits: Limits,
    /// The device's name among them.
    limited_device: String,
    /// The device before the first plan is loaded.
    opened: Option<Opened>,
    /// The machine if the driver pins all host memory.
    usual: Machine,
    /// How to open the card again; `None` for the processor.
    card: Option<Reopening>,
    /// What changed after planning so that the run fits.
    averted: Option<String>,
}

impl Hardware {
    pub(super) fn new(args: &TrainArgs, model: &str, request: Request, opened: Opened, safe: &SafeStart) -> Self {
        let device = &opened.device;
        Self {
            device_args: args.device.clone(),
            budget_args: args.budget.clone(),
            host_ram: args.request.levers.host_ram,
            autotune: args.tune.autotune,
            budget: device.budget.clone(),
            model: model.to_owned(),
            name: device.name.clone(),
            times: device.times.clone(),
            usual: request.machine.clone(),
            request,
            first_sums: None,
            rises: false,
            may_round: args.pressure.may_shrink(&args.budget),
            limits: safe.limits.clone(),
            limited_device: safe.device.clone(),
            card: opened.reopening(),
            opened: Some(opened),
            averted: None,
        }
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The memory that the budget is part of.
    pub(super) fn memory(&self) -> Bytes {
        self.budget.total()
    }

    /// The memory that a plan holds, as `--vram` counts it.
    pub(super) fn held(&self, plan: &Plan) -> Bytes {
        plan.needed()[MemoryId::DEVICE] + self.budget.outside()
    }

    pub(super) fn budget_args(&self) -> &BudgetArgs {
        &self.budget_args
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// Whether predicted times were measured on this device.
    pub(super) fn is_calibrated(&self) -> bool {
        self.times.starts_with("times from ")
    }

    /// Whether Windows may move the GPU's memory to the host.
    pub(super) fn may_be_moved(&self) -> bool {
        // Under WSL2, Windows manages the GPU, and this device passes calls to it.
        let is_windows = || cfg!(windows) || Path::new("/dev/dxg").exists();
        self.card.as_ref().is_some_and(|card| card.card().limits_kernels) && is_windows()
    }

    /// What changed after planning so that the run fits.
    pub(super) fn averted(&self) -> Option<&str> {
        self.averted.as_deref()
    }

    pub(super) fn plan_table(&self, found: &Found) -> String {
        plan_table(&self.model, &self.name, found, &self.budget.describe(), &self.times)
    }

    /// Replaces `--vram`. Errors: nothing is left of it.
    pub(super) fn set_vram(&mut self, vram: Bytes) -> Result<(), Failure> {
        self.budget = self.budget.of_vram(&self.budget_args, vram)?;
        (self.budget_args.vram, self.budget_args.vram_auto) = (Some(vram.into()), None);
        Ok(())
    }

    fn try_plan(&self, current: &Found, vram: Bytes) -> Result<Found, Failure> {
        let budget = self.budget.of_vram(&self.budget_args, vram)?;
        let device = self.request.targets.device.kind();
        let with_host = budget.with_host(device, self.host_ram)?;
        let pinned = self.first_sums.clone().unwrap_or_else(|| same_sums(&self.request, current));
        let mut found = search(&Request { budget: with_host.clone(), ..pinned })?;
        if self.may_round && found.is_err() {
            found = search(&Request { budget: with_host, ..self.request.clone() })?;
        }
        let found = found.map_err(|misfit| misfit_of(&self.model, &misfit, &budget))?;
        // A card's memory is allocated when the plan is loaded.
        let more = arenas(&found.plan).saturating_sub(arenas(&current.plan));
        if device == DeviceKind::Cpu && more > Bytes::ZERO {
            self.budget_args.check_room(more)?;
        }
        Ok(found)
    }

    /// Loads the plan on its device. If less memory is free now, plans the run again from the original request, so that
    /// a resumed run keeps what determines its rounding.
    pub(super) fn try_load(&mut self, folder: &RunFolder, found: &mut Found) -> Result<Engine, Failure> {
        let opened = match self.opened.take() {
            Some(opened) => opened,
            None => self.open_again(folder)?,
        };
        let known = self.limits.known().pin_limit(&self.limited_device);
        if let Some(pinned) = known {
            self.plan_for_pinned(pinned, found)?;
        }
        let engine = self.load(opened, found)?;
        let (pinned, wanted) = (engine.pinned(), found.plan.host());
        if pinned != known && wanted > Bytes::ZERO {
            // A failed write is reported when the run begins.
            let _ = self.limits.record(|limits, _| limits.set_pin_limit(&self.limited_device, pinned, wanted));
        }
        match pinned {
            Some(pinned) if known.is_none() && self.plan_for_pinned(pinned, found)? => {
                drop(engine);
                let opened = self.open_again(folder)?;
                self.load(opened, found)
            }
            _ => Ok(engine),
        }
    }

    /// Plans again if the driver pins only this much of the plan's host memory: copies of the rest are slower. Returns whether the
    /// new plan is another one.
    fn plan_for_pinned(&mut self, pinned: Bytes, found: &mut Found) -> Result<bool, Failure> {
        let wanted = found.plan.host();
        if wanted <= pinned {
            return Ok(false);
        }
        let staged = 1.0 - pinned.0 as f64 / wanted.0 as f64;
        let machine = self.usual.with_staged_copies(staged);
        let again = search(&Request { machine: machine.clone(), ..self.request.clone() })?;
        // What fits does not depend on the speed of copies.
        let again = again.map_err(|misfit| misfit_of(&self.model, &misfit, &self.budget))?;
        let is_other = again.plan != found.plan;
        (*found, self.request.machine) = (again, machine);
        talk(format_args!("planned for copies of which the driver pins {pinned} of {wanted}:"));
        talk(self.plan_table(found));
        Ok(is_other)
    }

    /// Loads the plan on this device, or a new one if less memory is free now.
    fn load(&mut self, opened: Opened, found: &mut Found) -> Result<Engine, Failure> {
        let Self { device_args, budget_args, host_ram, model, request, budget, .. } = self;
        let before = budget.bytes;
        let flags = Flags { device: device_args, budget: budget_args };
        let engine = flags.load(opened, found, |on: &Device| {
            request.budget = on.budget.with_host(on.targets.device.kind(), *host_ram)?;
            *budget = on.budget.clone();
            search(request)?.map_err(|misfit| misfit_of(model, &misfit, budget))
        })?;
        if self.budget.bytes != before {
            let plan = &found.plan;
            self.averted = Some(format!(
                "less memory was free than the {before} of the plan; planned again for {}: a micro-batch of \
                 {}, sequences of {}, {}",
                self.budget.bytes,
                plan.micro_batch,
                plan.seq_len,
                plan.peak()
            ));
            talk(self.plan_table(found));
        }
        Ok(engine)
    }

    /// Says it if a plan rounds sums in another way than the first one.
    fn tell_of_sums(&self, found: &Found) {
        let (first, now) = (self.first_sums.as_ref().and_then(|first| first.micro_batch), found.plan.micro_batch);
        if let Some(first) = first.filter(|first| *first != now) {
            talk(format_args!("the micro-batch is {now} instead of {first}, so sums may round differently"));
        }
    }

    fn open_again(&self, folder: &RunFolder) -> Result<Opened, Failure> {
        let (device, budget) = (&self.device_args, &self.budget_args);
        let mut opened = match &self.card {
            None => device.open_found(FoundDevice::Processor, budget, None)?,
            Some(card) => card.opened(device.again(card)?, device, budget)?,
        };
        opened.choose_products(kept_products(folder), self.autotune);
        Ok(opened)
    }
}

impl Backend for Hardware {
    type Error = Failure;

    fn plan(&self, current: &Found, budget: Bytes) -> Result<Found, String> {
        // The other suggestions would change what is computed.
        self.try_plan(current, budget).map_err(|failure| {
            match failure.hints().iter().find(|hint| hint.starts_with("`--vram")) {
                Some(enough) => format!("{}; {enough}", failure.message()),
                None => failure.message(),
            }
        })
    }

    fn exchange(
        &mut self,
        engine: &mut Engine,
        found: &Found,
        vram: Bytes,
    ) -> Result<Result<(), DeviceError>, Failure> {
        let before = (self.budget.clone(), self.budget_args.clone());
        self.set_vram(vram)?;
        let exchanged = exchange(engine, found)?;
        match exchanged {
            Ok(()) => self.tell_of_sums(found),
            Err(_) => (self.budget, self.budget_args) = before,
        }
        Ok(exchanged)
    }

    fn load(&mut self, folder: &RunFolder, found: &mut Found, budget: Option<Bytes>) -> Result<Engine, Failure> {
        let before = (self.budget.clone(), self.budget_args.clone());
        let loaded = match budget {
            None => self.load_first(folder, found),
            Some(vram) => {
                self.set_vram(vram)?;
                self.try_load(folder, found)
            }
        };
        match (&loaded, &self.first_sums) {
            (Err(failure), _) => {
                SafeStart::not_loaded(&self.limits, &self.limited_device, self.held(&found.plan), failure);
                (self.budget, self.budget_args) = before;
            }
            (Ok(_), None) => self.first_sums = Some(same_sums(&self.request, found)),
            (Ok(_), Some(_)) => self.tell_of_sums(found),
        }
        loaded
    }
}
