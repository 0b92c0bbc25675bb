//! Launches of `kernels/contrastive_loss.cu`.

use super::CudaKernel;
use super::shape::{THREADS, WARP, launch, line};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{ContrastiveLoss, ContrastiveLossGrad};

/// The loss, and its gradients if `gradients` are their addresses.
fn parts(scale: f32, accumulate_loss: bool, gradients: Option<[u64; 2]>, operands: &Operands) -> Vec<Part> {
    let [anchors, candidates, present] = [0, 1, 2].map(|index| operands.inputs[index]);
    let (rows, columns) = (operands.io.inputs[0].shape[0], operands.io.inputs[0].shape[1]);
    let count = operands.io.inputs[1].shape[0];
    let inverse = operands.scratch.address;
    let scores = inverse + 4 * (rows + count) as u64;
    let losses = scores + 4 * (rows * count) as u64;
    let sizes = |arguments: Arguments| arguments.int(rows).int(count).int(columns);
    let of_lengths = sizes(Arguments::default().addresses(&[anchors, candidates, inverse]));
    let of_rows = Arguments::default()
        .addresses(&[anchors, candidates, present, inverse, scores, losses, operands.scalars])
        .int(rows)
        .int(count)
        .int(columns)
        .float(scale)
        .flag(gradients.is_some());
    let of_sum = Arguments::default()
        .addresses(&[losses, operands.outputs[0], operands.scalars])
        .int(rows)
        .flag(accumulate_loss);
    let warps = THREADS as usize / WARP;
    let module = "contrastive_loss";
    let mut launches = vec![
        launch(module, "contrastive_loss_lengths", line((rows + count).div_ceil(warps)), of_lengths),
        launch(module, "contrastive_loss_rows", line(rows), of_rows),
        launch("head_loss", "head_loss_sum", line(1), of_sum),
    ];
    if let Some([danchors, dcandidates]) = gradients {
        let addresses = [anchors, candidates, inverse, scores, danchors, dcandidates];
        let arguments = sizes(Arguments::default().addresses(&addresses));
        launches.push(launch(module, "contrastive_loss_grad", line(rows + count), arguments));
    }
    launches.into_iter().map(Part::Kernel).collect()
}

impl CudaKernel for ContrastiveLoss {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self.scale, false, None, operands)
    }
}

impl CudaKernel for ContrastiveLossGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self.scale, self.accumulate_loss, Some([operands.outputs[1], operands.outputs[2]]), operands)
    }
}
