//! The flags of a budget that follows the free memory while a run lasts, and how the memory is read. Not here: when the budget
//! changes (`plimsoll_plan::ElasticBudget`), and how the run follows (`plimsoll-session`).

use crate::cli::Failure;
use crate::cli::budget::{Budget, BudgetArgs, Vram};
use crate::cli::processor::{PROCESS, page_tables};
use ::plimsoll_plan::{BudgetRange, OnPressure};
use clap::{Args, ValueEnum};
use plimsoll_session::{MemoryReader, MemorySettings, UsableMemory};
use plimsoll_telemetry::{CardSample, Sample, anonymous_rss, available_after, memory_pressure};
use plimsoll_units::{Bytes, Seconds};
use std::sync::Arc;

/// A budget below its margin and this much fits no plan.
const LEAST: Bytes = Bytes::mib(1);

#[derive(Debug, Clone, Args)]
pub(crate) struct PressureArgs {
    /// What the run does when other programs need its memory: `shrink` continues with a smaller plan, or waits if none fits;
    /// `wait` saves, returns the memory and waits; `checkpoint` saves and continues; `stop` saves and ends. `shrink` and `wait`
    /// grow again when memory is free [default: shrink with a range as `--vram`, `--emergency-reserve` or `--progressive`, else nothing]
    #[arg(long, value_enum, value_name = "WHAT")]
    on_pressure: Option<Policy>,
    /// Begin with a fifth of the memory that the fastest plan wants, at least 100 MiB, and grow as steps succeed. A size that is
    /// refused is tried again with a tenth less
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) progressive: bool,
}

/// `--on-pressure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    Shrink,
    Wait,
    Checkpoint,
    Stop,
}

impl Policy {
    fn of(self) -> OnPressure {
        match self {
            Self::Shrink => OnPressure::Shrink,
            Self::Wait => OnPressure::Wait,
            Self::Checkpoint => OnPressure::Checkpoint,
            Self::Stop => OnPressure::Stop,
        }
    }
}

impl PressureArgs {
    /// What the run does under pressure; `None` if its budget stays as it is.
    fn policy(&self, budget: &BudgetArgs) -> Option<OnPressure> {
        let is_range = budget.vram.is_some_and(|vram| vram.least.is_some());
        let follows = is_range || self.progressive || budget.emergency_reserve.is_some();
        self.on_pressure.map(Policy::of).or(follows.then_some(OnPressure::Shrink))
    }

    /// Whether the budget follows the free memory.
    pub(super) fn moves(&self, budget: &BudgetArgs) -> bool {
        self.policy(budget).is_some()
    }

    /// Whether the run may shrink.
    pub(super) fn may_shrink(&self, budget: &BudgetArgs) -> bool {
        self.policy(budget) == Some(OnPressure::Shrink)
    }

    /// The name of what is chosen, for the settings of a resumed run.
    pub(super) fn setting(&self) -> Option<String> {
        Some(self.on_pressure?.to_possible_value()?.get_name().to_owned())
    }

    /// Checks the flags. `samples`: whether the run takes samples.
    /// Errors: a budget that changes needs samples, and sizes instead of a fraction.
    pub(super) fn check(&self, budget: &BudgetArgs, samples: bool) -> Result<(), Failure> {
        if self.policy(budget).is_none() {
            return Ok(());
        }
        if !samples {
            return Err(Failure::bad_flag("a budget that follows the free memory needs samples of it")
                .hint("omit `--sample-every off`, or give `--vram` a single size without `--on-pressure`"));
        }
        if budget.memory_fraction < 1.0 {
            return Err(Failure::bad_flag("`--memory-fraction` is not for a budget that follows the free memory")
                .hint("`--vram 6GiB..10GiB` sets its limits"));
        }
        Ok(())
    }

    /// How the budget follows the free memory; `None` if it stays as it is. `card`: the UUID of the run's GPU. `wanted`: the memory
    /// of the fastest plan.
    pub(super) fn settings(
        &self,
        args: &BudgetArgs,
        budget: &Budget,
        card: Option<String>,
        wanted: Bytes,
    ) -> Option<MemorySettings> {
        let on_pressure = self.policy(args)?;
        let outside = budget.outside();
        let range = match args.vram {
            Some(Vram { least: Some(least), .. }) if self.progressive => {
                BudgetRange { least: least.min(wanted), most: wanted }
            }
            _ if self.progressive => BudgetRange { least: (outside + LEAST).min(wanted), most: wanted },
            Some(Vram { least: Some(least), most }) => BudgetRange { least, most },
            Some(Vram { least: None, most }) => BudgetRange { least: (outside + LEAST).min(most), most },
            None => BudgetRange { least: outside + LEAST, most: budget.total().max(outside + LEAST) },
        };
        let reserve = args.emergency_reserve.unwrap_or(Bytes::ZERO);
        let read: MemoryReader = match card {
            Some(uuid) => Arc::new(move |time, sample, held| {
                let bytes = usable_of_card(sample.cards.iter().find(|card| card.uuid == uuid)?, held, outside)?;
                Some(UsableMemory { time, bytes: bytes.saturating_sub(reserve), pressure_percent: None })
            }),
            None => {
                let kept = args.vram_margin;
                Arc::new(move |time, sample, held| usable_of_host(time, sample, held, [reserve, outside], kept))
            }
        };
        Some(MemorySettings { range, on_pressure, rises: self.progressive, outside, read })
    }
}

/// What a run could have of a card: what is free, and what the run itself uses. The driver may not report the latter, in a
/// container or on Windows: then it is the plan and what its driver usually takes of the margin.
fn usable_of_card(card: &CardSample, held: Bytes, margin: Bytes) -> Option<Bytes> {
    let of_this = card.processes.iter().find(|process| process.pid == std::process::id());
    let own = match of_this.and_then(|process| process.used) {
        Some(used) => used,
        None if held > Bytes::ZERO => held + Bytes(margin.0 / 4 * 3),
        None => Bytes::ZERO,
    };
    Some((card.free? + own).min(card.total.unwrap_or(Bytes(u64::MAX))))
}

/// What a run could have of the host: what is free, and what its plan holds, less what the process itself takes.
fn usable_of_host(
    time: Seconds,
    sample: &Sample,
    held: Bytes,
    [reserve, outside]: [Bytes; 2],
    kept: Option<Bytes>,
) -> Option<UsableMemory> {
    let all = available_after(held)?.bytes;
    // The process already uses some of its margin, and the page tables of the plan.
    let own = anonymous_rss().unwrap_or(Bytes::ZERO).saturating_sub(held);
    let process = kept.unwrap_or_else(|| PROCESS.saturating_sub(own) + page_tables(all.saturating_sub(held)));
    let bytes = (all + outside).saturating_sub(process + reserve);
    let pressure_percent = memory_pressure().or(sample.system.memory_pressure_percent);
    Some(UsableMemory { time, bytes, pressure_percent })
}
