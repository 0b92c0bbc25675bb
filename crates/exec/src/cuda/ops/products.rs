//! Launches of products, of any extents, and what linear layers and output heads make of them: on tensor cores
//! in half precision (`kernels/product.cu`), and in TF32 (`kernels/product_tf32.cu`) if asked for, where a card has them for
//! its numbers, else `kernels/linear.cu`.

use super::shape::{blocks, extent, launch, number, suffix};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::DType;
use plimsoll_graph::ops::InnerParts;
use serde::{Deserialize, Serialize};

/// The first compute capability whose tensor cores take numbers of TF32.
pub const OLDEST_WITH_TF32: (u8, u8) = (8, 0);

/// Extents of the smaller tile of `product.cuh` and of `linear.cu`, for matrices that lie anyhow.
const TILE: usize = 64;
/// Extents of the larger tile of both, which reads half as much for each product, and how many of them are enough to keep
/// the cards that people have busy (an RTX 3060 has 28 multiprocessors, an RTX 4090 has 128, and each has room for two).
/// On an H100 with 132, 144 tiles on tensor cores are a quarter faster than smaller ones, and of `linear.cu` a quarter
/// slower (`bench/results/2026-11-22-h100-products.md`).
const LARGE_TILE: usize = 128;
const ENOUGH_TENSOR_TILES: usize = 96;
const ENOUGH_TILES: usize = 192;
/// What rows of matrices begin at multiples of for the larger tile, in bytes.
const VECTOR: u64 = 16;
/// `THREADS` of `product.cuh`.
const TENSOR_THREADS: u32 = 128;

/// Results that a thread of `product_join` makes: `EACH` of `linear.cu`.
const JOINED: usize = 4;

/// How names of kernels call numbers in single precision that are rounded to TF32.
const TF32: &str = "tf32";

/// Places of a product's extents.
const ROWS: usize = 0;
const COLUMNS: usize = 1;
const INNER: usize = 2;

/// A matrix where it lies: rows that begin `stride` elements apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct Matrix {
    pub(in crate::cuda) address: u64,
    pub(in crate::cuda) dtype: DType,
    pub(in crate::cuda) stride: usize,
}

/// How the factors of a product lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cuda) enum Factors {
    /// (rows, inner) and (inner, columns).
    Plain,
    /// (rows, inner) and (columns, inner).
    RightTransposed,
    /// (inner, rows) and (inner, columns).
    LeftTransposed,
}

/// result = alpha · left · right + bias, or what is there and that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cuda) struct Product {
    pub(in crate::cuda) factors: Factors,
    pub(in crate::cuda) left: Matrix,
    pub(in crate::cuda) right: Matrix,
    pub(in crate::cuda) result: Matrix,
    /// Address of as many numbers as there are columns, of the right factor's type, which is the result's then; 0 for none.
    pub(in crate::cuda) bias: u64,
    /// Address of the run's scalars where alpha is the scale of the loss and of gradients; 0 where it is one.
    pub(in crate::cuda) scaled_by: u64,
    /// Rows, columns, inner.
    pub(in crate::cuda) extents: [usize; 3],
    pub(in crate::cuda) accumulate: bool,
    /// How the inner extent is cut.
    pub(in crate::cuda) parts: InnerParts,
    /// Address of room for the parts, if there are several.
    pub(in crate::cuda) partial: u64,
}

impl Product {
    /// It as a part of the op of these operands.
    pub(super) fn part(self, of: &Operands) -> Part {
        let pieces = self.pieces().into_iter().map(|piece| (piece, piece.launches(of))).collect();
        Part::Product { pieces, kernels: self.launches(of) }
    }

    /// It by products whose rows in memory are whole vectors, as far as they begin at such, and what is left: libraries
    /// have no fast algorithms for others. GPT-2's 50,257 ids are 50,256 and one.
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

    /// Of each factor the axis along which numbers lie side by side.
    fn axes_that_lie_closest(&self) -> [usize; 2] {
        match self.factors {
            Factors::Plain => [INNER, COLUMNS],
            Factors::RightTransposed => [INNER, INNER],
            Factors::LeftTransposed => [ROWS, COLUMNS],
        }
    }

    /// In two along an axis, in the order in which they are to be computed: along the inner one, the few terms behind `at`
    /// first, to which the others are added.
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
            second.bias += at as u64 * self.right.dtype.size_bytes();
        }
        if axis == INNER {
            let whole = |piece: Self| Self { parts: InnerParts::whole(piece.extents[INNER]), ..piece };
            return [whole(second), Self { accumulate: true, bias: 0, ..whole(first) }];
        }
        [first, second]
    }

    /// Its launches as a part of the op of these operands, on their card.
    fn launches(&self, of: &Operands) -> Vec<Launch> {
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
            .int(number(self.right.dtype))
            .flag(self.accumulate);
        launch("linear", "product_join", blocks(rows * columns, JOINED), arguments)
    }

    /// The launch of the product, or of all of its parts. What the numbers are summed in, and in which order, depends on
    /// the inner extent and its parts alone: some rows of a product have the same bits as in the whole.
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
            let grid = [extent(rows.div_ceil(tile) * columns.div_ceil(tile)), extent(self.parts.count), 1];
            let (module, arguments) = match self.left.dtype {
                DType::F16 => ("product_f16", self.arguments(&[]).int(number(self.result.dtype))),
                DType::Bf16 => ("product_bf16", self.arguments(&[]).int(number(self.result.dtype))),
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

    /// The numbers that the card's tensor cores multiply for these factors, as names of kernels have them: of f16 from
    /// compute capability 7.5 on, of bf16 from 8.0 on, TF32 if all is in single precision. None if they don't.
    fn on_tensor_cores(&self, of: &Operands) -> Option<&'static str> {
        let is_scaled = self.scaled_by != 0;
        let first = match self.left.dtype {
            DType::F16 if !is_scaled => (7, 5),
            DType::Bf16 if !is_scaled => (8, 0),
            DType::F32 if of.tf32 && self.result.dtype == DType::F32 => OLDEST_WITH_TF32,
            _ => return None,
        };
        let has = self.right.dtype == self.left.dtype && of.compute_capability >= first;
        has.then(|| if self.left.dtype == DType::F32 { TF32 } else { suffix(self.left.dtype) })
    }

    /// Whether there are so many of the larger tiles. Which tile it is changes no bit.
    fn fills(&self, enough: usize) -> bool {
        let [rows, columns, _] = self.extents;
        rows.div_ceil(LARGE_TILE) * columns.div_ceil(LARGE_TILE) * self.parts.count >= enough
    }

    /// Whether rows of both factors begin at whole vectors.
    fn is_aligned(&self) -> bool {
        let begins_at_vectors = |matrix: &Matrix| {
            let row_bytes = matrix.stride as u64 * matrix.dtype.size_bytes();
            (matrix.address | row_bytes).is_multiple_of(VECTOR)
        };
        [self.left, self.right].iter().all(begins_at_vectors)
    }

    /// Whether all is in single precision, and both factors are made of whole vectors.
    fn is_of_whole_vectors(&self) -> bool {
        let numbers = (VECTOR / DType::F32.size_bytes()) as usize;
        let is_single = [self.left, self.right, self.result].iter().all(|matrix| matrix.dtype == DType::F32);
        let ends_with_one = |axis: usize| self.extents[axis].is_multiple_of(numbers);
        is_single && self.is_aligned() && self.axes_that_lie_closest().into_iter().all(ends_with_one)
    }

    /// Matrices, the bias and further addresses, extents and that of a part, strides.
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
