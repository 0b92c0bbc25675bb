//! Tensors: views of storages, with shapes and strides but without values. Also the nodes and leaves of the graph,
//! which receive the gradients of tensors.
//! Not here: ops, which record nodes (`tape.rs`). Source: PyTorch's `TensorImpl`, `TensorUtils.cpp` and
//! `torch/csrc/autograd/function.h`.

use super::storage::Storage;
use super::strides::{contiguous, dense};
use super::trace::{Place, Record};
use super::{DType, Rt};
use crate::usage::Kind;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A reference to a tensor. A clone is another reference to the same tensor.
#[derive(Clone)]
pub(crate) struct Tensor(Rc<Impl>);

struct Impl {
    storage: Rc<Storage>,
    shape: Vec<u64>,
    strides: Vec<u64>,
    dtype: DType,
    /// Where its gradient goes; `None` if it needs no gradient.
    edge: Option<Edge>,
    /// The tensor that it views and keeps alive; `None` if it is not a view.
    base: Option<Rc<Impl>>,
}

/// The destination of a gradient.
#[derive(Clone)]
pub(crate) enum Edge {
    /// An output of a node.
    Node(Rc<Node>, usize),
    /// A leaf, which stores the gradient.
    Leaf(Rc<Leaf>),
}

/// Gradients of a node's outputs or inputs; `None` if there is no gradient.
pub(crate) type Gradients = Vec<Option<Tensor>>;

/// Computes the gradients of a node's inputs from those of its outputs, for the inputs that need them. Called once.
type Formula = Box<dyn FnOnce(&Rt, &Gradients, &[bool]) -> Gradients>;

/// A node of the graph, recorded by an op.
pub(crate) struct Node {
    /// Position in the order of recording. Nodes recorded later run earlier in the backward pass.
    pub sequence: u64,
    pub name: &'static str,
    /// The module that recorded it.
    pub module: Rc<str>,
    /// The destination of each input's gradient.
    pub next: RefCell<Vec<Option<Edge>>>,
    /// Shapes and types of the inputs. Their gradients are reduced and cast to them.
    pub inputs: Vec<(Vec<u64>, DType)>,
    /// The number of outputs.
    pub outputs: usize,
    pub formula: RefCell<Option<Formula>>,
}

/// A tensor that is not the result of an op: a parameter, or an input of a recomputed block.
pub(crate) struct Leaf {
    /// The tensor.
    value: Tensor,
    pub grad: RefCell<Option<Tensor>>,
    /// The parameter's full name; empty for an input.
    pub name: RefCell<Rc<str>>,
    /// Whether it is an embedding's weight.
    pub is_table: Cell<bool>,
    /// Called after a gradient is added.
    pub hook: RefCell<Option<Hook>>,
}

/// A function that is called after a leaf's gradient is added to.
pub(crate) type Hook = Rc<dyn Fn(&Leaf)>;

impl Leaf {
    pub fn new(value: Tensor) -> Self {
        Self {
            value,
            grad: RefCell::default(),
            name: RefCell::new(Rc::from("")),
            is_table: Cell::new(false),
            hook: RefCell::default(),
        }
    }

    /// Whether a gradient has the same strides as the leaf, so that it can be stored without a copy.
    pub fn has_layout_of(&self, gradient: &Tensor) -> bool {
        let sizes = self.value.shape().iter().zip(self.value.strides()).zip(gradient.strides());
        sizes.into_iter().all(|((size, stride), other)| *size == 1 || stride == other)
    }
}

impl Tensor {
    /// A contiguous tensor in a new storage on the GPU, without a gradient.
    pub fn new(rt: &Rt, shape: &[u64], dtype: DType, op: &'static str) -> Self {
        Self::place(rt, shape, dtype, op, Place::Card)
    }

    /// A contiguous tensor in a new storage in this place, without a gradient.
    pub fn place(rt: &Rt, shape: &[u64], dtype: DType, op: &'static str, place: Place) -> Self {
        let bytes = shape.iter().product::<u64>() * dtype.bytes();
        let place = if rt.stopped.get() { Place::Host } else { place };
        let (place, operands) = rt.fusion.place(place, op, dtype);
        let id = match place {
            Place::Host | Place::Fused => 0,
            Place::Card => {
                let mut trace = rt.trace.borrow_mut();
                let module = trace.module();
                trace.allocate(Record { bytes, shape: shape.to_vec(), dtype, op, module, kind: Kind::Temporary })
            }
        };
        let storage = Rc::new(Storage { rt: rt.clone(), id, place, elements: shape.iter().product(), operands });
        let strides = contiguous(shape);
        Self(Rc::new(Impl { storage, shape: shape.to_vec(), strides, dtype, edge: None, base: None }))
    }

    /// A view of the tensor with another shape, without a gradient.
    pub fn alias(&self, shape: Vec<u64>, strides: Vec<u64>) -> Self {
        let Impl { storage, dtype, base, .. } = &*self.0;
        let base = Some(base.clone().unwrap_or_else(|| self.0.clone()));
        Self(Rc::new(Impl { storage: storage.clone(), shape, strides, dtype: *dtype, edge: None, base }))
    }

    /// The same tensor without a gradient or a base.
    pub fn detach(&self) -> Self {
        Self(Rc::new(Impl { edge: None, base: None, ..self.0.copy() }))
    }

