//! LayerNorm as one kernel. RMSNorm consists of pointwise ops in transformers.

use crate::runtime::{DType, Op, Saved, Tensor};

/// LayerNorm over the last dimension. x: (…, C), weight and bias: (C,) -> (…, C). In single precision under autocast.
/// Saves x, and the mean and rstd in single precision.
pub(crate) fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let (x, weight, bias) =
        (x.in_single_precision(), weight.in_single_precision(), bias.map(Tensor::in_single_precision));
    let inputs = [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten().collect::<Vec<_>>();
    let op = Op::new("native_layer_norm", &inputs);
    let saved = inputs.iter().map(|input| op.save(input)).collect::<Vec<_>>();
    let out = Tensor::new(x.rt(), x.shape(), x.dtype(), "native_layer_norm");
    let mut rows = x.shape().to_vec();
    let last = rows.len() - 1;
    rows[last] = 1;
    let statistic = || Tensor::new(x.rt(), &rows, DType::F32, "native_layer_norm");
    let statistics = [statistic(), statistic()].map(|statistic| op.save(&statistic));
    op.finish_one(out, move |rt, gradient, needs| {
        let inputs = saved.into_iter().map(|saved| saved.map(Saved::unpack).expect("LayerNorm saves its operands"));
        let inputs = inputs.collect::<Vec<_>>();
        let _statistics = statistics.map(|saved| saved.map(Saved::unpack));
        let like = |tensor: &Tensor| Tensor::new(rt, tensor.shape(), tensor.dtype(), "native_layer_norm_backward");
        let of_x = Tensor::new(rt, inputs[0].shape(), gradient.dtype(), "native_layer_norm_backward");
        let of_others = inputs.iter().zip(needs).skip(1).map(|(input, needed)| needed.then(|| like(input)));
        [Some(of_x)].into_iter().chain(of_others).collect()
    })
}
