//! Builds the programs that compute the vectors of texts with an encoder, without training.

use crate::adapters::{Adapted, Adapters};
use crate::models::{Mode, ModelConfig, keys};
use crate::ops::{Pool, Pooling};
use crate::{DType, Graph, GraphError, Lengths, ProgramBuilder, ProgramKind, ProgramName};

/// The shape of the programs that compute vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedShape {
    /// Number of texts at a time.
    pub rows: usize,
    /// Largest number of tokens of a text.
    pub longest: usize,
    /// Smaller numbers of tokens with programs of their own.
    pub buckets: Vec<usize>,
    /// The tokens that a vector is made of.
    pub pooling: Pooling,
}

/// Builds a graph with the weights of an encoder and a program `embed` for each length.
/// Errors: `BadConfig`, also if the model is not an encoder; `TooLong`, `UnknownParameter`.
pub fn build_embedding(
    model: &ModelConfig,
    adapters: Option<&Adapters>,
    shape: &EmbedShape,
) -> Result<Graph, GraphError> {
    model.validate()?;
    model.check_length(shape.longest)?;
    let mut graph = Graph::default();
    let weights = Adapted::declare(&mut graph, model, adapters)?;
    let Some(encoder) = weights.encoder() else {
        return Err(keys::bad("model_type", format!("is `{}`, which is not an encoder", model.model_type())));
    };
    let lengths = shape.buckets.iter().map(|&tokens| Some(Lengths { tokens, target: None }));
    for lengths in [None].into_iter().chain(lengths) {
        let tokens = lengths.map_or(shape.longest, |lengths| lengths.tokens);
        let mut builder = ProgramBuilder::new(&mut graph);
        let texts = ["tokens", "segments"].map(|name| builder.input(name, &[shape.rows, tokens], DType::I32));
        let hidden = encoder.forward(&mut builder, "text", texts, Mode::Evaluate)?;
        weights.adapt_layers(&mut builder, 0, Mode::Evaluate)?;
        let vectors = builder.apply(Pool { pooling: shape.pooling }, &[hidden, texts[1]])?;
        [builder.ports.tokens, builder.ports.segments] = texts.map(Some);
        builder.ports.vectors = Some(vectors);
        builder.finish(ProgramName { kind: ProgramKind::Embed, lengths });
    }
    Ok(graph)
}
