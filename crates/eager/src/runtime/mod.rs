//! An eager runtime without values: storages with owners, tensors that view them, and a tape.
//! Not here: what ops allocate (`ops/`), and the models (`modules/`).
//!
//! Tensors are Rust values with PyTorch's ownership: a clone is another reference, and dropping the last one frees the
//! storage. A function's locals therefore live as long as Python's, and the order of drops is the order of frees.

mod autocast;
mod checkpoint;
mod dtype;
mod engine;
mod frame;
mod fusion;
mod storage;
mod strides;
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

/// A PyTorch process.
pub(crate) type Rt = Rc<Runtime>;

/// A process: its allocations and frees, and its modes.
pub(crate) struct Runtime {
    pub trace: RefCell<Trace>,
    /// The GPU that ops choose their kernels for.
    pub gpu: Gpu,
    /// Whether to trace internal allocations of kernels, which a dispatcher does not see.
    pub kernels: bool,
    /// Whether ops are recorded on the tape.
    grad: Cell<bool>,
    /// Sequence number of the next node.
    sequence: Cell<u64>,
    /// The frames of running checkpointed blocks, the innermost last. Their slots replace the tensors that nodes save.
    frames: RefCell<Vec<Rc<Frame>>>,
    autocast: Autocast,
    /// Decides which results of fusible ops need no memory.
    pub fusion: Fusion,
    /// Receives a call for each block that runs.
    pub units: RefCell<Option<Rc<dyn Units>>>,
    /// Whether parameters have no memory, because sharding stores them in flat buffers.
    pub has_flat_weights: Cell<bool>,
    /// Tensors that the running node saved; it keeps them until its results are delivered.
    held: RefCell<Vec<Box<dyn Any>>>,
    /// Values that executed graphs hold until their roots are dropped: leaves with unused gradients, and recomputed
    /// tensors of checkpointing.
    graphs: RefCell<Vec<Box<dyn Any>>>,
    /// cuBLAS workspaces of the forward pass's thread and the backward pass's thread.
    workspaces: RefCell<[Option<Tensor>; 2]>,
    /// Whether the backward pass runs, which has its own thread.
    in_backward: Cell<bool>,
    /// Whether a block's second run has filled all its slots, so that the remaining ops are skipped.
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

    /// Runs `run` with or without a tape.
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

    /// Runs `run` with its tensors assigned to a module of this name.
    pub fn module<T>(&self, name: &str, run: impl FnOnce() -> T) -> T {
        self.trace.borrow_mut().enter(name);
        let result = run();
        self.trace.borrow_mut().leave();
        result
    }

    /// Allocates a kernel's internal memory; dropping the value frees it. `None` if such memory is not traced.
    pub fn scratch(self: &Rc<Self>, op: &'static str, bytes: u64) -> Option<Tensor> {
        (self.kernels && bytes > 0).then(|| Tensor::new(self, &[bytes], DType::U8, op))
    }

    /// Allocates the cuBLAS workspace at a thread's first matrix product, after the product's result. The thread keeps
    /// the workspace. Source: `getCurrentCUDABlasHandle` in `aten/src/ATen/cuda/CublasHandlePool.cpp`.
    pub fn multiply(self: &Rc<Self>) {
        let thread = usize::from(self.in_backward.get());
        if self.kernels && !self.stopped.get() && self.workspaces.borrow()[thread].is_none() {
            let workspace = self.scratch("cuBLAS workspace", self.gpu.cublas_workspace());
            workspace.iter().for_each(|workspace| workspace.mark(Kind::Workspace));
            self.workspaces.borrow_mut()[thread] = workspace;
        }
    }

    /// Keeps a value until the results of the running node are delivered.
    fn hold(&self, held: impl Any) {
        self.held.borrow_mut().push(Box::new(held));
    }

    /// Keeps a value until the executed graph is dropped.
    fn keep_with_graph(&self, kept: impl Any) {
        self.graphs.borrow_mut().push(Box::new(kept));
    }

    /// Runs `run` with a separate graph, which is dropped at the end.
    pub fn with_graph<T>(&self, run: impl FnOnce() -> T) -> T {
        self.with_kept_graph(run).0
    }

    /// Runs `run` with a separate graph, which the second value keeps.
    pub fn with_kept_graph<T>(&self, run: impl FnOnce() -> T) -> (T, Vec<Box<dyn Any>>) {
        let outer = self.graphs.take();
        let result = run();
        (result, self.graphs.replace(outer))
    }

    /// Drops values that refer to the runtime, which would otherwise never be freed.
    pub fn end(&self) {
        drop(self.workspaces.take());
    }

    fn next_sequence(&self) -> u64 {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        sequence
    }
}
