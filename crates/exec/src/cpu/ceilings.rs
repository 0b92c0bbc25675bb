//! What this machine reaches at best, for kernels to be held against: a product and a copy, both too large for caches.

use super::gemm::{Matrix, MatrixMut, product};
use super::parallel;
use std::time::{Duration, Instant};

/// Rows and columns of the product's matrices: 16 MiB each.
const EXTENT: usize = 2048;

/// Floats that are copied: 128 MiB, more than processors' caches hold.
const COPIED: usize = 1 << 25;

/// How long each is repeated; it takes as many times at least as `FEWEST` says.
const LONG_ENOUGH: Duration = Duration::from_millis(600);
const FEWEST: usize = 3;

/// The highest rates that were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Floating point operations of a product of 2,048 x 2,048 matrices, by the library that kernels multiply with.
    pub flops_per_s: f64,
    /// Bytes read and written by a copy of 128 MiB.
    pub bytes_per_s: f64,
}

impl Ceilings {
    /// Measures both on `threads` workers of the current rayon pool. Takes 256 MiB, which no plan knows of, and one to
    /// two seconds, more on slow machines.
    pub fn measure(threads: usize) -> Self {
        Self { flops_per_s: product_flops_per_s(threads), bytes_per_s: copy_bytes_per_s() }
    }
}

fn product_flops_per_s(threads: usize) -> f64 {
    let [a, b] = [0.5, 0.25].map(|value| vec![value; EXTENT * EXTENT]);
    let mut into = vec![0.0; EXTENT * EXTENT];
    let seconds = shortest(|| {
        let (a, b) = (Matrix::new(&a, EXTENT, EXTENT), Matrix::new(&b, EXTENT, EXTENT));
        product(&mut MatrixMut::new(&mut into, EXTENT, EXTENT), false, 1.0, a, b, threads);
    });
    2.0 * (EXTENT as f64).powi(3) / seconds
}

fn copy_bytes_per_s() -> f64 {
    // Pages that were never written may all be one and the same.
    let (from, mut into) = (vec![1.0f32; COPIED], vec![2.0f32; COPIED]);
    let seconds = shortest(|| parallel::copy(&mut into, &from));
    2.0 * (COPIED * size_of::<f32>()) as f64 / seconds
}

/// The shortest time that `work` takes, in seconds: what else the machine does only ever adds to it.
fn shortest(mut work: impl FnMut()) -> f64 {
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < FEWEST || begin.elapsed() < LONG_ENOUGH {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.into_iter().fold(f64::INFINITY, f64::min)
}
