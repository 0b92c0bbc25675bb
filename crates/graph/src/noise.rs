//! Noise on the embeddings of tokens in training (NEFTune, Jain et al. 2023): a rewrite of a forward pass, after its adapters were
//! added. Random bits are those of dropout.

use crate::ops::UniformNoise;
use crate::{GraphError, Lengths, ProgramBuilder, Role, Storage, TensorId};

/// The sites of random bits of a pass through the model; those of a second pass follow.
pub(crate) const SITES: u32 = 1 << 20;
/// The sites of noise: just before those of adapters, which are the second half.
const NOISE_SITE: u32 = SITES / 2 - 2;

/// Noise that is added to the embeddings of tokens in training.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise {
    pub alpha: f32,
    /// The longest rows of the run: the noise of a row does not depend on how far its micro-batch is padded.
    pub longest: Lengths,
}

impl Noise {
    /// Adds noise to these results of nodes from `first` on, the embeddings of sources and of targets.
    pub(crate) fn add(
        &self,
        builder: &mut ProgramBuilder,
        first: usize,
        embedded: [Option<TensorId>; 2],
        draw: u32,
    ) -> Result<(), GraphError> {
        let lengths = [self.longest.tokens, self.longest.target.unwrap_or(self.longest.tokens)];
        let (outer, block) = builder.current_scope();
        for mut node in builder.nodes.split_off(first) {
            let Some(side) = embedded.iter().position(|&result| result == Some(node.outputs[0])) else {
                builder.nodes.push(node);
                continue;
            };
            let y = node.outputs[0];
            let (name, ty) = (builder.graph[y].name.clone(), builder.graph[y].ty.clone());
            let amplitude = self.alpha / ((lengths[side] * ty.columns()) as f32).sqrt();
            let clean = builder.graph.tensor(format!("{name}/clean"), ty, Role::Activation, Storage::Transient);
            builder.scope(name.to_string(), node.block);
            node.outputs[0] = clean;
            builder.nodes.push(node);
            let op = UniformNoise { amplitude, site: draw * SITES + NOISE_SITE + side as u32 };
            builder.push_into(op, &[clean], &[Some(y)])?;
        }
        builder.scope(outer, block);
        Ok(())
    }
}
