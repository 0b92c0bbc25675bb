//! A lower bound for compiled models: only results of products, of attention and of indexed additions are in memory,
//! and pointwise results are recomputed where they are used. What `torch.compile` really fuses is between this and
//! eager steps.
//!
//! Source: PyTorch's `torch/_functorch/partitioners.py`: it never recomputes results of `compute_intensive_ops` or
//! random masks; recomputing fusible ops costs nothing.
//!
//! ```text
//!   mm ─► [gelu ─► dropout] ─► mm     the ops in brackets need no memory, but keep their operand alive
//! ```

use super::storage::Storage;
use super::{DType, Place, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Whether ops are fused, and the operands of the running op.
#[derive(Default)]
pub(crate) struct Fusion {
    on: Cell<bool>,
    /// The operands of the running op.
    operands: RefCell<Vec<Rc<Storage>>>,
}

/// Prefixes of the names of ops whose results are in memory.
const KEPT: &[&str] = &[
    "mm",
    "addmm",
    "bmm",
    "_grouped_mm",
    "topk",
    "sort",
    "_scaled_dot_product",
    "embedding_dense_backward",
    "sum of gradients",
    "copy of a gradient",
    "fused",
    "parameter",
    "input_ids",
    "labels",
    "Liger",
    "LinearCrossEntropy",
];

impl Fusion {
    /// Turns fusion on or off.
    pub fn set(&self, on: bool) {
        self.on.set(on);
    }

    /// Runs `run` without fusion.
    pub fn without<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.on.replace(false);
        let result = run();
        self.on.set(before);
        result
    }

    /// The place of a new tensor, and the storages that it keeps alive.
    pub(super) fn place(&self, place: Place, op: &str, dtype: DType) -> (Place, Vec<Rc<Storage>>) {
        let is_mask = op == "native_dropout" && dtype == DType::Bool;
        let kept = is_mask || dtype == DType::U8 || KEPT.iter().any(|begin| op.starts_with(begin));
        match place {
            Place::Card if self.on.get() && !kept => (Place::Fused, self.operands.borrow().clone()),
            place => (place, vec![]),
        }
    }

    /// Sets the operands of an op that starts, and returns those of the enclosing op.
    pub(super) fn begin(&self, operands: &[&Tensor]) -> Vec<Rc<Storage>> {
        if !self.on.get() {
            return vec![];
        }
        self.operands.replace(operands.iter().map(|operand| operand.storage().clone()).collect())
    }

    /// Adds an operand of the running op.
    pub(super) fn add(&self, operand: &Tensor) {
        if self.on.get() {
            self.operands.borrow_mut().push(operand.storage().clone());
        }
    }

    /// Ends the op and restores the operands of the enclosing one.
    pub(super) fn end(&self, around: Vec<Rc<Storage>>) {
        self.operands.replace(around);
    }
}

impl Tensor {
    pub(super) fn is_fused(&self) -> bool {
        self.storage().fused_elements().is_some()
    }

    /// The tensor in memory while the value lives, for a kernel that cannot read fused operands; `None` if it is in
    /// memory already.
    pub fn materialized(&self) -> Option<Self> {
        let elements = self.storage().fused_elements()?;
        Some(Self::new(self.rt(), &[elements], self.dtype(), "fused"))
    }
}
