//! The flags of the memory budget, and the resulting budget.

use super::Failure;
use super::failure::{exit_code, no_room};
use super::options::{margin, part};
use super::processor::{available, page_tables, process_margin};
use crate::streams::talk;
use ::plimsoll_plan::{BudgetRange, Plan};
use clap::Args;
use plimsoll_graph::DeviceKind;
use plimsoll_telemetry::Available;
use plimsoll_units::Bytes;
use std::fmt;
use std::str::FromStr;

/// Limits on the memory and the threads of a run.
#[derive(Debug, Clone, Args)]
pub(super) struct BudgetArgs {
    /// Hard memory budget: `12` (GiB), `600MiB`, `16gb`. On a GPU it includes the driver's memory and the margin, and is at
    /// most the free memory. On the CPU it is the size of the plan alone, exact to the byte. `train` also accepts a range,
    /// `6GiB..10GiB`, in which the budget follows the free memory, and `plan` plans for both ends [default: all free memory]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram: Option<Vram>,

    /// Use all free memory as the budget; this is the default. `plan` uses the memory of the machine's NVIDIA GPUs,
    /// if it has any
    #[arg(long, conflicts_with = "vram", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) vram_auto: Option<bool>,

    /// Fraction of the memory to use, above 0 and up to 1
    #[arg(long, value_name = "X", value_parser = part, default_value = "1")]
    pub(super) memory_fraction: f32,

    /// Memory to leave free outside the plan; a bare number is MiB [default: what the process itself needs, up to 64,
    /// not subtracted from `--vram`; 1024 on a GPU, for its driver's use before and after it is opened, 1536 if it drives a
    /// display]
    #[arg(long, visible_alias = "vram-safety-margin", value_name = "SIZE", value_parser = margin)]
    pub(super) vram_margin: Option<Bytes>,

    /// Memory to leave free for other programs, at the start and, in `train`, while the run lasts: `2GiB`
    #[arg(long, value_name = "SIZE")]
    pub(super) emergency_reserve: Option<Bytes>,

    /// Number of compute threads [default: OMP_NUM_THREADS, or all cores]
    #[arg(long, value_name = "N", value_parser = super::options::positive_size)]
    pub(super) threads: Option<usize>,
}

/// `--vram`: a size, or a range of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vram {
    /// The smallest size of a range; `None` of a single size.
    pub(super) least: Option<Bytes>,
    /// The size, or the largest of a range.
    pub(super) most: Bytes,
}

impl From<Bytes> for Vram {
    fn from(most: Bytes) -> Self {
        Self { least: None, most }
    }
}

impl FromStr for Vram {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse::<Bytes>().map_err(|error| error.to_string());
        let Some((least, most)) = text.split_once("..") else { return size(text).map(Self::from) };
        let (least, most) = (size(least)?, size(most)?);
        match least < most && least > Bytes::ZERO {
            true => Ok(Self { least: Some(least), most }),
            false => Err(format!("`{text}` is not a range: its first size must be above 0 and below its second")),
        }
    }
}

/// As [`FromStr`] reads it, exact to the byte.
impl fmt::Display for Vram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.least.map_or(Ok(()), |least| write!(f, "{}b..", least.0))?;
        write!(f, "{}b", self.most.0)
    }
}

/// A budget and its derivation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Budget {
    /// The most bytes of a plan.
    pub(super) bytes: Bytes,
    memory: Memory,
    fraction: f32,
    /// The margin to subtract from `--vram`.
    margin_of_vram: Bytes,
    /// The host's memory, if it is assumed.
    pub(super) assumed_host: Option<Bytes>,
}

/// Memory before subtractions.
#[derive(Debug, Clone, PartialEq)]
struct Memory {
    /// Its owner or source, for messages.
    source: String,
    /// `--vram`, or all of it.
    total: Bytes,
    /// The most that a run could use, including the margin: what no other process uses. `None` if that is not limited.
    free: Option<Bytes>,
    /// The part to leave free.
    margin: Bytes,
    /// Whether the total is the memory that is free now, not a fixed size.
    is_momentary: bool,
}

impl Memory {
    /// A requested size.
    fn requested(total: Bytes, margin: Bytes) -> Self {
        Self { source: "requested".to_owned(), total, free: None, margin, is_momentary: false }
    }
}

/// A card's memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CardMemory {
    /// The card's name.
    pub(super) name: String,
    /// Its total memory.
    pub(super) total: Bytes,
    /// Where the card is.
    pub(super) presence: Presence,
}

