//! The error for a run that does not fit.

use super::Failure;
use super::budget::Budget;
use super::failure::exit_code;
use super::processor::available;
use ::plimsoll_plan::{Misfit, Nearest, Request, search};
use plimsoll_graph::{DeviceKind, MemoryId};
use plimsoll_render::as_flags;
use plimsoll_telemetry::gpu_holders;
use plimsoll_units::Bytes;

/// The values of `--vram` and `--host-ram` with which the smallest plan fits.
pub(super) struct Enough {
    /// `None` if no value is enough.
    pub(super) vram: Option<Bytes>,
    pub(super) host_ram: Bytes,
    /// The largest possible `--host-ram`; `None` if the run may be on another machine.
    pub(super) host_max: Option<Bytes>,
}

/// The error for a run that does not fit in the whole budget of this machine.
pub(super) fn misfit_of(model: &str, misfit: &Misfit, budget: &Budget) -> Failure {
    let needed = misfit.plan.needed();
    let (device, host_ram) = (needed[MemoryId::DEVICE], needed[MemoryId::HOST]);
    let host_max = available().map(|free| free.bytes);
    misfit_failure(model, misfit, &Enough { vram: budget.vram_for(device), host_ram, host_max })
}

/// The error with the shortfall, and the nearest configurations that fit as hints.
pub(super) fn misfit_failure(model: &str, misfit: &Misfit, smallest: &Enough) -> Failure {
    let &Enough { vram, host_ram, host_max } = smallest;
    let is_there = |host: Bytes| host_max.is_none_or(|most| host <= most);
    let plan = &misfit.plan;
    let needed = plan.needed()[MemoryId::DEVICE];
    let (short, host_short) = (misfit.short[MemoryId::DEVICE], misfit.short[MemoryId::HOST]);
    let held = |budget: Bytes, short: Bytes| match short {
        Bytes::ZERO => format!("the budget is {budget}"),
        short => format!("the budget is {budget} (short {short})"),
    };
    let shape = format!("with a micro-batch of {} and sequences of {}", plan.micro_batch, plan.seq_len);
    let of_device = held(plan.budget().device(), short);
    let weights = plan.breakdown.weights_bytes;
    let weights = match weights > plan.budget().device().0 {
        true => format!("; the weights alone are {}", Bytes(weights)),
        false => String::new(),
    };
    let mut enough = vram.map(|vram| format!("--vram {}", whole_mib(vram)));
    let message = match plan.budget().host().filter(|_| host_short > Bytes::ZERO) {
        None => format!("{model} needs {needed} {shape}, {of_device}{weights}"),
        Some(host) => {
            let of_host = format!("--host-ram {}", whole_mib(host_ram));
            enough = match short {
                Bytes::ZERO => Some(of_host),
                _ => enough.map(|of_card| format!("{of_card} {of_host}")),
            };
            enough = enough.filter(|_| is_there(host_ram));
            let of_host = held(host, host_short);
            let host = plan.host();
            format!(
                "{model} {shape} needs\n  {needed} of GPU memory, {of_device}{weights}\n  {host} of host memory, {of_host}"
            )
        }
    };
    let failure = Failure::new(exit_code::DOES_NOT_FIT, message);
    let nearest = misfit.nearest.iter().filter(|way| host_ram_of(way).is_none_or(is_there)).collect::<Vec<_>>();
    let failure = nearest.iter().fold(failure, |failure, nearest| {
        let Nearest { changes, peak, added_time, .. } = nearest;
        failure.hint(format!("`{}` fits in {peak}{}", as_flags(changes), speed_words(*added_time)))
    });
    // The nearest configurations name a common size of host memory.
    let is_named = short == Bytes::ZERO && nearest.iter().any(|way| host_ram_of(way).is_some());
    let enough = enough.filter(|_| !is_named);
    enough.into_iter().fold(failure, |failure, flags| failure.hint(format!("`{flags}` is enough")))
}

/// The value of `--host-ram` in a nearest configuration; `None` if it has none.
fn host_ram_of(way: &Nearest) -> Option<Bytes> {
    let change = way.changes.iter().find(|change| change.setting == "host-ram")?;
    change.value.parse().ok()
}

/// A device whose memory other processes may use.
pub(super) struct Others {
    /// The GPU's UUID; `None` for the processor.
    pub(super) uuid: Option<String>,
    pub(super) kind: DeviceKind,
}

impl Others {
    /// Adds hints: the processes that use memory of the GPU, and the plan of this request that would fit without them.
    pub(super) fn name(
        &self,
        failure: Failure,
        budget: &Budget,
        request: &Request,
        host_ram: Option<Bytes>,
    ) -> Failure {
        let Some(uuid) = &self.uuid else { return failure };
        let holders = gpu_holders().into_iter().filter(|holder| holder.card == *uuid);
        let held = holders.filter_map(|holder| holder.used).sum::<Bytes>();
        let failure = failure.naming_holders(uuid);
        if held == Bytes::ZERO {
            return failure;
        }
        let without = budget.with_more(held);
        let Ok(of_both) = without.with_host(self.kind, host_ram) else { return failure };
        let request = Request { budget: of_both, ..request.clone() };
        match search(&request) {
            Ok(Ok(found)) => failure.hint(format!(
                "without them it fits in {}, with a micro-batch of {}",
                found.plan.peak(),
                found.plan.micro_batch
            )),
            Ok(Err(_)) => failure.hint("it would not fit without them either"),
            // Errors of the request were reported when it was first planned.
            Err(_) => failure,
        }
    }
}

/// A size as a value of a flag, rounded up to whole MiB.
fn whole_mib(bytes: Bytes) -> String {
    format!("{}MiB", bytes.0.div_ceil(1 << 20))
}

/// The additional time per token in words; empty if it makes no difference.
fn speed_words(added_time: f64) -> String {
    let percent = (100.0 * added_time).round();
    match percent {
        _ if percent >= 1.0 => format!(", about {percent:.0} % slower"),
        _ if percent <= -75.0 => format!(", about {:.0} times as fast", 1.0 / (1.0 + added_time)),
        _ if percent <= -1.0 => format!(", about {:.0} % less time per token", -percent),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_different_speed_has_words() {
        for (added_time, words) in [
            (0.237, ", about 24 % slower"),
            (0.004, ""),
            (-0.3, ", about 30 % less time per token"),
            (-0.9, ", about 10 times as fast"),
        ] {
            assert_eq!(speed_words(added_time), words);
        }
    }
}
