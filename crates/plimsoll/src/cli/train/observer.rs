//! The terminal output of a session, and its events for other tools and for notifiers.

use super::signals::StepClock;
use super::slow::{Compared, ComparedDevice};
use super::{Entered, Given, Hardware, Setup};
use crate::cli::Failure;
use crate::cli::track::{Tracked, Tracking};
use crate::progress::{Live, LiveRun};
use crate::streams::talk;
use ::plimsoll_train::{Ending, Outcome};
use plimsoll_graph::MemoryId;
use plimsoll_notify::{Card, NotifySink};
use plimsoll_session::{Control, Observer, SampleTap};
use plimsoll_telemetry::{Event, Sink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The views of a session.
pub(super) struct Views<'a> {
    pub(super) given: &'a Given,
    pub(super) control: Control,
    pub(super) clock: StepClock,
    /// Sends messages, if anyone receives them.
    pub(super) teller: Option<NotifySink<'a>>,
    pub(super) entered: &'a mut Entered,
    /// The run's folder.
    pub(super) folder: PathBuf,
    /// UUID of the card.
    pub(super) card: Option<String>,
    /// The views of the plan that trains.
    pub(super) of_plan: Option<PlanViews>,
    /// Whether a plan has trained before.
    pub(super) has_begun: bool,
}

/// The views of the steps of one plan.
pub(super) struct PlanViews {
    live: Live,
    compared: Compared,
    tracking: Option<Tracking>,
}

impl Views<'_> {
    /// Logs for other tools; `None` if there are none. Nothing is written before the run begins.
    fn start_tracking(&self, setup: &Setup<'_>) -> Result<Option<Tracking>, Failure> {
        let args = &self.given.args;
        let mut config = self.given.resolved(setup);
        // Recipients of messages do not belong in logs of other tools.
        args.tell.resolved().keys().for_each(|key| drop(config.remove(key)));
        let tracked = Tracked {
            folder: setup.folder,
            config,
            steps_per_epoch: setup.steps_per_epoch(),
            every_steps: args.log_every.unwrap_or(1),
        };
        args.track.start(tracked, &args.tell.secrets()?)
    }
}

impl Observer<Hardware> for Views<'_> {
    fn plan_begins(&mut self, setup: &Setup<'_>) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
        let (plan, hardware) = (&setup.found.plan, setup.backend);
        if self.has_begun {
            talk(hardware.plan_table(setup.found));
        }
        self.has_begun = true;
        let config = self.given.config(setup)?;
        let live = Live::new(LiveRun {
            planned: plan.needed()[MemoryId::DEVICE],
            device: plan.targets.device.kind(),
            device_total: hardware.memory(),
            samples: plan.global_batch as u64,
            compares: plan.compares(),
            duration: self.given.args.duration,
            log_every: self.given.args.log_every,
        });
        let (control, card) = (self.control.clone(), self.card.clone());
        let device = ComparedDevice {
            card,
            threads: plan.targets.host.threads(),
            is_calibrated: hardware.is_calibrated(),
            may_be_moved: hardware.may_be_moved(),
        };
        let compared = Compared::new(setup.found.step, control, device);
        let tracking = self.start_tracking(setup)?;
        self.control.tap_samples(tracking.as_ref().map(|tracking| -> SampleTap {
            let tap = tracking.trackers.machine_tap();
            Arc::new(move |sample| tap.take(sample))
        }));
        self.of_plan = Some(PlanViews { live, compared, tracking });
        Ok(vec![(setup.folder.config(), config)])
    }

    fn accepted(&mut self) {
        self.entered.enter(&self.folder, &self.given.args.runs_dir);
    }

    fn plan_ends(&mut self, outcome: Option<&Outcome>) {
        let Some(PlanViews { mut live, tracking, .. }) = self.of_plan.take() else { return };
        live.finish();
        let is_over = outcome.is_none_or(|outcome| outcome.ending != Ending::Replanned);
        let is_stopped = self.control.stop_flag().load(Ordering::Relaxed);
        tracking.into_iter().for_each(|tracking| tracking.finish(is_over, is_stopped));
    }

    fn explain(&self, error: Failure, setup: &Setup<'_>) -> Failure {
        self.given.cut_short(error, setup)
    }
}

impl Sink for Views<'_> {
    fn take(&mut self, event: &Event) {
        if let Some(PlanViews { live, compared, .. }) = &mut self.of_plan {
            live.take(event);
            self.clock.take(event);
            compared.take(event);
        }
        if let Some(teller) = &mut self.teller {
            if let Some(sample) = self.control.latest_sample() {
                teller.narrator.set_cards(Card::of_sample(&sample));
            }
            teller.take(event);
        }
        if let Some(tracking) = self.of_plan.as_mut().and_then(|views| views.tracking.as_mut()) {
            tracking.trackers.take(event);
        }
    }
}