/// Where a card is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Presence {
    /// In this machine.
    Here {
        /// Its UUID.
        uuid: String,
        /// The bytes in use.
        used: Bytes,
        /// This process's share of the bytes in use.
        own: OwnUse,
        /// Whether it drives a display.
        drives_display: bool,
    },
    /// In another machine, with all of its memory free.
    Elsewhere {
        /// Whether a larger `--vram` would mean another card.
        is_any: bool,
    },
}

/// The memory of a card that this process uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnUse {
    /// This many bytes; 0 if the card is not open.
    Known(Bytes),
    /// The driver has opened the card, but does not report its use.
    Unknown,
}

impl OwnUse {
    /// The bytes that this process uses, out of `used`; `margin` is left free.
    fn of(self, used: Bytes, margin: Bytes) -> Bytes {
        match self {
            Self::Known(own) => own.min(used),
            // Of the 539 MiB in use on an H100, 440 were used before the arena was reserved; smaller cards use a
            // smaller share.
            Self::Unknown => Bytes(margin.0 / 4 * 3).min(used),
        }
    }
}

/// The default host memory for a card in another machine, as a multiple of the card's memory: as in typical machines,
/// 24 GiB with a 12 GiB card, 48 with 24.
const HOST_OF_CARD: u64 = 2;

/// Kept free on a card by default, however the card was found: what its driver, its libraries and their workspaces use
/// besides the arena, with what the driver uses as soon as the card is open. On an H100 that
/// was 539 MiB, of which 440 before the arena was reserved (bench/results/2026-11-22-h100-second.md); the driver keeps some
/// for each multiprocessor, of which other cards have fewer.
pub(super) const CARD_MARGIN: Bytes = Bytes::mib(1024);

/// Kept free in addition on a card that drives a display: what windows that are opened while a run lasts may use, such as a
/// browser's. An assumption.
const DISPLAY_MARGIN: Bytes = Bytes::mib(512);

impl BudgetArgs {
    /// Of the processor: what is asked for, or what is free less what the process itself takes.
    /// Errors: the margin takes it all, or the system does not say how much is free.
    pub(super) fn budget(&self) -> Result<Budget, Failure> {
        if let Some(vram) = self.vram {
            let free = available().map_or(Bytes::ZERO, |free| free.bytes);
            refuse_size("--vram", vram.most, VRAM_MAX.max(free))?;
            let margin = self.vram_margin.unwrap_or(Bytes::ZERO);
            let process = self.vram_margin.unwrap_or_else(|| process_margin() + page_tables(free.min(vram.most)));
            let free = (vram.least.is_some() || self.emergency_reserve.is_some())
                .then(|| self.within_free((free + margin).saturating_sub(process)))
                .transpose()?;
            return self.budget_of(Memory { free, ..Memory::requested(vram.most, margin) });
        }
        let failure = Failure::bad_flag("this system does not say how much memory is free");
        let free = available().ok_or_else(|| failure.hint("set a budget: `--vram 4`"))?;
        let margin = process_margin() + page_tables(free.bytes);
        if self.vram_margin.is_none() && margin >= free.bytes {
            let Available { bytes, bound } = free;
            let message = format!("the process itself needs {margin}, but only {bytes} is available ({bound})");
            return Err(no_room(message, None)
                .hint("`--vram-margin 32` reserves less for it, at the risk that the system kills it"));
        }
        let (source, margin) = (free.bound.to_string(), self.vram_margin.unwrap_or(margin));
        let left = self.emergency_reserve.map(|reserve| free.bytes.saturating_sub(reserve));
        let budget = self.budget_of(Memory { source, total: free.bytes, free: left, margin, is_momentary: true });
        let margin_of_vram = self.vram_margin.unwrap_or(Bytes::ZERO);
        budget.map(|budget| Budget { margin_of_vram, ..budget })
    }

