//! Operands whose result is known: products of small integers, and attention in which each query selects one key. Not here:
//! running them (`exact.rs`).

use crate::numbers::mix;
use half::{bf16, f16};
use plimsoll_graph::DType;
use rayon::prelude::*;
use std::sync::OnceLock;

/// The number of wrong rows of a product whose elements are computed one by one.
const LOCATED_ROWS: usize = 4;

/// The number of a product's terms that do not cancel. Their sum is then far below 256, the largest integer up to which
/// `Bf16` has all integers: its standard deviation is the square root of this number.
const OPEN_TERMS: usize = 512;

/// Elements of a head of attention.
pub(crate) const HEAD_SIZE: usize = 64;

/// The absolute value of the elements of queries and keys.
const CODE: f32 = 16.0;

/// The allowed difference of an element of attention's result, whose probabilities are rounded.
const TOLERANCE: f32 = 1.0 / 64.0;

/// An element that differs from its known answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WrongElement {
    /// Its index, the last extent fastest.
    pub element: usize,
    /// Its bits, and the bits of the answer.
    pub bits: [u32; 2],
}

/// Operands and what is known of their result.
pub(crate) trait KnownAnswer: Send + Sync {
    /// Fills a row of an operand.
    fn fill(&self, operand: usize, row: usize, values: &mut [f32]);

    /// The wrong elements of a result, of which there may be more.
    fn check(&self, result: &Elements) -> Vec<WrongElement>;
}

/// Floats of any precision in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements<'a> {
    pub dtype: DType,
    pub bytes: &'a [u8],
}

impl Elements<'_> {
    /// The number of elements.
    fn count(&self) -> usize {
        self.bytes.len() / self.dtype.size_bytes() as usize
    }

    /// The bits of an element.
    fn bits(&self, index: usize) -> u32 {
        match self.dtype {
            DType::F32 => u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.bytes[4 * index + byte])),
            _ => u32::from(u16::from_le_bytes([self.bytes[2 * index], self.bytes[2 * index + 1]])),
        }
    }

    /// The value of an element.
    fn value(&self, index: usize) -> f32 {
        let bits = self.bits(index);
        match self.dtype {
            DType::F32 => f32::from_bits(bits),
            DType::F16 => f16::from_bits(bits as u16).to_f32(),
            _ => bf16::from_bits(bits as u16).to_f32(),
        }
    }

    /// A wrong element, with the bits of its answer.
    fn wrong(&self, element: usize, answer: f32) -> WrongElement {
        let expected = match self.dtype {
            DType::F32 => answer.to_bits(),
            DType::F16 => f16::from_f32(answer).to_bits().into(),
            _ => bf16::from_f32(answer).to_bits().into(),
        };
        WrongElement { element, bits: [self.bits(element), expected] }
    }
}

/// C = A B for square matrices of integers. Inner indices are in pairs, of which most cancel: A has v and -v, and B has w
/// twice. The elements of A and B fill the multipliers, but C is so small that all precisions compute it exactly, in any
/// order of the sums.
///
/// C is checked by Freivalds' method: C x = A (B x) for a vector x without zeros, so that a wrong element changes the sum of its
/// row. Source: Freivalds 1977, "Probabilistic machines can use less running time".
pub(crate) struct ProductAnswer {
    extent: usize,
    /// A (B x), computed for the first check.
    row_sums: OnceLock<Vec<i64>>,
}

impl ProductAnswer {
    /// For matrices of this even extent.
    pub(crate) fn new(extent: usize) -> Self {
        Self { extent, row_sums: OnceLock::new() }
    }

    /// The extent of the matrices.
    pub(crate) fn extent(&self) -> usize {
        self.extent
    }

    fn row_sums(&self) -> Vec<i64> {
        let extent = self.extent;
        let weighted = |row: &[f32]| row.iter().enumerate().map(|(j, value)| *value as i64 * weight(j)).sum::<i64>();
        let rows_of = |operand: usize, sum: &(dyn Fn(&[f32]) -> i64 + Sync)| {
            let of_row = |values: &mut Vec<f32>, row: usize| {
                values.resize(extent, 0.0);
                fill_product(extent, operand, row, values);
                sum(values)
            };
            (0..extent).into_par_iter().map_init(Vec::new, of_row).collect::<Vec<_>>()
        };
        let inner = rows_of(1, &weighted);
        rows_of(0, &|row| row.iter().zip(&inner).map(|(a, sum)| *a as i64 * sum).sum())
    }

