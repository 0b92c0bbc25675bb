//! Launches of the products of experts: on tensor cores `kernels/expert_product.cu` and `kernels/expert_product_tf32.cu`,
//! else `kernels/expert_linear.cu`. As for other products, neither the size of tiles nor the routing changes the bits of
//! a row. Weights in codes are decoded into scratch, those of some experts at a time (`kernels/quantized_linear.cu`).

use super::CudaKernel;
use super::products::{TENSOR_THREADS, TF32, VECTOR, tensor_type};
use super::quantized_linear::{Decoded, decode};
use super::shape::{THREADS, WARP, extent, launch, line, number};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::{
    ENOUGH_TENSOR_TILES, ExpertLinear, ExpertLinearInputGrad, ExpertLinearWeightGrad, LARGE_TILE,
    QuantizedExpertLinear, QuantizedExpertLinearInputGrad, TILE, WeightLayout, groups, tiles,
};
use plimsoll_graph::{DType, WeightCodes};

impl CudaKernel for ExpertLinear {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let bias = if self.bias { operands.inputs[3] } else { 0 };
        vec![of_rows(operands, &Experts::all(operands, bias), self.layout == WeightLayout::OutIn).into()]
    }
}

impl CudaKernel for ExpertLinearInputGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        vec![of_rows(operands, &Experts::all(operands, 0), self.layout == WeightLayout::InOut).into()]
    }
}

impl CudaKernel for QuantizedExpertLinear {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let bias = if self.bias { operands.inputs[3 + self.codes.scale_count()] } else { 0 };
        in_groups(operands, self.codes, bias, self.layout == WeightLayout::OutIn)
    }
}

impl CudaKernel for QuantizedExpertLinearInputGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        in_groups(operands, self.codes, 0, self.layout == WeightLayout::InOut)
    }
}

/// For each group of experts, a kernel that decodes their weights, and their products.
fn in_groups(operands: &Operands, codes: WeightCodes, bias: u64, is_transposed: bool) -> Vec<Part> {
    let shape = codes.shape(operands.io.inputs[1]);
    let (experts, rows, columns) = (shape[0], shape[1], shape[2]);
    let of_bias = operands.io.outputs[0].columns() as u64 * operands.io.outputs[0].dtype.size_bytes();
    let bounds = operands.inputs[2 + codes.scale_count()];
    let parts = groups(experts, rows * columns).flat_map(|group| {
        let own_bounds = bounds + group.start as u64 * DType::I32.size_bytes();
        let decoded = Decoded { rows: group.start * rows..group.end * rows, columns: 0..columns, bounds };
        let experts = Experts {
            weight: operands.scratch.address,
            bounds: own_bounds,
            count: group.len(),
            bias: if bias == 0 { 0 } else { bias + group.start as u64 * of_bias },
        };
        [decode(operands, codes, &decoded).into(), of_rows(operands, &experts, is_transposed).into()]
    });
    parts.collect()
}

impl CudaKernel for ExpertLinearWeightGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let dy = operands.io.inputs[1];
        let experts = operands.io.inputs[2].elements() - 1;
        let mut parts = Vec::new();
        let mut results = operands.outputs.iter().copied();
        if let Some(dweight) = results.next().filter(|_| self.weight) {
            parts.push(over_rows(self, operands, dweight, experts).into());
        }
        if let Some(&dbias) = operands.outputs.last().filter(|_| self.bias) {
            let arguments = Arguments::default()
                .addresses(&[operands.inputs[1], dbias, operands.inputs[2]])
                .int(dy.columns())
                .flag(self.accumulate)
                .int(number(dy.dtype));
            let grid = [extent(dy.columns().div_ceil(WARP)), extent(experts), 1];
            parts.push(launch("expert_linear", "expert_row_sums", grid, arguments).into());
        }
        parts
    }
}

