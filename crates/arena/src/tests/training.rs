//! Random lifetimes like those of a transformer's training step: the problems that the heuristics are made for.
//!
//! ```text
//!   layer      forward           head            backward
//!     3              +-----------------------------+  ^^^        ---  saved for the mirror image
//!     2         +------------------------------------------+     ^^^  gradients, passed on in a chain
//!     1    +--------------------------------------------------------+
//!           '''  '''  '''   chunk chunk chunk                    '''  scratch, parts of a recompute
//! ```

use super::rng::Rng;
use crate::{Buffer, Problem};

/// The sizes of one model and what it saves.
struct Shape {
    layers: u64,
    tokens: u64,
    channels: u64,
    hidden: u64,
    heads: u64,
    vocabulary: u64,
    chunks: u64,
    bytes: u64,
    /// Percentage of layers that keep only their output and run again in the backward pass.
    recomputed: u64,
    dropout: bool,
    gated: bool,
    /// Each weight is updated as soon as its gradient is ready, which makes gradients short-lived.
    update_in_backward: bool,
    /// Bytes of scratch of a matrix product.
    scratch: u64,
}

/// A training step with about `buffers` buffers.
pub fn training_step(seed: u64, buffers: u64) -> Problem {
    let rng = &mut Rng(seed);
    let channels = rng.pick(&[256, 384, 512, 768, 1024, 1280, 1600, 2048, 4096]);
    let recomputed = rng.pick(&[0, 0, 50, 80, 100]);
    let shape = Shape {
        layers: (buffers / (30 + recomputed / 10)).max(1),
        tokens: rng.range(1, 16) * rng.pick(&[128, 200, 512, 1000, 1024, 2048]),
        channels,
        hidden: channels * rng.pick(&[3, 4]) - rng.pick(&[0, 0, 64]),
        heads: channels / rng.pick(&[64, 128]),
        vocabulary: rng.pick(&[257, 8_192, 32_000, 50_257, 128_256]),
        chunks: rng.range(1, 16),
        bytes: rng.pick(&[2, 4]),
        recomputed,
        dropout: rng.chance(30),
        gated: rng.chance(50),
        update_in_backward: rng.chance(30),
        scratch: rng.pick(&[0, 0, 1 << 20, 32 << 20]),
    };
    let mut tape = Tape { now: 0, buffers: Vec::new() };
    step(&mut tape, &shape, rng);
    Problem { buffers: tape.buffers, alignment: 256 }
}

/// The buffers of a sequence of ops, one op per instant.
struct Tape {
    now: u64,
    buffers: Vec<Buffer>,
}

impl Tape {
    /// Runs an op that creates outputs and holds scratch while it runs; it is the last use of the buffers in `close`.
    fn op<const N: usize>(&mut self, scratch: u64, outputs: [u64; N], close: &[usize]) -> [usize; N] {
        let made = outputs.map(|size| {
            self.buffers.push(Buffer::new(self.now, u64::MAX, size));
            self.buffers.len() - 1
        });
        if scratch > 0 {
            self.buffers.push(Buffer::new(self.now, self.now + 1, scratch));
        }
        self.now += 1;
        for &buffer in close {
            self.buffers[buffer].lifespan.upper = self.now;
        }
        made
    }
}

/// The tensors that a layer saves for its backward pass.
struct Saved {
    norm1: usize,
    rstd1: usize,
    qkv: usize,
    attention: usize,
    lse: usize,
    residual: usize,
    rstd2: usize,
    norm2: usize,
    up: usize,
    act: usize,
    masks: Vec<usize>,
}

impl Saved {
    fn all(&self) -> Vec<usize> {
        let fixed = [self.norm1, self.rstd1, self.qkv, self.attention, self.lse];
        let more = [self.residual, self.rstd2, self.norm2, self.up, self.act];
        fixed.into_iter().chain(more).chain(self.masks.iter().copied()).collect()
    }
}