    /// The exact elements of a row.
    fn row(&self, row: usize) -> Vec<i64> {
        let mut a = vec![0.0; self.extent];
        fill_product(self.extent, 0, row, &mut a);
        let mut sums = vec![0; self.extent];
        let mut b = vec![0.0; self.extent];
        for (k, a) in a.iter().enumerate() {
            fill_product(self.extent, 1, k, &mut b);
            sums.iter_mut().zip(&b).for_each(|(sum, b)| *sum += *a as i64 * *b as i64);
        }
        sums
    }

    fn is_right(&self, row: usize, row_sum: i64, result: &Elements) -> bool {
        let mut sum = 0;
        for column in 0..self.extent {
            let value = result.value(row * self.extent + column);
            if value.fract() != 0.0 || value.abs() > (1 << 20) as f32 {
                return false;
            }
            sum += value as i64 * weight(column);
        }
        sum == row_sum
    }
}

/// An element of x.
fn weight(column: usize) -> i64 {
    1 + (mix(column as u64) % 1021) as i64
}

fn fill_product(extent: usize, operand: usize, row: usize, values: &mut [f32]) {
    // Every pair of this distance is open.
    let apart = (extent / OPEN_TERMS).max(1);
    let is_open = |inner: usize| (inner / 2).is_multiple_of(apart);
    let number = |row: usize, column: usize| mix(((operand as u64) << 60) | ((row as u64) << 30) | column as u64);
    let sign = |bits: u64| if bits & 1 == 0 { 1.0 } else { -1.0 };
    let closed = |bits: u64| sign(bits) * (1 + (bits >> 1) % 3) as f32;
    for (column, value) in values.iter_mut().enumerate() {
        let (inner, second) = if operand == 0 { (column, column % 2 == 1) } else { (row, row % 2 == 1) };
        *value = if is_open(inner) {
            sign(number(row, column))
        } else if operand == 0 {
            closed(number(row, column / 2)) * if second { -1.0 } else { 1.0 }
        } else {
            closed(number(row / 2, column))
        };
    }
}

impl KnownAnswer for ProductAnswer {
    fn fill(&self, operand: usize, row: usize, values: &mut [f32]) {
        fill_product(self.extent, operand, row, values);
    }

    fn check(&self, result: &Elements) -> Vec<WrongElement> {
        let row_sums = self.row_sums.get_or_init(|| self.row_sums());
        let is_wrong = |row: &usize| !self.is_right(*row, row_sums[*row], result);
        let wrong = (0..self.extent).into_par_iter().filter(is_wrong).collect::<Vec<_>>();
        let of_row = |row: &usize| {
            let answer = self.row(*row).into_iter().enumerate();
            let index = |column: usize| row * self.extent + column;
            let wrong = answer.filter(move |(column, answer)| result.value(index(*column)) != *answer as f32);
            wrong.map(move |(column, answer)| result.wrong(index(column), answer as f32)).collect::<Vec<_>>()
        };
        wrong.iter().take(LOCATED_ROWS).flat_map(of_row).collect()
    }
}

/// Causal attention of one sample in which query i of a head selects key s(i) ≤ i, so that its result is value s(i). Keys are
/// codes of ±`CODE`, and a query is the code of its key: the scores of other keys are so much lower that their
/// probabilities are zero.
pub(crate) struct AttentionAnswer {
    heads: usize,
    tokens: usize,
}

impl AttentionAnswer {
    pub(crate) fn new(heads: usize, tokens: usize) -> Self {
        Self { heads, tokens }
    }

    fn number(what: u64, head: usize, token: usize) -> u64 {
        mix((what << 60) | ((head as u64) << 40) | token as u64)
    }

    /// The key that a query selects.
    fn selected(head: usize, query: usize) -> usize {
        (Self::number(1, head, query) % (query as u64 + 1)) as usize
    }

    fn code(head: usize, key: usize, element: usize) -> f32 {
        if Self::number(2, head, key) >> element & 1 == 0 { CODE } else { -CODE }
    }

    /// An integer from -7 to 8.
    fn value(head: usize, key: usize, element: usize) -> f32 {
        (mix(Self::number(3, head, key).wrapping_add(element as u64)) % 16) as f32 - 7.0
    }

    fn answer(&self, index: usize) -> f32 {
        let (query, column) = (index / (self.heads * HEAD_SIZE), index % (self.heads * HEAD_SIZE));
        let (head, element) = (column / HEAD_SIZE, column % HEAD_SIZE);
        Self::value(head, Self::selected(head, query), element)
    }
}

