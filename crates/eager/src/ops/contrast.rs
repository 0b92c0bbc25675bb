//! Reductions of the contrastive loss: norms of rows, log-sum-exp, the mean.
//! Source: `norm_backward` and `logsumexp_backward` of `FunctionsManual.cpp`.

use crate::runtime::{DType, Op, Saved, Tensor};

impl Tensor {
    /// The Euclidean norm of each row, at least a small number: (N, C) -> (N, 1). Saves the operand and both results.
    pub fn norm_last(&self) -> Self {
        let op = Op::new("linalg_vector_norm", &[self]);
        let saved = op.save(self);
        let rows = [self.elements() / self.size(-1), 1];
        let norm = Self::new(self.rt(), &rows, self.dtype(), "linalg_vector_norm");
        let result = op.save(&norm);
        let norm = op.finish_one(norm, |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("norms save their operand");
            let _result = result.map(Saved::unpack);
            let _quotient = this.empty_like(gradient.dtype(), "div");
            vec![Some(this.empty_like(gradient.dtype(), "mul_backward"))]
        });
        let op = Op::new("clamp_min", &[&norm]);
        let saved = op.save(&norm);
        let out = norm.empty_like(norm.dtype(), "clamp_min");
        op.finish_one(out, |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("clamp saves its operand");
            let _within = this.empty_like(DType::Bool, "ge");
            vec![Some(gradient.empty_like(gradient.dtype(), "where"))]
        })
    }

    /// The logarithm of each row's sum of exponentials, in single precision under autocast: (N, M) -> (N,). Saves its
    /// operand and its result.
    pub fn logsumexp(&self) -> Self {
        let this = self.in_single_precision();
        let op = Op::new("logsumexp", &[&this]);
        let saved = op.save(&this);
        let out = Self::new(this.rt(), &this.shape()[..1], this.dtype(), "logsumexp");
        let result = op.save(&out);
        drop(this);
        op.finish_one(out, |_, gradient, _| {
            let this = saved.map(Saved::unpack).expect("log-sum-exp saves its operand");
            let _result = result.map(Saved::unpack);
            let differences = this.empty_like(this.dtype(), "sub");
            let exponentials = differences.empty_like(this.dtype(), "exp");
            vec![Some(exponentials.empty_like(gradient.dtype(), "mul_backward"))]
        })
    }

    /// The mean of all elements.
    pub fn mean_all(&self) -> Self {
        let op = Op::new("mean", &[self]);
        let out = Self::new(self.rt(), &[], self.dtype(), "mean");
        let full = self.shape().to_vec();
        op.finish_one(out, move |rt, gradient, _| vec![Some(Self::new(rt, &full, gradient.dtype(), "div"))])
    }
}
