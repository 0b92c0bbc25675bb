//! A session that a library user pauses, gives other budgets, stops and resumes, without the command line.

#[path = "../../../train/tests/support/power.rs"]
mod power;
mod power_cuts;
mod pressure;
mod reloading;

use plimsoll_data::{Batches, Dataset, HeldOut, Split, TokenStore, Tokenizer, TokenizerSpec, model_files};
use plimsoll_exec::{CpuDevice, Device, DeviceError};
use plimsoll_files::Disk;
use plimsoll_graph::Targets;
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_orders::Order;
use plimsoll_plan::{Budget, Machine, Rates, Request, search};
use plimsoll_session::{
    Backend, Control, Observer, OnDevice, Session, SessionSettings, System, WatchSettings, same_sums,
};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::ModelFolder;
use plimsoll_train::{Ending, Length, Outcome, RunFolder, Schedule, Shape, Start, TrainerConfig};
use plimsoll_units::Bytes;
use std::path::Path;
use std::sync::Arc;

const STEPS: u64 = 6;

/// Far more than the model needs.
const ROOMY: Bytes = Bytes::mib(64);

/// A model that trains in no time, with dropout everywhere.
fn model() -> ModelConfig {
    ModelConfig::Gpt2(Gpt2Config {
        vocab_size: 256,
        n_positions: 16,
        n_embd: 24,
        n_layer: 2,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.1,
        bias: true,
    })
}

fn request(budget: Bytes) -> Request {
    let machine = Machine::of_rates(Rates::guess(1));
    let request = Request::new(model(), Targets::cpu(1), machine);
    Request { global_batch: 4, budget: Budget::shared(budget), ..request }
}

fn dataset() -> Dataset {
    let tokens = (0..4096_u32).map(|i| i * i % 251).collect::<Vec<_>>();
    let store = TokenStore::in_memory(&tokens, 256, Bytes(4096));
    let split = Split { seed: 1, held_out: HeldOut::Nothing };
    Dataset::Windows(Batches::new(store, 16, split).expect("text enough"))
}

fn open() -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::new(CpuDevice::new()))
}

/// Opens a device that loads each plan again.
fn open_reloading() -> Result<Box<dyn Device>, DeviceError> {
    Ok(Box::<reloading::Reloading>::default())
}

fn session(
    folder: &Path,
    start: Start,
    budget: Bytes,
    watch: Option<WatchSettings>,
) -> Session<impl Backend<Error = plimsoll_session::SessionError>> {
    session_on(Disk::default(), folder, start, budget, watch, None, open)
}

fn session_on(
    disk: Disk,
    folder: &Path,
    start: Start,
    budget: Bytes,
    watch: Option<WatchSettings>,
    checkpoint_every: Option<u64>,
    open: fn() -> Result<Box<dyn Device>, DeviceError>,
) -> Session<impl Backend<Error = plimsoll_session::SessionError>> {
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).expect("a built-in tokenizer");
    let files = model_files(&tokenizer, None, None, None).expect("nothing is read");
    let request = request(budget);
    let found = search(&request).expect("a sensible request").expect("a tiny model fits");
    let schedule =
        Schedule { learning_rate: 1e-2, warmup_steps: 2, final_part: 0.1, shape: Shape::Cosine, decay_part: 0.2 };
    let settings = SessionSettings {
        folder: RunFolder::open_on(disk, folder, start != Start::Fresh).expect("a folder"),
        start,
        trainer: TrainerConfig {
            name: "run".to_owned(),
            model_name: "tiny".to_owned(),
            model_folder: ModelFolder::new(&model(), &tokenizer, &serde_json::Map::new(), None, files),
            model: model(),
            length: Length::MaxSteps(STEPS),
            schedule,
            seed: 7,
            eval_every: None,
            eval_samples: 1,
            checkpoint_every,
            checkpoint_time_part: None,
            keep_checkpoints: 2,
            tokenizer: "bytes".to_owned(),
            precision: "fp32".to_owned(),
            loss_scale: None,
            base: None,
            safe_settings: None,
        },
        dataset: Arc::new(dataset()),
        found,
        card: None,
        watch,
        notices: Arc::new(|_| {}),
        surroundings: Arc::new(System),
    };
    Session::new(settings, OnDevice::new(request, open)).expect("memory for a tiny plan")
}

/// Gives orders as events arrive, and keeps the events.
struct Asking<A> {
    control: Control,
    asks: A,
    events: Vec<Event>,
}

impl<A: FnMut(&Event, &Control)> Sink for Asking<A> {
    fn take(&mut self, event: &Event) {
        (self.asks)(event, &self.control);
        self.events.push(event.clone());
    }
}

impl<B: Backend, A: FnMut(&Event, &Control)> Observer<B> for Asking<A> {}

fn run(folder: &Path, start: Start, asks: impl FnMut(&Event, &Control)) -> (Outcome, Vec<Event>) {
    let mut session = session(folder, start, ROOMY, None);
    let mut asking = Asking { control: session.control(), asks, events: vec![] };
    let outcome = session.run(&mut asking).expect("no error of the device");
    (outcome, asking.events)
}

fn loss_bits(outcome: &Outcome) -> Vec<u64> {
    outcome.report.losses.iter().map(|loss| loss.expect("a loss for each step").to_bits()).collect()
}

