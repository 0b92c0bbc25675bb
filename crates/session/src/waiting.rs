//! How a session waits for memory: its state is on disk and its device is empty, until an order gives it a budget that fits.

use crate::backend::Backend;
use crate::notice::Notice;
use crate::observer::Observer;
use crate::orders::{Change, replanned};
use crate::pace::{LOOK_EVERY, SAY_EVERY, seconds_since};
use crate::session::{Session, no_room};
use plimsoll_plan::Refusal;
use plimsoll_telemetry::Event;
use plimsoll_train::{Ending, Outcome};
use plimsoll_units::{Bytes, Seconds};
use std::sync::atomic::Ordering;

impl<B: Backend> Session<B> {
    /// Waits until a plan is loaded; `Some` if the run ends instead. `begun`: the event of the wait, if it was not emitted yet.
    /// `step`: the last step, after which `outcome` saved the state.
    pub(crate) fn wait_for_memory(
        &mut self,
        begun: Option<Event>,
        step: u64,
        outcome: &Outcome,
        observer: &mut dyn Observer<B>,
    ) -> Option<Ending> {
        let since = self.watch.now();
        let ending = self.wait(begun, step, outcome, observer);
        let Seconds(waited) = seconds_since(since, self.watch.now());
        self.watch.control.shared.lock().facts.held_back_s += waited;
        ending
    }

    fn wait(
        &mut self,
        begun: Option<Event>,
        step: u64,
        outcome: &Outcome,
        observer: &mut dyn Observer<B>,
    ) -> Option<Ending> {
        let stop = self.watch.control.stop_flag();
        let since = self.watch.now();
        let (mut said, mut events) = (since, Vec::from_iter(begun));
        loop {
            events.extend(self.watch.take_events());
            if !events.is_empty() {
                outcome.emit(&events, &self.folder, &mut |event| observer.take(event));
                events.clear();
            }
            let shared = &self.watch.control.shared;
            let mut state = shared.lock();
            if stop.load(Ordering::Relaxed) {
                return Some(Ending::Interrupted);
            }
            if state.is_too_hot() {
                return Some(Ending::TooHot);
            }
            match state.asked.change.take() {
                Some((order, Change::Release { .. })) => {
                    state.refuse(step, order, Refusal::Other, "it waits already".to_owned());
                }
                Some((order, Change::Budget(budget) | Change::Shrink(budget))) => {
                    drop(state);
                    if self.load_budget(order, step, budget).is_ok() {
                        return None;
                    }
                }
                None => {
                    drop(shared.wait(state, LOOK_EVERY));
                }
            }
            let now = self.watch.now();
            if now.saturating_sub(said) > SAY_EVERY {
                said = now;
                (self.watch.control.notices)(Notice::StillWaiting(seconds_since(since, now)));
            }
        }
    }

    /// Plans for the budget of an order with an empty device, and loads the plan. Errors: why that is not possible; the order is
    /// refused, and the run waits.
    pub(crate) fn load_budget(&mut self, order: u64, step: u64, budget: Bytes) -> Result<(), String> {
        self.watch.begin_change();
        let found = self.backend.plan(&self.found, budget).map_err(|reason| (Refusal::NoPlan, reason));
        let loaded =
            found.and_then(|found| self.load(order, budget, found).map_err(|error| (Refusal::NoRoom, no_room(&error))));
        match loaded {
            Ok(()) => self.watch.control.tell(replanned(order, step, &self.found)),
            Err((refusal, reason)) => {
                self.watch.reside(None, None);
                self.watch.refuse(step, order, refusal, reason.clone());
                return Err(reason);
            }
        }
        Ok(())
    }
}