    /// Of a card: `--vram` or all of it, at most what other processes leave of it, less the margin. Says it where less is
    /// free than `--vram` asks for. Errors: nothing is left; where other processes hold it, they are named.
    pub(super) fn of_card(&self, memory: CardMemory) -> Result<Budget, Failure> {
        let CardMemory { name, total, presence } = memory;
        let displayed = matches!(presence, Presence::Here { drives_display: true, .. });
        let for_display = if displayed { DISPLAY_MARGIN } else { Bytes::ZERO };
        let margin = self.vram_margin.unwrap_or(CARD_MARGIN + for_display);
        let (uuid, used, own) = match presence {
            Presence::Here { uuid, used, own, .. } => (uuid, used, own),
            Presence::Elsewhere { is_any } => {
                self.most().map_or(Ok(()), |vram| refuse_size("--vram", vram, VRAM_MAX))?;
                let (total, most) = (self.most().unwrap_or(total), total);
                let reserve = self.emergency_reserve.unwrap_or(Bytes::ZERO);
                let is_limited = !is_any || reserve > Bytes::ZERO;
                let free = is_limited.then_some(most.max(total).saturating_sub(reserve));
                let memory = Memory { source: name, free, ..Memory::requested(total, margin) };
                return Ok(Budget { assumed_host: Some(Bytes(HOST_OF_CARD * most.0)), ..self.budget_of(memory)? });
            }
        };
        self.most().map_or(Ok(()), |vram| refuse_size("--vram", vram, vram_max_of(total)))?;
        let own = own.of(used, margin);
        let free = self
            .within_free(total.saturating_sub(used.saturating_sub(own)))
            .map_err(|failure| failure.naming_holders(&uuid))?;
        if let Some(words) = self.most().and_then(|vram| less_than_asked(vram, &name, total, free)) {
            talk(words);
        }
        // What the driver of an open card uses is a part of the margin.
        let (margin, total) = (margin.max(own), self.most().unwrap_or(total).min(total));
        let memory = Memory { source: name, total, free: Some(free), margin, is_momentary: false };
        self.budget_of(memory).map_err(|failure| match failure.code() {
            exit_code::DOES_NOT_FIT => failure.naming_holders(&uuid),
            _ => failure,
        })
    }

    /// The size of `--vram`, or the largest of its range.
    pub(super) fn most(&self) -> Option<Bytes> {
        self.vram.map(|vram| vram.most)
    }

    /// Errors: `--vram` is a range. `command`: a command whose budget does not change.
    pub(super) fn refuse_range(&self, command: &str) -> Result<(), Failure> {
        let Some(Vram { least: Some(_), most }) = self.vram else { return Ok(()) };
        Err(Failure::bad_flag(format!("the budget of `{command}` does not change, so `--vram` is a single size"))
            .hint(format!("`--vram {}MiB` is the largest of this range", most.0 / Bytes::mib(1).0)))
    }

    /// The part of the free memory that a budget can use, including its margin: what the reserve leaves, and of a range the
    /// size that fits. Errors: less is free than the least of the range.
    fn within_free(&self, free: Bytes) -> Result<Bytes, Failure> {
        let usable = free.saturating_sub(self.emergency_reserve.unwrap_or(Bytes::ZERO));
        let Some(Vram { least: Some(least), most }) = self.vram else { return Ok(usable) };
        BudgetRange { least, most }.fitting(usable).ok_or_else(|| {
            let kept = match self.emergency_reserve {
                Some(reserve) => format!(" besides the {reserve} of `--emergency-reserve`"),
                None => String::new(),
            };
            let message = format!("`--vram` asks for at least {least}, but only {usable} is free{kept}");
            Failure::new(exit_code::DOES_NOT_FIT, message)
                .hint("end other programs, or give `--vram` a smaller first size")
        })
    }

    /// Of any memory: its total times the fraction, at most what is free of it, less the margin.
    /// Errors: the flags leave nothing of it; nothing is left since other processes hold it.
    fn budget_of(&self, memory: Memory) -> Result<Budget, Failure> {
        let Memory { source, total, is_momentary, .. } = &memory;
        if *total == Bytes::ZERO && !is_momentary {
            return Err(
                Failure::bad_flag("the budget is 0 B").hint("`--vram 12` means 12 GiB; `--vram 600MiB` works too")
            );
        }
        let fraction = self.memory_fraction;
        let margin = memory.margin;
        let bytes = memory.at_most_free(fraction).saturating_sub(margin);
        if bytes == Bytes::ZERO {
            let usable = memory.part(fraction);
            let message = |held: &str| format!("nothing is left of {usable} after a margin of {margin}{held}");
            return Err(match (is_momentary, usable > margin) {
                (true, _) => Failure::new(exit_code::DOES_NOT_FIT, message(&format!(" ({source})")))
                    .hint("close other programs, or use a smaller `--vram-margin`"),
                (false, false) => {
                    Failure::bad_flag(message("")).hint("use a smaller `--vram-margin` or a larger `--vram`")
                }
                (false, true) => {
                    let held = format!(" and the {} that other processes use", memory.used_by_others(fraction));
                    Failure::new(exit_code::DOES_NOT_FIT, message(&held))
                        .hint("end the processes that use the memory, or wait until they end")
                }
            });
        }
        Ok(Budget { bytes, memory, fraction, margin_of_vram: margin, assumed_host: None })
    }

