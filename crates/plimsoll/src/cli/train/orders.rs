//! What a run is asked to do while it trains: a thread looks each second whether there is an order, and its pace obeys between
//! micro-batches (`watch.rs`). Another budget is planned for between two steps, on the thread that trains.
//! Not here: how orders are written and believed (`plimsoll-orders`), and who gives them (`cli/supervise/order.rs`).

use super::signals::StepClock;
use super::watch::{Shared, State};
use crate::cli::Failure;
use crate::cli::budget::{Budget, BudgetArgs};
use crate::cli::misfit::misfit_of;
use crate::streams::{end_soon, talk};
use ::plimsoll_plan::{Found, Plan, Request, search};
use plimsoll_orders::{Inbox, Looked, Order};
use plimsoll_telemetry::Event;
use plimsoll_units::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is looked for orders.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a run is asked to do, and has not done yet.
#[derive(Default)]
pub(super) struct Asked {
    /// The order to pause.
    pause: Option<u64>,
    /// Whether the run waits for it.
    waits: bool,
    /// The order that ended the pause.
    resumed: Option<u64>,
    /// The newest order of a budget, as it would be given at the start.
    pub(super) budget: Option<(u64, Bytes)>,
    /// The plan by which the run goes on.
    pub(super) next: Option<Next>,
}

impl Asked {
    pub(super) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// The order for which the run waits from now on; none if it was taken back.
    pub(super) fn begin_pause(&mut self) -> Option<u64> {
        self.waits = self.pause.is_some();
        self.pause
    }

    /// The order that ended the pause; none if the run goes on to end.
    pub(super) fn end_pause(&mut self) -> Option<u64> {
        (self.waits, self.pause) = (false, None);
        self.resumed.take()
    }
}

/// What a run needs to do as it is asked.
pub(super) struct Asking {
    /// Set by an order to stop.
    pub(super) stop: Arc<AtomicBool>,
    /// Plans the run for another budget.
    pub(super) planner: Planner,
    /// How long its last step took.
    pub(super) clock: StepClock,
}

/// Listens for orders until it is dropped.
pub(super) struct Listener {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Listener {
    /// For the run in a folder. A thread of its own, since a card's driver may keep that of the samples waiting, and samples
    /// may be far apart. Errors: the folder takes no orders, or the system starts no thread.
    pub(super) fn start(
        run: &Path,
        shared: &Arc<Shared>,
        stop: &Arc<AtomicBool>,
        clock: &StepClock,
    ) -> io::Result<Self> {
        let mut inbox = Inbox::open(run)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, shared, stop, clock) = (is_over.clone(), shared.clone(), stop.clone(), clock.clone());
        let listen = move || {
            while !over.load(Ordering::Relaxed) {
                let Looked { orders, lost } = inbox.look();
                for (number, order) in orders {
                    obey(&mut shared.lock(), number, order, &stop, &clock);
                    shared.changed.notify_all();
                }
                if let Some(why) = lost {
                    let reason = format!("no more orders are taken: {why}");
                    let mut state = shared.lock();
                    let step = state.step;
                    state.tell(Event::OrderRefused { step, order: None, reason });
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("orders".to_owned()).spawn(listen)?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It has panicked at worst, and the run is over.
            let _ = thread.join();
        }
    }
}

fn obey(state: &mut State, number: u64, order: Order, stop: &AtomicBool, clock: &StepClock) {
    match order {
        Order::Pause if state.asked.is_paused() => state.refuse(number, "it is paused already"),
        Order::Pause => state.asked.pause = Some(number),
        Order::Resume if state.asked.waits && state.asked.is_paused() => {
            (state.asked.pause, state.asked.resumed) = (None, Some(number));
        }
        Order::Resume => {
            match state.asked.pause.take() {
                Some(pause) => {
                    state.refuse(pause, "it was taken back before it took effect");
                    state.refuse(number, "it is not paused any more");
                }
                None => state.refuse(number, "it is not paused"),
            };
        }
        Order::Stop => {
            if !stop.swap(true, Ordering::Relaxed) {
                end_soon();
                let step = clock.words();
                talk(format_args!("\nasked to stop: stopping after this step{step} and saving a checkpoint"));
            }
        }
        Order::Budget { bytes } => {
            if let Some((before, _)) = state.asked.budget.replace((number, Bytes(bytes))) {
                state.refuse(before, "another budget was asked for");
            }
        }
    }
}

/// A plan for another budget.
pub(super) struct Next {
    /// The order's number.
    pub(super) order: u64,
    /// The last step that was made by the plan before.
    pub(super) step: u64,
    /// The budget as it was given.
    pub(super) vram: Bytes,
    pub(super) found: Found,
    pub(super) budget: Budget,
    is_told: bool,
}

impl Next {
    pub(super) fn of(self, step: u64, order: u64) -> Self {
        Self { step, order, ..self }
    }

    /// The event of it, once.
    pub(super) fn tell(&mut self) -> Option<Event> {
        let Self { order, step, .. } = *self;
        let (planned_bytes, budget_bytes) = (self.found.plan.needed()[0].0, self.found.plan.budget_bytes);
        let is_told = std::mem::replace(&mut self.is_told, true);
        (!is_told).then_some(Event::Replanned { step, order, planned_bytes, budget_bytes })
    }
}

/// Plans a run again, for another budget, by the same sums.
pub(super) struct Planner {
    /// What was asked of the planner, with all that decides the order of sums as it was resolved.
    request: Request,
    args: BudgetArgs,
    budget: Budget,
    host_ram: Option<Bytes>,
    /// Bytes of the arenas that would become free.
    held: Bytes,
    model: String,
}

impl Planner {
    /// For a run that goes by this plan.
    pub(super) fn new(
        model: &str,
        request: &Request,
        found: &Found,
        args: &BudgetArgs,
        budget: &Budget,
        host_ram: Option<Bytes>,
    ) -> Self {
        let mut request = request.clone();
        request.micro_batch = Some(found.plan.micro_batch);
        request.levers.head_chunk = Some(found.settings.head_chunk);
        request.levers.attention_rows = Some(found.settings.levers.attention_rows);
        let (args, budget, held) = (args.clone(), budget.clone(), arenas(&found.plan));
        Self { request, args, budget, host_ram, held, model: model.to_owned() }
    }

    /// A plan within what this budget leaves. Errors: why there is none, in words.
    pub(super) fn plan(&self, vram: Bytes) -> Result<Next, String> {
        let planned = self.try_plan(vram);
        // The other ways out would change what is computed.
        planned.map_err(|failure| match failure.hints().iter().find(|hint| hint.starts_with("`--vram")) {
            Some(enough) => format!("{}; {enough}", failure.message()),
            None => failure.message(),
        })
    }

    fn try_plan(&self, vram: Bytes) -> Result<Next, Failure> {
        let budget = self.budget.of_vram(&self.args, vram)?;
        let device = self.request.targets.device.kind();
        let request = Request { budget: budget.with_host(device, self.host_ram)?, ..self.request.clone() };
        let found = search(&request)?.map_err(|misfit| misfit_of(&self.model, &misfit, &budget))?;
        // A card's memory is asked for when the plan is loaded.
        let more = arenas(&found.plan).saturating_sub(self.held);
        if device == plimsoll_graph::DeviceKind::Cpu && more > Bytes::ZERO {
            self.args.check_room(more)?;
        }
        Ok(Next { order: 0, step: 0, vram, found, budget, is_told: false })
    }
}

fn arenas(plan: &Plan) -> Bytes {
    plan.peak() + plan.host()
}
