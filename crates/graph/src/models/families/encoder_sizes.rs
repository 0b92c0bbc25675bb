//! The sizes that encoders share.

use super::reader::Reader;
use crate::GraphError;
use crate::models::keys::bad;

/// The sizes and the initialization of an encoder.
pub(super) struct EncoderSizes {
    pub(super) vocab_size: usize,
    pub(super) width: usize,
    /// Channels of a feed-forward layer.
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Channels of a head.
    pub(super) head_size: usize,
    pub(super) max_positions: usize,
    pub(super) deviation: f32,
}

impl EncoderSizes {
    /// Errors: `BadConfig` if a key is missing or impossible, or if the heads do not divide the width.
    pub(super) fn read(keys: &mut Reader<'_>) -> Result<Self, GraphError> {
        let (width, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
        if !width.is_multiple_of(heads) {
            let problem = format!("is {heads}, which does not divide hidden_size = {width}");
            return Err(bad("num_attention_heads", problem));
        }
        Ok(Self {
            vocab_size: keys.size("vocab_size")?,
            width,
            inner: keys.size("intermediate_size")?,
            layers: keys.layers()?,
            heads,
            head_size: width / heads,
            max_positions: keys.size("max_position_embeddings")?,
            deviation: keys.number("initializer_range")?,
        })
    }
}
