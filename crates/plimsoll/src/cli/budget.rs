//! The flags of the budget, and what it comes to.

use super::Failure;
use super::failure::exit_code;
use super::options::{margin, part};
use super::processor::{available, page_tables, process_margin};
use ::plimsoll_plan::Plan;
use clap::Args;
use plimsoll_graph::DeviceKind;
use plimsoll_telemetry::Available;
use plimsoll_units::Bytes;

/// How much memory a run may take, and how many threads.
#[derive(Debug, Clone, Args)]
pub(super) struct BudgetArgs {
    /// Hard memory budget, exact to the byte, also on the CPU: `12` (GiB), `600MiB`, `16gb` [default: all free memory]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: Option<Bytes>,

    /// Use all free memory as the budget; this is the default. `plan` uses the memory of the machine's NVIDIA cards,
    /// if it has any
    #[arg(long, conflicts_with = "vram", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) vram_auto: Option<bool>,

    /// Fraction of the memory to use, above 0 and up to 1
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub(super) memory_fraction: f32,

    /// Memory kept free outside the plan; a bare number is MiB [default: what the process itself needs, up to 64, not
    /// subtracted from `--vram`; 1024 on a GPU, for its driver]
    #[arg(long, visible_alias = "vram-safety-margin", value_name = "SIZE", value_parser = margin)]
    pub(super) vram_margin: Option<Bytes>,

    /// Number of compute threads [default: OMP_NUM_THREADS, or all cores]
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
    /// The margin that would be taken off `--vram`.
    margin_of_vram: Bytes,
    others: Bytes,
    /// The host's memory, where it is assumed.
    pub(super) assumed_host: Option<Bytes>,
}

/// Memory before anything is taken off it.
#[derive(Debug, Clone, PartialEq)]
struct Memory {
    /// Whose it is, for people.
    source: String,
    /// All of it.
    total: Bytes,
    /// What other processes use of it.
    others: Bytes,
    /// Kept free unless the flags say otherwise.
    margin: Bytes,
    /// Whether the total is what is free at the moment, and not a size that stays.
    is_momentary: bool,
}

impl Memory {
    /// A size that was asked for, or that a card has.
    fn requested(total: Bytes, others: Bytes, margin: Bytes) -> Self {
        Self { source: "requested".to_owned(), total, others, margin, is_momentary: false }
    }
}

/// A card's memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CardMemory {
    /// The card's name.
    pub(super) name: String,
    /// Its UUID; `None` if it is not in this machine.
    pub(super) uuid: Option<String>,
    /// All of it.
    pub(super) total: Bytes,
    /// What other processes use of it.
    pub(super) others: Bytes,
    /// Where the card is.
    pub(super) presence: Presence,
}

/// Where a card is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// In this machine, and opened: the driver has taken its own already.
    Open,
    /// In this machine.
    Here,
    /// In another machine, of whose memory nothing is known.
    Elsewhere,
}

/// Memory of the host of a card that is elsewhere, unless it is said, as a multiple of the card's: as people with such cards
/// have it, 24 GiB beside 12, 48 beside 24.
const HOST_OF_CARD: u64 = 2;

/// Kept free on a card by default: what its driver, its libraries and their workspaces take beside the arena. On an H100 that
/// was 539 MiB, of which 440 before the arena was reserved (bench/results/2026-11-22-h100-second.md); the driver keeps some
/// for each multiprocessor, of which other cards have fewer.
pub(super) const CARD_MARGIN: Bytes = Bytes::mib(1024);

/// Kept free on a card that was opened, whose driver has taken its own already: the kernels, what the driver takes for
/// captured programs, and what it takes meanwhile.
const OPEN_CARD_MARGIN: Bytes = Bytes::mib(256);

