//! One vector for each sample, from its tokens.

use super::CpuKernel;
use super::half::Float;
use super::parallel;
use super::tiles::{operand, results};
use crate::call::Call;
use ::half::{bf16, f16};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{self, Pooling};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::Pool {
    fn run(&self, call: Call) {
        match call.io.inputs[0].dtype {
            DType::F16 => run::<f16>(self.pooling, call),
            DType::Bf16 => run::<bf16>(self.pooling, call),
            _ => run::<f32>(self.pooling, call),
        }
    }
}

/// Number of a sample's tokens that count, and a factor of their sum.
fn counted(pooling: Pooling, segments: &[i32]) -> (usize, f32) {
    match pooling {
        Pooling::First => (1, 1.0),
        Pooling::Mean => {
            let count = segments.iter().filter(|&&segment| segment != 0).count();
            (segments.len(), 1.0 / count.max(1) as f32)
        }
    }
}

fn run<E: Float>(pooling: Pooling, mut call: Call) {
    let (x, segments) = (operand::<E>(&call, 0), call.i32(1));
    let (tokens, channels) = (call.io.inputs[0].shape[1], call.io.inputs[0].shape[2]);
    let [y] = call.take_outputs();
    let samples = y.par_chunks_mut(channels).zip(x.par_chunks(tokens * channels)).zip(segments.par_chunks(tokens));
    parallel::for_each(x.len(), samples, |((y, x), segments)| {
        let (tokens, factor) = counted(pooling, segments);
        y.fill(0.0);
        for (x, _) in x.chunks_exact(channels).zip(&segments[..tokens]).filter(|(_, segment)| **segment != 0) {
            E::accumulate(x, y);
        }
        for y in y {
            *y *= factor;
        }
    });
}

impl CpuKernel for ops::PoolGrad {
    fn run(&self, call: Call) {
        match call.io.outputs[0].dtype {
            DType::F16 => run_grad::<f16>(self.pooling, call),
            DType::Bf16 => run_grad::<bf16>(self.pooling, call),
            _ => run_grad::<f32>(self.pooling, call),
        }
    }
}

/// Elements of a row that are rounded at a time.
const TILE: usize = 1 << 10;

fn run_grad<E: Float>(pooling: Pooling, mut call: Call) {
    let (dy, segments) = (call.f32(0), call.i32(1));
    let (tokens, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let [dx] = results::<E, 1>(&mut call);
    let elements = dx.len();
    let samples = dx.par_chunks_mut(tokens * channels).zip(dy.par_chunks(channels)).zip(segments.par_chunks(tokens));
    parallel::for_each(elements, samples, |((dx, dy), segments)| {
        let (tokens, factor) = counted(pooling, segments);
        for (t, (dx, &segment)) in dx.chunks_exact_mut(channels).zip(segments).enumerate() {
            let factor = if t < tokens && segment != 0 { factor } else { 0.0 };
            for (dx, dy) in dx.chunks_mut(TILE).zip(dy.chunks(TILE)) {
                let mut tile = [0.0; TILE];
                tile.iter_mut().zip(dy).for_each(|(tile, dy)| *tile = dy * factor);
                E::round(&tile[..dy.len()], dx);
            }
        }
    });
}
