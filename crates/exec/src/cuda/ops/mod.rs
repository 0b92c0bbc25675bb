//! Which kernels an op is on a card, and what each is started with.

mod attention;
mod attention_tensor;
mod copies;
mod dropout;
mod elementwise;
mod head_loss;
mod norms;
mod optimizer;
mod positions;
mod products;
mod rotary;
mod row_sums;
mod shape;

pub use products::OLDEST_WITH_TF32;
pub(super) use products::{Factors, Matrix, Product};

use super::launch::{Launch, Operands, Part};
use plimsoll_graph::{Io, Op};

/// The parts of an op, in order: products, which a library may compute, and kernels.
/// Panics as [`launches`] does.
pub(super) fn parts(op: &Op, operands: &Operands) -> Vec<Part> {
    match op {
        Op::HeadLoss(op) => head_loss::parts(op, operands),
        Op::HeadLossGrad(op) => head_loss::grad(op, operands),
        Op::Linear(op) => products::linear(op, operands),
        Op::LinearInputGrad(op) => products::input_grad(op, operands),
        Op::LinearWeightGrad(op) => products::weight_grad(op, operands),
        Op::PairedHeadLoss(op) => head_loss::paired(op, operands),
        Op::PairedHeadLossGrad(op) => head_loss::paired_grad(op, operands),
        _ => launches(op, operands).into_iter().map(Part::Kernel).collect(),
    }
}

/// The launches that make up an op where no library computes its products, in order; none where nothing is to be done.
/// Panics if operands are not those that the op's types ask for: plans are validated before they get here. So it does on
/// what [`refusal`] tells of.
pub fn launches(op: &Op, operands: &Operands) -> Vec<Launch> {
    match op {
        Op::Add(_) => elementwise::launches("add", "add", operands),
        Op::Attention(op) => attention::launches(op, operands),
        Op::AttentionGrad(op) => attention::grad(op, operands),
        // A queue ends when its work is done, so that there is nothing to wait for.
        Op::AwaitTransfer(_) => Vec::new(),
        Op::CachedAttention(op) => attention::cached(op, operands),
        Op::Cast(_) => elementwise::cast(operands),
        Op::Dropout(op) => dropout::launches(op, operands),
        Op::Embedding(_) => copies::embedding(operands),
        Op::EmbeddingGrad(op) => copies::embedding_grad(op, operands),
        Op::Gated(op) => elementwise::gated(op.activation, "", operands),
        Op::GatedGrad(op) => elementwise::gated(op.activation, "_grad", operands),
        Op::Gelu(_) => elementwise::launches("gelu", "gelu", operands),
        Op::GeluGrad(_) => elementwise::launches("gelu", "gelu_grad", operands),
        Op::GradClip(op) => optimizer::grad_clip(op, operands),
        Op::GradNorm(_) => optimizer::grad_norm(operands),
        Op::HeadLoss(_)
        | Op::HeadLossGrad(_)
        | Op::Linear(_)
        | Op::LinearInputGrad(_)
        | Op::LinearWeightGrad(_)
        | Op::PairedHeadLoss(_)
        | Op::PairedHeadLossGrad(_) => parts(op, operands).into_iter().flat_map(Part::into_kernels).collect(),
        Op::LayerNorm(op) => norms::layer_norm(op, operands),
        Op::LayerNormGrad(op) => norms::layer_norm_grad(op, operands),
        Op::MovingAverage(op) => optimizer::moving_average(op, operands),
        Op::ParameterUpdate(op) => optimizer::parameter_update(op, operands),
        Op::Positions(op) => positions::launches(op, operands),
        Op::PositionsGrad(op) => positions::grad(op, operands),
        Op::Relu(_) => elementwise::launches("relu", "relu", operands),
        Op::ReluGrad(_) => elementwise::launches("relu", "relu_grad", operands),
        Op::RmsNorm(op) => norms::rms_norm(op, operands),
        Op::RmsNormGrad(op) => norms::rms_norm_grad(op, operands),
        Op::Rotary(op) => rotary::launches(op, operands),
        Op::Scale(op) => elementwise::scale(op, operands),
        Op::TakeRow(_) => copies::take_row(operands),
        Op::Transfer(_) => copies::transfer(operands),
    }
}

/// Why no card has kernels for an op on such operands; none if they have: to be asked before [`launches`].
pub fn refusal(op: &Op, io: &Io) -> Option<String> {
    let head_size = match op {
        Op::Attention(op) => op.extents(&io.inputs).head_size,
        Op::AttentionGrad(op) => op.forward.extents(&io.inputs[1..]).head_size,
        Op::CachedAttention(op) => op.head_size(io.inputs[0]),
        _ => return None,
    };
    let most = attention::MOST_CHANNELS;
    (head_size > most).then(|| format!("heads of {head_size} channels, cards take up to {most}"))
}