impl KnownAnswer for AttentionAnswer {
    fn fill(&self, operand: usize, row: usize, values: &mut [f32]) {
        debug_assert!(row < self.tokens);
        for (column, value) in values.iter_mut().enumerate() {
            let (head, element) = (column / HEAD_SIZE, column % HEAD_SIZE);
            *value = match operand {
                0 => Self::code(head, Self::selected(head, row), element),
                1 => Self::code(head, row, element),
                _ => Self::value(head, row, element),
            };
        }
    }

    fn check(&self, result: &Elements) -> Vec<WrongElement> {
        let is_wrong = |index: &usize| {
            let apart = (result.value(*index) - self.answer(*index)).abs();
            apart.is_nan() || apart > TOLERANCE
        };
        let wrong = (0..result.count()).into_par_iter().filter(is_wrong).collect::<Vec<_>>();
        wrong.into_iter().map(|index| result.wrong(index, self.answer(index))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(answer: &ProductAnswer, operand: usize) -> Vec<f32> {
        let n = answer.extent;
        let mut values = vec![0.0; n * n];
        values.chunks_mut(n).enumerate().for_each(|(row, values)| answer.fill(operand, row, values));
        values
    }

    #[test]
    fn products_are_exact_in_the_smallest_precision_and_each_wrong_element_is_located() {
        for n in [2, 32, 1024] {
            let answer = ProductAnswer::new(n);
            let (a, b) = (matrix(&answer, 0), matrix(&answer, 1));
            assert!(a.iter().chain(&b).all(|value| value.abs() >= 1.0 && value.abs() <= 3.0), "no zeros");
            for row in [0, n / 3, n - 1] {
                let expected = (0..n).map(|j| (0..n).map(|k| a[row * n + k] * b[k * n + j]).sum::<f32>());
                let expected = expected.map(|sum| sum as i64).collect::<Vec<_>>();
                assert_eq!(answer.row(row), expected, "{n}, row {row}");
                assert!(expected.iter().all(|sum| sum.abs() <= 256));
            }
            if n > 100 {
                // Only rows are compared where terms cancel: all elements would take too long.
                continue;
            }
            let result = (0..n).flat_map(|row| answer.row(row)).map(|sum| bf16::from_f32(sum as f32));
            let mut bytes = result.flat_map(bf16::to_le_bytes).collect::<Vec<_>>();
            assert_eq!(answer.check(&Elements { dtype: DType::Bf16, bytes: &bytes }), []);
            let element = n * n / 2 + 1;
            bytes[2 * element + 1] ^= 0x40;
            let wrong = answer.check(&Elements { dtype: DType::Bf16, bytes: &bytes });
            assert_eq!(wrong.len(), 1, "{n}");
            assert_eq!((wrong[0].element, wrong[0].bits[0] ^ wrong[0].bits[1]), (element, 0x4000));
        }
    }

    #[test]
    fn attention_selects_one_key() {
        let (heads, tokens) = (2, 40);
        let answer = AttentionAnswer::new(heads, tokens);
        let width = heads * HEAD_SIZE;
        let rows = |operand: usize| {
            let mut values = vec![0.0; tokens * width];
            values.chunks_mut(width).enumerate().for_each(|(row, values)| answer.fill(operand, row, values));
            values
        };
        let (q, k, v) = (rows(0), rows(1), rows(2));
        for head in 0..heads {
            for query in 0..tokens {
                let of = |values: &[f32], token: usize, d: usize| values[token * width + head * HEAD_SIZE + d];
                let score = |key: usize| (0..HEAD_SIZE).map(|d| of(&q, query, d) * of(&k, key, d)).sum::<f32>() / 8.0;
                let best = (0..=query).max_by(|a, b| score(*a).total_cmp(&score(*b))).expect("a key");
                let second = (0..=query).filter(|key| *key != best).map(score).fold(f32::MIN, f32::max);
                assert!(score(best) - second > 104.0, "the exponential of the difference is zero");
                for d in 0..HEAD_SIZE {
                    assert_eq!(of(&v, best, d), answer.answer(query * width + head * HEAD_SIZE + d));
                }
            }
        }
        let bytes = (0..tokens * width).flat_map(|index| answer.answer(index).to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(answer.check(&Elements { dtype: DType::F32, bytes: &bytes }), []);
        let mut bad = bytes.clone();
        bad[4 * 100 + 3] ^= 0x80;
        let wrong = answer.check(&Elements { dtype: DType::F32, bytes: &bad });
        assert_eq!(wrong.iter().map(|wrong| wrong.element).collect::<Vec<_>>(), [100]);
    }
}
