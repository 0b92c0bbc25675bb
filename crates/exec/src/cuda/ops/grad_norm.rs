//! Launches of `kernels/grad_norm.cu`: the squares of the operands by blocks, their sums, and the total of these. Operands are in
//! lists, whose blocks fit into the scratch for the largest operand. The total is in scratch, after these blocks.

use super::CudaKernel;
use super::shape::{launch, line};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{GradNorm, NORM_BLOCK};
use std::ops::Range;

/// Operands of a list: `LISTED` of `grad_norm.cu`.
const LISTED: usize = 64;

impl CudaKernel for GradNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let counts = operands.io.inputs.iter().map(|ty| ty.elements().div_ceil(NORM_BLOCK)).collect::<Vec<_>>();
        let most = counts.iter().max().copied().unwrap_or(0);
        let (sums, total) = (operands.scratch.address, operands.scratch.address + 8 * most as u64);
        let of_list = |list: Range<usize>| {
            let blocks = counts[list.clone()].iter().sum::<usize>();
            let record = record(operands, &counts, list.clone());
            let squares = Arguments::default().address(sums).int(NORM_BLOCK).record(&record);
            let join = Arguments::default().address(sums).record(&record);
            let add = Arguments::default()
                .addresses(&[sums, total, operands.outputs[0]])
                .flag(list.start == 0)
                .flag(list.end == counts.len())
                .record(&record);
            [
                launch("grad_norm", "grad_norm_squares", line(blocks), squares),
                launch("grad_norm", "grad_norm_join", line(list.len()), join),
                Launch { threads: 1, ..launch("grad_norm", "grad_norm_total", line(1), add) },
            ]
        };
        lists(&counts, most).into_iter().flat_map(of_list).map(Part::Kernel).collect()
    }
}

/// Operands of lists, given the number of blocks of each: in order, at most `most` blocks in a list unless it has one operand.
fn lists(counts: &[usize], most: usize) -> Vec<Range<usize>> {
    let mut lists = Vec::<Range<usize>>::new();
    let mut blocks = 0;
    for (index, count) in counts.iter().enumerate() {
        match lists.last_mut() {
            Some(list) if list.len() < LISTED && blocks + count <= most => {
                list.end = index + 1;
                blocks += count;
            }
            _ => {
                lists.push(index..index + 1);
                blocks = *count;
            }
        }
    }
    lists
}

/// `struct List` of `grad_norm.cu`.
fn record(operands: &Operands, counts: &[usize], list: Range<usize>) -> Arguments {
    let mut first = 0;
    let mut record = Arguments::default();
    for index in list.clone() {
        let ty = operands.io.inputs[index];
        let is_rounded = u64::from(ty.dtype != DType::F32);
        record = record.address(operands.inputs[index]).long(ty.elements() as u64).long(first).long(is_rounded);
        first += counts[index] as u64;
    }
    let absent = 4 * (LISTED - list.len());
    (0..absent).fold(record, |record, _| record.long(0)).long(list.len() as u64).long(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_all_operands_in_order_and_few_blocks() {
        assert_eq!(lists(&[3, 5, 2, 2, 1, 5], 5), [0..1, 1..2, 2..5, 5..6]);
        assert_eq!(lists(&[1; 150], 100), [0..64, 64..128, 128..150]);
        assert_eq!(lists(&[], 0), []);
    }
}
