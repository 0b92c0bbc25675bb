//! Copies of parts of operands, laid out as a kernel reads them: panels of rows (of the left operand) or columns (of
//! the right one), in which the words of one step of the sum are contiguous. Elements beyond an edge are zero.

use super::super::half::Float;
use super::super::matrix::Matrix;
use super::Factor;
use super::coded::{Coded, MOST_LINE};
use super::kernel::{Order, Panels};
use ::half::{bf16, f16};
use plimsoll_graph::DType;
use std::ops::Range;

/// Number of terms of a row that a transposing packer reads together.
const RUN: usize = 16;

/// Rows of a part, rounded up to whole panels.
pub(super) const MOST_ROWS: usize = 1024;

/// Words of a part in such panels.
pub(super) fn words(rows: usize, terms: usize, panels: Panels) -> usize {
    rows.next_multiple_of(panels.width) * panels.groups(terms)
}

/// Packs some rows of a matrix, whose columns are the terms of the sum, in panels. Panics if neither rows nor columns
/// are contiguous, or if `into` does not have [`words`].
pub(super) fn pack(panels: Panels, factor: Factor, rows: Range<usize>, terms: Range<usize>, into: &mut [f32]) {
    assert_eq!(into.len(), words(rows.len(), terms.len(), panels), "words of a part");
    match factor {
        Factor::F32(matrix) => pack_part(panels, Part::of(matrix, rows, terms), into),
        Factor::Bf16(matrix) => pack_part(panels, Part::of(matrix, rows, terms), into),
        Factor::F16(matrix) if panels.pairs => panic!("pairs are of bf16, not of {:?}", matrix.extents()),
        Factor::F16(matrix) => pack_single(Part::of(matrix, rows, terms), panels, into),
        Factor::Coded(coded) => pack_coded(panels, coded.rows(rows).columns(terms), into),
    }
}

fn pack_part<E: Float + Pair>(panels: Panels, part: Part<E>, into: &mut [f32]) {
    if panels.pairs { pack_pairs(part, panels, into) } else { pack_single(part, panels, into) }
}

/// Part of a matrix with contiguous rows or columns.
#[derive(Clone, Copy)]
struct Part<'a, T> {
    data: &'a [T],
    /// Elements from one contiguous line to the next.
    stride: usize,
    rows: usize,
    terms: usize,
    /// Whether the terms of a row are contiguous.
    along: bool,
}

impl<'a, T> Part<'a, T> {
    fn of(matrix: Matrix<'a, T>, rows: Range<usize>, terms: Range<usize>) -> Self {
        let along = matrix.column_stride == 1;
        assert!(along || matrix.row_stride == 1, "a matrix with gaps between all elements");
        let part = matrix.rows(rows).columns(terms);
        let stride = if along { part.row_stride } else { part.column_stride };
        Self { data: part.data, stride, rows: part.rows, terms: part.columns, along }
    }

    /// Contiguous line `line`.
    #[inline(always)]
    fn line(&self, line: usize) -> &'a [T] {
        &self.data[line * self.stride..][..if self.along { self.terms } else { self.rows }]
    }
}

/// Elements of a decoded tile: it stays in the first-level cache.
const TILE: usize = 1 << 13;

/// Lines of a tile whose lines are the terms of a sum, and rows of the panels in it: a multiple of every panel's width.
const LINES: usize = 32;
const ROWS: usize = 192;

/// Packs all rows of a factor, whose columns are the terms of the sum, in panels.
fn pack_coded(panels: Panels, factor: Coded, into: &mut [f32]) {
    match factor.dtype {
        DType::Bf16 => pack_tiles::<bf16>(panels, factor, into, pack_part),
        DType::F16 => pack_tiles::<f16>(panels, factor, into, |panels, part, into| pack_single(part, panels, into)),
        _ => pack_tiles::<f32>(panels, factor, into, pack_part),
    }
}

