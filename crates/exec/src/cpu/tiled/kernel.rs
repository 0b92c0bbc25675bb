//! The innermost loops: a tile of sums that stays in registers while terms stream past.
//!
//! ```text
//!            b: groups of COLUMNS words
//!            ┌──────────────┐
//!            │              │        a word is a float, or a pair of bf16 that are
//!            └──────────────┘        neighbors along the sum
//!   a: ┌┐    ┌──────────────┐
//!      ││    │     tile     │  ROWS
//!      └┘    └──────────────┘
//! ```
//!
//! With AMX (`amx.rs`) a is laid out the other way round: so many pairs of a row at a time as a register has.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::path::Instructions;
use pulp::Simd;

/// Tile = a b, added to what is there if `add`. a: (groups, rows) words, or as [`Order`] says, b: (groups, columns) words,
/// tile: (rows, columns).
type Multiply = unsafe fn(a: &[f32], b: &[f32], tile: &mut [f32], add: bool);

/// How the words of a panel follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// (groups, rows): a word of each row, then the next of each.
    Groups,
    /// (groups / 16, rows, 16): sixteen words of each row, then the next sixteen of each.
    Rows,
}

/// Panels of an operand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    /// Rows of the operand in a panel, or columns of the right one.
    pub(super) width: usize,
    /// Their words' order.
    pub(super) order: Order,
    /// Whether words are pairs of bf16.
    pub(super) pairs: bool,
    /// Whether the processor has AVX-512.
    pub(super) avx512: bool,
    /// What a panel's groups are filled up to a multiple of.
    pub(super) multiple: usize,
}

