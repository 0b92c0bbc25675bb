//! Stores of tiles of sums to the result.

use super::super::half::Float;
use super::super::matrix::MatrixMut;
use super::super::sums::accumulate;
use super::super::vectorize::vectorized;
use super::Sums;
use super::kernel::{MOST_COLUMNS, MOST_TILE, prefetch};
use std::ops::Range;

/// Writes `scale` times a tile with a row stride of `width` to these rows and columns of the result. Overwrites the
/// tile.
pub(super) fn store(
    into: &mut Sums,
    rows: Range<usize>,
    columns: Range<usize>,
    scale: f32,
    tile: &mut [f32],
    width: usize,
) {
    match into {
        Sums::F32 { into, keep, bias: None } => write(&mut into.part(rows, columns), scale, tile, width, *keep),
        Sums::F32 { into, keep, bias: Some(bias) } => {
            let mut added = [0.0; MOST_COLUMNS];
            added[..columns.len()].copy_from_slice(&bias[columns.clone()]);
            scale_and_add(tile, scale, &added[..width]);
            write(&mut into.part(rows, columns), 1.0, tile, width, *keep);
        }
        Sums::F16 { into, keep, bias } => {
            let bias = bias.map(|bias| &bias[columns.clone()]);
            round(&mut into.part(rows, columns), *keep, bias, scale, tile, width);
        }
        Sums::Bf16 { into, keep, bias } => {
            let bias = bias.map(|bias| &bias[columns.clone()]);
            round(&mut into.part(rows, columns), *keep, bias, scale, tile, width);
        }
    }
}

/// Prefetches a tile's destination: fetching it takes as long as many of the tile's multiplications.
pub(super) fn fetch(into: &mut Sums, rows: Range<usize>, columns: Range<usize>) {
    match into {
        Sums::F32 { into, .. } => fetch_part(into.part(rows, columns)),
        Sums::F16 { into, .. } => fetch_part(into.part(rows, columns)),
        Sums::Bf16 { into, .. } => fetch_part(into.part(rows, columns)),
    }
}

fn fetch_part<E: Float>(mut into: MatrixMut<E>) {
    for row in 0..into.row_count() {
        into.row(row).chunks(64 / size_of::<E>()).for_each(|line| prefetch(line.as_ptr()));
    }
}

fn round<E: Float>(
    into: &mut MatrixMut<E>,
    keep: bool,
    bias: Option<&[E]>,
    scale: f32,
    tile: &mut [f32],
    width: usize,
) {
    if scale != 1.0 || bias.is_some() {
        let mut added = [0.0; MOST_COLUMNS];
        if let Some(bias) = bias {
            E::widen(bias, &mut added[..bias.len()]);
        }
        scale_and_add(tile, scale, &added[..width]);
    }
    if keep {
        for (row, sums) in (0..into.row_count()).zip(tile.chunks_exact_mut(width)) {
            let mut previous = [0.0; MOST_COLUMNS];
            let row = into.row(row);
            E::widen(row, &mut previous[..row.len()]);
            accumulate(&mut sums[..row.len()], &previous[..row.len()]);
        }
    }
    let mut rounded = [E::zeroed(); MOST_TILE];
    let rounded = &mut rounded[..tile.len()];
    E::round(tile, rounded);
    for (row, values) in (0..into.row_count()).zip(rounded.chunks_exact(width)) {
        let into = into.row(row);
        // Most rows are whole, with a length that is known at compile time.
        match (into.as_chunks_mut::<MOST_COLUMNS>(), values.as_chunks::<MOST_COLUMNS>()) {
            (([into], []), ([values], [])) => *into = *values,
            _ => into.copy_from_slice(&values[..into.len()]),
        }
    }
}

vectorized! {
    /// Writes `scale` times the tile, added to the previous values if `keep`.
    fn write<S: Simd>(simd: S, into: &mut MatrixMut, scale: f32, tile: &[f32], width: usize, keep: bool) {
        for (row, sums) in (0..into.row_count()).zip(tile.chunks_exact(width)) {
            let values = into.row(row).iter_mut().zip(sums);
            if keep {
                values.for_each(|(into, sum)| *into += scale * sum);
            } else {
                values.for_each(|(into, sum)| *into = scale * sum);
            }
        }
    }

    /// tile = scale · tile + bias, in each row.
    fn scale_and_add<S: Simd>(simd: S, tile: &mut [f32], scale: f32, bias: &[f32]) {
        for sums in tile.chunks_exact_mut(bias.len()) {
            for (sum, bias) in sums.iter_mut().zip(bias) {
                *sum = scale * *sum + bias;
            }
        }
    }
}