fn pack_tiles<E: Float>(panels: Panels, factor: Coded, into: &mut [f32], pack: impl Fn(Panels, Part<E>, &mut [f32])) {
    let (rows, terms) = factor.extents();
    let along = !factor.transposed;
    let [tile_rows, tile_terms] = if along { [panels.width, MOST_LINE] } else { [ROWS, LINES] };
    let panel = words(panels.width, terms, panels);
    let mut tile = [E::zeroed(); TILE];
    for (first_row, into) in (0..rows).step_by(tile_rows).zip(into.chunks_mut(tile_rows / panels.width * panel)) {
        let rows = first_row..rows.min(first_row + tile_rows);
        for first_term in (0..terms).step_by(tile_terms) {
            let terms = first_term..terms.min(first_term + tile_terms);
            let stride = if along { terms.len() } else { rows.len() };
            match along {
                true => factor.decode(rows.clone(), terms.clone(), stride, &mut tile),
                false => factor.decode(terms.clone(), rows.clone(), stride, &mut tile),
            }
            // The words of some terms are contiguous in a panel.
            let before = panels.groups(first_term) * panels.width;
            for (number, into) in into.chunks_mut(panel).enumerate() {
                let first = number * panels.width;
                let rows = panels.width.min(rows.len() - first);
                let data = &tile[first * if along { stride } else { 1 }..];
                let into = &mut into[before..][..words(panels.width, terms.len(), panels)];
                pack(panels, Part { data, stride, rows, terms: terms.len(), along }, into);
            }
        }
    }
}

/// Packs in single precision.
fn pack_single<E: Float + Load>(part: Part<E>, panels: Panels, into: &mut [f32]) {
    let width = panels.width;
    match (part.along, width.is_multiple_of(4)) {
        _ if panels.avx512 => pack_vectors(part, width, into),
        (true, true) => pack_transposed::<E, 4>(part, width, into),
        (true, false) => pack_transposed::<E, 2>(part, width, into),
        (false, _) => pack_lines(part, width, into),
    }
}

/// The same for rows with contiguous terms: `SIDE` rows in parallel; panels are multiples of it.
fn pack_transposed<E: Float, const SIDE: usize>(part: Part<E>, width: usize, into: &mut [f32]) {
    for (panel, into) in into.chunks_exact_mut(part.terms.max(1) * width).enumerate() {
        for side in (0..width).step_by(SIDE) {
            let first = panel * width + side;
            for term in (0..part.terms).step_by(RUN) {
                let run = RUN.min(part.terms - term);
                let mut tile = [[0.0; RUN]; SIDE];
                for (row, tile) in (first..part.rows).zip(&mut tile) {
                    E::widen(&part.line(row)[term..][..run], &mut tile[..run]);
                }
                for (column, into) in into[term * width + side..].chunks_mut(width).take(run).enumerate() {
                    let into: &mut [f32; SIDE] = into.first_chunk_mut().expect("panels are whole multiples");
                    *into = std::array::from_fn(|row| tile[row][column]);
                }
            }
        }
    }
}

/// Terms whose words of a panel are written together: panels may be so far apart that they share cache sets, so lines
/// are written completely before they are evicted.
const TOGETHER: usize = 4;

/// The same for terms with contiguous rows.
fn pack_lines<E: Float>(part: Part<E>, width: usize, into: &mut [f32]) {
    let panels = part.rows.div_ceil(width);
    let mut lines = [[0.0; MOST_ROWS]; TOGETHER];
    for term in (0..part.terms).step_by(TOGETHER) {
        let count = TOGETHER.min(part.terms - term);
        for (line, term) in lines.iter_mut().zip(term..term + count) {
            E::widen(part.line(term), &mut line[..part.rows]);
        }
        for panel in 0..panels {
            let into = &mut into[(panel * part.terms + term) * width..][..count * width];
            for (into, line) in into.chunks_exact_mut(width).zip(&lines) {
                copy(&line[panel * width..][..width], into);
            }
        }
    }
}

