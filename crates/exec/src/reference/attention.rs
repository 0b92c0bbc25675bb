//! Reference of `ops/attention.rs`.

use super::soft_cap::{capped, slope};
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
    sinks: Option<&'a [F]>,
    segments: Option<[&'a [i32]; 2]>,
    scalars: &'a Scalars,
}

impl<'a, F: Real> Case<'a, F> {
    fn new(op: &'a Attention, call: &RefCall<'a, F>, first: usize) -> Self {
        let e = op.extents(&call.io.inputs[first..]);
        let streams = (0..op.streams()).map(|index| call.f(first + index)).collect();
        let table = op.table().map(|index| call.f(first + index));
        let sinks = op.sinks().map(|index| call.f(first + index));
        let segments = op.segments().map(|both| both.map(|index| call.i(first + index)));
        Self { op, e, streams, table, sinks, segments, scalars: call.scalars }
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
        let end = if self.op.causal { i + 1 } else { self.op.window.map_or(self.e.keys, |w| self.e.keys.min(i + w)) };
        (first..end).filter(|&j| same(j)).collect()
    }

    fn score(&self, [b, h, i, j]: [usize; 4]) -> f64 {
        let product = |d| self.value(Stream::Query, [b, i, h, d]) * self.value(Stream::Key, [b, j, h, d]);
        let dot = (0..self.e.head_size).map(product).sum::<f64>();
        let bias = match (&self.op.bias, self.table) {
            (Some(bias), Some(table)) => table[bias.bucket(i, j) * self.op.heads + h].to_f64(),
            _ => 0.0,
        };
        let score = f64::from(self.op.scale) * dot;
        capped(self.op.cap, score) + bias
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
            let sink = case.sinks.map(|sinks| sinks[h].to_f64());
            let summed = || scores.iter().copied().chain(sink);
            let largest = summed().fold(f64::NEG_INFINITY, f64::max);
            let lse = match seen.is_empty() {
                true => f64::from(EMPTY_LSE),
                false => largest + summed().map(|s| (s - largest).exp()).sum::<f64>().ln(),
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
        let mut sinks = case.sinks.map(|values| vec![0.0; values.len()]);
        for [b, h, i] in case.rows() {
            let dot = |x: &[F], other: &dyn Fn(usize) -> f64| {
                (0..case.e.head_size).map(|d| x[case.y([b, i, h, d])].to_f64() * other(d)).sum::<f64>()
            };
            let delta = dot(dy, &|d| y[case.y([b, i, h, d])].to_f64());
            let lse = lse[(b * forward.heads + h) * case.e.queries + i].to_f64();
            if let (Some(of_sinks), Some(values)) = (&mut sinks, case.sinks) {
                of_sinks[h] -= (values[h].to_f64() - lse).exp() * delta;
            }
            for j in case.seen(b, i) {
                let score = case.score([b, h, i, j]);
                let p = (score - lse).exp();
                let keep = case.keep_factor([b, h, i, j]);
                let dp = keep * dot(dy, &|d| case.value(Stream::Value, [b, j, h, d]));
                let ds = p * (dp - delta);
                if let (Some(table), Some(bias)) = (&mut table, &forward.bias) {
                    table[bias.bucket(i, j) * forward.heads + h] += ds;
                }
                let ds = ds * slope(forward.cap, score) * f64::from(forward.scale);
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
        let learned = table.filter(|_| self.table).into_iter().chain(sinks.filter(|_| self.sinks));
        for (output, values) in outputs[forward.streams()..].iter_mut().zip(learned) {
            start(self.accumulate, output);
            output.iter_mut().zip(values).for_each(|(into, value)| *into = F::from_f64(into.to_f64() + value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{Value, run};
    use plimsoll_graph::{Io, Op, TensorType};

    fn results(op: &Op, operands: &[(&[f64], &[usize])]) -> Vec<Vec<f64>> {
        let types = operands.iter().map(|(_, shape)| TensorType::f32(shape)).collect::<Vec<_>>();
        let outputs = op.infer(&types.iter().collect::<Vec<_>>()).expect("well-typed");
        let mut results = outputs.iter().map(|ty| vec![0.0; ty.elements()]).collect::<Vec<_>>();
        let inputs = operands.iter().map(|(values, _)| Value::Float(values.to_vec())).collect::<Vec<_>>();
        let io = Io::new(&types, &outputs);
        run(op, &RefCall { inputs: inputs.iter().collect(), io, scalars: &Scalars::default() }, &mut results);
        results
    }

    /// Results and gradients of `eager_attention_forward` of transformers 5.24 in double precision, of Gemma 2 with a
    /// `softcap` of 1.5 and of gpt-oss with sinks, for the loss Σ y·w: y, dq, dk, dv, dsinks.
    #[test]
    fn capped_attention_and_sinks_equal_transformers() {
        let numbers = |count: usize, f: fn(usize) -> f64| (0..count).map(f).collect::<Vec<_>>();
        let [q, w] = [|i: usize| (i * 7 % 11) as f64 / 2.0 - 2.5, |i: usize| (i * 3 % 7) as f64 / 4.0 - 0.75]
            .map(|f| numbers(16, f));
        let [k, v] =
            [|i: usize| (i * 5 % 7) as f64 / 2.0 - 1.5, |i: usize| (i * 3 % 5) as f64 - 2.0].map(|f| numbers(8, f));
        let (wide, narrow, rows): (&[usize], &[usize], &[usize]) = (&[1, 4, 4], &[1, 4, 2], &[1, 2, 4]);
        let plain = Attention {
            heads: 2,
            kv_heads: 1,
            packed: false,
            causal: true,
            window: Some(3),
            scale: 0.5,
            cap: None,
            bias: None,
            has_sinks: false,
            segmented: false,
            dropout: None,
            rows: 4,
        };
        let check = |op: Attention, expected: &[&str]| {
            let sinks: (&[f64], &[usize]) = (&[0.5, -1.0], &[2]);
            let operands = [(&q[..], wide), (&k, narrow), (&v, narrow), sinks];
            let operands = &operands[..op.operands()];
            let forward = results(&op.into(), operands);
            let operands = [&[(&w[..], wide)], operands, &[(&forward[0], wide), (&forward[1], rows)]].concat();
            let found = [&forward[..1], &results(&AttentionGrad::of_all(op).into(), &operands)].concat();
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let expected = expected.split(' ').map(|x| x.parse::<f64>().expect("a number")).collect::<Vec<_>>();
                assert_eq!(found.len(), expected.len());
                let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-6, "{op:?}: {found:?}, not {expected:?}");
            }
        };
        check(
            Attention { cap: Some(1.5), ..plain },
            &[
                "-2 1 -2 1 -1.161664 1.838336 -1.241882 1.758118 \
                 -1.733634 0.862334 -1.01032 1.418907 0 -0.333333 -0.074374 -1.275547",
                "0 0 0 0 0 0 -0.02888 0.065097 \
                 -0.089015 -0.053421 -0.113496 -0.093861 -0.043586 -0.043586 0.003686 -0.022424",
                "0.022455 0.007118 0.105472 -0.228691 0.065412 0.166972 -0.156422 0.088266",
                "0.110184 0.160825 0.131864 -0.445173 -0.761338 0.201015 -0.23071 0.083333",
            ],
        );
        check(
            Attention { has_sinks: true, ..plain },
            &[
                "-1.734072 0.867036 -1.905148 0.952574 -0.676296 1.114483 -0.90902 1.397308 \
                 -1.629688 0.819808 -0.931316 1.434814 0 -0.25 -0.046152 -1.526165",
                "-0.129695 0.086464 0.059294 -0.03953 0.035991 0.132466 -0.002654 0.150972 \
                 -0.123736 0.021821 -0.119244 -0.149071 -0.039062 -0.03125 -0.01344 -0.014155",
                "-0.29365 0.09863 -0.256977 -0.137885 0.005571 0.19751 -0.126461 0.077833",
                "0.116454 0.258169 0.037371 -0.262115 -0.767229 0.122521 -0.155988 0.0625",
                "0.118658 0.297203",
            ],
        );
    }
}
