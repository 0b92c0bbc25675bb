//! The contrastive loss of sentence encoders: each anchor must be more similar to its own candidate than to all others of
//! the batch.

use super::{
    Access, Example, Fill, Io, Nature, Op, Operation, Target, accumulating, expect_rank, expect_type, operands,
    product_scratch,
};
use crate::{Backward, DType, DeviceKind, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// loss = `Scalars::loss_scale` · Σ_i (log Σ_j exp s_ij - s_ii), with the similarities s_ij = `scale` · cos(a_i, c_j), over
/// the samples i that are present and the candidates j of present samples. Candidate j belongs to sample j mod B: first
/// come the positives of all samples, then their hard negatives.
/// anchors a: (B, C), candidates c: (k·B, C), both in `F32`, present: (B,) integers, negative for no sample -> loss: (1,).
/// Scratch: the reciprocal lengths of all vectors, B × k·B similarities, B losses; on the processor also the normalized
/// vectors and that of products.
/// Errors: `ShapeMismatch` if operands do not match.
/// Source: van den Oord et al. 2018 (arXiv:1807.03748), eq. 4; Henderson et al. 2017 (arXiv:1705.00652), section 4;
/// `MultipleNegativesRankingLoss` of sentence-transformers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ContrastiveLoss {
    /// Factor of the cosines.
    pub scale: f32,
}

/// [`ContrastiveLoss`] and its gradient in one pass.
/// The same operands -> loss: (1,), danchors: (B, C), dcandidates: (k·B, C). The gradients are multiplied by
/// `Scalars::gradient_scale`; those of a vector of length zero are zero. Scratch: as the forward op.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ContrastiveLossGrad {
    /// Factor of the cosines.
    pub scale: f32,
    /// Whether the loss is added to the existing value.
    pub accumulate_loss: bool,
}

fn check(op: &'static str, inputs: &[&TensorType]) -> Result<(), GraphError> {
    let [anchors, candidates, present] = operands(op, inputs)?;
    expect_rank(op, "anchors", anchors, 2)?;
    expect_rank(op, "candidates", candidates, 2)?;
    let (rows, columns) = (anchors.shape[0], anchors.shape[1]);
    expect_type(op, "anchors", anchors, &TensorType::f32(&[rows, columns]))?;
    expect_type(op, "candidates", candidates, &TensorType::f32(&[candidates.shape[0], columns]))?;
    if !candidates.shape[0].is_multiple_of(rows) {
        let problem = format!("{} candidates of {rows} samples", candidates.shape[0]);
        return Err(GraphError::ShapeMismatch { op, problem });
    }
    expect_type(op, "present", present, &TensorType { shape: [rows].as_slice().into(), dtype: DType::I32 })
}

/// Anchors, channels and candidates: the extents of the product that computes similarities. Those of its gradients are
/// the same in another order.
fn extents(io: &Io) -> [usize; 3] {
    [io.inputs[0].shape[0], io.inputs[0].shape[1], io.inputs[1].shape[0]]
}

/// Bytes read from and written to memory by one pass over the similarities per product.
fn moved(io: &Io, passes: u64) -> Bytes {
    let [rows, _, candidates] = extents(io);
    let vectors = io.inputs[0].bytes() + io.inputs[1].bytes();
    Bytes(passes * (vectors.0 + 4 * (rows * candidates) as u64))
}

fn scratch(io: &Io, target: &Target) -> Bytes {
    let [rows, channels, candidates] = extents(io);
    let vectors = rows + candidates;
    let floats = vectors + rows * candidates + rows;
    match target.kind() {
        DeviceKind::Cuda => Bytes(4 * floats as u64),
        DeviceKind::Cpu => {
            let products = [[rows, channels, candidates], [rows, candidates, channels], [candidates, rows, channels]];
            let of = |extents| product_scratch([DType::F32; 2], extents, target.threads());
            let products = products.map(of).into_iter().max().expect("three products");
            Bytes(4 * (floats + vectors * channels).next_multiple_of(16) as u64) + products
        }
    }
}

/// What both ops share: their kernels have their own products, of these extents.
macro_rules! of_similarities {
    () => {
        fn nature(&self) -> Nature {
            Nature::Products
        }

        fn product(&self, io: &Io) -> Option<[usize; 3]> {
            Some(extents(io))
        }

        fn uses_library(&self) -> bool {
            false
        }

        fn scratch(&self, io: &Io, target: &Target) -> Bytes {
            scratch(io, target)
        }
    };
}

impl Operation for ContrastiveLoss {
    of_similarities!();

    fn name(&self) -> &'static str {
        "contrastive_loss"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("contrastive_loss", inputs)?;
        Ok(vec![TensorType::f32(&[1])])
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * extents(io).iter().product::<usize>() as u64
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        moved(io, 2)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let (inputs, loss) = (cx.inputs().to_vec(), cx.output(0));
        let op = ContrastiveLossGrad { scale: self.scale, accumulate_loss: cx.accumulates() };
        cx.retire_node();
        let made = cx.push_to_parameters(|_| op.into(), &inputs, &[Some(loss), None, None], &[])?;
        for index in [0, 1] {
            if cx.wants(index) {
                cx.give(index, made[1 + index])?;
            }
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let case = |scale, [rows, candidates, channels]: [usize; 3]| {
            let shapes: [&[usize]; 3] = [&[rows, channels], &[candidates, channels], &[rows]];
            Example::uniform(Self { scale }, &shapes).fill(2, Fill::Target(3))
        };
        vec![case(1.0, [3, 3, 5]), case(2.0, [4, 8, 7]), case(20.0, [1, 1, 4]), case(5.0, [37, 74, 65])]
    }
}

impl Operation for ContrastiveLossGrad {
    of_similarities!();

    fn name(&self) -> &'static str {
        "contrastive_loss_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        check("contrastive_loss_grad", inputs)?;
        Ok(vec![TensorType::f32(&[1]), inputs[0].clone(), inputs[1].clone()])
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { accumulating(self.accumulate_loss) } else { Access::Write }
    }

    fn flops(&self, io: &Io) -> u64 {
        6 * extents(io).iter().product::<usize>() as u64
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        moved(io, 4) + io.outputs[1].bytes() + io.outputs[2].bytes()
    }

    fn examples() -> Vec<Example> {
        let with = |(example, accumulate_loss): (Example, bool)| {
            let Op::ContrastiveLoss(ContrastiveLoss { scale }) = example.op else {
                unreachable!("the examples have the forward op")
            };
            Example { op: Self { scale, accumulate_loss }.into(), ..example }
        };
        ContrastiveLoss::examples().into_iter().zip([true, false, true, false]).map(with).collect()
    }
}