    /// Checks that the memory for the plan and the process itself is free.
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

    /// The threads of the flag, or all cores. Errors: too many for the cores.
    pub(super) fn threads(&self) -> Result<usize, Failure> {
        threads(self.threads)
    }
}

impl Memory {
    /// A fraction of the total.
    fn part(&self, fraction: f32) -> Bytes {
        Bytes((self.total.as_f64() * f64::from(fraction)) as u64).min(self.total)
    }

    /// The same, limited to the free memory.
    fn at_most_free(&self, fraction: f32) -> Bytes {
        self.part(fraction).min(self.free.unwrap_or(Bytes(u64::MAX)))
    }

    /// The share of that fraction that other processes use.
    fn used_by_others(&self, fraction: f32) -> Bytes {
        self.part(fraction).saturating_sub(self.at_most_free(fraction))
    }
}

/// A driver reports at least this fraction of a card's nominal memory.
const REPORTED: f64 = 0.95;

/// Whether a card with this total can't be the one that `--vram` means.
pub(super) fn is_more_than(vram: Bytes, total: Bytes) -> bool {
    REPORTED * vram.as_f64() > total.as_f64()
}

/// The note that a card of this machine has less free memory than `--vram`; `None` if it has enough.
fn less_than_asked(vram: Bytes, name: &str, total: Bytes, free: Bytes) -> Option<String> {
    if is_more_than(vram, total) {
        return Some(format!("`--vram` asks for {vram}, but {name} has {total}: planning for the {free} that is free"));
    }
    (vram > free).then(|| format!("`--vram` asks for {vram}: planning for the {free} that is free on {name}"))
}

/// A larger `--vram` is probably a number of MiB without its unit, unless the machine has that much.
pub(super) const VRAM_MAX: Bytes = Bytes::gib(1024);

/// The same for `--vram` on a known card: 16 times its memory.
pub(super) fn vram_max_of(card: Bytes) -> Bytes {
    VRAM_MAX.min(Bytes(card.0.saturating_mul(16)))
}

/// The same for `--host-ram`: the largest servers have 4 TiB, rarely more.
const HOST_RAM_MAX: Bytes = Bytes::gib(8192);

/// Refuses a size above `most`, which is probably a number of MiB read as GiB.
pub(super) fn refuse_size(flag: &str, asked: Bytes, most: Bytes) -> Result<(), Failure> {
    if asked <= most {
        return Ok(());
    }
    let gib = asked.0 / Bytes::gib(1).0;
    let in_gib = if gib.is_multiple_of(1024) { format!(" or `{flag} {}GiB`", gib / 1024) } else { String::new() };
    Err(Failure::bad_flag(format!("`{flag}` is {asked}; a bare number is GiB"))
        .hint(format!("did you mean `{flag} {gib}MiB`{in_gib}?")))
}

/// The threads of the flag, or of `OMP_NUM_THREADS`, or one per core. Errors: too many for the cores.
pub(super) fn threads(asked: Option<usize>) -> Result<usize, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let of_openmp = || openmp_threads(&std::env::var("OMP_NUM_THREADS").ok()?);
    match asked.or_else(of_openmp) {
        Some(n) if n > 8 * cores => Err(Failure::bad_flag(format!("{n} threads are too many for {cores} cores"))
            .hint(format!("omit `--threads` and unset OMP_NUM_THREADS to use one per core, {cores}"))),
        Some(n) => Ok(n),
        None => Ok(cores),
    }
}

/// The threads of OpenMP's variable: a number for each nested level; the first applies. `None` if it is not such a
/// list: OpenMP ignores it then.
fn openmp_threads(text: &str) -> Option<usize> {
    text.split(',').next()?.trim().parse().ok().filter(|threads| *threads > 0)
}

