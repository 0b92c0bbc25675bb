//! Launches of `kernels/attention.cu` and `attention_grad.cu`, and if a card's tensor cores support the operands, of
//! `attention_tensor_results.cuh` and `attention_tensor_grad.cuh`, whose shapes are in `attention_tensor.rs`.

use super::CudaKernel;
use super::attention_tensor::{Pass, SPAN, grid, read_bytes};
use super::shape::{extent, launch, line, number};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::philox::dropout_threshold;
use plimsoll_graph::ops::{
    Attention, AttentionExtents, AttentionGrad, DropoutKey, MOST_BUCKETS, RelativeBias, attends_on_tensor_cores,
    card_queries,
};
use plimsoll_graph::{DType, Io, TensorType};

/// Threads of a block: `THREADS` of `attention.cuh`.
const THREADS: u32 = 128;

/// The window of an attention without one: `ALL_KEYS` of `attention.cuh`.
const ALL_KEYS: usize = 1 << 30;

/// Most channels of a head that kernels support.
pub(super) const MOST_CHANNELS: usize = 256;

/// Why no card has kernels for heads of this size; `None` if they have.
pub(super) fn refusal_of_heads(head_size: usize) -> Option<String> {
    (head_size > MOST_CHANNELS).then(|| format!("heads of {head_size} channels, GPUs support up to {MOST_CHANNELS}"))
}

/// Why no card has kernels for an attention of heads of this size in this type; `None` if they have. Blocks of kernels on
/// tensor cores read a span of a large head as whole vectors.
fn refusal_of_attention(head_size: usize, dtype: DType) -> Option<String> {
    let is_uneven = dtype.is_half() && head_size > SPAN && !head_size.is_multiple_of(8);
    let uneven = || format!("heads of {head_size} channels in {dtype:?}, GPUs support multiples of 8 above {SPAN}");
    refusal_of_heads(head_size).or_else(|| is_uneven.then(uneven))
}

/// `struct Shape` of `attention.cuh`.
pub(super) struct Shape {
    /// Elements from a token's queries, keys and results to the next token's.
    pub(super) strides: [usize; 3],
    pub(super) extents: AttentionExtents,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dtype: DType,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
    pub(super) scale: f32,
    pub(super) cap: Option<f32>,
    pub(super) bias: Option<RelativeBias>,
    pub(super) dropout: Option<DropoutKey>,
}

impl Shape {
    fn of(op: &Attention, operands: &[&TensorType]) -> Self {
        let extents = op.extents(operands);
        let width = op.heads * extents.head_size;
        let keys = op.kv_heads * extents.head_size;
        Self {
            strides: if op.packed { [3 * width, 3 * width, width] } else { [width, keys, width] },
            extents,
            heads: op.heads,
            kv_heads: op.kv_heads,
            dtype: operands[0].dtype,
            causal: op.causal,
            window: op.window,
            scale: op.scale,
            cap: op.cap,
            bias: op.bias,
            dropout: op.dropout,
        }
    }

    pub(super) fn fields(&self) -> Arguments {
        let (directions, bidirectional) = self.bias.map_or((1, false), |bias| (directions(&bias), bias.bidirectional));
        let rate = self.dropout.map_or(0.0, |key| key.rate);
        let strides = self.strides.iter().fold(Arguments::default(), |fields, &stride| fields.long(stride as u64));
        let window = self.window.map_or(ALL_KEYS, |window| window.min(ALL_KEYS));
        strides
            .int(self.extents.queries)
            .int(self.extents.keys)
            .int(self.extents.head_size)
            .int(self.heads)
            .int(self.kv_heads)
            .int(number(self.dtype))
            .int(if self.causal { 1 } else { window })
            .int(window)
            .float(self.scale)
            .float(self.cap.unwrap_or(0.0))
            .int(self.bias.map_or(0, |bias| bias.buckets / directions))
            .flag(bidirectional)
            .word(dropout_threshold(rate))
            .float((1.0 / (1.0 - f64::from(rate))) as f32)
            .word(self.dropout.map_or(0, |key| key.site))
    }

