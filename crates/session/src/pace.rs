//! How a run waits between micro-batches, and changes its plan between steps: for heat, and for orders.

use crate::backend::Backend;
use crate::control::State;
use crate::notice::Notice;
use crate::orders::{Change, Next, Target};
use crate::watch::Watch;
use plimsoll_plan::{Found, Refusal};
use plimsoll_telemetry::{EnergyUse, Event};
use plimsoll_train::{Ending, Engine, MicroBatch, Pace};
use plimsoll_units::Seconds;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A run that waits looks this often whether it is to stop.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Time between two notices of a paused or waiting run, so that it is not taken for one that hangs.
pub(crate) const SAY_EVERY: Duration = Duration::from_secs(60);

/// The pace of a run that trains by one plan.
pub(crate) struct SessionPace<'a, B> {
    pub(crate) watch: &'a Watch,
    pub(crate) backend: &'a B,
    /// The plan that is loaded.
    pub(crate) found: &'a Found,
}

impl<B> SessionPace<'_, B> {
    /// Waits while an order pauses the run. Events are passed on meanwhile.
    fn wait_paused(&self, step: u64, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        let shared = &self.watch.control.shared;
        let clock = &shared.surroundings;
        let since = clock.now();
        let mut said = since;
        let Some(order) = shared.lock().asked.begin_pause() else { return };
        tell(Event::Paused { step, order });
        let mut state = shared.lock();
        while state.asked.is_paused() && !state.is_too_hot() && !stop.load(Ordering::Relaxed) {
            let (locked, has_told) = self.tell_events(state, tell);
            state = locked;
            if has_told {
                continue;
            }
            let now = clock.now();
            if now.saturating_sub(said) > SAY_EVERY {
                said = now;
                (self.watch.control.notices)(Notice::StillPaused(seconds_since(since, now)));
            }
            state = shared.wait(state, LOOK_EVERY);
        }
        let order = state.asked.end_pause();
        let Seconds(seconds) = seconds_since(since, clock.now());
        state.facts.held_back_s += seconds;
        drop(state);
        tell(Event::Unpaused { step, order, seconds });
    }

    /// Passes on the events that wait, without the lock. Returns whether there were any.
    fn tell_events<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        tell: &mut dyn FnMut(Event),
    ) -> (MutexGuard<'s, State>, bool) {
        let events = std::mem::take(&mut state.events);
        if events.is_empty() {
            return (state, false);
        }
        drop(state);
        events.into_iter().for_each(tell);
        (self.watch.control.shared.lock(), true)
    }

    /// Waits for heat after a micro-batch, and for an order if it `pauses`.
    fn wait(&self, made: MicroBatch, pauses: bool, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        let shared = &self.watch.control.shared;
        let clock = &shared.surroundings;
        let ended = clock.now();
        let mut state = shared.lock();
        while !stop.load(Ordering::Relaxed) {
            // A pause for heat may be long, and a batch after a change of the limits follows the message about it.
            let (locked, has_told) = self.tell_events(state, tell);
            state = locked;
            if has_told {
                continue;
            }
            if pauses && state.asked.is_paused() && !state.is_too_hot() {
                drop(state);
                self.wait_paused(made.step, stop, tell);
                state = shared.lock();
                continue;
            }
            let Some(left) = state.left(made.took, ended, clock.now(), self.watch.stale) else { return };
            let asked = clock.now();
            state = shared.wait(state, left.min(LOOK_EVERY));
            let Seconds(waited) = seconds_since(asked, clock.now());
            state.facts.held_back_s += waited;
        }
    }
}

/// The time between two moments of the session's clock.
pub(crate) fn seconds_since(since: Duration, now: Duration) -> Seconds {
    Seconds(now.saturating_sub(since).as_secs_f64())
}

impl<B: Backend> Pace for SessionPace<'_, B> {
    fn now(&self) -> Duration {
        self.watch.control.shared.surroundings.now()
    }

    fn watches(&self) -> bool {
        true
    }

    fn micro_batch(&self, made: MicroBatch, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        let mut state = self.watch.control.shared.lock();
        state.step = made.step;
        state.batch = Some(state.batch.map_or(made.took, |longest| longest.max(made.took)));
        drop(state);
        self.wait(made, true, stop, tell);
    }

    fn drops_step(&self, needed: Duration) -> bool {
        let deadline = self.watch.control.shared.lock().deadline;
        let is_late = deadline
            .is_some_and(|deadline| deadline.saturating_sub(self.watch.control.shared.surroundings.now()) < needed);
        if is_late {
            (self.watch.control.notices)(Notice::StepDropped);
        }
        is_late
    }

    fn before_step(&self, step: u64, stop: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        self.wait(MicroBatch { step, took: Duration::ZERO }, false, stop, tell);
    }

    fn waited_for_data(&self, waited: Duration) {
        self.watch.control.shared.lock().facts.waited_for_data_s += waited.as_secs_f64();
    }

    fn step_made(&self) {
        self.watch.control.shared.lock().facts.steps += 1;
    }

    fn energy(&self) -> Option<EnergyUse> {
        self.watch.control.shared.lock().energy.clone()
    }

    fn take_events(&self) -> Vec<Event> {
        let mut state = self.watch.control.shared.lock();
        let replanned = state.asked.next.as_mut().and_then(Next::tell);
        let mut events = std::mem::take(&mut state.events);
        events.extend(replanned);
        events
    }

    fn ends(&self, step: u64) -> Option<Ending> {
        let shared = &self.watch.control.shared;
        let mut state = shared.lock();
        if state.is_too_hot() {
            return Some(Ending::TooHot);
        }
        // Before the first step there is no state from which another plan could continue.
        let (order, change) = state.asked.change.take_if(|_| step > 0)?;
        drop(state);
        let target = match change {
            Change::Release { why } => Ok(Target::Wait { why }),
            Change::Shrink(budget) => Ok(Target::Smaller(budget)),
            Change::Budget(budget) => {
                self.backend.plan(self.found, budget).map(|found| Target::Plan(budget, Box::new(found)))
            }
        };
        match target {
            Ok(Target::Plan(budget, found)) if self.watch.adopts(order, budget, &found.plan, &self.found.plan) => None,
            Ok(target) => {
                shared.lock().asked.next = Some(Next::new(order, step, target));
                Some(Ending::Replanned)
            }
            Err(reason) => {
                self.watch.refuse(step, order, Refusal::NoPlan, reason);
                None
            }
        }
    }

    fn wants_checkpoint(&self) -> bool {
        std::mem::take(&mut self.watch.control.shared.lock().memory.wants_checkpoint)
    }

    fn keeps_state(&self, engine: &Engine) -> bool {
        let state = self.watch.control.shared.lock();
        let next = state.asked.next.as_ref().map(|next| &next.target);
        matches!(next, Some(Target::Plan(_, found)) if engine.can_exchange(&found.plan))
    }

    fn keeps_plan(&self, step: u64, reason: &str) {
        let next = self.watch.take_next();
        let reason = format!("the state can't be saved, so the plan stays: {reason}");
        next.into_iter().for_each(|next| self.watch.refuse(step, next.order, Refusal::Other, reason.clone()));
    }
}
