//! Reference of `ops/cached_attention.rs`.

use super::soft_cap::capped;
use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::CachedAttention;

impl Reference for CachedAttention {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (samples, t) = (call.io.inputs[0].shape[0], call.io.inputs[0].shape[1]);
        let (start, d) = (call.scalars.position as usize, self.head_size(call.io.inputs[0]));
        let (width, kv_width, group) = (self.heads * d, self.kv_heads * d, self.heads / self.kv_heads);
        let fed = |which: usize, b: usize, row: usize| {
            if self.packed {
                &call.f(0)[(b * t + row) * 3 * width + which * width..][..width]
            } else {
                let width = if which == 0 { width } else { kv_width };
                &call.f(which)[(b * t + row) * width..][..width]
            }
        };
        let places = (0..samples).flat_map(|b| (0..t).map(move |row| (b, row)));
        for (b, row) in places.clone() {
            for which in [1, 2] {
                let at = (b * self.capacity + start + row) * kv_width;
                outputs[which][at..][..kv_width].copy_from_slice(fed(which, b, row));
            }
        }
        for (b, row) in places {
            for h in 0..self.heads {
                let query = &fed(0, b, row)[h * d..][..d];
                let cached = |cache: &[F], j: usize, k: usize| {
                    cache[(b * self.capacity + j) * kv_width + h / group * d + k].to_f64()
                };
                let score = |j: usize| {
                    let dot = (0..d).map(|k| query[k].to_f64() * cached(&outputs[1], j, k)).sum::<f64>();
                    let bias = self.bias.zip(self.table()).map_or(0.0, |(bias, table)| {
                        call.f(table)[bias.bucket(start + row, j) * self.heads + h].to_f64()
                    });
                    (capped(self.cap, f64::from(self.scale) * dot) + bias).exp()
                };
                let first = self.window.map_or(0, |window| (start + row + 1).saturating_sub(window));
                let weights = (first..=start + row).map(score).collect::<Vec<_>>();
                let sink = self.sinks().map_or(0.0, |sinks| call.f(sinks)[h].to_f64().exp());
                let total = weights.iter().sum::<f64>() + sink;
                for k in 0..d {
                    let mixed = weights.iter().zip(first..).map(|(w, j)| w * cached(&outputs[2], j, k)).sum::<f64>();
                    outputs[0][(b * t + row) * width + h * d + k] = F::from_f64(mixed / total);
                }
            }
        }
    }
}