impl Panels {
    /// Terms of a sum in a word.
    pub(super) fn terms(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// Words of a row for so many terms.
    pub(super) fn groups(&self, terms: usize) -> usize {
        terms.div_ceil(self.terms()).next_multiple_of(self.multiple)
    }
}

/// An innermost loop and how it wants its operands. Only this file makes one.
pub(super) struct Kernel {
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Whether words are pairs of bf16.
    pairs: bool,
    /// Whether operands are for tiles of AMX.
    tiles: bool,
    /// Whether the processor has AVX-512.
    avx512: bool,
    /// Words of a row at most that are multiplied with all panels of a block before the next.
    slice: usize,
    multiply: Multiply,
}

/// Columns of the widest tile.
pub(super) const MOST_COLUMNS: usize = 32;

/// Words of a row that are neighbors in [`Order::Rows`].
pub(super) const GROUPS_TOGETHER: usize = 16;

/// Elements of the largest.
pub(super) const MOST_TILE: usize = 32 * MOST_COLUMNS;

impl Kernel {
    /// The kernel for operands in bf16, or in anything else, where panels of b stream past one of a, or of a past one of b.
    /// Panics if the processor hasn't the instructions.
    pub(super) fn of(path: Instructions, bf16: bool, b_streams: bool) -> Self {
        assert!(path.is_here(), "{path:?} on a processor without it");
        // The others read both panels alike.
        let _ = b_streams;
        match path {
            #[cfg(target_arch = "x86_64")]
            Instructions::Amx if bf16 => {
                let multiply: Multiply = if b_streams { amx::multiply_streaming_b } else { amx::multiply_streaming_a };
                let [rows, columns] = [amx::TILE; 2];
                Self { rows, columns, pairs: true, tiles: true, avx512: true, slice: amx::SLICE_WORDS, multiply }
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512Bf16 if bf16 => Self {
                rows: 12,
                columns: 32,
                pairs: true,
                tiles: false,
                avx512: true,
                slice: usize::MAX,
                multiply: x86::multiply_pairs,
            },
            #[cfg(target_arch = "x86_64")]
            Instructions::Amx | Instructions::Avx512Bf16 | Instructions::Avx512 => Self {
                rows: 12,
                columns: 32,
                pairs: false,
                tiles: false,
                avx512: true,
                slice: usize::MAX,
                multiply: x86::multiply_avx512,
            },
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => Self {
                rows: 6,
                columns: 16,
                pairs: false,
                tiles: false,
                avx512: false,
                slice: usize::MAX,
                multiply: x86::multiply_avx2,
            },
            _ => Self::baseline(),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn baseline() -> Self {
        let multiply: Multiply =
            |a, b, tile, add| multiply::<_, 8, 2>(pulp::aarch64::Neon::new_unchecked(), a, b, tile, add);
        Self { rows: 8, columns: 8, pairs: false, tiles: false, avx512: false, slice: usize::MAX, multiply }
    }

    #[cfg(not(target_arch = "aarch64"))]
    fn baseline() -> Self {
        let multiply: Multiply = |a, b, tile, add| multiply::<_, 4, 8>(pulp::Scalar, a, b, tile, add);
        Self { rows: 4, columns: 8, pairs: false, tiles: false, avx512: false, slice: usize::MAX, multiply }
    }

    /// Terms of a sum in a word.
    pub(super) fn terms(&self) -> usize {
        self.right().terms()
    }

    /// Words of a row that are multiplied with all panels of a block before the next, of so many in all.
    pub(super) fn slice(&self, words: usize) -> usize {
        words.div_ceil(words.div_ceil(self.slice).max(1)).next_multiple_of(self.right().multiple)
    }

    /// Panels of the left operand.
    pub(super) fn left(&self) -> Panels {
        let order = if self.tiles { Order::Rows } else { Order::Groups };
        Panels { width: self.rows, order, ..self.right() }
    }

    /// Panels of the right operand.
    pub(super) fn right(&self) -> Panels {
        let multiple = if self.tiles { GROUPS_TOGETHER } else { 1 };
        Panels { width: self.columns, order: Order::Groups, pairs: self.pairs, avx512: self.avx512, multiple }
    }

    /// Tile = a b, added to what is there if `add`, for panels as [`Multiply`] has them.
    /// Panics if the slices are not of this kernel's shape.
    pub(super) fn multiply(&self, a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        assert!(a.len() / self.rows == b.len() / self.columns && tile.len() == self.rows * self.columns);
        // SAFETY: whoever made the kernel has checked that the processor has its instructions.
        unsafe { (self.multiply)(a, b, tile, add) }
    }
}

#[inline(always)]
fn multiply<S: Simd, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    a: &[f32],
    b: &[f32],
    tile: &mut [f32],
    add: bool,
) {
    let (b, _) = S::as_simd_f32s(b);
    let (tile, _) = S::as_mut_simd_f32s(tile);
    let (tile, _) = tile.as_chunks_mut::<VECTORS>();
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
    for (a, b) in a.as_chunks::<ROWS>().0.iter().zip(b.as_chunks::<VECTORS>().0) {
        // Pairs of iterators are calls where a build is less optimized, as that of tests is.
        for (row, sums) in sums.iter_mut().enumerate() {
            let a = simd.splat_f32s(a[row]);
            for (vector, sum) in sums.iter_mut().enumerate() {
                *sum = simd.mul_add_e_f32s(a, b[vector], *sum);
            }
        }
    }
    for (tile, sums) in tile.iter_mut().zip(sums) {
        for (tile, sum) in tile.iter_mut().zip(sums) {
            *tile = if add { simd.add_f32s(*tile, sum) } else { sum };
        }
    }
}

/// Has the processor fetch what lies at an address, wherever that is.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has the instruction, which reads nothing that a program sees and never fails.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m512, __m512bh, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    };

    const LANES: usize = 16;
    type Vector = [f32; LANES];

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16,avx2,fma")]
    pub(super) fn multiply_pairs(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        const ROWS: usize = 12;
        const VECTORS: usize = 2;
        // SAFETY: what is loaded is as long as a vector.
        let words = |words: &Vector| unsafe { _mm512_loadu_ps(words.as_ptr()) };
        // SAFETY: both are 512 bits without any that must not be.
        let pairs = |vector: __m512| unsafe { std::mem::transmute::<__m512, __m512bh>(vector) };
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let b = b.as_chunks::<LANES>().0.as_chunks::<VECTORS>().0;
        for (a, [first, second]) in a.as_chunks::<ROWS>().0.iter().zip(b) {
            let b = [pairs(words(first)), pairs(words(second))];
            for (sums, &a) in sums.iter_mut().zip(a) {
                let a = pairs(_mm512_set1_ps(a));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_dpbf16_ps(*sum, a, b);
                }
            }
        }
        for (tile, sums) in tile.as_chunks_mut::<LANES>().0.as_chunks_mut::<VECTORS>().0.iter_mut().zip(sums) {
            for (tile, sum) in tile.iter_mut().zip(sums) {
                let sum = if add { _mm512_add_ps(words(tile), sum) } else { sum };
                // SAFETY: what is written is as long as a vector.
                unsafe { _mm512_storeu_ps(tile.as_mut_ptr(), sum) };
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn multiply_avx512(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        // SAFETY: this is called where the processor has the instructions.
        super::multiply::<_, 12, 2>(unsafe { pulp::x86::V4::new_unchecked() }, a, b, tile, add);
    }

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn multiply_avx2(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        // SAFETY: this is called where the processor has the instructions.
        super::multiply::<_, 6, 2>(unsafe { pulp::x86::V3::new_unchecked() }, a, b, tile, add);
    }
}