impl BudgetArgs {
    /// Of the processor: what is asked for, or what is free less what the process itself takes.
    /// Errors: the margin takes it all, or the system does not say how much is free.
    pub(super) fn budget(&self) -> Result<Budget, Failure> {
        let others = Bytes::ZERO;
        if let Some(total) = self.vram {
            let free = available().map_or(Bytes::ZERO, |free| free.bytes);
            refuse_size("--vram", total, VRAM_MAX.max(free))?;
            return self.budget_of(Memory::requested(total, others, Bytes::ZERO));
        }
        let failure = Failure::bad_flag("this system does not say how much memory is free");
        let free = available().ok_or_else(|| failure.hint("give a budget: `--vram 4`"))?;
        let margin = process_margin() + page_tables(free.bytes);
        if self.vram_margin.is_none() && margin >= free.bytes {
            let Available { bytes, bound } = free;
            let message = format!("the process itself needs {margin}, but only {bytes} is available ({bound})");
            return Err(
                no_room(message, None).hint("`--vram-margin 32` reserves less for it, at the risk of being killed")
            );
        }
        let source = free.bound.to_string();
        let budget = self.budget_of(Memory { source, total: free.bytes, others, margin, is_momentary: true });
        let margin_of_vram = self.vram_margin.unwrap_or(Bytes::ZERO);
        budget.map(|budget| Budget { margin_of_vram, ..budget })
    }

    /// Of a card: what is asked for or all of it, less what others use. Errors: nothing is left; where other processes hold
    /// it, they are named.
    pub(super) fn of_card(&self, memory: CardMemory) -> Result<Budget, Failure> {
        let CardMemory { name, uuid, total, others, presence } = memory;
        let vram_max = match presence {
            Presence::Open | Presence::Here => vram_max_of(total),
            Presence::Elsewhere => VRAM_MAX,
        };
        self.vram.map_or(Ok(()), |vram| refuse_size("--vram", vram, vram_max))?;
        let margin = if presence == Presence::Open { OPEN_CARD_MARGIN } else { CARD_MARGIN };
        let memory = Memory { source: name, ..Memory::requested(self.vram.unwrap_or(total), others, margin) };
        let budget = self.budget_of(memory).map_err(|failure| match uuid {
            Some(uuid) if failure.code() == exit_code::DOES_NOT_FIT => failure.naming_holders(&uuid),
            _ => failure,
        })?;
        let assumed_host = (presence == Presence::Elsewhere).then(|| Bytes(HOST_OF_CARD * total.0));
        Ok(Budget { assumed_host, ..budget })
    }

    /// Of any memory: its total times the fraction, less the margin, less what other processes use.
    /// Errors: the flags leave nothing of it; nothing is left since other processes hold it.
    fn budget_of(&self, memory: Memory) -> Result<Budget, Failure> {
        let Memory { source, total, others, is_momentary, .. } = memory;
        if total == Bytes::ZERO && !is_momentary {
            return Err(
                Failure::bad_flag("the budget is 0 B").hint("`--vram 12` means 12 GiB; `--vram 600MiB` works too")
            );
        }
        let fraction = self.memory_fraction;
        let usable = Bytes((total.as_f64() * f64::from(fraction)) as u64).min(total);
        let margin = self.vram_margin.unwrap_or(memory.margin);
        let bytes = usable.saturating_sub(margin).saturating_sub(others);
        if bytes == Bytes::ZERO {
            let message = |held: &str| format!("nothing is left of {usable} after a margin of {margin}{held}");
            return Err(match (is_momentary, usable > margin) {
                (true, _) => Failure::new(exit_code::DOES_NOT_FIT, message(&format!(" ({source})")))
                    .hint("close other programs, or use a smaller `--vram-margin`"),
                (false, false) => {
                    Failure::bad_flag(message("")).hint("use a smaller `--vram-margin` or a larger `--vram`")
                }
                (false, true) => {
                    let held = format!(" and the {others} that other processes hold");
                    Failure::new(exit_code::DOES_NOT_FIT, message(&held))
                        .hint("end the processes that hold the memory, or wait until they end")
                }
            });
        }
        Ok(Budget { bytes, source, total, fraction, margin, margin_of_vram: margin, others, assumed_host: None })
    }

    /// A budget is a promise only if the memory is there, and what the process itself takes beside it.
    /// Errors: it is not.
    pub(super) fn check_free(&self, plan: &Plan) -> Result<(), Failure> {
        // The processor's memory is the host's too.
        self.check_room(plan.peak() + plan.host())
    }

