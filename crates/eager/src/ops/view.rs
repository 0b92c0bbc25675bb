//! Views, and the copies that `reshape` and `contiguous` create if there is no view.

use crate::runtime::{DType, Op, Rt, Tensor};

/// The strides of a view with this shape; `None` if there is no such view. Source: `computeStride` of PyTorch's
/// `TensorUtils.cpp`.
fn view_strides(shape: &[u64], strides: &[u64], new: &[u64]) -> Option<Vec<u64>> {
    if shape.iter().product::<u64>() == 0 || shape.is_empty() {
        let mut all = vec![1; new.len()];
        for i in (0..new.len().saturating_sub(1)).rev() {
            all[i] = all[i + 1] * new[i + 1].max(1);
        }
        return Some(all);
    }
    let mut result = vec![0; new.len()];
    let mut view = new.len();
    let mut base = *strides.last()?;
    let (mut elements, mut view_elements) = (1, 1);
    for dim in (0..shape.len()).rev() {
        elements *= shape[dim];
        let ends = dim == 0 || (shape[dim - 1] != 1 && strides[dim - 1] != elements * base);
        if !ends {
            continue;
        }
        while view > 0 && (view_elements < elements || new[view - 1] == 1) {
            view -= 1;
            result[view] = view_elements * base;
            view_elements *= new[view];
        }
        if view_elements != elements {
            return None;
        }
        if dim > 0 {
            base = strides[dim - 1];
            (elements, view_elements) = (1, 1);
        }
    }
    (view == 0).then_some(result)
}

/// A contiguous copy of a tensor.
fn contiguous_copy(tensor: &Tensor, op: &'static str) -> Tensor {
    Tensor::new(tensor.rt(), tensor.shape(), tensor.dtype(), op)
}

/// Concatenates tensors along a dimension.
pub(crate) fn cat(tensors: &[&Tensor], dim: isize) -> Tensor {
    let axis = tensors[0].axis(dim);
    let op = Op::new("cat", tensors);
    let mut shape = tensors[0].shape().to_vec();
    let sizes = tensors.iter().map(|tensor| tensor.shape()[axis]).collect::<Vec<_>>();
    shape[axis] = sizes.iter().sum();
    let dtype = tensors.iter().map(|tensor| tensor.dtype()).reduce(DType::promote).unwrap_or(DType::F32);
    let out = Tensor::new(tensors[0].rt(), &shape, dtype, "cat");
    op.finish_one(out, move |_, gradient, needs| {
        let part = |size: &u64| {
            let mut shape = gradient.shape().to_vec();
            shape[axis] = *size;
            gradient.alias(shape, gradient.strides().to_vec())
        };
        sizes.iter().zip(needs).map(|(size, needed)| needed.then(|| part(size))).collect()
    })
}

impl Tensor {
    /// A view with another shape, if there is one; the tape does not record it.
    pub fn viewed(&self, shape: &[u64]) -> Option<Self> {
        let strides = view_strides(self.shape(), self.strides(), shape)?;
        Some(self.alias(shape.to_vec(), strides))
    }

    /// A view with another shape.
    pub fn view(&self, shape: &[u64]) -> Self {
        let op = Op::new("view", &[self]);
        let out = self.viewed(shape).expect("the model's shapes have this view");
        let before = self.shape().to_vec();
        op.finish_one(out, move |_, gradient, _| vec![Some(gradient.reshape_values(&before))])
    }

    /// The values in another shape: a view or a copy; the tape does not record it.
    pub fn reshape_values(&self, shape: &[u64]) -> Self {
        self.viewed(shape).unwrap_or_else(|| {
            let copy = contiguous_copy(self, "clone");
            copy.viewed(shape).expect("a contiguous tensor has every view")
        })
    }

    /// A view with another shape, of the tensor or of a copy.
    pub fn reshape(&self, shape: &[u64]) -> Self {
        match self.viewed(shape) {
            Some(_) => self.view(shape),
            None => self.copied("clone").view(shape),
        }
    }

    /// A contiguous copy.
    pub fn copied(&self, name: &'static str) -> Self {
        let op = Op::new(name, &[self]);
        op.finish_one(contiguous_copy(self, name), |_, gradient, _| vec![Some(gradient.clone())])
    }

    /// The tensor itself, or a contiguous copy.
    pub fn contiguous(&self) -> Self {
        if self.is_contiguous() { self.clone() } else { self.copied("clone") }
    }

