//! Launches of products of any extents: on tensor cores in half precision (`kernels/product.cu`), in 8 bits
//! (`kernels/fp8_product.cu`), and in TF32 (`kernels/product_tf32.cu`) if requested, if a card's tensor cores support the type; else
//! `kernels/linear.cu`.
//!
//! Nothing is padded for tensor cores. A copy of 16 bytes fills the bytes after a matrix's end with zeros, matrices with
//! unaligned rows are copied by element, and rows of logits, which are scratch, start at multiples of 16 bytes: a
//! vocabulary of 50,257 takes the same copies as one of 50,304. Tiles are 128 wide, or 64 for few or unaligned rows.

use super::shape::{blocks, extent, launch, number, suffix};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::cuda::product::{Codes, Factors, Matrix, Product};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{ENOUGH_TENSOR_TILES, Fp8, InnerParts, LARGE_TILE, TILE, tiles};

/// The first compute capability whose tensor cores support TF32.
pub const OLDEST_WITH_TF32: (u8, u8) = (8, 0);

/// Fewest larger tiles for which `linear.cu` uses them: on an H100 with 132 multiprocessors, 144 are 25 % slower than smaller
/// ones (`bench/results/2026-11-22-h100-products.md`).
const ENOUGH_TILES: usize = 192;
/// Alignment of rows for the larger tile, in bytes.
pub(super) const VECTOR: u64 = 16;
/// `THREADS` of `product.cuh`.
pub(super) const TENSOR_THREADS: u32 = 128;

/// Results per thread of `product_join`: `EACH` of `linear.cu`.
const JOINED: usize = 4;

/// The part of kernels' names for single precision rounded to TF32.
pub(super) const TF32: &str = "tf32";

/// Indices of a product's extents.
const ROWS: usize = 0;
const COLUMNS: usize = 1;
const INNER: usize = 2;

/// The type in which the card's tensor cores multiply numbers of this type, as in kernels' names: f16 from compute
/// capability 7.5 on, bf16 from 8.0 on, TF32 for single precision if requested. `None` if they can't.
pub(super) fn tensor_type(dtype: DType, of: &Operands) -> Option<&'static str> {
    let first = match dtype {
        DType::F16 => (7, 5),
        DType::Bf16 => (8, 0),
        DType::F32 if of.tf32 => OLDEST_WITH_TF32,
        _ => return None,
    };
    let has = of.compute_capability >= first;
    has.then(|| if dtype == DType::F32 { TF32 } else { suffix(dtype) })
}

impl Product {
    /// The product as a part of the op of these operands.
    pub(super) fn part(self, of: &Operands) -> Part {
        let pieces = self.pieces().into_iter().map(|piece| (piece, piece.launches(of))).collect();
        Part::Product { pieces, kernels: self.launches(of) }
    }

    /// Splits the product so that contiguous extents are whole vectors, if strides are, plus the rest: libraries have
    /// no fast algorithms for others. GPT-2's 50,257 ids become 50,256 and one.
    fn pieces(self) -> Vec<Self> {
        let vector = 16 / self.left.dtype.size_bytes() as usize;
        let [left, right] = self.axes_that_lie_closest();
        let lies_closest = [(self.left, left), (self.right, right), (self.result, COLUMNS)];
        let mut pieces = vec![self];
        for axis in [ROWS, COLUMNS, INNER] {
            let mut strides =
                lies_closest.iter().filter(|(_, closest)| *closest == axis).map(|(of, _)| of.stride).peekable();
            let extent = self.extents[axis];
            let is_worth_it = extent > 8 * vector && !extent.is_multiple_of(vector);
            if is_worth_it && strides.peek().is_some() && strides.all(|stride| stride.is_multiple_of(vector)) {
                pieces = pieces.into_iter().flat_map(|piece| piece.cut(axis, extent / vector * vector)).collect();
            }
        }
        pieces
    }

