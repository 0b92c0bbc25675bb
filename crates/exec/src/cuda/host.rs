//! The host's side of a plan: its arena, pinned if the driver can, and the nodes that run on it.
//!
//! Nodes of the host are enqueued on a stream like everything else: the driver calls them, one after the other, when
//! the work that they wait for is done, and later work continues when they return. So the thread that starts a program
//! does not wait, and a captured program includes them.

use super::context::Context;
use super::error::CallError;
use super::pinning::Pinning;
use crate::DeviceError;
use crate::arena::Arena;
use crate::host_runner::HostRunner;
use plimsoll_graph::{MemoryId, PerMemory, Scalars};
use plimsoll_plan::{Plan, PlannedProgram};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host's side of a plan.
pub(super) struct HostSide {
    /// Dropped before the arena.
    pinning: Pinning,
    address: *mut u8,
    bytes: u64,
    runner: UnsafeCell<HostRunner>,
    nodes: Option<Nodes>,
}

/// State for running nodes of the host.
struct Nodes {
    plan: Plan,
    /// The driver calls from its own thread, which is in no pool.
    pool: ThreadPool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Scalars of programs that were started but have not begun, the next one first.
    waiting: VecDeque<Scalars>,
    /// Scalars of the running program.
    scalars: Scalars,
    /// The payload of a node's panic.
    panic: Option<Box<dyn Any + Send>>,
}

// SAFETY: the address is only returned, the pins and buffers only stored. The driver's thread uses `runner`, one node at a time,
// while a program runs, and the device uses it while none runs (`HostSide::at_rest`).
unsafe impl Send for HostSide {}
// SAFETY: as above.
unsafe impl Sync for HostSide {}

impl HostSide {
    /// The host's side on this arena, and why not all of it could be pinned, if so. Errors: the system refuses threads.
    pub(super) fn new(
        context: &Arc<Context>,
        plan: &Plan,
        mut arenas: PerMemory<Arena>,
    ) -> Result<(Self, Option<CallError>), DeviceError> {
        let arena = &mut arenas[MemoryId::HOST];
        let bytes = arena.size();
        let address = if bytes == 0 { std::ptr::null_mut() } else { arena.address() };
        // SAFETY: the arena's bytes don't move, and it is dropped after its pins.
        let (pinning, refused) = unsafe { Pinning::of(context, address, bytes as usize) };
        let nodes =
            plan.programs.iter().any(|program| has_nodes(plan, program)).then(|| Nodes::new(plan)).transpose()?;
        let host = Self { pinning, address, bytes, runner: UnsafeCell::new(HostRunner::new(arenas)), nodes };
        Ok((host, refused))
    }

    /// The arena's first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// The arena's size.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How copies from and to the arena run.
    pub(super) fn pinning(&self) -> &Pinning {
        &self.pinning
    }

    /// The runner, which owns the arena.
    ///
    /// # Safety
    /// All streams are done, and no program is started while the result is used.
    pub(super) unsafe fn at_rest(&self) -> &HostRunner {
        // SAFETY: the caller guarantees that no node runs, so there are no writes.
        unsafe { &*self.runner.get() }
    }

    /// As [`at_rest`](Self::at_rest), mutable.
    ///
    /// # Safety
    /// As there, and there is no other reference.
    #[expect(clippy::mut_from_ref, reason = "the callers guarantee what a borrow can't express: no stream runs")]
    pub(super) unsafe fn at_rest_mut(&self) -> &mut HostRunner {
        // SAFETY: the caller guarantees that no node runs and that there is no other reference.
        unsafe { &mut *self.runner.get() }
    }

    /// Registers the scalars of a program with nodes of the host, before it starts.
    pub(super) fn push_scalars(&self, scalars: &Scalars) {
        if let Some(nodes) = &self.nodes {
            nodes.state().waiting.push_back(*scalars);
        }
    }

    /// Resumes the panic of a node, if one panicked.
    pub(super) fn resume_panic(&self) {
        let panic = self.nodes.as_ref().and_then(|nodes| nodes.state().panic.take());
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Whether any of a program's steps runs on the host.
pub(super) fn has_nodes(plan: &Plan, program: &PlannedProgram) -> bool {
    program.steps.iter().any(|step| plan.queue(step) == plimsoll_plan::Queue::Host)
}

impl Nodes {
    /// Errors: the system refuses threads.
    fn new(plan: &Plan) -> Result<Self, DeviceError> {
        let threads = plan.targets.host.threads();
        let pool = ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|error| DeviceError::NoThreads { threads, reason: error.to_string() })?;
        Ok(Self { plan: plan.clone(), pool, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The call that the driver makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    /// The beginning of a program, which takes the next scalars.
    Begin,
    /// A step, by program and index.
    Step(usize, usize),
}

/// A call by the driver. It does not move while a stream may call it.
pub(super) struct HostCall {
    side: Arc<HostSide>,
    node: Node,
}

impl HostCall {
    /// A call of a side that has nodes.
    pub(super) fn new(side: &Arc<HostSide>, node: Node) -> Box<Self> {
        Box::new(Self { side: side.clone(), node })
    }

    fn run(&self) {
        let nodes = self.side.nodes.as_ref().expect("a side with nodes");
        let (program, step) = match self.node {
            Node::Begin => {
                let mut state = nodes.state();
                state.scalars = state.waiting.pop_front().expect("scalars for each program that is started");
                return;
            }
            Node::Step(program, step) => (program, step),
        };
        let step = &nodes.plan.programs[program].steps[step];
        let scalars = nodes.state().scalars;
        // SAFETY: nodes run one after the other, on one stream, and the device does not use the arena until it has
        // waited for all streams.
        let runner = unsafe { &mut *self.side.runner.get() };
        nodes.pool.install(|| runner.run(&nodes.plan, step, &scalars));
    }
}

/// Runs the [`HostCall`] at this address. Stores a panic for the thread that waits.
///
/// # Safety
/// The argument is the address of a `HostCall`.
pub(super) unsafe extern "C" fn run_host_call(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let call = unsafe { &*argument.cast::<HostCall>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call.run()))
        && let Some(nodes) = &call.side.nodes
    {
        nodes.state().panic.get_or_insert(panic);
    }
}
