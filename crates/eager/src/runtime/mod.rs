//! An eager runtime without values: storages with owners, tensors as views of them, and a tape.
//! Not here: what ops allocate (`ops/`), what models do (`modules/`).
//!
//! Tensors are Rust values with PyTorch's ownership: a clone is one more reference, the last one dropped frees the storage.
//! A function's locals therefore live as long as Python's would, and order of drops is order of frees.

mod autocast;
mod checkpoint;
mod dtype;
mod engine;
mod frame;
mod fusion;
mod storage;
mod tape;
mod tensor;
mod trace;

pub(crate) use autocast::Autocast;
pub(crate) use checkpoint::checkpoint;
pub(crate) use dtype::DType;
pub(crate) use engine::backward;
pub(crate) use tape::{Op, Saved};
pub(crate) use tensor::Tensor;
pub(crate) use trace::{Event, Place, Record, Trace};

use crate::card::Gpu;
use crate::sharding::Units;
use crate::usage::Kind;
use frame::Frame;
use fusion::Fusion;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One process of PyTorch.
pub(crate) type Rt = Rc<Runtime>;

/// A process: what it allocated and freed, and the modes that it is in.
pub(crate) struct Runtime {
    pub trace: RefCell<Trace>,
    /// The card that ops choose their kernels for.
    pub gpu: Gpu,
    /// Whether what kernels allocate for themselves is traced, which a dispatcher does not see.
    pub kernels: bool,
    /// Whether ops are recorded for the backward pass.
    grad: Cell<bool>,
    /// Numbers of nodes of the tape.
    sequence: Cell<u64>,
    /// Blocks that are run with checkpointing, the innermost last: they keep what nodes save.
    frames: RefCell<Vec<Rc<Frame>>>,
    autocast: Autocast,
    /// Whether what can be fused needs no memory.
    pub fusion: Fusion,
    /// Called for each block that runs.
    pub units: RefCell<Option<Rc<dyn Units>>>,
    /// Whether parameters have no memory of their own, but are stored in flat buffers of the sharding.
    pub has_flat_weights: Cell<bool>,
    /// What the node that runs has saved, which it keeps until its results are where they belong.
    held: RefCell<Vec<Box<dyn Any>>>,
    /// What graphs that have run hold until their roots are let go of: leaves, with unused gradients, and what
    /// checkpointing ran again.
    graphs: RefCell<Vec<Box<dyn Any>>>,
    /// Workspaces of cuBLAS' handles, of which the forward pass' thread has one and the backward pass' another.
    workspaces: RefCell<[Option<Tensor>; 2]>,
    /// Whether the backward pass' thread runs.
    in_backward: Cell<bool>,
    /// Whether a block's second run has all that it was run for, so that what follows is not executed.
    stopped: Cell<bool>,
}

impl Runtime {
    pub fn new(gpu: Gpu, kernels: bool) -> Rt {
        Rc::new(Self {
            trace: RefCell::default(),
            gpu,
            kernels,
            grad: Cell::new(true),
            sequence: Cell::new(0),
            frames: RefCell::default(),
            autocast: Autocast::default(),
            fusion: Fusion::default(),
            units: RefCell::default(),
            has_flat_weights: Cell::new(false),
            held: RefCell::default(),
            graphs: RefCell::default(),
            workspaces: RefCell::default(),
            in_backward: Cell::new(false),
            stopped: Cell::new(false),
        })
    }

    /// Runs something with or without a tape.
    pub fn with_grad<T>(&self, grad: bool, run: impl FnOnce() -> T) -> T {
        let before = self.grad.replace(grad);
        let result = run();
        self.grad.set(before);
        result
    }

    pub fn records(&self) -> bool {
        self.grad.get()
    }

    pub fn autocast(&self) -> &Autocast {
        &self.autocast
    }

    /// Runs something whose tensors belong to a module of this name.
    pub fn module<T>(&self, name: &str, run: impl FnOnce() -> T) -> T {
        self.trace.borrow_mut().enter(name);
        let result = run();
        self.trace.borrow_mut().leave();
        result
    }

    /// A memory request of a kernel for itself, which is returned when the value is dropped. `None` if they are not traced.
    pub fn scratch(self: &Rc<Self>, op: &'static str, bytes: u64) -> Option<Tensor> {
        (self.kernels && bytes > 0).then(|| Tensor::new(self, &[bytes], DType::U8, op))
    }

    /// What a product asks for once its result is allocated: cuBLAS' workspace, which the first of a thread takes and keeps.
    /// Source: `getCurrentCUDABlasHandle` in `aten/src/ATen/cuda/CublasHandlePool.cpp`.
    pub fn multiply(self: &Rc<Self>) {
        let thread = usize::from(self.in_backward.get());
        if self.kernels && !self.stopped.get() && self.workspaces.borrow()[thread].is_none() {
            let workspace = self.scratch("cuBLAS workspace", self.gpu.cublas_workspace());
            workspace.iter().for_each(|workspace| workspace.mark(Kind::Workspace));
            self.workspaces.borrow_mut()[thread] = workspace;
        }
    }

    /// Keeps something until the results of the node that runs are where they belong.
    fn hold(&self, held: impl Any) {
        self.held.borrow_mut().push(Box::new(held));
    }

    /// Keeps something as long as the graph that has run.
    fn keep_with_graph(&self, kept: impl Any) {
        self.graphs.borrow_mut().push(Box::new(kept));
    }

    /// Runs something with a graph of its own, which it lets go of.
    pub fn with_graph<T>(&self, run: impl FnOnce() -> T) -> T {
        let outer = self.graphs.take();
        let result = run();
        drop(self.graphs.replace(outer));
        result
    }

    /// Lets go of what the process keeps to its end, which would otherwise keep the runtime.
    pub fn end(&self) {
        drop(self.workspaces.take());
    }

    fn next_sequence(&self) -> u64 {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        sequence
    }
}
