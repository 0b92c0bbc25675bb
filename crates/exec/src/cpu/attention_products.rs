//! Products of attention's blocks: in single precision by the matrix library, strip by strip along the diagonal; in
//! half precision by the built-in kernels (`tiled/packed.rs`), tile by tile, from panels into which each operand is
//! packed once for all its products.

use super::attention_block::{Block, Strip};
use super::half::Float;
use super::matrix::{Matrix, MatrixMut};
use super::product::product;
use super::tiled::{Factor, Packed, PackedProducts, Sums};
use plimsoll_graph::DType;
use std::ops::Range;

/// The multiplier for half precision; `None` if operands are in single precision.
pub(super) struct Products(Option<PackedProducts>);

/// An operand that is multiplied several times.
#[derive(Clone, Copy)]
pub(super) enum Operand<'a> {
    /// In the tensor's own layout.
    Single(Matrix<'a>),
    /// In panels.
    Half(Packed<'a>),
}

impl Products {
    /// For operands in this precision.
    pub(super) fn of<E: Float>() -> Self {
        Self((E::DTYPE != DType::F32).then(|| PackedProducts::of(E::DTYPE)))
    }

    /// A left operand, packed at the beginning of `room` if needed; `room` becomes the memory after it.
    pub(super) fn left<'a, E: Float>(&self, matrix: Matrix<'a, E>, room: &mut &'a mut [f32]) -> Operand<'a> {
        match &self.0 {
            None => Operand::Single(matrix.cast()),
            Some(products) => Operand::Half(products.left(E::factor(matrix), room)),
        }
    }

    /// A right operand, as [`left`](Self::left).
    pub(super) fn right<'a, E: Float>(&self, matrix: Matrix<'a, E>, room: &mut &'a mut [f32]) -> Operand<'a> {
        match &self.0 {
            None => Operand::Single(matrix.cast()),
            Some(products) => Operand::Half(products.right(E::factor(matrix), room)),
        }
    }

    /// into = scale · a b for each key of a block and each query that may attend to it, and zero for other tiles and
    /// strips. into: (keys, queries), a: (keys of the head, D), b: (D, queries).
    pub(super) fn key_by_query(&self, block: &Block, into: &mut [f32], scale: f32, a: Operand, b: Operand) {
        let columns = block.queries.len();
        let mut into = MatrixMut::new(into, block.keys.len(), columns);
        match (&self.0, a, b) {
            (Some(products), Operand::Half(a), Operand::Half(b)) => {
                let is_seen = |keys: &Range<usize>, queries: &Range<usize>| block.seen(queries.end) > keys.start;
                products.multiply(
                    &mut Sums::F32 { into, keep: false, bias: None },
                    scale,
                    a.lines(block.keys.clone()),
                    b,
                    is_seen,
                );
            }
            (None, Operand::Single(a), Operand::Single(b)) => {
                let a = a.rows(block.keys.clone());
                for Strip { queries, new_keys, .. } in block.strips() {
                    let mut rows = into.rows(new_keys.clone());
                    rows.columns(0..queries.start).fill(0.0);
                    let seeing = queries.start..columns;
                    let into = &mut rows.columns(seeing.clone());
                    product(into, false, scale, a.rows(new_keys), b.columns(seeing), 1);
                }
            }
            _ => panic!("operands of different precisions"),
        }
    }

    /// into = weightsᵀ b, where each query's sum is over the keys that it may attend to.
    /// into: (queries, D), weights: (keys, queries), b: (keys of the head, D).
    pub(super) fn sum_over_keys(
        &self,
        block: &Block,
        into: &mut MatrixMut,
        weights: &[f32],
        b: Operand,
        room: &mut [f32],
    ) {
        let weights = Matrix::new(weights, block.keys.len(), block.queries.len());
        match (&self.0, b) {
            (Some(products), Operand::Half(b)) => {
                let mut into = Sums::F32 { into: into.part(0..into.rows, 0..into.columns), keep: false, bias: None };
                let seen = |queries: &Range<usize>| 0..block.seen(queries.end);
                let a = Factor::F32(weights.transposed());
                products.multiply_unpacked(&mut into, a, b.terms(block.keys.clone()), room, seen);
            }
            (None, Operand::Single(b)) => {
                let b = b.rows(block.keys.clone());
                for Strip { queries, keys, .. } in block.strips() {
                    let weights = weights.rows(keys.clone()).columns(queries.clone());
                    product(&mut into.rows(queries), false, 1.0, weights.transposed(), b.rows(keys), 1);
                }
            }
            _ => panic!("operands of different precisions"),
        }
    }

    /// into = weights b, added to the previous values if `accumulate`, where each key's sum is over the queries that
    /// may attend to it. into: (keys, D), weights: (keys, queries), b: (queries, D).
    pub(super) fn sum_over_queries(
        &self,
        block: &Block,
        into: &mut MatrixMut,
        accumulate: bool,
        weights: &[f32],
        b: Operand,
        room: &mut [f32],
    ) {
        let columns = block.queries.len();
        let weights = Matrix::new(weights, block.keys.len(), columns);
        match (&self.0, b) {
            (Some(products), Operand::Half(b)) => {
                let mut into =
                    Sums::F32 { into: into.part(0..into.rows, 0..into.columns), keep: accumulate, bias: None };
                let seeing = |keys: &Range<usize>| block.first_seeing(keys.start)..columns;
                products.multiply_unpacked(&mut into, Factor::F32(weights), b, room, seeing);
            }
            (None, Operand::Single(b)) => {
                for Strip { queries, new_keys, .. } in block.strips() {
                    let seeing = queries.start..columns;
                    let weights = weights.rows(new_keys.clone()).columns(seeing.clone());
                    product(&mut into.rows(new_keys), accumulate, 1.0, weights, b.rows(seeing), 1);
                }
            }
            _ => panic!("operands of different precisions"),
        }
    }
}
