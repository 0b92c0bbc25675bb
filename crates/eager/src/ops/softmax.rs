//! Softmax over the last dimension.

use crate::runtime::{DType, Op, Saved, Tensor};

impl Tensor {
    /// Softmax over the last dimension, in the given type; in single precision under autocast. Saves its result.
    pub fn softmax(&self, dtype: Option<DType>) -> Self {
        self.normalized(dtype, "_softmax")
    }

    /// Log-softmax over the last dimension.
    pub fn log_softmax(&self) -> Self {
        self.normalized(None, "_log_softmax")
    }

    fn normalized(&self, dtype: Option<DType>, name: &'static str) -> Self {
        let autocast = self.rt().autocast().dtype().filter(|_| self.dtype().is_half());
        let dtype = dtype.or(autocast.map(|_| DType::F32)).unwrap_or(self.dtype());
        // The kernel itself converts fp16 to single precision; other types are cast first.
        let this = if self.dtype() == DType::F16 && dtype == DType::F32 { self.clone() } else { self.to(dtype) };
        let op = Op::new(name, &[&this]);
        let out = Self::new(this.rt(), this.shape(), dtype, name);
        let saved = op.save(&out);
        let from = this.dtype();
        drop(this);
        op.finish_one(out, move |rt, _, _| {
            let result = saved.map(Saved::unpack).expect("softmax saves its result");
            let gradient = Self::new(rt, result.shape(), from, "softmax_backward");
            gradient.mark_if_logits(&result);
            vec![Some(gradient)]
        })
    }
}
