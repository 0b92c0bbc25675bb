//! What this machine reaches at best, for kernels to be held against: a large product, and a copy too large for caches.

use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use crate::DeviceError;
use crate::arena::Supply;
use plimsoll_plan::Region;
use plimsoll_units::Bytes;
use std::time::{Duration, Instant};

/// Rows, terms of a sum and columns of the product: of the kind that training is made of.
const PRODUCT: [usize; 3] = [2048, 512, 2048];

/// Floats that are copied: 128 MiB, more than processors' caches hold.
const COPIED: usize = 1 << 25;

/// How long each is repeated, and how often at least, the run that first writes the memory included.
const LONG_ENOUGH: Duration = Duration::from_millis(600);
const FEWEST: usize = 4;

/// The highest rates that were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Floating point operations of a product of 2,048 x 512 and 512 x 2,048, by the library that kernels multiply with.
    pub flops_per_s: f64,
    /// Bytes read and written by a copy of 128 MiB.
    pub bytes_per_s: f64,
}

impl Ceilings {
    /// Memory that measuring takes.
    pub const MEMORY: Bytes = Bytes(2 * 4 * COPIED as u64);

    /// Measures both on `threads` workers of the current rayon pool, in an arena of up to [`MEMORY`](Self::MEMORY), which
    /// no plan knows of. Takes one to two seconds, more on slow machines. Errors: the system refuses the arena.
    pub fn measure(threads: usize) -> Result<Self, DeviceError> {
        let [rows, inner, columns] = PRODUCT;
        let flops_per_s = measure([rows * inner, inner * columns, rows * columns], |[a, b, into]| {
            let (a, b) = (Matrix::new(a, rows, inner), Matrix::new(b, inner, columns));
            product(&mut MatrixMut::new(into, rows, columns), false, 1.0, a, b, threads);
            2 * rows * inner * columns
        })?;
        let bytes_per_s = measure([COPIED, 0, COPIED], |[from, _, into]| {
            parallel::copy(into, from);
            2 * size_of_val(from)
        })?;
        Ok(Self { flops_per_s, bytes_per_s })
    }
}

/// How much of what `work` says that it did it does in a second, at best: what else the machine does only ever takes
/// from it. It gets floats of these sizes, two of them to read and one to write.
fn measure(floats: [usize; 3], work: impl Fn([&mut [f32]; 3]) -> usize) -> Result<f64, DeviceError> {
    let [mut arena] = Supply::default().reserve([floats.iter().map(|floats| 4 * *floats as u64).sum()])?;
    let (begin, mut runs, mut best) = (Instant::now(), 0, 0.0f64);
    while runs < FEWEST || begin.elapsed() < LONG_ENOUGH {
        let mut offset = 0;
        let regions = floats.map(|floats| {
            let region = Region { offset, bytes: 4 * floats as u64 };
            offset = region.end();
            region
        });
        let (_, slices) = arena.split(&[], &regions);
        let mut slices = slices.into_iter().map(bytemuck::cast_slice_mut);
        let slices = [(); 3].map(|()| slices.next().expect("a slice for each region"));
        if runs == 0 {
            slices.into_iter().for_each(|slice| slice.fill(0.5));
        } else {
            let start = Instant::now();
            let done = work(slices);
            best = best.max(done as f64 / start.elapsed().as_secs_f64());
        }
        runs += 1;
    }
    Ok(best)
}
