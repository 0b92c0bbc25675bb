//! Whether a program hangs: for a long time it neither prints nor computes, neither on processors nor on a card.

use crate::output::Output;
use crate::processes::{Group, Member};
use plimsoll_telemetry::{CardUse, gpu_use};
use std::time::{Duration, Instant};

/// Looks a timeout has.
const LOOKS: u32 = 20;

/// Of one processor: threads that only wait for each other take less.
const CPU_BUSY: f64 = 0.05;

/// Ticks of processor time a second, on all systems that have a table of processes.
const TICKS: f64 = 100.0;

/// Looks at a program now and then.
#[derive(Debug)]
pub(crate) struct Watch {
    timeout: Duration,
    /// The card that it was given, if it was given one.
    card: Option<String>,
    looked: Instant,
    idle: Duration,
    /// For how long the program was stopped for heat, when it was last looked at.
    held: Duration,
    bytes: u64,
    ticks: u64,
}

impl Watch {
    pub(crate) fn new(timeout: Duration, card: Option<String>, output: &Output) -> Self {
        let (idle, held) = (Duration::ZERO, Duration::ZERO);
        Self { timeout, card, looked: Instant::now(), idle, held, bytes: output.bytes(), ticks: 0 }
    }

    /// Looks if it is time to. `held`: for how long the program was stopped for heat until now, which is no time that counts.
    /// Returns for how long nothing has happened, once that is too long.
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
        // A program that somebody stopped, or that waits for somebody to read, does not hang.
        let is_excused = output.is_held_up() || members.iter().any(|member| member.row.is_stopped);
        let is_busy = bytes != self.bytes || computed >= CPU_BUSY * passed.as_secs_f64();
        (self.bytes, self.ticks) = (bytes, ticks);
        if is_excused || is_busy || gpu_use().is_some_and(|cards| uses_card(&cards, self.card.as_deref(), &members)) {
            self.idle = Duration::ZERO;
            return None;
        }
        // A machine that slept, or a supervisor that was stopped, saw nothing in that time.
        self.idle += passed.min(every * 2);
        (self.idle >= self.timeout).then_some(self.idle)
    }
}

/// Whether a card computes, for these processes as far as that is known: inside a container a driver tells numbers that
/// nobody there has.
fn uses_card(cards: &[CardUse], own: Option<&str>, members: &[Member]) -> bool {
    let is_own = |card: &&CardUse| own.is_none_or(|own| own == card.card);
    cards.iter().filter(is_own).filter(|card| card.busy_percent > 0).any(|card| {
        let is_member = |pid: &u32| members.iter().any(|member| member.row.pid == *pid);
        let is_known = |pid: &u32| crate::processes::Process::of(*pid).is_some();
        card.pids.iter().any(is_member) || !card.pids.iter().any(is_known)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_counts_if_it_computes_for_the_program_or_for_nobody_known() {
        let card = |busy_percent, pids: &[u32]| CardUse { card: "GPU-a".to_owned(), busy_percent, pids: pids.to_vec() };
        let own = std::process::id();
        assert!(uses_card(&[card(40, &[u32::MAX])], None, &[]), "a number that nobody has here");
        assert!(uses_card(&[card(40, &[])], Some("GPU-a"), &[]));
        assert!(!uses_card(&[card(40, &[own])], None, &[]), "somebody else's");
        assert!(!uses_card(&[card(0, &[])], None, &[]));
        assert!(!uses_card(&[card(40, &[])], Some("GPU-b"), &[]), "another worker's card");
    }
}
