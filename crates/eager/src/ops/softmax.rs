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
            // Before its kernel, the gradient of softmax multiplies the gradient by the result; log-softmax does not.
            // Source: `softmax_backward_cuda_out` of `native/cuda/SoftMax.cu`.
            let bytes = result.elements() * result.dtype().bytes();
            drop((name == "_softmax").then(|| rt.scratch("softmax_backward", bytes)));
            vec![Some(gradient)]
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::card::Gpu;
    use crate::sharding::Bound;
    use crate::step::steps;
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_trainers::{Attention, Precision, Run};
    use plimsoll_units::Bytes;

    /// Scores of two heads, of which the backward pass multiplies a copy in single precision.
    #[test]
    fn the_gradient_of_softmax_has_a_product_of_its_own() {
        let json = r#"{"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
            "num_hidden_layers": 1, "vocab_size": 64, "max_position_embeddings": 256}"#;
        let model = ModelConfig::from_json(json).expect("a model");
        let gpu = Gpu { memory: Bytes::gib(80), compute_capability: (9, 0) };
        let run = Run {
            precision: Precision::PureFp16,
            micro_batch: 1,
            seq_len: 128,
            attention: Attention::Eager,
            ..Run::default()
        };
        let steps = steps(&model, &run, gpu, true, Bound::Likely).expect("this run is modeled");
        let of_softmax = steps.records.iter().filter(|record| record.op == "softmax_backward");
        let sizes = of_softmax.map(|record| record.bytes).collect::<Vec<_>>();
        let scores = 2 * 128 * 128;
        // The loss, then attention: its gradient in half precision and the product in single precision.
        assert_eq!(sizes[..3], [128 * 64 * 4, scores * 2, scores * 4]);
    }
}
