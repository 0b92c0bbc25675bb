//! Autocast: the type that some ops compute in, and the cache of cast weights.
//! Not here: which ops cast (`ops/`). Source: PyTorch's `aten/src/ATen/autocast_mode.cpp`.

use super::tensor::Leaf;
use super::{DType, Tensor};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The state of autocast.
#[derive(Default)]
pub(crate) struct Autocast {
    dtype: Cell<Option<DType>>,
    /// Cached casts of leaves that need a gradient.
    casts: RefCell<FxHashMap<*const Leaf, Tensor>>,
}

impl Autocast {
    /// The type of products; `None` if autocast is off.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype.get()
    }

    /// Runs `run` with autocast. The cache is cleared when the outermost autocast ends.
    pub fn with<T>(&self, dtype: Option<DType>, run: impl FnOnce() -> T) -> T {
        let before = self.dtype.replace(dtype);
        let result = run();
        self.dtype.set(before);
        if before.is_none() {
            let casts = self.casts.take();
            drop(casts);
        }
        result
    }

    /// The cached cast of a weight.
    pub fn cast_of(&self, leaf: &Rc<Leaf>) -> Option<Tensor> {
        self.casts.borrow().get(&Rc::as_ptr(leaf)).cloned()
    }

    pub fn keep_cast(&self, leaf: &Rc<Leaf>, cast: &Tensor) {
        self.casts.borrow_mut().insert(Rc::as_ptr(leaf), cast.clone());
    }
}