    /// `struct Starts`: the smallest distance of each bucket, computed with the op's own function.
    pub(super) fn starts(&self) -> Arguments {
        let Some(bias) = self.bias else { return Arguments::default().ints(&[0; MOST_BUCKETS]) };
        let buckets = bias.buckets / directions(&bias);
        let mut starts = [0; MOST_BUCKETS];
        // Distances from `max_distance` on share the last bucket.
        let mut next = 1;
        for distance in 1..=bias.max_distance {
            let bucket = bias.bucket(distance, 0);
            while next <= bucket.min(buckets - 1) {
                starts[next] = i32::try_from(distance).unwrap_or(i32::MAX);
                next += 1;
            }
        }
        starts[next..].fill(i32::MAX);
        Arguments::default().ints(&starts)
    }

    /// Tokens of a tile on a card of this compute capability.
    fn tile(&self, compute_capability: (u8, u8)) -> usize {
        card_queries(self.dtype, self.extents.head_size, compute_capability)
    }

    /// A launch of blocks, for heads of samples by tiles: of this kernel in single precision, or of this pass's kernel
    /// on tensor cores if the card supports it.
    fn launch(
        &self,
        (module, entry): (&'static str, &str),
        pass: Pass,
        [heads, tokens]: [usize; 2],
        (compute_capability, arguments): ((u8, u8), Arguments),
    ) -> Launch {
        let (dtype, AttentionExtents { samples, queries, keys, head_size }) = (self.dtype, self.extents);
        let tiles = tokens.div_ceil(self.tile(compute_capability));
        if !attends_on_tensor_cores(dtype, head_size, compute_capability) {
            let grid = [extent(samples * heads), extent(tiles), extent(head_size.div_ceil(SPAN))];
            return block(module, entry.to_owned(), grid, arguments);
        }
        let (read, arguments) = match pass {
            Pass::Forward => (keys, arguments),
            Pass::Queries { .. } => (keys, arguments.int(pass.stages(head_size, compute_capability))),
            Pass::Keys => {
                (queries * (self.heads / self.kv_heads), arguments.int(pass.stages(head_size, compute_capability)))
            }
        };
        let grid = grid(samples * heads, tiles, head_size, read_bytes(read, head_size));
        let (module, entry) = pass.kernel(head_size, dtype);
        let shared_bytes = extent(pass.shared_bytes(head_size, compute_capability));
        Launch { shared_bytes, ..block(module, entry, grid, arguments) }
    }
}

/// Number of directions with separate buckets.
fn directions(bias: &RelativeBias) -> usize {
    if bias.bidirectional { 2 } else { 1 }
}

/// Addresses of queries, keys and values, or of their gradients.
fn streams(op: &Attention, addresses: &[u64], ty: &TensorType, head_size: usize) -> [u64; 3] {
    if !op.packed {
        return [addresses[0], addresses[1], addresses[2]];
    }
    let width = (op.heads * head_size) as u64 * ty.dtype.size_bytes();
    [0, 1, 2].map(|stream| addresses[0] + stream * width)
}

/// Addresses of the table and of the segments of queries and keys; 0 if absent.
fn facts(op: &Attention, addresses: &[u64]) -> [u64; 3] {
    let segments = op.segments().map_or([0, 0], |both| both.map(|index| addresses[index]));
    [op.table().map_or(0, |index| addresses[index]), segments[0], segments[1]]
}

/// Lanes that sum a row of channels together, 8 channels each: `lanes_of_row` of `attention_grad_sums.cu`.
fn lanes_of_row(channels: usize) -> usize {
    channels.div_ceil(8).next_power_of_two().min(32)
}

pub(super) fn block(module: &'static str, entry: String, grid: [u32; 3], arguments: Arguments) -> Launch {
    Launch { threads: THREADS, ..launch(module, entry, grid, arguments) }
}

impl CudaKernel for Attention {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let shape = Shape::of(self, &operands.io.inputs);
        let e = shape.extents;
        let arguments = Arguments::default()
            .addresses(&streams(self, &operands.inputs, operands.io.inputs[0], e.head_size))
            .addresses(&facts(self, &operands.inputs))
            .address(self.sinks().map_or(0, |index| operands.inputs[index]))
            .addresses(&operands.outputs)
            .address(operands.scalars)
            .record(&shape.fields())
            .record(&shape.starts());
        let arguments = (operands.compute_capability, arguments);
        let entry = if self.cap.is_some() || self.has_sinks { "attention_general" } else { "attention" };
        vec![shape.launch(("attention", entry), Pass::Forward, [self.heads, e.queries], arguments).into()]
    }

