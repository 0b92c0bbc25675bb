//! Pointwise ops: their results have the broadcast shape of the operands.

use super::{cast_values, sum_to};
use crate::runtime::{DType, Op, Saved, Tensor};

/// The shape that `a` and `b` broadcast to.
pub(crate) fn broadcast(a: &[u64], b: &[u64]) -> Vec<u64> {
    let dims = a.len().max(b.len());
    let size = |shape: &[u64], dim: usize| (dim + shape.len()).checked_sub(dims).map_or(1, |dim| shape[dim]);
    (0..dims).map(|dim| if size(a, dim) == 1 { size(b, dim) } else { size(a, dim) }).collect()
}

/// A new tensor for the result of two operands. It has the layout of the first operand that has its shape.
pub(super) fn result_of(a: &Tensor, b: &Tensor, dtype: DType, op: &'static str) -> Tensor {
    let shape = broadcast(a.shape(), b.shape());
    match [a, b].into_iter().find(|operand| operand.shape() == shape) {
        Some(like) => like.empty_like(dtype, op),
        None => Tensor::new(a.rt(), &shape, dtype, op),
    }
}

/// A product that the tape does not record.
pub(super) fn product(a: &Tensor, b: &Tensor, op: &'static str) -> Tensor {
    result_of(a, b, result_type(a, b), op)
}

/// Tensors without dimensions do not change the type of tensors with dimensions.
fn result_type(a: &Tensor, b: &Tensor) -> DType {
    match (a.dim(), b.dim()) {
        (0, 1..) if b.dtype().is_float() => b.dtype(),
        (1.., 0) if a.dtype().is_float() => a.dtype(),
        _ => a.dtype().promote(b.dtype()),
    }
}

impl Tensor {
    /// `self + other`.
    pub fn add(&self, other: &Self) -> Self {
        let op = Op::new("add", &[self, other]);
        let out = result_of(self, other, result_type(self, other), "add");
        op.finish_one(out, |_, gradient, needs| needs.iter().map(|needed| needed.then(|| gradient.clone())).collect())
    }

    /// `self - other`.
    pub fn sub(&self, other: &Self) -> Self {
        let op = Op::new("sub", &[self, other]);
        let out = result_of(self, other, result_type(self, other), "sub");
        op.finish_one(out, |_, gradient, needs| {
            let of_other = needs[1].then(|| gradient.empty_like(gradient.dtype(), "neg"));
            vec![needs[0].then(|| gradient.clone()), of_other]
        })
    }

    /// `self * other`.
    pub fn mul(&self, other: &Self) -> Self {
        let op = Op::new("mul", &[self, other]);
        let saved = [op.save_if(self, op.needs(1)), op.save_if(other, op.needs(0))];
        let out = result_of(self, other, result_type(self, other), "mul");
        op.finish_one(out, |_, gradient, _| {
            let [this, other] = saved.map(|saved| saved.map(Saved::unpack));
            let of_other = this.as_ref().map(|this| product(gradient, this, "mul_backward"));
            let of_this = other.as_ref().map(|other| product(gradient, other, "mul_backward"));
            vec![of_this, of_other]
        })
    }

    /// `self / other`.
    pub fn div(&self, other: &Self) -> Self {
        let op = Op::new("div", &[self, other]);
        let saved = [op.save_if(self, op.needs(1)), op.save_if(other, op.needs(0) || op.needs(1))];
        let out = result_of(self, other, result_type(self, other), "div");
        op.finish_one(out, |_, gradient, needs| {
            let [this, other] = saved.map(|saved| saved.map(Saved::unpack));
            let other = other.expect("division saves its divisor");
            let of_other = this.as_ref().map(|this| {
                let _quotients = [(); 2].map(|()| product(this, &other, "div_backward"));
                let _negated = gradient.empty_like(gradient.dtype(), "neg");
                product(gradient, this, "mul_backward")
            });
            vec![needs[0].then(|| product(gradient, &other, "div_backward")), of_other]
        })
    }

    /// A tensor times a number. Unlike `shift`, its gradient needs a kernel.
    pub fn scale(&self) -> Self {
        let op = Op::new("mul", &[self]);
        let out = self.empty_like(self.dtype(), "mul");
        op.finish_one(out, |_, gradient, _| vec![Some(gradient.empty_like(gradient.dtype(), "mul_backward"))])
    }

    /// A tensor plus a number.
    pub fn shift(&self) -> Self {
        let op = Op::new("add", &[self]);
        let out = self.empty_like(self.dtype(), "add");
        op.finish_one(out, |_, gradient, _| vec![Some(gradient.clone())])
    }

    /// `-self`.
    pub fn neg(&self) -> Self {
        let op = Op::new("neg", &[self]);
        let out = self.empty_like(self.dtype(), "neg");
        op.finish_one(out, |_, gradient, _| vec![Some(gradient.empty_like(gradient.dtype(), "neg_backward"))])
    }

    /// `self ** n`, in single precision under autocast.
    pub fn pow(&self) -> Self {
        let this = self.in_single_precision();
        let op = Op::new("pow", &[&this]);
        let saved = op.save(&this);
        let out = this.empty_like(this.dtype(), "pow");
        op.finish_one(out, |_, gradient, _| {
            let this = saved.map(Saved::unpack);
            // gradient * (n * self ** (n - 1)); temporaries live until the end of the expression.
            let this = this.expect("pow saves its operand");
            let power = this.empty_like(this.dtype(), "pow_backward");
            let multiple = power.empty_like(power.dtype(), "pow_backward");
            vec![Some(product(gradient, &multiple, "pow_backward"))]
        })
    }