impl Budget {
    /// The budget of the same memory for another `--vram`, whose bytes need not be free. Errors: nothing is left of it.
    pub(super) fn of_vram(&self, args: &BudgetArgs, vram: Bytes) -> Result<Self, Failure> {
        args.budget_of(Memory::requested(vram, self.margin_of_vram))
    }

    /// The part of a `--vram` that is not the plan's.
    pub(super) fn outside(&self) -> Bytes {
        self.margin_of_vram
    }

    /// The memory that the budget is part of.
    pub(super) fn total(&self) -> Bytes {
        self.memory.total
    }

    /// The same after other processes freed this many bytes.
    pub(super) fn with_more(&self, freed: Bytes) -> Self {
        let memory = Memory { free: self.memory.free.map(|free| free + freed), ..self.memory.clone() };
        let bytes = memory.at_most_free(self.fraction).saturating_sub(memory.margin);
        Self { bytes, memory, ..self.clone() }
    }

    /// The budget of a plan, with the host's memory: for a card the given or assumed size, or all free memory; the
    /// processor's memory is the host's. Errors: `--host-ram` without a card; the system does not report its free
    /// memory.
    pub(super) fn with_host(
        &self,
        device: DeviceKind,
        host_ram: Option<Bytes>,
    ) -> Result<::plimsoll_plan::Budget, Failure> {
        let free = || {
            let failure = Failure::bad_flag("this system does not say how much memory is free");
            let free = available().map(|free| free.bytes);
            free.ok_or_else(|| failure.hint("set a budget for the host: `--host-ram 16`"))
        };
        match (device, host_ram) {
            (DeviceKind::Cpu, None) => Ok(::plimsoll_plan::Budget::shared(self.bytes)),
            (DeviceKind::Cpu, Some(_)) => {
                Err(Failure::bad_flag("`--host-ram` is for GPUs: on the CPU, device and host share one memory")
                    .hint("`--vram` is the budget for all of it; `plan --gpu NAME` accepts both"))
            }
            (DeviceKind::Cuda, host) => {
                host_ram.map_or(Ok(()), |bytes| refuse_size("--host-ram", bytes, HOST_RAM_MAX))?;
                let host = host.or(self.assumed_host).map_or_else(free, Ok)?;
                Ok(::plimsoll_plan::Budget::apart(self.bytes, host))
            }
        }
    }

    /// The `--vram`, in whole MiB, that leaves a plan this many bytes; `None` if less is free.
    pub(super) fn vram_for(&self, bytes: Bytes) -> Option<Bytes> {
        let usable = bytes.as_f64() + self.margin_of_vram.as_f64();
        let total = Bytes((usable / f64::from(self.fraction)).ceil() as u64 + 1).align_up(Bytes::mib(1).0);
        let is_free = self.memory.free.is_none_or(|free| bytes + self.margin_of_vram <= free);
        is_free.then_some(total)
    }

