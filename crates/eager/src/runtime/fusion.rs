//! The least that a compiler needs: only results of products, of attention and of what adds by index are in memory, and all that
//! is made of them element by element is made again where it is used.
//! Not here: what `torch.compile` really fuses, which is between this and eager steps.
//!
//! Source: PyTorch's `torch/_functorch/partitioners.py`: results of `compute_intensive_ops` are never computed again, random
//! masks neither; what can be fused costs nothing to compute again.
//!
//! ```text
//!   mm ─► [gelu ─► dropout] ─► mm     what is in brackets has no memory, but holds the result that it is made of
//! ```

use super::storage::Storage;
use super::{DType, Place, Tensor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Whether and of what fused tensors are made.
#[derive(Default)]
pub(crate) struct Fusion {
    on: Cell<bool>,
    /// Of what the op that runs makes its results.
    operands: RefCell<Vec<Rc<Storage>>>,
}

/// Beginnings of the names of ops whose results are in memory.
const KEPT: &[&str] = &[
    "mm",
    "addmm",
    "bmm",
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
    /// Turns it on or off.
    pub fn set(&self, on: bool) {
        self.on.set(on);
    }

    /// Runs something whose tensors are in memory.
    pub fn without<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = self.on.replace(false);
        let result = run();
        self.on.set(before);
        result
    }

    /// Where a new tensor is stored, and what it holds.
    pub(super) fn place(&self, place: Place, op: &str, dtype: DType) -> (Place, Vec<Rc<Storage>>) {
        let is_mask = op == "native_dropout" && dtype == DType::Bool;
        let kept = is_mask || dtype == DType::U8 || KEPT.iter().any(|begin| op.starts_with(begin));
        match place {
            Place::Card if self.on.get() && !kept => (Place::Fused, self.operands.borrow().clone()),
            place => (place, vec![]),
        }
    }

    /// Operands of the op that begins. Returns those of the one around it.
    pub(super) fn begin(&self, operands: &[&Tensor]) -> Vec<Rc<Storage>> {
        if !self.on.get() {
            return vec![];
        }
        self.operands.replace(operands.iter().map(|operand| operand.storage().clone()).collect())
    }

    /// One more of the op that runs.
    pub(super) fn add(&self, operand: &Tensor) {
        if self.on.get() {
            self.operands.borrow_mut().push(operand.storage().clone());
        }
    }

    /// The op has ended.
    pub(super) fn end(&self, around: Vec<Rc<Storage>>) {
        self.operands.replace(around);
    }
}

impl Tensor {
    pub(super) fn is_fused(&self) -> bool {
        self.storage().fused_elements().is_some()
    }

    /// The tensor in memory, as long as the value lives, for a kernel that reads no fused ones. None: it is there.
    pub fn settled(&self) -> Option<Self> {
        let elements = self.storage().fused_elements()?;
        Some(Self::new(self.rt(), &[elements], self.dtype(), "fused"))
    }
}