    /// `1 / sqrt(self)`, in single precision under autocast.
    pub fn rsqrt(&self) -> Self {
        let this = self.in_single_precision();
        let op = Op::new("rsqrt", &[&this]);
        let out = this.empty_like(this.dtype(), "rsqrt");
        let saved = op.save(&out);
        op.finish_one(out, |_, gradient, _| {
            let result = saved.map(Saved::unpack).expect("rsqrt saves its result");
            let power = result.empty_like(result.dtype(), "rsqrt_backward");
            let half = gradient.empty_like(gradient.dtype(), "rsqrt_backward");
            vec![Some(product(&half, &power, "rsqrt_backward"))]
        })
    }

    /// An activation whose gradient needs only its operand: `silu`, and `gelu` as one kernel.
    pub fn activation(&self, name: &'static str) -> Self {
        let op = Op::new(name, &[self]);
        let saved = op.save(self);
        let out = self.empty_like(self.dtype(), name);
        op.finish_one(out, |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("activations save their operand");
            vec![Some(product(gradient, &this, "activation_backward"))]
        })
    }

    /// An activation whose gradient needs only its result: `tanh`, `relu`.
    pub fn activation_by_result(&self, name: &'static str) -> Self {
        let op = Op::new(name, &[self]);
        let out = self.empty_like(self.dtype(), name);
        let saved = op.save(&out);
        op.finish_one(out, |_, gradient, _| {
            let result = saved.map(Saved::unpack).expect("activations save their result");
            vec![Some(product(gradient, &result, "activation_backward"))]
        })
    }

    /// The tensor where `mask` is true, else a number. The mask has no gradient.
    pub fn select(&self, mask: &Self) -> Self {
        let op = Op::new("where", &[self]);
        let saved = op.save(mask);
        let out = result_of(self, mask, self.dtype(), "where");
        op.finish_one(out, |_, gradient, _| {
            let _mask = saved.map(Saved::unpack);
            vec![Some(gradient.empty_like(gradient.dtype(), "where_backward"))]
        })
    }

    /// The tensor clamped to bounds that are tensors. Saves the operand, because elements at a bound have half the
    /// gradient.
    pub fn clamp(&self) -> Self {
        let op = Op::new("clamp", &[self]);
        let saved = op.save(self);
        let out = self.empty_like(self.dtype(), "clamp");
        op.finish_one(out, |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("clamp saves its operand");
            let masks =
                |ops: &[&'static str]| ops.iter().map(|op| this.empty_like(DType::Bool, op)).collect::<Vec<_>>();
            let mut at_bounds = masks(&["eq", "eq", "logical_or", "logical_and"]);
            drop(at_bounds.drain(..3));
            let mut beyond = masks(&["lt", "gt", "logical_or"]);
            drop(beyond.drain(..2));
            let _parts = ["div", "where"].map(|op| gradient.empty_like(gradient.dtype(), op));
            vec![Some(gradient.empty_like(gradient.dtype(), "masked_fill"))]
        })
    }

    /// The tensor clamped to numbers: to an upper bound, or to bounds on both sides. Its gradient is zero beyond them.
    pub fn clamp_to(&self, is_two_sided: bool) -> Self {
        let op = Op::new("clamp", &[self]);
        let saved = op.save(self);
        let out = self.empty_like(self.dtype(), "clamp");
        op.finish_one(out, move |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("clamp saves its operand");
            let _within = ["lt", "gt"].map(|op| (op == "lt" || is_two_sided).then(|| this.empty_like(DType::Bool, op)));
            vec![Some(gradient.empty_like(gradient.dtype(), "where"))]
        })
    }

    /// The tensor in another type; `self` if it has that type.
    pub fn to(&self, dtype: DType) -> Self {
        if self.dtype() == dtype {
            return self.clone();
        }
        let op = Op::new("_to_copy", &[self]);
        let (out, from) = (self.empty_like(dtype, "_to_copy"), self.dtype());
        op.finish_one(out, move |_, gradient, _| vec![Some(cast_values(gradient, from))])
    }

    /// The tensor in single precision under autocast; else `self`.
    pub fn in_single_precision(&self) -> Self {
        match self.rt().autocast().dtype() {
            Some(_) if self.dtype().is_half() => self.to(DType::F32),
            _ => self.clone(),
        }
    }

    /// The mean over the last dimension, which remains with size 1.
    pub fn mean_last(&self) -> Self {
        let op = Op::new("mean", &[self]);
        let mut shape = self.shape().to_vec();
        let last = shape.len() - 1;
        shape[last] = 1;
        let out = Tensor::new(self.rt(), &shape, self.dtype(), "mean");
        let full = self.shape().to_vec();
        op.finish_one(out, move |rt, gradient, _| vec![Some(Tensor::new(rt, &full, gradient.dtype(), "mean_backward"))])
    }

    /// The tensor summed to a shape that broadcasts to its own.
    pub fn summed_to(&self, shape: &[u64]) -> Self {
        if self.shape() == shape { self.clone() } else { sum_to(self, shape) }
    }
}