    /// The subtraction in words, one line for each subtracted amount.
    pub(super) fn describe(&self) -> String {
        let Self { bytes, memory, fraction, margin_of_vram, assumed_host } = self;
        let Memory { source, total, margin, .. } = memory;
        let others = memory.used_by_others(*fraction);
        let host = assumed_host.map_or(String::new(), |host| {
            format!(
                "\n{:>10}  of host memory, assumed for a GPU in another machine; set it with `--host-ram`",
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
        for (taken, what) in [(others, "used by other processes"), (*margin, whose)] {
            if taken > Bytes::ZERO {
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

    fn args(vram: Option<u64>, fraction: f32, margin: Option<u64>) -> BudgetArgs {
        let (vram, vram_margin) = (vram.map(|vram| Bytes::mib(vram).into()), margin.map(Bytes::mib));
        let (vram_auto, emergency_reserve, threads) = (None, None, None);
        BudgetArgs { vram, vram_auto, memory_fraction: fraction, vram_margin, emergency_reserve, threads }
    }

    fn here(total: u64, used: u64, own: OwnUse) -> CardMemory {
        let presence = Presence::Here { uuid: "GPU-a".to_owned(), used: Bytes::mib(used), own, drives_display: false };
        CardMemory { name: "GPU".to_owned(), total: Bytes::mib(total), presence }
    }

    #[test]
    fn openmps_variable_is_a_number_or_a_list_of_them() {
        for (text, threads) in
            [("3", Some(3)), (" 4 , 2", Some(4)), ("0", None), ("-1", None), ("", None), ("many", None), ("2.5", None)]
        {
            assert_eq!(openmp_threads(text), threads, "{text}");
        }
    }

    #[test]
    fn vram_for_is_enough_if_it_is_free() {
        for (fraction, margin) in [(1.0, 0), (0.9, 500), (0.33, 1024)] {
            let args = args(None, fraction, None);
            let memory = |total| Memory::requested(total, Bytes::mib(margin));
            let some = args.budget_of(memory(Bytes::gib(100))).expect("enough");
            for needed in [1, 4095, 123_456_789, 7 << 30].map(Bytes) {
                let enough = args.budget_of(memory(some.vram_for(needed).expect("no limit"))).expect("enough");
                assert!(enough.bytes >= needed && enough.bytes.0 < needed.0 + (4 << 20), "{needed} of {enough:?}");
            }
        }
        let budget =
            args(Some(4096), 1.0, None).of_card(here(12288, 2048, OwnUse::Known(Bytes::ZERO))).expect("enough");
        assert_eq!(budget.vram_for(Bytes::mib(9216 - 1)), Some(Bytes::mib(10240)), "all that is free");
        assert_eq!(budget.vram_for(Bytes::mib(9216 + 1)), None, "of 10 GiB that are free, 1 is the margin");
    }

    /// In MiB: `--vram`, the memory in use, this process's share of that, and the budget, of a card of 12 GiB.
    #[test]
    fn vram_limits_all_use_of_a_card_and_is_at_most_the_free_memory() {
        const M: u64 = 1024;
        for (vram, used, own, expected) in [
            (None, 0, 0, 12288 - M),
            (None, 1700, 0, 12288 - 1700 - M),
            // What other processes use is not taken off a budget that is free without it.
            (Some(10000), 1700, 0, 10000 - M),
            (Some(10588), 1700, 0, 10588 - M),
            // More than is free, and more than there is.
            (Some(12288), 1700, 0, 12288 - 1700 - M),
            (Some(16384), 1700, 0, 12288 - 1700 - M),
            // An open card has the same budget: what its driver has taken is a part of the margin.
            (None, 2140, 440, 12288 - 1700 - M),
            (Some(10000), 2140, 440, 10000 - M),
            (Some(16384), 440, 440, 12288 - M),
            // More than the margin.
            (None, 3000, 1300, 12288 - 1700 - 1300),
        ] {
            let card = here(12288, used, OwnUse::Known(Bytes::mib(own)));
            let budget = args(vram, 1.0, None).of_card(card).expect("something is left").bytes;
            assert_eq!(budget, Bytes::mib(expected), "{vram:?} {used} {own}");
        }
        // A driver that does not say what it took: a quarter of the margin stays free.
        for (vram, used, margin, expected) in [
            (None, 2140, None, 12288 - 2140 - 256),
            (None, 100, None, 12288 - M),
            (Some(8000), 2140, None, 8000 - M),
            (None, 2140, Some(0), 12288 - 2140),
        ] {
            let budget = args(vram, 1.0, margin).of_card(here(12288, used, OwnUse::Unknown)).expect("something").bytes;
            assert_eq!(budget, Bytes::mib(expected), "{vram:?} {used} {margin:?}");
        }
        // A card with a display, and with a requested margin.
        for (margin, expected) in [(None, 12288 - 300 - M - 512), (Some(600), 12288 - 300 - 600)] {
            let mut card = here(12288, 300, OwnUse::Known(Bytes::ZERO));
            let Presence::Here { drives_display, .. } = &mut card.presence else { panic!("{card:?}") };
            *drives_display = true;
            let budget = args(None, 1.0, margin).of_card(card).expect("something").bytes;
            assert_eq!(budget, Bytes::mib(expected), "{margin:?}");
        }
        let half = args(None, 0.5, None).of_card(here(12288, 4096, OwnUse::Known(Bytes::ZERO))).expect("something");
        assert_eq!(half.bytes, Bytes::mib(6144 - M), "half of the GPU is free");
    }

    #[test]
    fn less_free_memory_than_requested_is_reported() {
        let said = |vram, free| less_than_asked(Bytes::mib(vram), "GPU", Bytes::mib(12000), Bytes::mib(free));
        assert_eq!(said(8000, 9000), None);
        assert!(said(12288, 9000).is_some_and(|words| words.contains("that is free on GPU")));
        assert!(said(16384, 9000).is_some_and(|words| words.contains("but GPU has 11.7 GiB")));
    }
}