/// Copies words of a panel, four at a time if possible.
#[inline(always)]
fn copy(from: &[f32], into: &mut [f32]) {
    let ((from, from_rest), (into, into_rest)) = (from.as_chunks::<4>(), into.as_chunks_mut::<4>());
    from.iter().zip(into).for_each(|(from, into)| *into = *from);
    from_rest.iter().zip(into_rest).for_each(|(from, into)| *into = *from);
}

#[cfg(target_arch = "x86_64")]
use x86::{Load, Pair, pack_pairs, pack_vectors};

#[cfg(not(target_arch = "x86_64"))]
use elsewhere::{Load, Pair, pack_pairs, pack_vectors};

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::{Panels, Part};

    pub(super) trait Load {}
    impl<T> Load for T {}

    pub(super) trait Pair: Load {}
    impl<T> Pair for T {}

    pub(super) fn pack_pairs<T>(_: Part<T>, _: Panels, _: &mut [f32]) {
        panic!("no kernel takes pairs on this architecture");
    }

    pub(super) fn pack_vectors<T>(_: Part<T>, _: usize, _: &mut [f32]) {
        panic!("no kernel has AVX-512 on this architecture");
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::kernel::{GROUPS_TOGETHER, prefetch};
    use super::{Order, Panels, Part, TOGETHER};
    use ::half::{bf16, f16};
    use std::arch::x86_64::*;

    const LANES: usize = 16;

    /// Bytes of a cache line.
    const CACHE_LINE: usize = 64;

    /// Packs in pairs of bf16. Panics on a processor without the instructions.
    pub(super) fn pack_pairs<T: Pair>(part: Part<T>, panels: Panels, into: &mut [f32]) {
        assert!(std::arch::is_x86_feature_detected!("avx512bf16"), "only available kernels take pairs");
        let (width, groups) = (panels.width, panels.groups(part.terms));
        // SAFETY: the processor has the instructions: every one with AVX512-BF16 has the others.
        unsafe {
            match (panels.order, part.along) {
                (Order::Groups, true) => pack_along(part, width, groups, into),
                (Order::Groups, false) => pack_across(part, width, groups, into),
                (Order::Rows, true) => pack_rows_along(part, width, groups, into),
                (Order::Rows, false) => pack_rows_across(part, width, groups, into),
            }
        }
    }

    /// Packs in single precision. Panics on a processor without AVX-512.
    pub(super) fn pack_vectors<T: Load>(part: Part<T>, width: usize, into: &mut [f32]) {
        assert!(pulp::x86::V4::is_available(), "only available kernels require it");
        // SAFETY: the processor has the instructions.
        unsafe {
            if part.along { pack_singles_along(part, width, into) } else { pack_singles_across(part, width, into) }
        }
    }

    /// Elements that are packed in single precision.
    pub(super) trait Load: Copy {
        /// The first 16 elements of a line in single precision, zeros beyond its end.
        ///
        /// # Safety
        /// The processor has AVX-512.
        unsafe fn load_16(line: &[Self]) -> __m512i;
    }

    /// Elements that are packed in pairs.
    pub(super) trait Pair: Load {
        /// The next 32 elements of a line as bf16, zeros beyond its end.
        ///
        /// # Safety
        /// The processor has AVX-512 with BF16.
        unsafe fn load_32(line: &[Self], first: usize) -> __m512i;

        /// The first 16 elements of one line, then of another, as bf16, zeros beyond their ends.
        ///
        /// # Safety
        /// The processor has AVX-512 with BF16.
        unsafe fn load_both(even: &[Self], odd: &[Self]) -> __m512i;
    }

    /// The lowest bits.
    fn mask(count: usize) -> u32 {
        u32::MAX.checked_shr(32 - count.min(32) as u32).unwrap_or(0)
    }

    impl Load for f32 {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_16(line: &[Self]) -> __m512i {
            // SAFETY: the mask limits the load to the line's elements.
            unsafe { _mm512_maskz_loadu_epi32(mask(line.len().min(LANES)) as u16, line.as_ptr().cast()) }
        }
    }

    impl Load for bf16 {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_16(line: &[Self]) -> __m512i {
            // SAFETY: the mask limits the load to the line's elements.
            let halves = unsafe { _mm256_maskz_loadu_epi16(mask(line.len().min(LANES)) as u16, line.as_ptr().cast()) };
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves))
        }
    }

    impl Load for f16 {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
        unsafe fn load_16(line: &[Self]) -> __m512i {
            // SAFETY: the mask limits the load to the line's elements.
            let halves = unsafe { _mm256_maskz_loadu_epi16(mask(line.len().min(LANES)) as u16, line.as_ptr().cast()) };
            _mm512_castps_si512(_mm512_cvtph_ps(halves))
        }
    }

    impl Pair for bf16 {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn load_32(line: &[Self], first: usize) -> __m512i {
            let line = &line[first..];
            // SAFETY: the mask limits the load to the line's elements.
            unsafe { _mm512_maskz_loadu_epi16(mask(line.len()), line.as_ptr().cast()) }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn load_both(even: &[Self], odd: &[Self]) -> __m512i {
            // SAFETY: the mask limits the load to the line's elements.
            let [even, odd] = unsafe {
                [
                    _mm256_maskz_loadu_epi16(mask(even.len().min(LANES)) as u16, even.as_ptr().cast()),
                    _mm256_maskz_loadu_epi16(mask(odd.len().min(LANES)) as u16, odd.as_ptr().cast()),
                ]
            };
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(even), odd)
        }
    }

    impl Pair for f32 {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn load_32(line: &[Self], first: usize) -> __m512i {
            let line = &line[first..];
            let (low, high) = line.split_at(line.len().min(LANES));
            // SAFETY: the mask limits the load to the line's elements, and both vector types have 512 bits.
            unsafe {
                let low = _mm512_maskz_loadu_ps(mask(low.len()) as u16, low.as_ptr());
                let high = _mm512_maskz_loadu_ps(mask(high.len().min(LANES)) as u16, high.as_ptr());
                std::mem::transmute(_mm512_cvtne2ps_pbh(high, low))
            }
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn load_both(even: &[Self], odd: &[Self]) -> __m512i {
            // SAFETY: the mask limits the load to the line's elements, and both vector types have 512 bits.
            unsafe {
                let even = _mm512_maskz_loadu_ps(mask(even.len().min(LANES)) as u16, even.as_ptr());
                let odd = _mm512_maskz_loadu_ps(mask(odd.len().min(LANES)) as u16, odd.as_ptr());
                std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even))
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn pack_along<T: Pair>(part: Part<T>, width: usize, groups: usize, into: &mut [f32]) {
        for (panel, into) in into.chunks_exact_mut(groups.max(1) * width).enumerate() {
            for lane in (0..width).step_by(LANES) {
                let (first, count) = (panel * width + lane, LANES.min(width - lane));
                let rows = part.rows.saturating_sub(first).min(count);
                for group in (0..groups).step_by(LANES) {
                    let mut tile = [_mm512_setzero_si512(); LANES];
                    for (row, tile) in (first..first + rows).zip(&mut tile) {
                        let line = part.line(row);
                        prefetch(line.as_ptr().wrapping_add(LANES * part.stride + 2 * group));
                        // SAFETY: this function requires the same instructions.
                        *tile = unsafe { T::load_32(line, 2 * group) };
                    }
                    let tile = transposed(tile);
                    for (group, words) in (group..groups).zip(tile) {
                        store(&mut into[group * width + lane..][..count], words);
                    }
                }
            }
        }
    }

    /// As [`pack_along`], with a float per word.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pack_singles_along<T: Load>(part: Part<T>, width: usize, into: &mut [f32]) {
        for (panel, into) in into.chunks_exact_mut(part.terms.max(1) * width).enumerate() {
            for lane in (0..width).step_by(LANES) {
                let (first, count) = (panel * width + lane, LANES.min(width - lane));
                let rows = part.rows.saturating_sub(first).min(count);
                for term in (0..part.terms).step_by(LANES) {
                    let mut tile = [_mm512_setzero_si512(); LANES];
                    for (row, tile) in (first..first + rows).zip(&mut tile) {
                        let line = &part.line(row)[term..];
                        prefetch(line.as_ptr().wrapping_add(LANES * part.stride));
                        // SAFETY: this function requires the same instructions.
                        *tile = unsafe { T::load_16(line) };
                    }
                    for (term, words) in (term..part.terms).zip(transposed(tile)) {
                        store(&mut into[term * width + lane..][..count], words);
                    }
                }
            }
        }
    }

    /// Distance of prefetches in terms: lines may be in different pages, which the hardware does not prefetch.
    const AHEAD: usize = 4 * TOGETHER;

    /// Prefetches a panel's width of the line [`AHEAD`] lines after this one: all of it, since waiting for one element
    /// takes longer than writing a panel.
    #[inline(always)]
    fn prefetch_ahead<T>(line: &[T], stride: usize, width: usize) {
        for element in (0..width).step_by(CACHE_LINE / size_of::<T>()) {
            prefetch(line.as_ptr().wrapping_add(AHEAD * stride + element));
        }
    }

    /// As [`pack_across`], with a float per word.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pack_singles_across<T: Load>(part: Part<T>, width: usize, into: &mut [f32]) {
        for first_term in (0..part.terms).step_by(TOGETHER) {
            let count = TOGETHER.min(part.terms - first_term);
            for (panel, into) in into.chunks_exact_mut(part.terms * width).enumerate() {
                let into = &mut into[first_term * width..][..count * width];
                for (term, into) in into.chunks_exact_mut(width).enumerate() {
                    let line = part.line(first_term + term).get(panel * width..).unwrap_or_default();
                    prefetch_ahead(line, part.stride, width);
                    for (lane, into) in into.chunks_mut(LANES).enumerate() {
                        // SAFETY: this function requires the same instructions.
                        store(into, unsafe { T::load_16(line.get(lane * LANES..).unwrap_or_default()) });
                    }
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn pack_across<T: Pair>(part: Part<T>, width: usize, groups: usize, into: &mut [f32]) {
        for first_group in (0..groups).step_by(TOGETHER) {
            let lines: [[&[T]; 2]; TOGETHER] = std::array::from_fn(|group| lines_of(part, first_group + group));
            let count = TOGETHER.min(groups - first_group);
            for (panel, into) in into.chunks_exact_mut(groups * width).enumerate() {
                let into = &mut into[first_group * width..][..count * width];
                for (lines, into) in lines.iter().zip(into.chunks_exact_mut(width)) {
                    for line in lines {
                        prefetch_ahead(line.get(panel * width..).unwrap_or_default(), part.stride, width);
                    }
                    for (lane, into) in into.chunks_mut(LANES).enumerate() {
                        // SAFETY: this function requires the same instructions.
                        store(into, unsafe { words_across(*lines, panel * width + lane * LANES) });
                    }
                }
            }
        }
    }

    /// The two terms of a group of words; empty after the last term.
    #[inline(always)]
    fn lines_of<T>(part: Part<'_, T>, group: usize) -> [&[T]; 2] {
        let line = |term| if term < part.terms { part.line(term) } else { &[] };
        [line(2 * group), line(2 * group + 1)]
    }

    /// The words of two terms of sixteen rows from `first` on, zeros after the last row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn words_across<T: Pair>(lines: [&[T]; 2], first: usize) -> __m512i {
        let interleaved = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17,
            1, 16, 0,
        );
        let [even, odd] = lines;
        // SAFETY: this function requires the same instructions.
        let both = unsafe { T::load_both(even.get(first..).unwrap_or_default(), odd.get(first..).unwrap_or_default()) };
        _mm512_permutexvar_epi16(interleaved, both)
    }

    /// Runs of words are contiguous in memory and in panels, so they are copied.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn pack_rows_along<T: Pair>(part: Part<T>, width: usize, groups: usize, into: &mut [f32]) {
        for (panel, into) in into.chunks_exact_mut((groups * width).max(1)).enumerate() {
            for row in 0..width {
                let line = if panel * width + row < part.rows { part.line(panel * width + row) } else { &[] };
                for (run, into) in into.chunks_exact_mut(GROUPS_TOGETHER * width).enumerate() {
                    let first = (2 * GROUPS_TOGETHER * run).min(line.len());
                    prefetch(line.as_ptr().wrapping_add(part.stride + first));
                    // SAFETY: this function requires the same instructions.
                    let words = unsafe { T::load_32(line, first) };
                    store(&mut into[GROUPS_TOGETHER * row..][..GROUPS_TOGETHER], words);
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn pack_rows_across<T: Pair>(part: Part<T>, width: usize, groups: usize, into: &mut [f32]) {
        for run in 0..groups / GROUPS_TOGETHER {
            let lines: [[&[T]; 2]; GROUPS_TOGETHER] =
                std::array::from_fn(|group| lines_of(part, run * GROUPS_TOGETHER + group));
            for (panel, into) in into.chunks_exact_mut(groups * width).enumerate() {
                let into = &mut into[run * GROUPS_TOGETHER * width..][..GROUPS_TOGETHER * width];
                for line in lines.as_flattened() {
                    prefetch(line.as_ptr().wrapping_add(2 * GROUPS_TOGETHER * part.stride + panel * width));
                }
                for (lane, into) in into.chunks_exact_mut(GROUPS_TOGETHER * LANES).enumerate() {
                    let mut words = [_mm512_setzero_si512(); LANES];
                    for (lines, words) in lines.iter().zip(&mut words) {
                        // SAFETY: this function requires the same instructions.
                        *words = unsafe { words_across(*lines, panel * width + lane * LANES) };
                    }
                    for (into, words) in into.chunks_exact_mut(GROUPS_TOGETHER).zip(transposed(words)) {
                        store(into, words);
                    }
                }
            }
        }
    }

    /// Writes the first words that fit.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(into: &mut [f32], words: __m512i) {
        let count = into.len().min(LANES);
        // SAFETY: the mask limits the store to the slice.
        unsafe { _mm512_mask_storeu_epi32(into.as_mut_ptr().cast(), mask(count) as u16, words) };
    }

    /// Sixteen rows of sixteen words, as columns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
        // Pairs of rows, then quads: element c of quad q contains columns c, 4 + c, 8 + c and 12 + c of rows 4q...
        let pairs: [__m512i; LANES] = std::array::from_fn(|i| {
            let (a, b) = (rows[i / 2 * 2], rows[i / 2 * 2 + 1]);
            if i % 2 == 0 { _mm512_unpacklo_epi32(a, b) } else { _mm512_unpackhi_epi32(a, b) }
        });
        let quads: [__m512i; LANES] = std::array::from_fn(|i| {
            let (a, b) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
            if i % 2 == 0 { _mm512_unpacklo_epi64(a, b) } else { _mm512_unpackhi_epi64(a, b) }
        });
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        std::array::from_fn(|column| {
            let (block, place) = (column / 4, column % 4);
            let half = |quad: usize| {
                let (a, b) = (quads[4 * quad + place], quads[4 * (quad + 1) + place]);
                if block % 2 == 0 { _mm512_shuffle_i32x4::<EVEN>(a, b) } else { _mm512_shuffle_i32x4::<ODD>(a, b) }
            };
            let (a, b) = (half(0), half(2));
            if block < 2 { _mm512_shuffle_i32x4::<EVEN>(a, b) } else { _mm512_shuffle_i32x4::<ODD>(a, b) }
        })
    }
}