/// The product of each expert: tiles of its weight along x, experts along y.
fn over_rows(op: &ExpertLinearWeightGrad, operands: &Operands, dweight: u64, experts: usize) -> Launch {
    let order = if op.layout == WeightLayout::InOut { [0, 1] } else { [1, 0] };
    let [rows, columns] = order.map(|index| operands.io.inputs[index].columns());
    let [left, right] = order.map(|index| operands.inputs[index]);
    let kernel = Kernel::of(operands, [rows, columns, experts], &[rows, columns]);
    let tiles = rows.div_ceil(kernel.tile) * columns.div_ceil(kernel.tile);
    let arguments = Arguments::default()
        .addresses(&[left, right, dweight, operands.inputs[2]])
        .int(rows)
        .int(columns)
        .flag(op.accumulate);
    // Kernels on tensor cores have the type of their factors.
    let arguments =
        if kernel.numbers.is_some() { arguments } else { arguments.int(number(operands.io.inputs[0].dtype)) };
    kernel.launch("tn", [extent(tiles), extent(experts), 1], arguments)
}

/// Consecutive experts: the addresses of their weights, of the bounds of their rows, and of their biases or zero.
struct Experts {
    weight: u64,
    bounds: u64,
    count: usize,
    bias: u64,
}

impl Experts {
    /// All experts of an op whose weights are not in codes.
    fn all(operands: &Operands, bias: u64) -> Self {
        let count = operands.io.inputs[2].elements() - 1;
        Self { weight: operands.inputs[1], bounds: operands.inputs[2], count, bias }
    }
}

/// The product of the rows of each of these experts with its matrix, which is transposed or not: for each tile that any routing
/// may need, tiles of columns next to each other.
fn of_rows(operands: &Operands, experts: &Experts, is_transposed: bool) -> Launch {
    let (x, y) = (operands.io.inputs[0], operands.io.outputs[0]);
    let (rows, inner, columns) = (x.rows(), x.columns(), y.columns());
    let kernel = Kernel::of(operands, [rows, columns, 1], &[inner, if is_transposed { inner } else { columns }]);
    let tiles = (rows / kernel.tile + experts.count) * columns.div_ceil(kernel.tile);
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], experts.weight, operands.outputs[0], experts.bias, experts.bounds])
        .int(experts.count)
        .int(columns)
        .int(inner)
        .int(number(x.dtype));
    kernel.launch(if is_transposed { "nt" } else { "nn" }, line(tiles), arguments)
}

/// The kernel of a product.
struct Kernel {
    /// The type of tensor cores that multiply it, as in kernels' names.
    numbers: Option<&'static str>,
    tile: usize,
}

impl Kernel {
    /// The kernel for results of these rows and columns, `count` times, and factors with rows of these extents.
    fn of(operands: &Operands, [rows, columns, count]: [usize; 3], strides: &[usize]) -> Self {
        let dtype = operands.io.inputs[0].dtype;
        let numbers = tensor_type(dtype, operands);
        let fills = tiles([rows, columns], LARGE_TILE) * count >= ENOUGH_TENSOR_TILES;
        let is_aligned = strides.iter().all(|stride| (*stride as u64 * dtype.size_bytes()).is_multiple_of(VECTOR));
        let is_large = numbers.is_some() && dtype != DType::F32 && fills && is_aligned;
        Self { numbers, tile: if is_large { LARGE_TILE } else { TILE } }
    }

    fn launch(&self, factors: &str, grid: [u32; 3], arguments: Arguments) -> Launch {
        let tile = self.tile;
        let (module, entry, threads) = match self.numbers {
            None => ("expert_linear", format!("experts_{factors}_{tile}"), THREADS),
            Some(numbers) => {
                let module = match numbers {
                    TF32 => "expert_product_tf32",
                    "f16" => "expert_product_f16",
                    _ => "expert_product_bf16",
                };
                (module, format!("experts_{factors}_{numbers}_{tile}"), TENSOR_THREADS)
            }
        };
        Launch { threads, ..launch(module, entry, grid, arguments) }
    }
}
