//! `plimsoll run --gpu-share`, and the limits of all supervised workers on a GPU together: a run is refused if the
//! workers of all running runs would have more than the GPU has.
//! Not here: `--workers` and `--memory-fraction` of one run (`workers.rs`).

use super::visible::uuids;
use crate::cli::Failure;
use plimsoll_registry::{Entry, GpuShare, Registry, RunState};
use plimsoll_supervise::Share;
use plimsoll_telemetry::Gpu;
use plimsoll_units::Bytes;
use std::env;
use std::path::PathBuf;

/// Rounding of sums of fractions.
const ROUNDING: f64 = 1e-6;

/// Parses `50%` or `0.5`.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim_end(), 100.0));
    match number.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= scale => Ok(share / scale),
        Ok(_) => Err(format!("`{text}` must be above 0 and at most 100%")),
        Err(_) => Err(format!("`{text}` is not a share, such as `50%` or 0.5")),
    }
}

/// The limits of each worker on its GPU, as the flags set them.
#[derive(Debug, Clone, Copy)]
pub(super) struct GpuLimits {
    pub(super) per_card: usize,
    /// Whether a flag sets the memory of a worker.
    pub(super) has_memory: bool,
    /// The fraction of the multiprocessors.
    pub(super) compute: Option<f64>,
}

impl GpuLimits {
    /// Adds the limits to the workers' shares, as far as the GPUs are known.
    pub(super) fn apply(self, shares: &mut [Share], visible: &[Gpu]) {
        for share in shares {
            let own = visible.iter().filter(|card| share.card.as_ref().is_none_or(|uuid| *uuid == card.uuid));
            let own = own.cloned().collect::<Vec<_>>();
            let smallest = own.iter().map(|card| card.total.0).min();
            let bytes = share.memory_fraction.zip(smallest).map(|(part, total)| Bytes((part * total as f64) as u64));
            (share.memory, share.compute, share.usable) = (bytes, self.compute, uuids(&own));
            share.has_mps = mps_folder().join("control").exists();
        }
    }

    /// Checks that the workers, with those of running runs, have no more of a GPU than all of it.
    /// Errors: they would; MPS does not run.
    pub(super) fn check(self, shares: &[Share], visible: &[Gpu], registry: &Registry) -> Result<(), Failure> {
        if let Some(compute) = self.compute {
            self.check_compute(compute, shares)?;
        }
        if !self.has_memory && self.compute.is_none() {
            return Ok(());
        }
        let own = shares.iter().filter_map(Share::of_gpu).collect::<Vec<_>>();
        let others = registry.entries().into_iter().filter(|entry| {
            !entry.shares.is_empty() && matches!(entry.state(), RunState::Running | RunState::Orphaned)
        });
        let others = others.collect::<Vec<_>>();
        visible.iter().try_for_each(|card| self.check_card(card, &own, &others))
    }

    fn check_compute(self, compute: f64, shares: &[Share]) -> Result<(), Failure> {
        let count = self.per_card as f64;
        if compute * count > 1.0 + ROUNDING {
            let message = format!("{count} workers with `--gpu-share {}` use more than a GPU", shown(compute));
            let part = (100.0 / count).floor();
            return Err(Failure::bad_flag(message).hint(format!("`--gpu-share {part}%` fits")));
        }
        match shares.iter().all(|share| share.has_mps) {
            true => Ok(()),
            false => Err(Failure::bad_flag(format!(
                "`--gpu-share` needs CUDA's Multi-Process Service, which does not run: {} has no `control`",
                mps_folder().display()
            ))
            .hint("`nvidia-cuda-mps-control -d` starts it; `CUDA_MPS_PIPE_DIRECTORY` names another folder")),
        }
    }

    fn check_card(self, card: &Gpu, own: &[GpuShare], others: &[Entry]) -> Result<(), Failure> {
        let on_card = |shares: &[GpuShare]| {
            let shares = shares.iter().filter(|share| share.cards.contains(&card.uuid));
            shares.fold((Bytes(0), 0.0), |(memory, compute), share| {
                let more = share.memory.unwrap_or_default().0;
                (Bytes(memory.0.saturating_add(more)), compute + share.compute.unwrap_or(0.0))
            })
        };
        let (memory, compute) = on_card(own);
        let taken = others.iter().map(|entry| (entry.name(), on_card(&entry.shares)));
        let taken = taken.filter(|(_, (memory, compute))| memory.0 > 0 || *compute > 0.0).collect::<Vec<_>>();
        let taken_memory = Bytes(taken.iter().map(|(_, (memory, _))| memory.0).sum());
        let taken_compute = taken.iter().map(|(_, (_, compute))| compute).sum::<f64>();
        let names = taken.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let Gpu { index, name, total, .. } = card;
        let refused = |own: String, taken: String, all: String, hint: Option<String>| {
            let message =
                format!("this run would have {own} of GPU {index} ({name}), and {names} {taken}: more than {all}");
            let failure = Failure::bad_flag(message);
            hint.into_iter()
                .fold(failure, Failure::hint)
                .hint("`plimsoll ps` shows the shares, `plimsoll stop NAME` frees one")
        };
        let count = self.per_card as u64;
        if self.has_memory && taken_memory.0 > 0 && memory.0.saturating_add(taken_memory.0) > total.0 {
            let part = (total.0.saturating_sub(taken_memory.0) / count) >> 20;
            let hint = (part > 0).then(|| format!("`--workers {count}@{part}MiB` fits"));
            return Err(refused(memory.to_string(), taken_memory.to_string(), total.to_string(), hint));
        }
        if self.compute.is_some() && compute + taken_compute > 1.0 + ROUNDING && taken_compute > 0.0 {
            let part = ((1.0 - taken_compute) * 100.0 / count as f64).floor();
            let hint = (part > 0.0).then(|| format!("`--gpu-share {part}%` fits"));
            return Err(refused(shown(compute), shown(taken_compute), "100%".to_owned(), hint));
        }
        Ok(())
    }
}

fn shown(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// The folder of the pipes of CUDA's Multi-Process Service.
fn mps_folder() -> PathBuf {
    env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_or_a_fraction() {
        assert_eq!(percent("50%"), Ok(0.5));
        assert_eq!(percent(" 12.5 % "), Ok(0.125));
        assert_eq!(percent("0.25"), Ok(0.25));
        assert_eq!(percent("1"), Ok(1.0));
        for text in ["0", "0%", "101%", "1.5", "-1", "", "%", "nan", "half"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
