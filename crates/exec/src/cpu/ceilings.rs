//! The best rates of this machine, which kernels are compared with: a large product, and a copy larger than the caches.

use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use super::run;
use crate::DeviceError;
use crate::arena::Supply;
use crate::call::{Call, Input, Output};
use plimsoll_graph::ops::{Linear, WeightLayout};
use plimsoll_graph::{DType, Io, Op, Scalars, Target, TensorType};
use plimsoll_plan::Region;
use plimsoll_units::Bytes;
use std::time::{Duration, Instant};

/// Rows, terms of a sum and columns of the product: a size that is typical of training.
const PRODUCT: [usize; 3] = [2048, 512, 2048];

/// Floats that are copied: 128 MiB, more than processors' caches hold.
const COPIED: usize = 1 << 25;

/// How long each is repeated, and the least number of runs, including the one that first writes the memory.
const LONG_ENOUGH: Duration = Duration::from_millis(600);
const FEWEST: usize = 4;

/// The highest rates that were measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Floating point operations of a product of 2,048 x 512 and 512 x 2,048, by the library or as a linear layer multiplies,
    /// whichever is faster.
    pub flops_per_s: f64,
    /// The rate of a linear layer of the same extents in `Bf16`; `None` if it was not measured.
    pub bf16_flops_per_s: Option<f64>,
    /// Bytes read and written by a copy of 128 MiB.
    pub bytes_per_s: f64,
}

impl Ceilings {
    /// Bytes of memory needed to measure.
    pub const MEMORY: Bytes = Bytes(2 * 4 * COPIED as u64);

    /// The rate of products with operands in this precision.
    pub fn products_in(&self, dtype: DType) -> f64 {
        match dtype {
            DType::Bf16 => self.bf16_flops_per_s.unwrap_or(self.flops_per_s),
            _ => self.flops_per_s,
        }
    }

    /// Measures them on `threads` workers of the current rayon pool, `Bf16` only if `in_bf16`, in an arena of up to
    /// [`MEMORY`](Self::MEMORY), which is in no plan. Takes one to three seconds, more on slow machines. Errors: the
    /// system refuses the arena.
    pub fn measure(threads: usize, in_bf16: bool) -> Result<Self, DeviceError> {
        let [rows, inner, columns] = PRODUCT;
        let by_library = measure([rows * inner, inner * columns, rows * columns], |[a, b, into]| {
            let (a, b) = (Matrix::new(a, rows, inner), Matrix::new(b, inner, columns));
            product(&mut MatrixMut::new(into, rows, columns), false, 1.0, a, b, threads);
            2 * rows * inner * columns
        })?;
        let bytes_per_s = measure([COPIED, 0, COPIED], |[from, _, into]| {
            parallel::copy(into, from);
            2 * size_of_val(from)
        })?;
        let flops_per_s = by_library.max(measure_linear(threads, DType::F32)?);
        let bf16_flops_per_s = if in_bf16 { Some(measure_linear(threads, DType::Bf16)?) } else { None };
        Ok(Self { flops_per_s, bf16_flops_per_s, bytes_per_s })
    }
}

/// Floating point operations per second of the product as a linear layer in this precision.
fn measure_linear(threads: usize, dtype: DType) -> Result<f64, DeviceError> {
    let [rows, inner, columns] = PRODUCT;
    let op = Op::from(Linear { layout: WeightLayout::InOut, bias: false });
    let types = [[rows, inner], [inner, columns], [rows, columns]];
    let types = types.map(|shape| TensorType::f32(&shape).with_dtype(dtype));
    let [x, weight, y] = &types;
    let io = Io::new([x, weight], [y]);
    let floats = |ty: &TensorType| ty.bytes().0 as usize / 4;
    let scratch = op.working_bytes(&io, &Target::Cpu { threads }).0 as usize / 4;
    let scalars = Scalars::default();
    measure([floats(x), floats(weight), floats(y), scratch], |[x, weight, y, scratch]| {
        let inputs = [x, weight].map(|values| Input::Raw(bytemuck::cast_slice(values)));
        let outputs = vec![Output::Raw(bytemuck::cast_slice_mut(y))];
        let call = Call { inputs: inputs.into(), outputs, scratch, io: io.clone(), scalars: &scalars, threads };
        run(&op, call);
        op.flops(&io) as usize
    })
}

/// The best rate of `work`, which returns how much it did; other load on the machine can only lower it. It gets slices
/// of these sizes to read and write.
fn measure<const N: usize>(floats: [usize; N], work: impl Fn([&mut [f32]; N]) -> usize) -> Result<f64, DeviceError> {
    let bytes = floats.iter().map(|floats| 4 * *floats as u64).sum();
    let arenas = Supply::default().reserve(&[bytes].into_iter().collect())?;
    let mut arena = arenas.into_iter().next().expect("an arena for each size");
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
        let slices = [(); N].map(|()| slices.next().expect("a slice for each region"));
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
