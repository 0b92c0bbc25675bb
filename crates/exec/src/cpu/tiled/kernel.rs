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
//! With AMX (`amx.rs`), a has the other order: groups of consecutive pairs of a row that fill a register.

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::path::Instructions;
use pulp::Simd;

/// Tile = a b, added to the previous sums if `add`. a: (groups, rows) words, or in another [`Order`], b: (groups,
/// columns) words, tile: (rows, columns).
type Multiply = unsafe fn(a: &[f32], b: &[f32], tile: &mut [f32], add: bool);

/// The order of a panel's words.
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
    /// The number of a panel's groups is padded to a multiple of this.
    pub(super) multiple: usize,
}

impl Panels {
    /// Terms of a sum in a word.
    pub(super) fn terms(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// Words of a row with this many terms.
    pub(super) fn groups(&self, terms: usize) -> usize {
        terms.div_ceil(self.terms()).next_multiple_of(self.multiple)
    }
}

/// An innermost loop and the layout of its operands. Only this file creates one.
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
    /// Most words of a row that are multiplied with all panels of a block before the next words.
    slice: usize,
    multiply: Multiply,
}

/// Columns of the widest tile.
pub(super) const MOST_COLUMNS: usize = 32;

/// Contiguous words of a row in [`Order::Rows`].
pub(super) const GROUPS_TOGETHER: usize = 16;

/// Elements of the largest tile.
pub(super) const MOST_TILE: usize = 32 * MOST_COLUMNS;

impl Kernel {
    /// The kernel for operands in bf16 or another precision, either for panels of b that stream past one of a, or the
    /// reverse. Panics if the processor does not have the instructions.
    pub(super) fn of(path: Instructions, bf16: bool, b_streams: bool) -> Self {
        assert!(path.is_available(), "{path:?} on a processor without it");
        // The others read both panels in the same way.
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

    /// Words of a row, out of `words`, that are multiplied with all panels of a block before the next words.
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

    /// Tile = a b, added to what is there if `add`, for panels as in [`Multiply`]. Panics if the slices do not have
    /// this kernel's shape.
    pub(super) fn multiply(&self, a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        assert!(a.len() / self.rows == b.len() / self.columns && tile.len() == self.rows * self.columns);
        // SAFETY: the constructor checked that the processor has the kernel's instructions.
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
        // Zipped iterators are not inlined in less optimized builds, such as those of tests.
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

/// Prefetches the data at an address, which need not be valid.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, which has no visible effect and never faults.
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
        // SAFETY: the loaded slice has the length of a vector.
        let words = |words: &Vector| unsafe { _mm512_loadu_ps(words.as_ptr()) };
        // SAFETY: both types have 512 bits, and every bit pattern is valid.
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
                // SAFETY: the written slice has the length of a vector.
                unsafe { _mm512_storeu_ps(tile.as_mut_ptr(), sum) };
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn multiply_avx512(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        // SAFETY: callers checked that the processor has the instructions.
        super::multiply::<_, 12, 2>(unsafe { pulp::x86::V4::new_unchecked() }, a, b, tile, add);
    }

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    pub(super) fn multiply_avx2(a: &[f32], b: &[f32], tile: &mut [f32], add: bool) {
        // SAFETY: callers checked that the processor has the instructions.
        super::multiply::<_, 6, 2>(unsafe { pulp::x86::V3::new_unchecked() }, a, b, tile, add);
    }
}
