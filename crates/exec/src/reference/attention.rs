//! Reference of `ops/attention.rs`.

use super::{Real, RefCall};
use crate::philox::{dropout_bits, dropout_threshold};
use graph::Scalars;
use graph::ops::{Attention, AttentionGrad};

/// Extents of an attention.
struct Extents {
    b: usize,
    t: usize,
    c: usize,
    d: usize,
}

impl Extents {
    fn of(qkv: &[usize], heads: usize) -> Self {
        Self { b: qkv[0], t: qkv[1], c: qkv[2] / 3, d: qkv[2] / 3 / heads }
    }

    /// Where element `d` of the query (part 0), key (1) or value (2) of token t, head h of sample b lies.
    fn qkv(&self, part: usize, b: usize, t: usize, h: usize, d: usize) -> usize {
        (b * self.t + t) * 3 * self.c + part * self.c + h * self.d + d
    }

    fn y(&self, b: usize, t: usize, h: usize, d: usize) -> usize {
        (b * self.t + t) * self.c + h * self.d + d
    }
}

/// What a probability is multiplied by: 0 if it is dropped, 1/(1 - rate) if it is kept.
fn keep_factor(op: &Attention, scalars: &Scalars, e: &Extents, [b, h, i, j]: [usize; 4]) -> f64 {
    let Some(key) = op.dropout else { return 1.0 };
    let element = ((h * e.t + i) * e.t + j) as u64;
    let sample = scalars.first_sample + b as u64;
    let bits = dropout_bits(scalars.seed, scalars.step, sample, key.site, (element / 4) as u32);
    let kept = bits[(element % 4) as usize] >= dropout_threshold(key.rate);
    if kept { 1.0 / (1.0 - f64::from(key.rate)) } else { 0.0 }
}

fn score<F: Real>(qkv: &[F], e: &Extents, [b, h, i, j]: [usize; 4]) -> f64 {
    let dot: f64 = (0..e.d).map(|d| qkv[e.qkv(0, b, i, h, d)].to_f64() * qkv[e.qkv(1, b, j, h, d)].to_f64()).sum();
    dot / (e.d as f64).sqrt()
}

pub(super) fn attention<F: Real>(op: &Attention, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (qkv, e) = (call.f(0), Extents::of(&call.io.inputs[0].shape, op.heads));
    for b in 0..e.b {
        for h in 0..op.heads {
            for i in 0..e.t {
                let seen = if op.causal { i + 1 } else { e.t };
                let scores = (0..seen).map(|j| score(qkv, &e, [b, h, i, j])).collect::<Vec<_>>();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let lse = largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
                outputs[1][(b * op.heads + h) * e.t + i] = F::from_f64(lse);
                for d in 0..e.d {
                    let mixed = (0..seen).map(|j| {
                        let weight = (scores[j] - lse).exp() * keep_factor(op, call.scalars, &e, [b, h, i, j]);
                        weight * qkv[e.qkv(2, b, j, h, d)].to_f64()
                    });
                    outputs[0][e.y(b, i, h, d)] = F::from_f64(mixed.sum());
                }
            }
        }
    }
}

pub(super) fn attention_grad<F: Real>(op: &AttentionGrad, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (dy, qkv, y, lse) = (call.f(0), call.f(1), call.f(2), call.f(3));
    let (op, e) = (&op.forward, Extents::of(&call.io.inputs[1].shape, op.forward.heads));
    let mut dqkv = vec![0.0; qkv.len()];
    let scale = 1.0 / (e.d as f64).sqrt();
    for b in 0..e.b {
        for h in 0..op.heads {
            for i in 0..e.t {
                let dot = |x: &[F], other: &dyn Fn(usize) -> f64| {
                    (0..e.d).map(|d| x[e.y(b, i, h, d)].to_f64() * other(d)).sum::<f64>()
                };
                let delta = dot(dy, &|d| y[e.y(b, i, h, d)].to_f64());
                for j in 0..if op.causal { i + 1 } else { e.t } {
                    let p = (score(qkv, &e, [b, h, i, j]) - lse[(b * op.heads + h) * e.t + i].to_f64()).exp();
                    let keep = keep_factor(op, call.scalars, &e, [b, h, i, j]);
                    let dp = keep * dot(dy, &|d| qkv[e.qkv(2, b, j, h, d)].to_f64());
                    let ds = p * (dp - delta) * scale;
                    for d in 0..e.d {
                        dqkv[e.qkv(0, b, i, h, d)] += ds * qkv[e.qkv(1, b, j, h, d)].to_f64();
                        dqkv[e.qkv(1, b, j, h, d)] += ds * qkv[e.qkv(0, b, i, h, d)].to_f64();
                        dqkv[e.qkv(2, b, j, h, d)] += p * keep * dy[e.y(b, i, h, d)].to_f64();
                    }
                }
            }
        }
    }
    outputs[0] = dqkv.into_iter().map(F::from_f64).collect();
}
