//! Opens the device of a run with what earlier failures on it ask for: less memory, or safe settings. Not here: what is remembered
//! (`cli/limits`).

use super::args::TrainArgs;
use crate::cli::Failure;
use crate::cli::budget::BudgetArgs;
use crate::cli::cards::{DeviceArgs, FoundDevice, Opened};
use crate::cli::limits::{Limits, changes};
use crate::cli::power::settle_leftovers;
use crate::streams::talk;
use ::plimsoll_plan::{DeviceFailures, SafeDevice, SafeLevel};
use ::plimsoll_train::{Ending, Outcome};
use plimsoll_telemetry::now_s;
use plimsoll_units::{Bytes, Seconds};

/// The part of the memory that safe settings use.
const SAFE_PART: f32 = 0.7;

/// How a run was opened.
pub(super) struct SafeStart {
    pub(super) limits: Limits,
    known: DeviceFailures,
    /// The device's name among the limits.
    pub(super) device: String,
    /// What is changed and why; `None` with the usual settings.
    pub(super) what: Option<String>,
    /// The flags before they were changed, for the settings of a resumed run.
    pub(super) usual: (DeviceArgs, f32),
}

/// Opens the requested device. Changes the flags if earlier failures or `--safe` ask for it.
/// Errors: those of [`DeviceArgs::open`].
pub(super) fn open(args: &mut TrainArgs) -> Result<(Opened, SafeStart), Failure> {
    let usual = (args.device.clone(), args.budget.memory_fraction);
    let limits = Limits::open();
    let known = limits.known();
    let mut found = args.device.look()?;
    let device = name_of(&found);
    let remembered = known.safe(&device).map(|SafeDevice { level, why, .. }| (*level, why.clone()));
    let (level, why) = match args.safe {
        true => (SafeLevel::SAFEST, "`--safe` asks for it".to_owned()),
        false => remembered.unwrap_or_default(),
    };
    let what = (level > SafeLevel::Usual).then(|| format!("{}, because {why}", changes(level).join(", ")));
    if let Some(what) = &what {
        talk(format_args!("safe settings: {what}"));
        settle_leftovers(true);
        // The device is opened with other settings.
        drop(found);
        args.make_safe(level);
        found = args.device.look()?;
    }
    let opened = args.device.open_found(found, &args.budget, None)?;
    Ok((opened, SafeStart { limits, known, device, what, usual }))
}

impl SafeStart {
    /// The most memory of the first plan, since more failed before; `None` if nothing near it did, or if the user set a size,
    /// which is obeyed with a note. `wanted`: the memory of the fastest plan.
    pub(super) fn at_most(&self, budget: &BudgetArgs, wanted: Bytes) -> Option<Bytes> {
        let failure = self.known.near(&self.device, wanted, Seconds(now_s()))?;
        let limit = failure.limit();
        let before = format!("{} with {}, before ({})", failure.kind.words(), failure.size, failure.what);
        if budget.vram.is_some_and(|vram| vram.least.is_none()) {
            talk(format_args!("note: {before}; `--vram {}MiB` is below that", limit.0 >> 20));
            return None;
        }
        talk(format_args!("note: {before}: the budget begins below, with at most {limit}; see `plimsoll limits`"));
        Some(limit)
    }

    /// Records that the run trains, with this much memory.
    pub(super) fn begin(&self, run: &str, held: Bytes) {
        self.limits.begin(run, &self.device, held);
    }

    /// Records how the run ended. `held`: the memory of its last plan.
    pub(super) fn end(&self, ended: &Result<Outcome, Failure>, held: Bytes) {
        let device = &self.device;
        self.limits.end(|failures, now| match ended {
            Ok(outcome) if outcome.ending == Ending::Finished => failures.succeed(device, held, now),
            Err(failure) => remember(failures, device, held, failure, now),
            Ok(_) => {}
        });
    }

    /// Records that a plan of this size could not be loaded, if later runs must know of it.
    pub(super) fn not_loaded(limits: &Limits, device: &str, size: Bytes, failure: &Failure) {
        if failure.kind().is_some() {
            // A failed write is reported when the run begins.
            let _ = limits.record(|failures, now| remember(failures, device, size, failure, now));
        }
    }
}

impl TrainArgs {
    fn make_safe(&mut self, level: SafeLevel) {
        if level >= SafeLevel::NoCapture {
            self.device.launch_each_kernel();
        }
        if level >= SafeLevel::NoLibrary {
            self.device.use_no_library();
        }
        // A budget that moves has limits of its own.
        if level >= SafeLevel::LessMemory && !self.pressure.moves(&self.budget) {
            self.budget.memory_fraction = self.budget.memory_fraction.min(SAFE_PART);
        }
        if level >= SafeLevel::SinglePrecision {
            self.request.levers.prefer_single_precision();
        }
    }
}

fn remember(failures: &mut DeviceFailures, device: &str, size: Bytes, failure: &Failure, now: Seconds) {
    failure.kind().into_iter().for_each(|kind| failures.record(device, kind, size, &failure.message(), now));
}

fn name_of(found: &FoundDevice) -> String {
    match found.card() {
        Some(card) => format!("{} {}", card.name, card.uuid),
        None => "CPU".to_owned(),
    }
}
