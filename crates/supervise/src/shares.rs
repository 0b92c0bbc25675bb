//! Divides a machine among several workers: cards and fractions of their memory, CPUs, threads. Pure, except for
//! reading the CPU affinity.

use plimsoll_registry::GpuShare;
use plimsoll_units::Bytes;
use std::ffi::OsString;

/// Environment variable for the fraction of its card's memory that a program may use, 0 to 1.
pub const MEMORY_FRACTION: &str = "PLIMSOLL_MEMORY_FRACTION";

/// Environment variable for a worker's index, from 0.
pub const WORKER: &str = "PLIMSOLL_WORKER";
/// Environment variable for the number of workers.
pub const WORKERS: &str = "PLIMSOLL_WORKERS";

/// Environment variables by which CUDA's Multi-Process Service (MPS) limits a program: the percentage of the
/// multiprocessors, and the memory of each visible GPU. Source: "Multi-Process Service", NVIDIA, chapter 5.
const MPS_COMPUTE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Environment variables for the thread count of numeric libraries.
const THREADS: [&str; 4] = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"];

/// A worker's share of the machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Share {
    /// Its index, from 0.
    pub worker: usize,
    /// The UUID of its card; `None` if it may use all cards.
    pub card: Option<String>,
    /// The fraction of the card's memory that it may use; `None` for all of it.
    pub memory_fraction: Option<f64>,
    /// The UUIDs of the cards that it may use, as far as they are known.
    pub usable: Vec<String>,
    /// The bytes of `memory_fraction`, if the size of the card is known.
    pub memory: Option<Bytes>,
    /// The fraction of the card's multiprocessors that it may use; `None` for all.
    pub compute: Option<f64>,
    /// Whether CUDA's Multi-Process Service runs, so that the driver enforces the limits.
    pub has_mps: bool,
    /// CPUs that it may use; empty for all.
    pub cpus: Vec<usize>,
    /// Thread count of numeric libraries; `None` for their default.
    pub threads: Option<usize>,
}

/// Divides a machine among `per_card` workers per card, or among `per_card` workers if there are no cards. `fraction`:
/// the fraction of a card's memory for each worker, if the user set one.
pub fn shares(
    per_card: usize,
    cards: &[String],
    cpus: &[usize],
    threads: Option<usize>,
    fraction: Option<f64>,
) -> Vec<Share> {
    let workers = per_card.max(1) * cards.len().max(1);
    if workers == 1 {
        return vec![Share { threads, memory_fraction: fraction, ..Share::default() }];
    }
    let share = |worker: usize| {
        let own = match cpus.len() >= workers {
            true => cpus[worker * cpus.len() / workers..(worker + 1) * cpus.len() / workers].to_vec(),
            false => vec![],
        };
        Share {
            worker,
            card: cards.get(worker / per_card.max(1)).cloned(),
            // CUDA contexts and libraries use memory that a framework does not count.
            memory_fraction: fraction.or((!cards.is_empty() && per_card > 1).then_some(0.9 / per_card as f64)),
            threads: threads.or(Some(own.len().max(1))),
            cpus: own,
            ..Share::default()
        }
    };
    (0..workers).map(share).collect()
}

impl Share {
    /// What it limits of its cards; `None` if it limits nothing.
    pub fn of_gpu(&self) -> Option<GpuShare> {
        let Self { worker, memory, compute, .. } = *self;
        (memory.is_some() || compute.is_some()).then(|| GpuShare {
            worker,
            cards: self.usable.clone(),
            memory,
            compute,
        })
    }