    /// The same tensor with a gradient that goes to `edge`.
    pub fn with_edge(self, edge: Edge) -> Self {
        let inner = Rc::try_unwrap(self.0).unwrap_or_else(|shared| shared.copy());
        Self(Rc::new(Impl { edge: Some(edge), ..inner }))
    }

    /// The same tensor as a leaf, which stores its gradient.
    pub fn into_leaf(self) -> Self {
        let leaf = Rc::new(Leaf::new(self.detach()));
        self.with_edge(Edge::Leaf(leaf))
    }

    /// A tensor that a kernel created with two dimensions swapped in memory; it is not a view.
    pub fn turned(self, a: usize, b: usize) -> Self {
        let mut inner = Rc::try_unwrap(self.0).unwrap_or_else(|shared| shared.copy());
        inner.shape.swap(a, b);
        inner.strides.swap(a, b);
        Self(Rc::new(inner))
    }

    pub(super) fn storage(&self) -> &Rc<Storage> {
        &self.0.storage
    }

    pub fn rt(&self) -> &Rt {
        &self.0.storage.rt
    }

    pub fn shape(&self) -> &[u64] {
        &self.0.shape
    }

    pub fn strides(&self) -> &[u64] {
        &self.0.strides
    }

    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    pub fn elements(&self) -> u64 {
        self.0.shape.iter().product()
    }

    pub fn dim(&self) -> usize {
        self.0.shape.len()
    }

    /// The size of a dimension. Negative indices count from the end.
    pub fn size(&self, dim: isize) -> u64 {
        self.0.shape[self.axis(dim)]
    }

    pub fn axis(&self, dim: isize) -> usize {
        if dim < 0 { self.dim() - dim.unsigned_abs() } else { dim.unsigned_abs() }
    }

    pub fn edge(&self) -> Option<&Edge> {
        self.0.edge.as_ref()
    }

    pub fn requires_grad(&self) -> bool {
        self.0.edge.is_some()
    }

    /// Its leaf; `None` if it is not a leaf.
    pub fn leaf(&self) -> Option<&Rc<Leaf>> {
        match &self.0.edge {
            Some(Edge::Leaf(leaf)) => Some(leaf),
            _ => None,
        }
    }

    /// Whether it is an embedding's weight.
    pub fn is_table(&self) -> bool {
        self.leaf().is_some_and(|leaf| leaf.is_table.get())
    }

    pub fn is_contiguous(&self) -> bool {
        let expected = contiguous(&self.0.shape);
        self.0
            .shape
            .iter()
            .zip(&self.0.strides)
            .zip(&expected)
            .all(|((size, stride), expected)| *size == 1 || stride == expected)
    }

    /// Whether its elements fill their memory range, in any order.
    pub fn is_dense(&self) -> bool {
        let mut dims = self.0.shape.iter().zip(&self.0.strides).filter(|(size, _)| **size != 1).collect::<Vec<_>>();
        dims.sort_by_key(|(_, stride)| **stride);
        let mut expected = 1;
        dims.into_iter().all(|(size, stride)| {
            let fits = *stride == expected;
            expected *= size;
            fits
        })
    }

    /// Whether this is the only reference to the tensor and its storage, so that it may be overwritten.
    pub fn is_unshared(&self) -> bool {
        Rc::strong_count(&self.0) == 1 && Rc::strong_count(&self.0.storage) == 1
    }

    /// Whether this is the only reference to the tensor. Other tensors may view its storage.
    pub fn is_only_reference(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }

    /// The purpose of the storage; `Temporary` if it is unknown.
    pub fn kind(&self) -> Kind {
        match self.0.storage.place {
            Place::Card => self.rt().trace.borrow().records[self.0.storage.id as usize].kind,
            Place::Host | Place::Fused => Kind::Temporary,
        }
    }

    /// Sets the purpose of the storage.
    pub fn mark(&self, kind: Kind) {
        if self.0.storage.place == Place::Card {
            self.rt().trace.borrow_mut().records[self.0.storage.id as usize].kind = kind;
        }
    }

    /// Sets the purpose to logits if `other` has that purpose: for casts and gradients of logits.
    pub fn mark_if_logits(&self, other: &Self) {
        if other.kind() == Kind::Logits {
            self.mark(Kind::Logits);
        }
    }

    /// Sets the purpose if none is set.
    pub fn mark_if_temporary(&self, kind: Kind) {
        if self.0.storage.place == Place::Card {
            let mut trace = self.rt().trace.borrow_mut();
            let known = &mut trace.records[self.0.storage.id as usize].kind;
            if *known == Kind::Temporary {
                *known = kind;
            }
        }
    }

    /// An uninitialized tensor with this shape in another type, whose elements have the order of this tensor's.
    pub fn empty_like(&self, dtype: DType, op: &'static str) -> Self {
        let new = Self::new(self.rt(), self.shape(), dtype, op);
        if self.is_contiguous() {
            return new;
        }
        let mut inner = Rc::try_unwrap(new.0).unwrap_or_else(|shared| shared.copy());
        match self.is_dense() {
            true => inner.strides.clone_from(&self.0.strides),
            false => inner.strides = dense(self.shape(), self.strides()),
        }
        Self(Rc::new(inner))
    }
}

impl Impl {
    fn copy(&self) -> Self {
        let Self { storage, shape, strides, dtype, edge, base } = self;
        Self {
            storage: storage.clone(),
            shape: shape.clone(),
            strides: strides.clone(),
            dtype: *dtype,
            edge: edge.clone(),
            base: base.clone(),
        }
    }
}
