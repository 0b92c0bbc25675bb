//! Reference of `ops/attention.rs`.

use super::{Real, RefCall, Reference, start};
use crate::philox::{dropout_bits, dropout_threshold};
use plimsoll_graph::Scalars;
use plimsoll_graph::ops::{
    Attention, AttentionExtents, AttentionGrad, DROPOUT_TOKENS, EMPTY_LSE, dropout_site_of_head,
};

/// Queries, keys or values.
#[derive(Clone, Copy)]
enum Stream {
    Query,
    Key,
    Value,
}

/// An attention with its operands, which begin at operand `first` of the call.
struct Case<'a, F> {
    op: &'a Attention,
    e: AttentionExtents,
    streams: Vec<&'a [F]>,
    table: Option<&'a [F]>,
    segments: Option<[&'a [i32]; 2]>,
    scalars: &'a Scalars,
}

impl<'a, F: Real> Case<'a, F> {
    fn new(op: &'a Attention, call: &RefCall<'a, F>, first: usize) -> Self {
        let e = op.extents(&call.io.inputs[first..]);
        let streams = (0..op.streams()).map(|index| call.f(first + index)).collect();
        let table = op.table().map(|index| call.f(first + index));
        let segments = op.segments().map(|both| both.map(|index| call.i(first + index)));
        Self { op, e, streams, table, segments, scalars: call.scalars }
    }

    /// The operand with element `d` of token t of sample b for query head h, and the index in it.
    fn place(&self, stream: Stream, [b, t, h, d]: [usize; 4]) -> (usize, usize) {
        let (e, op) = (&self.e, self.op);
        let number = stream as usize;
        let width = op.heads * e.head_size;
        if op.packed {
            return (0, (b * e.queries + t) * 3 * width + number * width + h * e.head_size + d);
        }
        let kv_head = h / (op.heads / op.kv_heads);
        match stream {
            Stream::Query => (0, (b * e.queries + t) * width + h * e.head_size + d),
            _ => (number, (b * e.keys + t) * op.kv_heads * e.head_size + kv_head * e.head_size + d),
        }
    }

    fn value(&self, stream: Stream, place: [usize; 4]) -> f64 {
        let (operand, index) = self.place(stream, place);
        self.streams[operand][index].to_f64()
    }

    fn y(&self, [b, t, h, d]: [usize; 4]) -> usize {
        (b * self.e.queries + t) * self.op.heads * self.e.head_size + h * self.e.head_size + d
    }

    /// The keys that a query attends to.
    fn seen(&self, b: usize, i: usize) -> Vec<usize> {
        let same = |j: usize| self.segments.is_none_or(|[q, k]| q[b * self.e.queries + i] == k[b * self.e.keys + j]);
        let first = self.op.window.map_or(0, |window| (i + 1).saturating_sub(window));
        (first..if self.op.causal { i + 1 } else { self.e.keys }).filter(|&j| same(j)).collect()
    }

    fn score(&self, [b, h, i, j]: [usize; 4]) -> f64 {
        let product = |d| self.value(Stream::Query, [b, i, h, d]) * self.value(Stream::Key, [b, j, h, d]);
        let dot = (0..self.e.head_size).map(product).sum::<f64>();
        let bias = match (&self.op.bias, self.table) {
            (Some(bias), Some(table)) => table[bias.bucket(i, j) * self.op.heads + h].to_f64(),
            _ => 0.0,
        };
        f64::from(self.op.scale) * dot + bias
    }

    /// The factor of a probability: 0 if it is dropped, 1/(1 - rate) if it is kept.
    fn keep_factor(&self, [b, h, i, j]: [usize; 4]) -> f64 {
        let Some(key) = self.op.dropout else { return 1.0 };
        let element = i * DROPOUT_TOKENS + j;
        let (sample, site) = (self.scalars.first_sample + b as u64, dropout_site_of_head(key.site, h));
        let bits = dropout_bits(self.scalars.seed, self.scalars.step, sample, site, (element / 4) as u32);
        let kept = bits[element % 4] >= dropout_threshold(key.rate);
        if kept { 1.0 / (1.0 - f64::from(key.rate)) } else { 0.0 }
    }

    /// Every query of every head of every sample: b, h, i.
    fn rows(&self) -> impl Iterator<Item = [usize; 3]> + use<F> {
        let (heads, samples, queries) = (self.op.heads, self.e.samples, self.e.queries);
        (0..samples).flat_map(move |b| (0..heads).flat_map(move |h| (0..queries).map(move |i| [b, h, i])))
    }
}

impl Reference for Attention {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let case = Case::new(self, call, 0);
        for [b, h, i] in case.rows() {
            let seen = case.seen(b, i);
            let scores = seen.iter().map(|&j| case.score([b, h, i, j])).collect::<Vec<_>>();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = match seen.is_empty() {
                true => f64::from(EMPTY_LSE),
                false => largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln(),
            };
            outputs[1][(b * self.heads + h) * case.e.queries + i] = F::from_f64(lse);
            for d in 0..case.e.head_size {
                let mixed = seen.iter().zip(&scores).map(|(&j, score)| {
                    (score - lse).exp() * case.keep_factor([b, h, i, j]) * case.value(Stream::Value, [b, j, h, d])
                });
                outputs[0][case.y([b, i, h, d])] = F::from_f64(mixed.sum());
            }
        }
    }
}

impl Reference for AttentionGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let case = Case::new(&self.forward, call, 1);
        let (forward, count) = (&self.forward, self.forward.operands());
        let (dy, y, lse) = (call.f(0), call.f(count + 1), call.f(count + 2));
        let mut streams = case.streams.iter().map(|values| vec![0.0; values.len()]).collect::<Vec<_>>();
        let mut table = case.table.map(|values| vec![0.0; values.len()]);
        for [b, h, i] in case.rows() {
            let dot = |x: &[F], other: &dyn Fn(usize) -> f64| {
                (0..case.e.head_size).map(|d| x[case.y([b, i, h, d])].to_f64() * other(d)).sum::<f64>()
            };
            let delta = dot(dy, &|d| y[case.y([b, i, h, d])].to_f64());
            for j in case.seen(b, i) {
                let p = (case.score([b, h, i, j]) - lse[(b * forward.heads + h) * case.e.queries + i].to_f64()).exp();
                let keep = case.keep_factor([b, h, i, j]);
                let dp = keep * dot(dy, &|d| case.value(Stream::Value, [b, j, h, d]));
                let ds = p * (dp - delta);
                if let (Some(table), Some(bias)) = (&mut table, &forward.bias) {
                    table[bias.bucket(i, j) * forward.heads + h] += ds;
                }
                let ds = ds * f64::from(forward.scale);
                for d in 0..case.e.head_size {
                    let mut add = |stream, t, value: f64| {
                        let (operand, index) = case.place(stream, [b, t, h, d]);
                        streams[operand][index] += value;
                    };
                    add(Stream::Query, i, ds * case.value(Stream::Key, [b, j, h, d]));
                    add(Stream::Key, j, ds * case.value(Stream::Query, [b, i, h, d]));
                    add(Stream::Value, j, p * keep * dy[case.y([b, i, h, d])].to_f64());
                }
            }
        }
        for (output, values) in outputs.iter_mut().zip(streams) {
            *output = values.into_iter().map(F::from_f64).collect();
        }
        if let Some(table) = table.filter(|_| self.table) {
            let output = &mut outputs[forward.streams()];
            start(self.accumulate, output);
            output.iter_mut().zip(table).for_each(|(into, value)| *into = F::from_f64(into.to_f64() + value));
        }
    }
}