/// The least budget in which the same sums fit.
fn least() -> Bytes {
    let roomy = request(ROOMY);
    let found = search(&roomy).expect("a sensible request").expect("a tiny model fits");
    let tight = Request { budget: Budget::shared(Bytes(1)), ..same_sums(&roomy, &found) };
    let misfit = search(&tight).expect("a sensible request").expect_err("nothing fits in a byte");
    misfit.plan.needed()[plimsoll_graph::MemoryId::DEVICE]
}

#[test]
fn a_pause_another_budget_and_a_resumed_session_change_no_loss() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (whole, _) = run(&folder.path().join("whole"), Start::Fresh, |_, _| {});
    assert_eq!(whole.ending, Ending::Finished);

    let parts = folder.path().join("parts");
    let least = least();
    let (stopped, events) = run(&parts, Start::Fresh, |event, control| match event {
        Event::Step { step: 1, .. } => drop(control.order(Order::Pause)),
        Event::Paused { .. } => drop(control.order(Order::Resume)),
        Event::Step { step: 2, .. } => drop(control.order(Order::Budget { bytes: least.0 })),
        Event::Step { step: 4, .. } => drop(control.order(Order::Stop)),
        _ => {}
    });
    assert_eq!(stopped.ending, Ending::Interrupted);
    assert!(events.iter().any(|event| matches!(event, Event::Paused { step: 2, .. })), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Unpaused { step: 2, order: Some(_), .. })), "{events:?}");
    let replanned = events.iter().find_map(|event| match event {
        Event::Replanned { step, planned_bytes, budget_bytes, .. } => Some((*step, *planned_bytes, *budget_bytes)),
        _ => None,
    });
    assert_eq!(replanned, Some((2, least.0, least.0)), "{events:?}");
    assert!(whole.report.plan.peak_bytes > least.0, "the first plan is larger");

    let checkpoint = stopped.saved.expect("a checkpoint").1;
    let (resumed, _) = run(&parts, Start::Resume(checkpoint), |_, _| {});
    assert_eq!(resumed.ending, Ending::Finished);
    assert_eq!(loss_bits(&resumed), loss_bits(&whole));
}

/// Without a checkpoint between them, a run trains by three plans to the losses of one, and each uses exactly its memory.
#[test]
fn invariant_5_a_plan_that_takes_over_the_state_in_memory_changes_no_loss() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (whole, _) = run(&folder.path().join("whole"), Start::Fresh, |_, _| {});
    let least = least();
    let (outcome, events) = run(&folder.path().join("changed"), Start::Fresh, |event, control| match event {
        Event::Step { step: 2, .. } => drop(control.order(Order::Budget { bytes: least.0 })),
        Event::Step { step: 4, .. } => drop(control.order(Order::Budget { bytes: ROOMY.0 })),
        _ => {}
    });
    assert_eq!(loss_bits(&outcome), loss_bits(&whole));
    let pages = |bytes: u64| bytes.next_multiple_of(4096);
    let held = |step: u64| {
        let held = events.iter().find_map(|event| match event {
            Event::Step { step: found, memory_bytes, .. } if *found == step => Some(*memory_bytes),
            _ => None,
        });
        held.expect("each step is reported")
    };
    let roomy = whole.report.plan.peak_bytes;
    assert!(pages(least.0) < pages(roomy));
    assert_eq!([2, 3, 4, 5, 6].map(held), [roomy, least.0, least.0, roomy, roomy].map(pages));
    let saved = events.iter().filter(|event| matches!(event, Event::CheckpointSaved { .. })).count();
    let replanned = events.iter().filter(|event| matches!(event, Event::Replanned { .. })).count();
    assert_eq!((saved, replanned), (1, 2), "the only checkpoint is that of the end");
}

/// A device that can't exchange its plan resumes from a checkpoint, to the same losses.
#[test]
fn a_plan_that_does_not_take_over_the_state_resumes_from_a_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (whole, _) = run(&folder.path().join("whole"), Start::Fresh, |_, _| {});
    let run = folder.path().join("changed");
    let mut session = session_on(Disk::default(), &run, Start::Fresh, ROOMY, None, None, open_reloading);
    let least = least();
    let asks = |event: &Event, control: &Control| {
        if let Event::Step { step: 3, .. } = event {
            control.order(Order::Budget { bytes: least.0 });
        }
    };
    let mut asking = Asking { control: session.control(), asks, events: vec![] };
    let outcome = session.run(&mut asking).expect("no error of the device");
    assert_eq!(loss_bits(&outcome), loss_bits(&whole));
    let resumed = asking.events.iter().filter(|event| matches!(event, Event::Resumed { step: 3, .. })).count();
    assert_eq!(resumed, 1, "{:?}", asking.events);
}

#[test]
fn an_order_that_cannot_be_followed_is_refused_and_the_run_continues() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut given = vec![];
    let (outcome, events) = run(&folder.path().join("run"), Start::Fresh, |event, control| {
        if let Event::Step { step: 2, .. } = event {
            given = vec![control.order(Order::Resume), control.order(Order::Budget { bytes: 1 })];
        }
    });
    assert_eq!((outcome.ending, outcome.report.losses.len() as u64), (Ending::Finished, STEPS));
    let refused = events.iter().filter_map(|event| match event {
        Event::OrderRefused { order, reason, .. } => Some((order.expect("an order's number"), reason.clone())),
        _ => None,
    });
    let refused = refused.collect::<Vec<_>>();
    assert_eq!(refused.iter().map(|(order, _)| *order).collect::<Vec<_>>(), given);
    assert_eq!(refused[0].1, "it is not paused");
    assert!(refused[1].1.starts_with("the smallest plan needs "), "{refused:?}");
}
