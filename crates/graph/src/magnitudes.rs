//! Magnitudes of adapted weights (DoRA, Liu et al. 2024): an adapted layer has a trained magnitude for each output, and the
//! adapted weight W + s·B·A only gives the direction.
//!
//! ```text
//!   A ─┬─► linear A ─► scale s/2 ─► G ─┐
//!      └─► linear W ─► P ──► linear_add B ─► S ──► low_rank_norm ─► norm ─┐
//!   base ──► linear_add B ─► W x + s·B·A x ──────────────────────► column_scale ─► y
//! ```
//!
//! The norm is that of W + s·B·A, which is never computed: P and S have as many rows as the rank. As in PEFT, the norm has no
//! gradient, and the bias is not scaled.

use crate::ops::{Linear, LinearAdd, LowRankNorm, Scale, WeightLayout};
use crate::{Graph, GraphError, Init, OutputNorms, ProgramBuilder, Role, Storage, StoredPiece, TensorId, TensorType};

/// The magnitudes of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Magnitudes {
    /// The trained magnitudes: (outputs,).
    pub vector: TensorId,
    /// The norms of the frozen weight of each output.
    norms: TensorId,
    layout: WeightLayout,
}

/// The tensors and the factor of a layer with an adapter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdaptedWeight {
    pub weight: TensorId,
    /// A: (rank, inputs).
    pub down: TensorId,
    /// B: (outputs, rank).
    pub up: TensorId,
    pub scale: f32,
}

impl Magnitudes {
    /// Declares the magnitudes of a parameter, which a file of adapters has under `name`, in `pieces` if it is a part of a layer
    /// there. They start as the norms, so that the layer is what it was.
    pub(crate) fn declare(
        graph: &mut Graph,
        weight: TensorId,
        layout: WeightLayout,
        name: String,
        pieces: Vec<StoredPiece>,
    ) -> Self {
        let (_, outputs) = layout.extents(&graph[weight].ty);
        let of_norms = format!("{}.norms", graph[weight].name);
        let norms = graph.tensor(of_norms, TensorType::f32(&[outputs]), Role::Weight, Storage::Persistent);
        let parameter = graph.parameters.iter_mut().find(|parameter| parameter.tensor == weight);
        parameter.expect("a layer's weight is a parameter").norms = Some(OutputNorms { tensor: norms, layout });
        let vector = graph.pieces(name, &[outputs], Init::Copy(norms), true, pieces);
        graph.parameters.last_mut().expect("it was just declared").is_single = true;
        Self { vector, norms, layout }
    }

    /// Appends the norm of the adapted weight of each output: (outputs,).
    pub(crate) fn push_norm(&self, builder: &mut ProgramBuilder, of: &AdaptedWeight) -> Result<TensorId, GraphError> {
        let AdaptedWeight { weight, down, up, scale } = *of;
        let projected = builder.apply(Linear { layout: self.layout, bias: false }, &[down, weight])?;
        let gram = builder.apply(Linear { layout: WeightLayout::OutIn, bias: false }, &[down, down])?;
        let gram = builder.apply(Scale { factor: 0.5 * scale }, &[gram])?;
        let sums = builder.apply(LinearAdd { layout: WeightLayout::OutIn }, &[projected, gram, up])?;
        builder.apply(LowRankNorm { scale }, &[self.norms, sums, up])
    }
}
