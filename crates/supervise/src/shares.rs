//! What each of several workers gets of the machine: a card and a part of its memory, processors, threads. Pure, but for
//! asking which processors this process may use.

use std::ffi::OsString;

/// The variable that tells a program which part of its card's memory it may take, 0 to 1.
pub const MEMORY_FRACTION: &str = "PLIMSOLL_MEMORY_FRACTION";

/// The variables that tell a worker its number, from 0, and how many there are.
pub const WORKER: &str = "PLIMSOLL_WORKER";
/// How many workers there are.
pub const WORKERS: &str = "PLIMSOLL_WORKERS";

/// What numeric libraries read for the number of their threads.
const THREADS: [&str; 4] = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"];

/// What a worker gets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Share {
    /// Its number, from 0.
    pub worker: usize,
    /// The UUID of its card; `None` where it may see all that the supervisor sees.
    pub card: Option<String>,
    /// Which part of the card's memory it may take; `None` for all.
    pub memory_fraction: Option<f64>,
    /// Processors that it may use; none for all.
    pub cpus: Vec<usize>,
    /// Threads of numeric libraries; `None` for what they choose.
    pub threads: Option<usize>,
}

/// Divides a machine among `per_card` workers for each card, or as many in all where there is no card. `fraction`: the part
/// of a card's memory for each worker, where it was said.
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
            // Contexts and libraries take some of a card outside what a framework counts.
            memory_fraction: fraction.or((!cards.is_empty() && per_card > 1).then_some(0.9 / per_card as f64)),
            threads: threads.or(Some(own.len().max(1))),
            cpus: own,
        }
    };
    (0..workers).map(share).collect()
}

impl Share {
    /// The variables by which it is told. `is_set`: whether the user has set one, which then stays.
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
        if let Some(threads) = self.threads {
            THREADS.iter().filter(|name| !is_set(name)).for_each(|name| set(name, threads.to_string()));
        }
        variables
    }
}

/// The processors that this process may use; none where the system does not tell.
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

/// Keeps a process that was just started, and what it will start, on some processors. A system that refuses costs speed
/// and nothing else.
pub(crate) fn keep_on(pid: u32, cpus: &[usize]) {
    #[cfg(target_os = "linux")]
    if let Some(pid) = crate::processes::pid(pid).filter(|_| !cpus.is_empty()) {
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
    fn two_workers_a_card_have_half_of_it_and_a_quarter_of_the_processors() {
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

    proptest! {
        #[test]
        fn no_processor_is_given_twice_and_none_is_left(per_card in 1usize..5, cards in 0usize..4, cpus in 0usize..40) {
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
