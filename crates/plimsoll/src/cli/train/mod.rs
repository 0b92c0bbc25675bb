//! `plimsoll train`: trains or fine-tunes a model. Not here: the session itself (`plimsoll-session`).

mod args;
mod binary;
#[cfg(unix)]
mod detach;
mod ending;
mod folder;
mod hardware;
mod observer;
mod outlook;
mod prepare;
mod pressure;
mod progressive;
mod prompt;
mod resolved;
mod room;
mod safe;
mod sample;
mod signals;
mod slow;
mod text;
mod watch;

pub(super) use args::TrainArgs;
pub(super) use folder::{check_run_of_path, newest_run, resumed_config};
pub(super) use watch::sample_time;

use super::failure::exit_code;
use super::levers::note_if_sent_for_nothing;
use super::model::Chosen;
use super::notify::finish_messages;
use super::power::settle_leftovers;
#[cfg(unix)]
use super::supervise::OwnRun;
use super::{Failure, in_pool};
use crate::streams::{REPORT_PATIENCE, handle_signals, talk, write_data_within};
use ::plimsoll_train::{Ending, Engine, Outcome, Start};
use hardware::Hardware;
use observer::Views;
use plimsoll_data::Tokenizer;
use plimsoll_exec::cuda::ProductChoices;
use plimsoll_graph::DeviceKind;
use plimsoll_notify::{Notifier, NotifySink};
use plimsoll_render::{closing, sample_text, summary};
use plimsoll_session::Session;
use plimsoll_telemetry::Event;
use plimsoll_units::Bytes;
use prepare::{Prepared, prepare};
use safe::SafeStart;
use signals::{StepClock, stop_on_signals};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Disk space for the run's entry for `plimsoll ps`, which is replaced as a whole.
const ENTRY: Bytes = Bytes(8 << 10);

/// Tokens of a row for short data if no flag sets its length.
const SHORT_ROW: usize = 64;

pub(super) fn run(args: TrainArgs) -> Result<u8, Failure> {
    handle_signals();
    #[cfg(unix)]
    if args.detach.is_requested() {
        return detach::start(&args.runs_dir);
    }
    let threads = args.budget.threads()?;
    args.blas.choose()?;
    let limits = args.watch.limits()?;
    if args.watch.is_off() && args.power.is_auto() {
        return Err(Failure::bad_flag(
            "`--power-limit auto` needs temperature samples, and `--sample-every off` takes none",
        ));
    }
    args.pressure.check(&args.budget, !args.watch.is_off())?;
    settle_leftovers(false);
    // Report missing notifier settings before creating anything.
    let notifier = args.tell.start()?;
    args.track.check(&args.tell.secrets()?)?;
    in_pool(threads, || {
        let clock = StepClock::default();
        let prepared = prepare(args, limits, clock.clone())?;
        let mut entered = Entered::default();
        let ended = train(prepared, clock, notifier.as_ref(), &mut entered);
        let is_stopped = matches!(ended, Ok(exit_code::INTERRUPTED));
        notifier.into_iter().for_each(|notifier| finish_messages(notifier, is_stopped));
        entered.leave(ended.as_ref().map_or_else(Failure::code, |code| *code));
        ended
    })
}

/// The setup of a session on the hardware of this machine.
type Setup<'a> = plimsoll_session::Setup<'a, Hardware>;

/// This run's entry in the list of `plimsoll ps`, once its start was accepted.
#[derive(Default)]
struct Entered {
    #[cfg(unix)]
    run: Option<OwnRun>,
}

#[cfg(unix)]
impl Entered {
    fn enter(&mut self, folder: &Path, runs: &Path) {
        self.run = OwnRun::enter(folder, runs);
    }

    fn leave(self, code: u8) {
        if let Some(run) = self.run {
            run.leave(code);
        }
    }
}

#[cfg(not(unix))]
impl Entered {
    fn enter(&mut self, _: &Path, _: &Path) {}

    fn leave(self, _: u8) {}
}

/// Facts of a run that only the command line knows.
struct Given {
    args: TrainArgs,
    chosen: Chosen,
    tokenizer: Tokenizer,
    /// The algorithms that a library used for the products of a resumed run.
    products: Option<ProductChoices>,
    /// How earlier failures changed the run.
    safe: SafeStart,
}

