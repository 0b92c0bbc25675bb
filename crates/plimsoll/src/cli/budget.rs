//! The flags of the budget, and what it comes to.

use super::Failure;
use super::failure::exit_code;
use super::options::{margin, part};
use crate::report::misfit_failure;
use ::plan::{Misfit, Plan};
use clap::Args;
use telemetry::available_memory;
use units::Bytes;

/// How much memory a run may take, and how many threads.
#[derive(Debug, Clone, Args)]
pub(super) struct BudgetArgs {
    /// Memory budget, hard to the byte, on the CPU too: `12` (GiB), `600MiB`, `16gb` [default: all that is free]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: Option<Bytes>,

    /// Take all memory that is free as the budget; this is the default. `plan` takes that of the machine's NVIDIA cards,
    /// if it has any
    #[arg(long, conflicts_with = "vram", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) vram_auto: Option<bool>,

    /// Part of the memory that may be used, above 0 and up to 1
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub(super) memory_fraction: f32,

    /// Kept free below the budget; a bare number is MiB [default: 0; 1024 on a GPU, whose driver takes some]
    #[arg(long, visible_alias = "vram-safety-margin", value_name = "SIZE", value_parser = margin)]
    pub(super) vram_margin: Option<Bytes>,

    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::options::positive_size)]
    pub(super) threads: Option<usize>,
}

/// A budget and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budget {
    /// What a plan must stay under.
    pub(super) bytes: Bytes,
    /// Whose memory it is.
    source: String,
    total: Bytes,
    fraction: f32,
    margin: Bytes,
    others: Bytes,
}

/// Memory before anything is taken off it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Memory {
    /// Whose it is, for people.
    pub(super) source: String,
    /// All of it.
    pub(super) total: Bytes,
    /// What others hold of it.
    pub(super) others: Bytes,
    /// Kept free unless the flags say otherwise.
    pub(super) margin: Bytes,
}

impl BudgetArgs {
    /// Of the processor. Errors: the margin takes it all, or the system does not say how much is free.
    pub(super) fn budget(&self) -> Result<Budget, Failure> {
        let (total, source) = match self.vram {
            Some(bytes) => (bytes, "asked for"),
            None => {
                let failure = Failure::bad_flag("this system does not say how much memory is free");
                (available_memory().ok_or_else(|| failure.hint("give a budget: `--vram 4`"))?, "free memory")
            }
        };
        self.budget_of(Memory { source: source.to_owned(), total, others: Bytes::ZERO, margin: Bytes::ZERO })
    }

    /// Of any memory: its total times the fraction, less the margin, less what others hold. Errors: nothing is left.
    pub(super) fn budget_of(&self, memory: Memory) -> Result<Budget, Failure> {
        let Memory { source, total, others, .. } = memory;
        if total == Bytes::ZERO {
            return Err(
                Failure::bad_flag("a budget of 0 B holds nothing").hint("`--vram 12` is 12 GiB, `600MiB` is less")
            );
        }
        let fraction = self.memory_fraction;
        let usable = Bytes((total.as_f64() * f64::from(fraction)) as u64).min(total);
        let margin = self.vram_margin.unwrap_or(memory.margin);
        let bytes = usable.saturating_sub(margin).saturating_sub(others);
        if bytes == Bytes::ZERO {
            let held =
                if others == Bytes::ZERO { String::new() } else { format!(" and the {others} that others hold") };
            let message = format!("a margin of {margin}{held} leaves nothing of {usable}");
            return Err(Failure::bad_flag(message).hint("a smaller `--vram-margin` or a larger `--vram`"));
        }
        Ok(Budget { bytes, source, total, fraction, margin, others })
    }

    /// A budget is a promise only if the memory is there. Errors: the plan takes more than is free.
    pub(super) fn check_free(&self, plan: &Plan) -> Result<(), Failure> {
        // The processor's memory is the host's too.
        let needed = plan.peak() + plan.host();
        match available_memory() {
            Some(free) if needed > free => {
                let message = format!("the plan takes {needed}, but only {free} of memory is free");
                let fitting = (free.as_f64() / Bytes::gib(1).as_f64() * 100.0).floor() / 100.0;
                Err(Failure::new(exit_code::DOES_NOT_FIT, message).hint(format!("`--vram {fitting}` plans for that")))
            }
            _ => Ok(()),
        }
    }

    /// Threads asked for, or all cores. Errors: more than can make sense.
    pub(super) fn threads(&self) -> Result<usize, Failure> {
        threads(self.threads)
    }
}

/// What is said of a run that takes the whole budget and does not fit.
pub(super) fn misfit_of(model: &str, misfit: &Misfit, budget: &Budget) -> Failure {
    let [device, host] = misfit.plan.needed();
    misfit_failure(model, misfit, budget.vram_for(device), host)
}

/// So many threads, or one for each core. Errors: more than can make sense.
pub(super) fn threads(asked: Option<usize>) -> Result<usize, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match asked {
        Some(n) if n > 8 * cores => Err(Failure::bad_flag(format!("{n} threads are too many for {cores} cores"))
            .hint(format!("without `--threads`, one for each core: {cores}"))),
        Some(n) => Ok(n),
        None => Ok(cores),
    }
}

impl Budget {
    /// The memory that it is taken of.
    pub(super) fn total(&self) -> Bytes {
        self.total
    }

    /// What `--vram` must say, in whole MiB, for so many bytes to be left for a plan.
    pub(super) fn vram_for(&self, bytes: Bytes) -> Bytes {
        let usable = bytes.as_f64() + self.margin.as_f64() + self.others.as_f64();
        let total = Bytes((usable / f64::from(self.fraction)).ceil() as u64 + 1);
        total.align_up(Bytes::mib(1).0)
    }

    /// The subtraction, for people, a line for each thing that is taken off.
    pub(super) fn describe(&self) -> String {
        let Self { bytes, source, total, fraction, margin, others } = self;
        if bytes == total {
            return format!(" {bytes} ({source})");
        }
        let mut lines = vec![format!("{total:>10}  {source}")];
        if *fraction < 1.0 {
            lines.push(format!("{:>10}  times {fraction}, the memory fraction", ""));
        }
        for (taken, what) in [(margin, "margin"), (others, "held by others")] {
            if *taken > Bytes::ZERO {
                lines.push(format!("{:>10}  {what}", format!("- {taken}")));
            }
        }
        lines.push(format!("{:>10}  for the plan", format!("= {bytes}")));
        format!("\n{}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vram_for_asks_for_is_enough() {
        for (fraction, margin, others) in [(1.0, 0, 0), (0.9, 500, 0), (0.33, 1024, 3000)] {
            let (margin, others) = (Bytes::mib(margin), Bytes::mib(others));
            let args = BudgetArgs {
                vram: None,
                vram_auto: None,
                memory_fraction: fraction,
                vram_margin: Some(margin),
                threads: None,
            };
            let memory = |total| Memory { source: String::new(), total, others, margin: Bytes::ZERO };
            let some = args.budget_of(memory(Bytes::gib(100))).expect("enough");
            for needed in [1, 4095, 123_456_789, 7 << 30].map(Bytes) {
                let enough = args.budget_of(memory(some.vram_for(needed))).expect("enough");
                assert!(enough.bytes >= needed && enough.bytes.0 < needed.0 + (4 << 20), "{needed} of {enough:?}");
            }
        }
    }
}