    /// A view with two dimensions swapped.
    pub fn transpose(&self, a: isize, b: isize) -> Self {
        let (a, b) = (self.axis(a), self.axis(b));
        let swapped = move |tensor: &Self| {
            let (mut shape, mut strides) = (tensor.shape().to_vec(), tensor.strides().to_vec());
            shape.swap(a, b);
            strides.swap(a, b);
            tensor.alias(shape, strides)
        };
        let op = Op::new("transpose", &[self]);
        op.finish_one(swapped(self), move |_, gradient, _| vec![Some(swapped(gradient))])
    }

    /// A view with an additional dimension of size 1.
    pub fn unsqueeze(&self, dim: usize) -> Self {
        let op = Op::new("unsqueeze", &[self]);
        let (mut shape, mut strides) = (self.shape().to_vec(), self.strides().to_vec());
        let stride = if dim < shape.len() { shape[dim] * strides[dim] } else { 1 };
        shape.insert(dim, 1);
        strides.insert(dim, stride);
        let out = self.alias(shape, strides);
        op.finish_one(out, move |_, gradient, _| {
            let (mut shape, mut strides) = (gradient.shape().to_vec(), gradient.strides().to_vec());
            shape.remove(dim);
            strides.remove(dim);
            vec![Some(gradient.alias(shape, strides))]
        })
    }

    /// A view with dimensions of size 1 repeated, and leading dimensions added.
    pub fn expand(&self, shape: &[u64]) -> Self {
        if self.shape() == shape {
            return self.clone();
        }
        let op = Op::new("expand", &[self]);
        let missing = shape.len() - self.dim();
        let stride = |dim: usize| match dim.checked_sub(missing) {
            Some(own) if self.shape()[own] == shape[dim] => self.strides()[own],
            _ => 0,
        };
        let out = self.alias(shape.to_vec(), (0..shape.len()).map(stride).collect());
        let before = self.shape().to_vec();
        op.finish_one(out, move |_, gradient, _| vec![Some(gradient.summed_to(&before))])
    }

    /// A view of a part of a dimension. A slice of the whole dimension is an alias, whose gradient is not copied.
    /// Source: `applySlice` of PyTorch's `TensorIndexing.h`.
    pub fn narrow(&self, dim: isize, size: u64) -> Self {
        let axis = self.axis(dim);
        let op = Op::new("slice", &[self]);
        let mut shape = self.shape().to_vec();
        shape[axis] = size;
        let full = self.shape().to_vec();
        let out = self.alias(shape, self.strides().to_vec());
        op.finish_one(out, move |rt, gradient, _| match gradient.shape() == full {
            true => vec![Some(gradient.clone())],
            false => vec![Some(Self::new(rt, &full, gradient.dtype(), "slice_backward"))],
        })
    }

    /// A view of every second element of the last dimension.
    pub fn every_second(&self) -> Self {
        let op = Op::new("slice", &[self]);
        let full = self.shape().to_vec();
        let (mut shape, mut strides) = (full.clone(), self.strides().to_vec());
        let last = shape.len() - 1;
        shape[last] /= 2;
        strides[last] *= 2;
        let gradient = move |rt: &Rt, gradient: &Self, _: &[bool]| {
            vec![Some(Self::new(rt, &full, gradient.dtype(), "slice_backward"))]
        };
        op.finish_one(self.alias(shape, strides), gradient)
    }

    /// A copy with a longer last dimension.
    pub fn pad_last(&self, size: u64) -> Self {
        let op = Op::new("constant_pad_nd", &[self]);
        let (mut shape, before) = (self.shape().to_vec(), self.shape().to_vec());
        let last = shape.len() - 1;
        shape[last] = size;
        let out = Self::new(self.rt(), &shape, self.dtype(), "constant_pad_nd");
        op.finish_one(out, move |rt, gradient, _| {
            vec![Some(Self::new(rt, &before, gradient.dtype(), "constant_pad_nd_backward"))]
        })
    }

    /// Views of equal parts of a dimension.
    pub fn split(&self, parts: u64, dim: isize) -> Vec<Self> {
        let axis = self.axis(dim);
        let op = Op::new("split", &[self]);
        let mut shape = self.shape().to_vec();
        shape[axis] /= parts;
        let outs = (0..parts).map(|_| self.alias(shape.clone(), self.strides().to_vec())).collect();
        let full = self.shape().to_vec();
        op.finish(outs, move |rt, gradients, _| {
            let dtype = gradients.iter().flatten().next().map(Self::dtype);
            // Parts without a gradient are zeros, which are freed once all parts are concatenated.
            let zeros = gradients.iter().filter(|gradient| gradient.is_none());
            let zeros = zeros.map(|_| Self::new(rt, &shape, dtype.unwrap_or(DType::F32), "split_backward"));
            let zeros = zeros.collect::<Vec<_>>();
            let out = dtype.map(|dtype| Self::new(rt, &full, dtype, "split_backward"));
            drop(zeros);
            vec![out]
        })
    }
}