/// Trains until the session ends. Returns the exit code.
fn train(
    prepared: Prepared,
    clock: StepClock,
    notifier: Option<&Notifier>,
    entered: &mut Entered,
) -> Result<u8, Failure> {
    let Prepared { given, settings, hardware, wished } = prepared;
    talk(hardware.plan_table(&settings.found));
    note_if_sent_for_nothing(&settings.found.settings, settings.found.plan.targets.device.kind());
    let card = settings.card.clone();
    let mut session = Session::new(settings, hardware)?;
    given.say_outlook(&session.setup());
    let config = given.config(&session.setup())?.len() as u64;
    if let Some(room) = session.disk_room(Bytes(config) + ENTRY)? {
        room::check_room(&room, session.setup().folder.path())?;
    }
    let (setup, engine) = session.with_engine();
    given.compare_products(&setup, engine);
    engine.notes().iter().for_each(|note| talk(format_args!("note: {note}")));
    let (folder, name) = (setup.folder.path().to_owned(), setup.trainer.name.clone());
    let averted = setup.backend.averted().map(str::to_owned);
    let held = setup.backend.held(&setup.found.plan);
    given.safe.begin(&name, held);
    let control = session.control();
    stop_on_signals(&control, given.args.grace, clock.clone())?;
    // From here on, dropping the session restores the power limit.
    wished.and_then(|wished| wished.set(&name)).into_iter().for_each(|power| session.hold(power));
    averted.into_iter().for_each(|what| control.tell(Event::OutOfMemoryAverted { what }));
    given.safe.what.iter().for_each(|what| control.tell(Event::SafeSettings { what: what.clone() }));
    let teller = notifier.map(|notifier| NotifySink::new(notifier, name));
    let given = &given;
    let (of_plan, has_begun) = (None, false);
    let mut views = Views { given, control, clock, teller, entered, folder, card, of_plan, has_begun };
    let ended = session.run(&mut views);
    if let (Err(failure), Some(teller)) = (&ended, &mut views.teller) {
        teller.fail(&failure.message());
    }
    let held = session.setup().backend.held(&session.setup().found.plan);
    given.safe.end(&ended, held);
    let outcome = ended?;
    let stop = session.control().stop_flag();
    if !session.has_engine() {
        return given.say_ended(outcome, &session.setup(), None, &stop);
    }
    let (setup, engine) = session.with_engine();
    given.say_ended(outcome, &setup, Some(engine), &stop)
}

impl Given {
    /// Writes the run's sample and page, and reports its end. `engine`: `None` if the run ended while it waited for memory.
    /// Returns the exit code.
    fn say_ended(
        &self,
        mut outcome: Outcome,
        setup: &Setup<'_>,
        engine: Option<&mut Engine>,
        stop: &AtomicBool,
    ) -> Result<u8, Failure> {
        let mut sample = None;
        if let Some(engine) = engine
            && outcome.ending == Ending::Finished
            && outcome.unsaved.is_none()
            && self.args.run.sample_tokens > 0
            && !self.chosen.config.is_encoder()
        {
            match self.write_sample(setup, engine, stop) {
                Ok(text) => sample = Some(text),
                // The run is finished, and its last checkpoint written.
                Err(failure) => talk(format_args!("warning: the sample was not written: {}", failure.message())),
            }
            outcome.report.measured.update_memory(engine.memory());
        }
        sample.iter().for_each(|text| ending::keep_sample(text, outcome.report.losses.len() as u64, setup));
        let plan = &setup.found.plan;
        talk(summary(&outcome, setup.folder.path(), &ending::write_page(setup), plan.targets.device.kind()));
        sample.iter().for_each(|text| talk(sample_text(text)));
        talk(closing(&outcome.report, &self.chosen.name, setup.backend.name(), plan));
        if let Some([prompt, _]) = sample.filter(|_| !self.chosen.has_decoder()) {
            talk(format_args!("try it: {}", ending::generate_command(&prompt, setup)));
        }
        let written = match self.args.json {
            true => {
                let report = serde_json::to_string_pretty(&outcome.report).expect("a report is plain data");
                write_data_within(REPORT_PATIENCE, report)
            }
            false => Ok(()),
        };
        let code = self.conclude(&outcome, setup)?;
        match written {
            // The exit code of the run matters more than a failed report, which is also in its folder.
            Err(failure) if code != exit_code::DONE => talk(format_args!("warning: {}", failure.message())),
            written => written?,
        }
        Ok(code)
    }

    /// Prints a note if another library computed the products of a resumed run before.
    fn compare_products(&self, setup: &Setup<'_>, engine: &Engine) {
        let is_resumed =
            matches!(setup.start, Start::Resume(_)) && setup.found.plan.targets.device.kind() == DeviceKind::Cuda;
        match (&self.products, engine.product_choices()) {
            (Some(_), None) if is_resumed => talk(
                "note: the run's products were computed by cuBLASLt until now; the built-in kernels may round differently",
            ),
            (None, Some(_)) if is_resumed && !setup.folder.products().exists() => talk(
                "note: the run's products were computed by the built-in kernels until now; cuBLASLt may round differently, \
                 `--cublas off` continues with these",
            ),
            _ => {}
        }
    }
}