    fn refusal(&self, io: &Io, _compute_capability: (u8, u8)) -> Option<String> {
        refusal_of_attention(self.extents(&io.inputs).head_size, io.inputs[0].dtype)
    }
}

impl CudaKernel for AttentionGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (forward, count) = (&self.forward, self.forward.operands());
        let (inputs, types) = (&operands.inputs[1..=count], &operands.io.inputs[1..=count]);
        let shape = Shape::of(forward, types);
        let (e, heads) = (shape.extents, forward.heads);
        let (dy, y, lse) = (operands.inputs[0], operands.inputs[count + 1], operands.inputs[count + 2]);
        let delta = operands.scratch.address;
        let made = self.table && forward.bias.is_some();
        let partial = if made { delta + 4 * forward.products_with_output(&e) as u64 } else { 0 };
        let [dq, dk, dv] = streams(forward, &operands.outputs, types[0], e.head_size);
        let common = Arguments::default()
            .address(dy)
            .addresses(&streams(forward, inputs, types[0], e.head_size))
            .addresses(&facts(forward, inputs))
            .addresses(&[lse, delta]);
        let rest =
            |arguments: Arguments| arguments.address(operands.scalars).record(&shape.fields()).record(&shape.starts());
        let results = Arguments::default().addresses(&[dy, y, delta]).int(e.samples).record(&shape.fields());
        let rows = line((e.samples * heads * e.queries).div_ceil(THREADS as usize / lanes_of_row(e.head_size)));
        let pass = |entry, pass, blocks, arguments| {
            let arguments = (operands.compute_capability, rest(arguments));
            shape.launch(("attention_grad", entry), pass, blocks, arguments)
        };
        let keys = [forward.kv_heads, e.keys];
        let mut launches = vec![
            block("attention_grad_sums", "attention_grad_results".to_owned(), rows, results),
            pass("attention_grad_keys", Pass::Keys, keys, common.clone().addresses(&[dk, dv])),
            pass(
                "attention_grad_queries",
                Pass::Queries { table: made },
                [heads, e.queries],
                common.addresses(&[dq, partial]),
            ),
        ];
        if let Some(bias) = forward.bias.filter(|_| made) {
            let arguments = Arguments::default()
                .addresses(&[partial, operands.outputs[forward.streams()]])
                .int(e.samples)
                .int(heads)
                .int(e.queries.div_ceil(shape.tile(operands.compute_capability)))
                .int(bias.buckets)
                .flag(self.accumulate);
            let grid = line((bias.buckets * heads).div_ceil(THREADS as usize));
            launches.push(block("attention_grad_sums", "attention_grad_table".to_owned(), grid, arguments));
        }
        if let Some(sinks) = forward.sinks().filter(|_| self.sinks) {
            let arguments = Arguments::default()
                .addresses(&[lse, delta, inputs[sinks], operands.outputs[forward.streams() + usize::from(made)]])
                .int(e.samples)
                .flag(self.accumulate)
                .record(&shape.fields());
            launches.push(block("attention_grad_sums", "attention_grad_sinks".to_owned(), line(heads), arguments));
        }
        launches.into_iter().map(Part::Kernel).collect()
    }

    fn refusal(&self, io: &Io, _compute_capability: (u8, u8)) -> Option<String> {
        refusal_of_attention(self.forward.extents(&io.inputs[1..]).head_size, io.inputs[0].dtype)
    }
}