    /// The product as about `count` of some of its rows or columns, whichever are more.
    pub(in crate::cuda) fn split(self, count: u64) -> Vec<Self> {
        let axis = if self.extents[ROWS] >= self.extents[COLUMNS] { ROWS } else { COLUMNS };
        let each = (self.extents[axis] as u64).div_ceil(count.max(1)).next_multiple_of(LARGE_TILE as u64) as usize;
        let (mut pieces, mut rest) = (Vec::new(), self);
        while rest.extents[axis] > each {
            let [first, second] = rest.cut(axis, each);
            pieces.push(first);
            rest = second;
        }
        pieces.push(rest);
        pieces
    }

    /// The contiguous axis of each factor.
    fn axes_that_lie_closest(&self) -> [usize; 2] {
        match self.factors {
            Factors::Plain => [INNER, COLUMNS],
            Factors::RightTransposed => [INNER, INNER],
            Factors::LeftTransposed => [ROWS, COLUMNS],
        }
    }

    /// Splits the product in two along an axis, in the order of computation: along the inner axis, the few terms from
    /// `at` on come first, and the others are added to them.
    fn cut(self, axis: usize, at: usize) -> [Self; 2] {
        let [left, right] = self.axes_that_lie_closest();
        let behind = |matrix: Matrix, closest| {
            let elements = if closest == axis { at } else { at * matrix.stride };
            Matrix { address: matrix.address + elements as u64 * matrix.dtype.size_bytes(), ..matrix }
        };
        let mut first = Self { parts: InnerParts::whole(self.extents[INNER]), ..self };
        first.extents[axis] = at;
        let mut second = first;
        second.extents[axis] = self.extents[axis] - at;
        if axis != COLUMNS {
            second.left = behind(self.left, left);
        }
        if axis != ROWS {
            second.right = behind(self.right, right);
        }
        if axis != INNER {
            second.result = behind(self.result, COLUMNS);
        }
        if axis == COLUMNS && self.bias != 0 {
            second.bias += at as u64 * self.result.dtype.size_bytes();
        }
        if axis == INNER {
            let whole = |piece: Self| Self { parts: InnerParts::whole(piece.extents[INNER]), ..piece };
            return [whole(second), Self { accumulate: true, bias: 0, ..whole(first) }];
        }
        [first, second]
    }

    /// Its launches as a part of the op of these operands.
    pub(in crate::cuda) fn launches(&self, of: &Operands) -> Vec<Launch> {
        if self.parts.count == 1 {
            return vec![self.launch(of)];
        }
        let result = Matrix { address: self.partial, dtype: DType::F32, stride: self.extents[1] };
        let cut = Self { result, bias: 0, scaled_by: 0, accumulate: false, ..*self };
        vec![cut.launch(of), self.join()]
    }

    /// The sum of the parts.
    fn join(&self) -> Launch {
        let [rows, columns, _] = self.extents;
        let arguments = Arguments::default()
            .addresses(&[self.partial, self.result.address, self.bias, self.scaled_by])
            .int(self.parts.count)
            .int(rows)
            .int(columns)
            .long(self.result.stride as u64)
            .int(number(self.result.dtype))
            .int(number(self.result.dtype))
            .flag(self.accumulate);
        launch("linear", "product_join", blocks(rows * columns, JOINED), arguments)
    }

