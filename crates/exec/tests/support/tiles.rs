//! Chains of ops in tiles of rows, to the bit those of all rows at a time. For the kernels of all devices.

use plimsoll_exec::cases::{Case, Noise, PRECISIONS, in_precision};
use plimsoll_graph::ops::{ByRows, ByRowsGrad};
use plimsoll_graph::{DType, Example, Op};

/// Rows of a tile, and of all tiles: the last one is smaller.
const ROWS: [usize; 2] = [64, 160];

/// Results with rows do not depend on the tiles. Gradients of weights are sums over rows, which are added up in another order.
/// `exact_in_single`: whether the device's own kernels compute all products in single precision, also those of few columns.
pub fn check_tiles(exact_in_single: bool, results: impl Fn(&Case) -> Vec<Vec<u8>>) {
    let all = Op::all_examples();
    let chains = all.into_iter().filter(|example| matches!(example.op, Op::ByRows(_) | Op::ByRowsGrad(_)));
    let chains = chains.collect::<Vec<_>>();
    assert_eq!(chains.len(), 10);
    for example in chains {
        let is_thin =
            example.inputs.iter().any(|(ty, _)| ty.shape.len() == 2 && ty.shape.iter().any(|&extent| extent < 32));
        for dtype in PRECISIONS {
            if dtype == DType::F32 && is_thin && !exact_in_single {
                continue;
            }
            let of = |rows| {
                let example = in_precision(&with_rows(&example, rows), dtype).expect("takes all");
                let mut found = results(&Case::new(&example, &mut Noise::new(5)));
                let Op::ByRowsGrad(op) = &example.op else { return found };
                found.truncate(op.first.results_with_rows);
                found
            };
            let [tile, all] = ROWS;
            assert!(of(tile) == of(all), "{:?} in {dtype:?}", example.op);
        }
    }
}

/// The example with more rows, in tiles of this many.
fn with_rows(example: &Example, rows: usize) -> Example {
    let mut example = example.clone();
    let has_rows = match &mut example.op {
        Op::ByRows(ByRows { chain, rows: of_tile }) => {
            *of_tile = rows;
            chain.has_rows.clone()
        }
        Op::ByRowsGrad(ByRowsGrad { first, rows: of_tile, .. }) => {
            *of_tile = rows;
            first.has_rows.clone()
        }
        _ => unreachable!("only chains are passed"),
    };
    for ((ty, _), _) in example.inputs.iter_mut().zip(has_rows).filter(|(_, has_rows)| *has_rows) {
        *ty = ty.with_shape(&[1, ROWS[1], ty.columns()]);
    }
    example
}
