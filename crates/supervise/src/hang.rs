//! Detects a hung program: one that neither prints nor computes, on CPUs or on a card, for a long time.

use crate::output::Output;
use plimsoll_registry::{Group, Member, Process};
use plimsoll_telemetry::{CardUse, gpu_use};
use std::time::{Duration, Instant};

/// Number of checks per timeout.
const LOOKS: u32 = 20;

/// Fraction of one CPU that counts as computing. Threads that only wait for each other use less.
const CPU_BUSY: f64 = 0.05;

/// Ticks of CPU time per second on Linux.
const TICKS: f64 = 100.0;

/// Checks a program periodically.
#[derive(Debug)]
pub(crate) struct Watch {
    timeout: Duration,
    /// The UUID of its card, if it has its own.
    card: Option<String>,
    looked: Instant,
    idle: Duration,
    /// How long the program had been stopped for heat at the last check.
    held: Duration,
    bytes: u64,
    ticks: u64,
}

impl Watch {
    pub(crate) fn new(timeout: Duration, card: Option<String>, output: &Output) -> Self {
        let (idle, held) = (Duration::ZERO, Duration::ZERO);
        Self { timeout, card, looked: Instant::now(), idle, held, bytes: output.bytes(), ticks: 0 }
    }

    /// Checks the program if a check is due. `held`: how long it has been stopped for heat so far, which does not count
    /// as idle time. Returns the idle time once it reaches the timeout.
    pub(crate) fn look(&mut self, output: &Output, group: &Group, held: Duration) -> Option<Duration> {
        let every = self.timeout / LOOKS;
        let passed = self.looked.elapsed().saturating_sub(held - self.held);
        if passed < every {
            return None;
        }
        (self.looked, self.held) = (Instant::now(), held);
        let members = group.members();
        let ticks = members.iter().map(|member| member.row.cpu_ticks).sum::<u64>();
        let computed = ticks.saturating_sub(self.ticks) as f64 / TICKS;
        let bytes = output.bytes();
        // A program that the user stopped, or that waits for a reader of its output, does not hang.
        let is_excused = output.is_held_up() || members.iter().any(|member| member.row.is_stopped);
        let is_busy = bytes != self.bytes || computed >= CPU_BUSY * passed.as_secs_f64();
        (self.bytes, self.ticks) = (bytes, ticks);
        if is_excused || is_busy || gpu_use().is_some_and(|cards| uses_card(&cards, self.card.as_deref(), &members)) {
            self.idle = Duration::ZERO;
            return None;
        }
        // Limit the time to count: the machine may have slept, or the supervisor may have been stopped.
        self.idle += passed.min(every * 2);
        (self.idle >= self.timeout).then_some(self.idle)
    }
}

/// Whether a card computes for these processes. Also true if the driver reports only unknown process IDs, as it does
/// inside a container.
fn uses_card(cards: &[CardUse], own: Option<&str>, members: &[Member]) -> bool {
    let is_own = |card: &&CardUse| own.is_none_or(|own| own == card.card);
    cards.iter().filter(is_own).filter(|card| card.busy_percent > 0).any(|card| {
        let is_member = |pid: &u32| members.iter().any(|member| member.row.pid == *pid);
        let is_known = |pid: &u32| Process::of(*pid).is_some();
        card.pids.iter().any(is_member) || !card.pids.iter().any(is_known)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_card_counts_for_its_own_or_unknown_processes() {
        let card = |busy_percent, pids: &[u32]| CardUse { card: "GPU-a".to_owned(), busy_percent, pids: pids.to_vec() };
        let own = std::process::id();
        assert!(uses_card(&[card(40, &[u32::MAX])], None, &[]), "an unknown process ID");
        assert!(uses_card(&[card(40, &[])], Some("GPU-a"), &[]));
        assert!(!uses_card(&[card(40, &[own])], None, &[]), "another program's");
        assert!(!uses_card(&[card(0, &[])], None, &[]));
        assert!(!uses_card(&[card(40, &[])], Some("GPU-b"), &[]), "another worker's GPU");
    }
}
