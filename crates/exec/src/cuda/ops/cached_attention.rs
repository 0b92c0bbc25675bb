//! Launches of `kernels/cached_attention.cu`.

use super::CudaKernel;
use super::attention::{MOST_CHANNELS, Shape, block, refusal_of_heads};
use super::shape::line;
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::Io;
use plimsoll_graph::ops::{AttentionExtents, CachedAttention};

/// Suffix of the kernel's name for heads of this size. Panics if there is none: see `refusal`.
fn channels(head_size: usize) -> &'static str {
    match head_size {
        ..=64 => "64",
        65..=MOST_CHANNELS => "256",
        _ => panic!("heads of {head_size} channels"),
    }
}

impl CudaKernel for CachedAttention {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let q = operands.io.inputs[0];
        let (samples, tokens, head_size) = (q.shape[0], q.shape[1], self.head_size(q));
        let (width, keys, size) = (self.heads * head_size, self.kv_heads * head_size, q.dtype.size_bytes());
        let stride = if self.packed { 3 * width } else { width };
        let fed = if self.packed {
            [0, 1, 2].map(|stream| operands.inputs[0] + stream * width as u64 * size)
        } else {
            [operands.inputs[0], operands.inputs[1], operands.inputs[2]]
        };
        let [y, key_cache, value_cache] = [operands.outputs[0], operands.outputs[1], operands.outputs[2]];
        let keep = |which: usize, cache: u64| {
            let fed_stride = if self.packed { stride } else { keys };
            let arguments = Arguments::default()
                .address(fed[which])
                .long(fed_stride as u64 * size)
                .addresses(&[cache, operands.scalars])
                .int(tokens)
                .int(self.capacity)
                .long(keys as u64 * size);
            block("cached_attention", "cached_attention_keep".to_owned(), line(samples * tokens), arguments)
        };
        let shape = Shape {
            strides: [stride, keys, width],
            extents: AttentionExtents { samples, queries: tokens, keys: self.capacity, head_size },
            heads: self.heads,
            kv_heads: self.kv_heads,
            dtype: q.dtype,
            causal: true,
            window: self.window,
            scale: self.scale,
            cap: self.cap,
            bias: self.bias,
            dropout: None,
        };
        let [table, sinks] = [self.table(), self.sinks()].map(|index| index.map_or(0, |index| operands.inputs[index]));
        let arguments = Arguments::default()
            .addresses(&[fed[0], key_cache, value_cache, table, sinks, y, operands.scalars])
            .record(&shape.fields())
            .record(&shape.starts());
        let general = if self.cap.is_some() || self.has_sinks { "_general" } else { "" };
        let entry = format!("cached_attention_{}{general}", channels(head_size));
        let attend = block("cached_attention", entry, line(samples * tokens * self.heads), arguments);
        [keep(1, key_cache), keep(2, value_cache), attend].map(Part::Kernel).to_vec()
    }

    fn refusal(&self, io: &Io, _compute_capability: (u8, u8)) -> Option<String> {
        refusal_of_heads(self.head_size(io.inputs[0]))
    }
}