    /// The launch of the product, or of all of its parts. The precision and order of sums depend on the inner extent
    /// and its parts alone, so a product of some of the rows has the same bits as in the whole.
    fn launch(&self, of: &Operands) -> Launch {
        let factors = match self.factors {
            Factors::Plain => "nn",
            Factors::RightTransposed => "nt",
            Factors::LeftTransposed => "tn",
        };
        let [rows, columns, _] = self.extents;
        if let Some(numbers) = self.on_tensor_cores(of) {
            let tile = if self.fills(ENOUGH_TENSOR_TILES) && self.is_aligned() { LARGE_TILE } else { TILE };
            let entry = format!("product_{factors}_{numbers}_{tile}");
            let grid = [extent(tiles([rows, columns], tile)), extent(self.parts.count), 1];
            let (module, arguments) = match (self.codes, self.left.dtype) {
                (Some(codes), _) => ("fp8_product", self.arguments(&codes.scales).int(number(self.result.dtype))),
                (None, DType::F16) => ("product_f16", self.arguments(&[]).int(number(self.result.dtype))),
                (None, DType::Bf16) => ("product_bf16", self.arguments(&[]).int(number(self.result.dtype))),
                _ => ("product_tf32", self.arguments(&[self.scaled_by])),
            };
            return Launch { threads: TENSOR_THREADS, ..launch(module, entry, grid, arguments.flag(self.accumulate)) };
        }
        let tile = if self.fills(ENOUGH_TILES) && self.is_of_whole_vectors() { LARGE_TILE } else { TILE };
        let arguments = [self.left, self.right, self.result]
            .iter()
            .fold(self.arguments(&[self.scaled_by]), |arguments, matrix| arguments.int(number(matrix.dtype)));
        let grid = [columns.div_ceil(tile), rows.div_ceil(tile), self.parts.count].map(extent);
        launch("linear", format!("product_{factors}_{tile}"), grid, arguments.flag(self.accumulate))
    }

    /// The type in which the card's tensor cores multiply these factors, as in kernels' names. `None` if they can't.
    fn on_tensor_cores(&self, of: &Operands) -> Option<&'static str> {
        if let Some(Codes { formats, .. }) = self.codes {
            return Some(match formats {
                [Fp8::E4m3, Fp8::E4m3] => "e4m3_e4m3",
                [Fp8::E4m3, Fp8::E5m2] => "e4m3_e5m2",
                [Fp8::E5m2, Fp8::E4m3] => "e5m2_e4m3",
                [Fp8::E5m2, Fp8::E5m2] => unreachable!("no layer multiplies two gradients"),
            });
        }
        let is_possible = match self.left.dtype {
            DType::F32 => self.result.dtype == DType::F32,
            _ => self.scaled_by == 0,
        };
        let are_alike = self.right.dtype == self.left.dtype;
        if is_possible && are_alike { tensor_type(self.left.dtype, of) } else { None }
    }

    /// Whether there are at least `enough` larger tiles. The tile's size does not change the bits.
    fn fills(&self, enough: usize) -> bool {
        let [rows, columns, _] = self.extents;
        tiles([rows, columns], LARGE_TILE) * self.parts.count >= enough
    }

    /// Whether rows of both factors are aligned to vectors.
    fn is_aligned(&self) -> bool {
        let begins_at_vectors = |matrix: &Matrix| {
            let row_bytes = matrix.stride as u64 * matrix.dtype.size_bytes();
            (matrix.address | row_bytes).is_multiple_of(VECTOR)
        };
        [self.left, self.right].iter().all(begins_at_vectors)
    }

    /// Whether all matrices are in single precision, and both factors consist of whole vectors.
    fn is_of_whole_vectors(&self) -> bool {
        let numbers = (VECTOR / DType::F32.size_bytes()) as usize;
        let is_single = [self.left, self.right, self.result].iter().all(|matrix| matrix.dtype == DType::F32);
        let ends_with_one = |axis: usize| self.extents[axis].is_multiple_of(numbers);
        is_single && self.is_aligned() && self.axes_that_lie_closest().into_iter().all(ends_with_one)
    }

    /// Addresses of matrices and bias, further addresses, extents, the extent of a part, strides.
    fn arguments(&self, further: &[u64]) -> Arguments {
        let matrices = [self.left, self.right, self.result];
        let arguments = Arguments::default()
            .addresses(&matrices.map(|matrix| matrix.address))
            .address(self.bias)
            .addresses(further);
        let extents = self.extents.into_iter().chain([self.parts.each]);
        let arguments = extents.fold(arguments, Arguments::int);
        matrices.iter().fold(arguments, |arguments, matrix| arguments.long(matrix.stride as u64))
    }
}