    /// The environment variables of the share. `is_set`: whether the user has set a variable; those are not overridden.
    pub(crate) fn variables(&self, workers: usize, is_set: impl Fn(&str) -> bool) -> Vec<(OsString, OsString)> {
        let mut variables = Vec::new();
        let mut set = |name: &str, value: String| variables.push((OsString::from(name), OsString::from(value)));
        if workers > 1 {
            set(WORKER, self.worker.to_string());
            set(WORKERS, workers.to_string());
        }
        if let Some(card) = &self.card {
            set("CUDA_VISIBLE_DEVICES", card.clone());
        }
        if let Some(fraction) = self.memory_fraction {
            set(MEMORY_FRACTION, fraction.to_string());
        }
        if self.has_mps {
            if let Some(compute) = self.compute {
                set(MPS_COMPUTE, (compute * 100.0).to_string());
            }
            let limit = self.memory.filter(|_| !self.usable.is_empty());
            // A program numbers the cards that it sees from 0.
            let each = |limit: Bytes| (0..self.usable.len()).map(move |card| format!("{card}={}M", limit.0 >> 20));
            if let Some(limit) = limit {
                set(MPS_MEMORY, each(limit).collect::<Vec<_>>().join(","));
            }
        }
        if let Some(threads) = self.threads {
            THREADS.iter().filter(|name| !is_set(name)).for_each(|name| set(name, threads.to_string()));
        }
        variables
    }
}

/// The CPUs that this process may use; empty if the system does not report them.
pub fn usable_cpus() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let Ok(set) = sched_getaffinity(None) else { return vec![] };
        (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
    }
    #[cfg(not(target_os = "linux"))]
    vec![]
}

/// Pins a new process and its future children to some CPUs. Ignores errors: without pinning, only speed is lost.
pub(crate) fn keep_on(pid: u32, cpus: &[usize]) {
    #[cfg(target_os = "linux")]
    if let Some(pid) = plimsoll_registry::pid(pid).filter(|_| !cpus.is_empty()) {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        let _ = sched_setaffinity(Some(pid), &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (pid, cpus);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_worker_has_the_whole_machine() {
        assert_eq!(shares(1, &[], &[0, 1, 2], None, None), [Share::default()]);
        assert_eq!(Share::default().variables(1, |_| false), []);
    }

    #[test]
    fn two_workers_per_card_share_its_memory_and_the_cpus() {
        let shares = shares(2, &["GPU-a".to_owned(), "GPU-b".to_owned()], &(4..12).collect::<Vec<_>>(), None, None);
        assert_eq!(shares.len(), 4);
        let third = &shares[2];
        assert_eq!((third.card.as_deref(), &third.cpus[..], third.threads), (Some("GPU-b"), &[8, 9][..], Some(2)));
        assert_eq!(third.memory_fraction, Some(0.45));
        let variables = third.variables(4, |name| name == "OMP_NUM_THREADS");
        assert!(variables.contains(&("MKL_NUM_THREADS".into(), "2".into())));
        assert!(!variables.iter().any(|(name, _)| name == "OMP_NUM_THREADS"), "the user's own stays");
        assert!(variables.contains(&(WORKER.into(), "2".into())));
    }

    #[test]
    fn limits_reach_cuda_only_if_mps_runs() {
        let share = Share {
            usable: vec!["GPU-a".to_owned(), "GPU-b".to_owned()],
            memory: Some(Bytes::mib(6144)),
            compute: Some(0.25),
            has_mps: true,
            ..Share::default()
        };
        let variables = share.variables(1, |_| false);
        assert!(variables.contains(&(MPS_COMPUTE.into(), "25".into())), "{variables:?}");
        assert!(variables.contains(&(MPS_MEMORY.into(), "0=6144M,1=6144M".into())), "{variables:?}");
        assert_eq!(Share { has_mps: false, ..share }.variables(1, |_| false), []);
    }

    proptest! {
        #[test]
        fn every_cpu_belongs_to_one_worker(per_card in 1usize..5, cards in 0usize..4, cpus in 0usize..40) {
            let names = (0..cards).map(|card| format!("GPU-{card}")).collect::<Vec<_>>();
            let all = (0..cpus).collect::<Vec<_>>();
            let shares = shares(per_card, &names, &all, None, None);
            prop_assert_eq!(shares.len(), per_card * cards.max(1));
            let given = shares.iter().flat_map(|share| share.cpus.clone()).collect::<Vec<_>>();
            prop_assert!(given.is_empty() || given == all);
            prop_assert!(given == all || cpus < shares.len() || shares.len() == 1);
        }
    }
}