fn step(tape: &mut Tape, s: &Shape, rng: &mut Rng) {
    let c = s.tokens * s.channels * s.bytes;
    let [ids, targets] = tape.op(0, [s.tokens * 4, s.tokens * 4], &[]);
    let [mut x] = tape.op(0, [c], &[]);

    let mut layers = Vec::new();
    for _ in 0..s.layers {
        let (saved, out) = forward(tape, s, x);
        let again = rng.chance(s.recomputed);
        if again {
            tape.op(0, [], &saved.all());
        }
        layers.push((x, saved, again));
        x = out;
    }
    let [norm, rstd] = tape.op(0, [c, s.tokens * 4], &[]);
    let [d_norm, losses] = tape.op(0, [c, s.tokens * 4], &[]);
    for _ in 0..s.chunks {
        let chunk = s.tokens.div_ceil(s.chunks) * s.vocabulary * s.bytes;
        let [logits] = tape.op(s.scratch, [chunk], &[]);
        let [d_logits] = tape.op(0, [chunk], &[logits]);
        tape.op(s.scratch, [], &[d_logits]);
    }
    let [mut gradient] = tape.op(0, [c], &[norm, rstd, d_norm, losses, targets, x]);
    for (input, mut saved, again) in layers.into_iter().rev() {
        if again {
            let (again, out) = forward(tape, s, input);
            tape.op(0, [], &[out]);
            saved = again;
        }
        gradient = backward(tape, s, input, &saved, gradient);
    }
    tape.op(0, [], &[gradient, ids]);
}

/// Returns the saved tensors and the layer's output.
fn forward(tape: &mut Tape, s: &Shape, x: usize) -> (Saved, usize) {
    let c = s.tokens * s.channels * s.bytes;
    let h = s.tokens * s.hidden * s.bytes;
    let mut masks = Vec::new();
    let [norm1, rstd1] = tape.op(0, [c, s.tokens * 4], &[]);
    let [qkv] = tape.op(s.scratch, [3 * c], &[]);
    let [attention, lse] = tape.op(c / 2, [c, s.tokens * s.heads * 4], &[]);
    let [projected] = tape.op(s.scratch, [c], &[]);
    if s.dropout {
        masks.extend(tape.op(0, [s.tokens * s.channels], &[]));
    }
    let [residual] = tape.op(0, [c], &[projected]);
    let [norm2, rstd2] = tape.op(0, [c, s.tokens * 4], &[]);
    let [up] = tape.op(s.scratch, [if s.gated { 2 * h } else { h }], &[]);
    let [act] = tape.op(0, [h], &[]);
    let [down] = tape.op(s.scratch, [c], &[]);
    if s.dropout {
        masks.extend(tape.op(0, [s.tokens * s.channels], &[]));
    }
    let [out] = tape.op(0, [c], &[down]);
    let _ = x;
    (Saved { norm1, rstd1, qkv, attention, lse, residual, rstd2, norm2, up, act, masks }, out)
}

/// Takes the gradient of the layer's output and returns that of its input.
fn backward(tape: &mut Tape, s: &Shape, x: usize, saved: &Saved, d_out: usize) -> usize {
    let c = s.tokens * s.channels * s.bytes;
    let h = s.tokens * s.hidden * s.bytes;
    let wide = if s.gated { 2 } else { 1 };
    weight(tape, s, s.hidden * s.channels);
    let [d_act] = tape.op(s.scratch, [h], &[saved.act]);
    let [d_up] = tape.op(0, [wide * h], &[d_act, saved.up]);
    weight(tape, s, wide * s.hidden * s.channels);
    let [d_norm2] = tape.op(s.scratch, [c], &[d_up, saved.norm2]);
    let [d_residual] = tape.op(0, [c], &[d_norm2, saved.rstd2, saved.residual, d_out]);
    weight(tape, s, s.channels * s.channels);
    let [d_attention] = tape.op(s.scratch, [c], &[]);
    let [d_qkv] = tape.op(2 * c, [3 * c], &[d_attention, saved.attention, saved.lse, saved.qkv]);
    weight(tape, s, 3 * s.channels * s.channels);
    let [d_norm1] = tape.op(s.scratch, [c], &[d_qkv, saved.norm1]);
    tape.op(0, [], &saved.masks);
    let [d_x] = tape.op(0, [c], &[d_norm1, d_residual, saved.rstd1, x]);
    d_x
}

/// The gradient of a weight, unless it outlives the step.
fn weight(tape: &mut Tape, s: &Shape, elements: u64) {
    if s.update_in_backward {
        let [gradient] = tape.op(s.scratch, [elements * s.bytes], &[]);
        tape.op(0, [], &[gradient]);
    } else {
        tape.op(s.scratch, [], &[]);
    }
}
