//! A run that goes on by another plan, for another budget, in the same process. Its state is on disk by then, so that whatever
//! fails loses nothing.

use super::folder::kept_products;
use super::orders::{Next, Planner};
use super::watch::Watch;
use super::{Entered, Session};
use crate::cli::Failure;
use crate::cli::cards::{Looked, Opened, Reopening};
use crate::cli::loading::Flags;
use crate::streams::talk;
use ::plimsoll_train::{Ending, Engine, Outcome, Start};
use plimsoll_notify::NotifySink;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// What is there all the time, whichever plan a run goes by.
pub(super) struct Around<'a, 'n> {
    pub(super) watch: &'a mut Watch,
    pub(super) teller: Option<&'a mut NotifySink<'n>>,
    pub(super) stop: &'a AtomicBool,
    /// The run's card, to be opened again; none for the processor.
    pub(super) card: Option<&'a Reopening>,
    pub(super) entered: &'a mut Entered,
}

impl Session {
    /// Trains by the plan that is loaded, and by others as the run is asked to, to its end. `files`: what its folder is to have.
    pub(super) fn through_all_plans(
        &mut self,
        mut engine: Engine,
        files: Vec<(PathBuf, Vec<u8>)>,
        around: Around<'_, '_>,
    ) -> Result<(Engine, Outcome), Failure> {
        let Around { watch, mut teller, stop, card, entered } = around;
        let accepted = || {
            entered.enter(self.folder.path(), &self.args.runs_dir);
            watch.begin(self.folder.path())
        };
        let mut outcome = self.go(&mut engine, files, watch, teller.as_deref_mut(), stop, accepted)?;
        while let Some(next) = watch.take_next().filter(|_| outcome.ending == Ending::Replanned) {
            self.start = Start::Resume(outcome.saved.take().expect("a plan changes behind a checkpoint").1);
            engine = self.change_plan(engine, next, card, watch)?;
            watch.set_planner(self.planner());
            let files = self.files(&engine)?;
            outcome = self.go(&mut engine, files, watch, teller.as_deref_mut(), stop, || Ok(()))?;
        }
        Ok((engine, outcome))
    }

    /// Plans this run for other budgets.
    pub(super) fn planner(&self) -> Planner {
        let Self { args, budget, chosen, found, request, .. } = self;
        Planner::new(&chosen.name, request, found, &args.budget, budget, args.request.levers.host_ram)
    }

    /// Gives the old plan's memory back, and takes that of the next; where there is no room for it, that of the old one again.
    /// Errors: there is room for neither any more; the command that resumes the run is a hint.
    pub(super) fn change_plan(
        &mut self,
        engine: Engine,
        next: Next,
        card: Option<&Reopening>,
        watch: &Watch,
    ) -> Result<Engine, Failure> {
        let before = (self.found.clone(), self.budget.clone(), self.args.budget.clone());
        let Next { order, step, vram, found, budget, .. } = next;
        (self.found, self.budget) = (found, budget);
        (self.args.budget.vram, self.args.budget.vram_auto) = (Some(vram), None);
        drop(engine);
        match self.load_again(card) {
            Ok(engine) => {
                talk(self.plan_table());
                Ok(engine)
            }
            Err(failure) => {
                watch.refuse(step, order, format!("there is no room for its plan: {}", failure.message()));
                (self.found, self.budget, self.args.budget) = before;
                self.load_again(card).map_err(|failure| self.cut_short(failure))
            }
        }
    }

    /// The plan on the device that the run began on.
    fn load_again(&mut self, card: Option<&Reopening>) -> Result<Engine, Failure> {
        let Self { args, folder, .. } = self;
        let flags = Flags { device: &args.device, budget: &args.budget };
        let mut opened: Opened = match card {
            None => args.device.open_found(Looked::Processor, &args.budget, None)?,
            Some(card) => card.opened(args.device.again(card)?, flags)?,
        };
        opened.choose_products(kept_products(folder), args.tune.autotune);
        self.load(opened)
    }
}
