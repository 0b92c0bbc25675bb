//! Dropout as CUDA computes it: one kernel that keeps a byte an element.

use crate::runtime::{DType, Op, Saved, Tensor};

impl Tensor {
    /// Dropout with this rate; itself with none. Saves the mask, a byte an element.
    pub fn dropout(&self, rate: f32) -> Self {
        if rate <= 0.0 {
            return self.clone();
        }
        let op = Op::new("native_dropout", &[self]);
        let out = self.empty_like(self.dtype(), "native_dropout");
        let mask = self.empty_like(DType::Bool, "native_dropout");
        let saved = op.save(&mask);
        drop(mask);
        op.finish_one(out, |_, gradient, _| {
            let _mask = saved.map(Saved::unpack);
            vec![Some(gradient.empty_like(gradient.dtype(), "native_dropout_backward"))]
        })
    }
}
