//! The flags of the budget, and what it comes to.

use super::Failure;
use super::failure::exit_code;
use super::options::margin;
use ::plan::Plan;
use clap::Args;
use telemetry::available_memory;
use units::Bytes;

/// How much memory a run may take, and how many threads.
#[derive(Debug, Clone, Args)]
pub(super) struct BudgetArgs {
    /// Memory budget, hard to the byte, on the CPU too: `12` (GiB), `600MiB`, `16gb` [default: all that is free]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: Option<Bytes>,

    /// Take all memory that is free as the budget; this is the default
    #[arg(long, conflicts_with = "vram", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) vram_auto: Option<bool>,

    /// Kept free below the budget; a bare number is MiB
    #[arg(long, visible_alias = "vram-safety-margin", value_name = "SIZE", value_parser = margin, default_value = "0")]
    pub(super) vram_margin: Bytes,

    /// Threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::options::positive_size)]
    pub(super) threads: Option<usize>,
}

/// A budget and how it came about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// What a plan must stay under.
    pub(super) bytes: Bytes,
    /// Memory of the device, or as much of it as was asked for.
    pub(super) total: Bytes,
    /// Kept free.
    pub(super) margin: Bytes,
    /// Whether `total` is what is free rather than what was asked for.
    pub(super) is_all_free: bool,
}

impl BudgetArgs {
    /// Errors: the margin takes it all, or the system does not say how much is free.
    pub(super) fn budget(&self) -> Result<Budget, Failure> {
        let total = match self.vram {
            Some(bytes) => bytes,
            None => available_memory().ok_or_else(|| {
                Failure::bad_flag("this system does not say how much memory is free").hint("give a budget: `--vram 4`")
            })?,
        };
        if total == Bytes::ZERO {
            return Err(
                Failure::bad_flag("a budget of 0 B holds nothing").hint("`--vram 12` is 12 GiB, `600MiB` is less")
            );
        }
        if self.vram_margin >= total {
            let message = format!("a margin of {} leaves nothing of {total}", self.vram_margin);
            return Err(Failure::bad_flag(message).hint("a smaller `--vram-margin` or a larger `--vram`"));
        }
        let bytes = total - self.vram_margin;
        Ok(Budget { bytes, total, margin: self.vram_margin, is_all_free: self.vram.is_none() })
    }

    /// A budget is a promise only if the memory is there. Errors: the plan takes more than is free.
    pub(super) fn check_free(&self, plan: &Plan) -> Result<(), Failure> {
        // The processor's memory is the host's too.
        let needed = plan.peak() + Bytes(plan.host_bytes);
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
    /// The subtraction, for people.
    pub(super) fn describe(&self) -> String {
        let source = if self.is_all_free { "free memory" } else { "asked for" };
        if self.margin == Bytes::ZERO {
            return format!("{} ({source})", self.bytes);
        }
        format!("{} ({source} {} - margin {})", self.bytes, self.total, self.margin)
    }
}