    /// Like [`check_free`](Self::check_free), of arenas of this many bytes.
    pub(super) fn check_room(&self, arenas: Bytes) -> Result<(), Failure> {
        let Some(free) = available() else { return Ok(()) };
        let process = self.vram_margin.unwrap_or_else(|| process_margin() + page_tables(arenas));
        if arenas + process <= free.bytes {
            return Ok(());
        }
        let left = free.bytes.saturating_sub(process);
        let Available { bytes, bound } = free;
        let message = format!(
            "the plan needs {arenas} and the process itself {process}, but only {bytes} is available ({bound}), {} too little",
            (arenas + process).saturating_sub(bytes)
        );
        Err(no_room(message, Some(left)))
    }

    /// Threads asked for, or all cores. Errors: more than can make sense.
    pub(super) fn threads(&self) -> Result<usize, Failure> {
        threads(self.threads)
    }
}

/// A larger `--vram` is taken for a number of MiB without its unit, unless the machine has that much.
pub(super) const VRAM_MAX: Bytes = Bytes::gib(1024);

/// The same for `--vram` on a known card: 16 times its memory.
pub(super) fn vram_max_of(card: Bytes) -> Bytes {
    VRAM_MAX.min(Bytes(card.0.saturating_mul(16)))
}

/// The same for `--host-ram`: the largest servers have 4 TiB, and more only rarely.
const HOST_RAM_MAX: Bytes = Bytes::gib(8192);

/// Refuses a size above `most`, which is likely a number of MiB that was read as GiB. Errors: it is above.
pub(super) fn refuse_size(flag: &str, asked: Bytes, most: Bytes) -> Result<(), Failure> {
    if asked <= most {
        return Ok(());
    }
    let gib = asked.0 / Bytes::gib(1).0;
    let in_gib = if gib.is_multiple_of(1024) { format!(" or `{flag} {}GiB`", gib / 1024) } else { String::new() };
    Err(Failure::bad_flag(format!("`{flag}` is {asked}; a bare number is GiB"))
        .hint(format!("did you mean `{flag} {gib}MiB`{in_gib}?")))
}

/// "Does not fit", of a plan for which there is less memory than it needs.
pub(super) fn no_room(message: String, left: Option<Bytes>) -> Failure {
    let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
    match left.map(|left| left.0 / Bytes::mib(1).0) {
        Some(0) | None => failure.hint("close other programs, or raise the memory limit"),
        Some(mib) => failure.hint(format!("`--vram {mib}MiB` plans for what is left")),
    }
}

/// The threads asked for, by a flag or else by `OMP_NUM_THREADS`, or one per core. Errors: more than can make sense.
pub(super) fn threads(asked: Option<usize>) -> Result<usize, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let of_openmp = || openmp_threads(&std::env::var("OMP_NUM_THREADS").ok()?);
    match asked.or_else(of_openmp) {
        Some(n) if n > 8 * cores => Err(Failure::bad_flag(format!("{n} threads are too many for {cores} cores")).hint(
            format!("leave out `--threads`, and OMP_NUM_THREADS in the environment, to use one per core, {cores}"),
        )),
        Some(n) => Ok(n),
        None => Ok(cores),
    }
}

/// The threads that OpenMP's variable asks for: a number for each nested level, of which the first counts. `None` if it is not
/// such a list: OpenMP ignores it then.
fn openmp_threads(text: &str) -> Option<usize> {
    text.split(',').next()?.trim().parse().ok().filter(|threads| *threads > 0)
}

impl Budget {
    /// Of the same memory if this had been asked for, by flags that say the rest. Errors: nothing is left of it.
    pub(super) fn of_vram(&self, args: &BudgetArgs, vram: Bytes) -> Result<Self, Failure> {
        let (others, margin) = (self.others, self.margin_of_vram);
        args.budget_of(Memory::requested(vram, others, margin))
    }

    /// The memory that it is taken of.
    pub(super) fn total(&self) -> Bytes {
        self.total
    }

