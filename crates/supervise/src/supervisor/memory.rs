//! Workers that run out of memory although no step is left against it: they wait until other processes release some,
//! or run with their smallest settings until then.
//! Not here: the steps (`../ladder/`), reading the free memory (`../memory.rs`).

use super::Supervisor;
use crate::memory::{FreeMemory, MemoryKind};
use crate::worker::{Phase, Reduced};
use plimsoll_registry::{Attempt, Progress, SupervisorEvent, WorkerOutcome};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// The first wait, in pauses before a restart: half a minute by default.
const FIRST_WAIT: u32 = 30;

impl Supervisor<'_> {
    /// Lets a worker wait for free memory before it starts `attempt`. Errors: the reason why it does not wait.
    pub(super) fn wait_for_memory(
        &mut self,
        index: usize,
        attempt: Attempt,
        memory: MemoryKind,
        progress: Option<Progress>,
    ) -> Result<Duration, String> {
        let worker = &mut self.workers[index];
        let free = FreeMemory::read(memory, &worker.share).ok_or("the free memory is unknown, so it does not wait")?;
        if free.is_unshared() {
            return Err("hardly any other process uses this memory, so it does not wait".to_owned());
        }
        let wait = worker.restarts.wait_after(progress, self.settings.limits.pause * FIRST_WAIT)?;
        worker.attempt = attempt;
        worker.phase = Phase::WaitingForMemory { until: Instant::now() + wait, free };
        Ok(wait)
    }

    /// Starts a worker whose wait is over if memory was released, and lets it wait twice as long otherwise.
    pub(super) fn end_wait(&mut self, index: usize, free: FreeMemory, outcome: WorkerOutcome) {
        let first = self.settings.limits.pause * FIRST_WAIT;
        let worker = &mut self.workers[index];
        if free.has_grown(&worker.share) {
            worker.phase = Phase::Pausing(Instant::now());
            return;
        }
        let event = match worker.restarts.wait_again(first) {
            Some(wait) => {
                worker.phase = Phase::WaitingForMemory { until: Instant::now() + wait, free };
                let why = format!("still only {} is free", free.free());
                SupervisorEvent::WaitingForMemory { worker: index, pause_s: wait.as_secs_f64(), why }
            }
            None => {
                worker.phase = Phase::Done(outcome);
                self.enter_worker(index, None);
                let why = "other processes did not release memory in the meantime".to_owned();
                SupervisorEvent::GaveUp { worker: index, why }
            }
        };
        self.emit(event);
    }

    /// Notes that a worker's next attempt has its smallest settings, from which it returns when memory is free.
    pub(super) fn reduce(&mut self, index: usize, memory: MemoryKind) {
        let worker = &mut self.workers[index];
        let check = Instant::now() + self.settings.limits.pause * FIRST_WAIT;
        worker.reduced = FreeMemory::read(memory, &worker.share).map(|free| Reduced { free, check });
    }

    /// Ends programs with their smallest settings once other processes have released memory. [`judge`](Self::judge) then
    /// restarts them with the settings before.
    pub(super) fn check_reduced(&mut self) {
        let (every, grace) = (self.settings.limits.pause * FIRST_WAIT, self.settings.grace);
        for worker in &mut self.workers {
            let (Some(reduced), Phase::Live(live)) = (&mut worker.reduced, &mut worker.phase) else { continue };
            if reduced.check > Instant::now() || live.has_ended() || live.has_pending_signals() {
                continue;
            }
            reduced.check = Instant::now() + every;
            if reduced.free.has_grown(&worker.share) {
                worker.is_returning = true;
                live.schedule(&[
                    (Duration::ZERO, Signal::TERM, "memory is free again, so it returns to its settings"),
                    (grace, Signal::KILL, "it ignored SIGTERM"),
                ]);
            }
        }
    }
}