    /// The same where others gave back so much.
    pub(super) fn with_more(&self, freed: Bytes) -> Self {
        Self { bytes: self.bytes + freed, others: self.others.saturating_sub(freed), ..self.clone() }
    }

    /// With the host's beside it, for a plan: of a card what is given, or what is assumed of one that is elsewhere, or all that
    /// is free; the processor's memory is the host's. Errors: the host is given a budget of its own beside a processor; the system does not say how much is free.
    pub(super) fn with_host(
        &self,
        device: DeviceKind,
        host_ram: Option<Bytes>,
    ) -> Result<::plimsoll_plan::Budget, Failure> {
        let free = || {
            let failure = Failure::bad_flag("this system does not say how much memory is free");
            let free = available().map(|free| free.bytes);
            free.ok_or_else(|| failure.hint("give a budget for the host: `--host-ram 16`"))
        };
        match (device, host_ram) {
            (DeviceKind::Cpu, None) => Ok(::plimsoll_plan::Budget::Shared(self.bytes)),
            (DeviceKind::Cpu, Some(_)) => {
                Err(Failure::bad_flag("`--host-ram` is for cards: on the CPU, device and host share one memory")
                    .hint("`--vram` is the budget for all of it; with `--gpu NAME`, `plan` takes both"))
            }
            (DeviceKind::Cuda, host) => {
                host_ram.map_or(Ok(()), |bytes| refuse_size("--host-ram", bytes, HOST_RAM_MAX))?;
                let host = host.or(self.assumed_host).map_or_else(free, Ok)?;
                Ok(::plimsoll_plan::Budget::Apart { device: self.bytes, host })
            }
        }
    }

    /// What `--vram` must say, in whole MiB, for a plan to be left this many bytes.
    pub(super) fn vram_for(&self, bytes: Bytes) -> Bytes {
        let usable = bytes.as_f64() + self.margin_of_vram.as_f64() + self.others.as_f64();
        let total = Bytes((usable / f64::from(self.fraction)).ceil() as u64 + 1);
        total.align_up(Bytes::mib(1).0)
    }

    /// The subtraction, for people, a line for each thing that is taken off.
    pub(super) fn describe(&self) -> String {
        let Self { bytes, source, total, fraction, margin, margin_of_vram, others, assumed_host } = self;
        let host = assumed_host.map_or(String::new(), |host| {
            format!(
                "\n{:>10}  of host memory, as is assumed of a card that is elsewhere; `--host-ram` says otherwise",
                format!("+ {host}")
            )
        });
        if bytes == total {
            return format!(" {bytes} ({source}){host}");
        }
        let mut lines = vec![format!("{total:>10}  {source}")];
        if *fraction < 1.0 {
            lines.push(format!("{:>10}  times {fraction}, the memory fraction", ""));
        }
        let whose = if margin == margin_of_vram { "margin" } else { "for the process itself" };
        for (taken, what) in [(margin, whose), (others, "used by other processes")] {
            if *taken > Bytes::ZERO {
                lines.push(format!("{:>10}  {what}", format!("- {taken}")));
            }
        }
        lines.push(format!("{:>10}  for the plan", format!("= {bytes}")));
        format!("\n{}{host}", lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmps_variable_is_a_number_or_a_list_of_them() {
        for (text, threads) in
            [("3", Some(3)), (" 4 , 2", Some(4)), ("0", None), ("-1", None), ("", None), ("many", None), ("2.5", None)]
        {
            assert_eq!(openmp_threads(text), threads, "{text}");
        }
    }

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
            let memory = |total| Memory::requested(total, others, Bytes::ZERO);
            let some = args.budget_of(memory(Bytes::gib(100))).expect("enough");
            for needed in [1, 4095, 123_456_789, 7 << 30].map(Bytes) {
                let enough = args.budget_of(memory(some.vram_for(needed))).expect("enough");
                assert!(enough.bytes >= needed && enough.bytes.0 < needed.0 + (4 << 20), "{needed} of {enough:?}");
            }
        }
    }
}
