//! Chains of ops: for each tile of rows, the kernels of its ops. Inner tensors are in scratch.

use super::{CpuKernel, run};
use crate::call::{Call, Input, Output};
use plimsoll_graph::ops::{ByRows, ByRowsGrad, Chain, Slot};
use plimsoll_graph::{DType, Target, TensorType};
use std::ops::Range;

impl CpuKernel for ByRows {
    fn run(&self, call: Call) {
        in_tiles(call, self.rows, |_| &self.chain);
    }
}

impl CpuKernel for ByRowsGrad {
    fn run(&self, call: Call) {
        in_tiles(call, self.rows, |tile| self.chain(tile));
    }
}

fn in_tiles<'c>(mut call: Call, rows: usize, chain_of: impl Fn(usize) -> &'c Chain) {
    let target = Target::Cpu { threads: call.threads };
    let (types, scalars, threads) = (call.io.inputs.clone(), call.scalars, call.threads);
    let workspace = chain_of(0).workspace(&types, rows, &target);
    let operands = (0..types.len()).map(|index| call.bytes(index)).collect::<Vec<_>>();
    let mut results = call.take_byte_outputs().collect::<Vec<_>>();
    let scratch = bytemuck::cast_slice_mut::<f32, u8>(call.take_scratch());
    for (index, tile) in chain_of(0).tiles(&types, rows).iter().enumerate() {
        let chain = chain_of(index);
        let bytes = |slot: Slot| {
            let from = match slot {
                Slot::Inner(index) => workspace.inner[index],
                slot => chain.offset(tile, slot),
            };
            from as usize..(from + tile.ty(slot).bytes().0) as usize
        };
        for own in &chain.ops {
            let io = tile.io(own);
            let from = workspace.scratch as usize;
            let own_scratch = from..from + own.op.scratch(&io, &target).0 as usize / 4 * 4;
            // The parts of scratch that this op uses: its inner operands, each once, its inner results, its scratch.
            let mut inner =
                own.inputs.iter().chain(&own.outputs).copied().filter(|slot| matches!(slot, Slot::Inner(_)));
            let mut slots = inner.by_ref().collect::<Vec<_>>();
            slots.sort_unstable();
            slots.dedup();
            let ranges = slots.iter().map(|&slot| bytes(slot)).chain([own_scratch]).collect::<Vec<_>>();
            let mut parts = split(scratch, &ranges);
            let own_scratch = parts.pop().flatten().expect("the last part is the op's scratch");
            let mut outputs = (0..own.outputs.len()).map(|_| None).collect::<Vec<_>>();
            for (place, slot) in own.outputs.iter().enumerate() {
                if let Ok(part) = slots.binary_search(slot) {
                    outputs[place] = parts[part].take();
                }
            }
            let mut written = vec![None; results.len()];
            for (index, result) in results.iter_mut().enumerate() {
                let slot = Slot::Result(index);
                match own.outputs.iter().position(|output| *output == slot) {
                    Some(place) => outputs[place] = Some(&mut result[bytes(slot)]),
                    None if own.inputs.contains(&slot) => written[index] = Some(&result[bytes(slot)]),
                    None => {}
                }
            }
            let parts = parts.into_iter().map(|part| part.map(|part| &*part)).collect::<Vec<_>>();
            let input = |&slot: &Slot| {
                let found = match slot {
                    Slot::Operand(index) => &operands[index][bytes(slot)],
                    Slot::Result(index) => written[index].expect("an op does not write its operands"),
                    Slot::Inner(_) => {
                        let part =
                            slots.binary_search(&slot).expect("operands of an op are operands of the node, or inner");
                        parts[part].expect("an op does not write its operands")
                    }
                };
                input_of(tile.ty(slot), found)
            };
            let inputs = own.inputs.iter().map(input).collect();
            let outputs = own.outputs.iter().zip(outputs).map(|(&slot, bytes)| {
                output_of(tile.ty(slot), bytes.expect("results of an op are results of the node, or inner"))
            });
            let outputs = outputs.collect();
            let scratch = bytemuck::cast_slice_mut(&mut own_scratch[..]);
            run(&own.op, Call { inputs, outputs, scratch, io, scalars, threads });
        }
    }
}

/// Parts of a slice that do not overlap, in the order of the ranges. Panics if they overlap.
fn split<'a>(slice: &'a mut [u8], ranges: &[Range<usize>]) -> Vec<Option<&'a mut [u8]>> {
    let mut order = (0..ranges.len()).collect::<Vec<_>>();
    order.sort_by_key(|&index| (ranges[index].start, ranges[index].end));
    let mut parts = (0..ranges.len()).map(|_| None).collect::<Vec<_>>();
    let (mut rest, mut at) = (slice, 0);
    for index in order {
        let Range { start, end } = ranges[index].clone();
        let (_, after) = rest.split_at_mut(start - at);
        let (part, after) = after.split_at_mut(end - start);
        parts[index] = Some(part);
        (rest, at) = (after, end);
    }
    parts
}

fn input_of<'a>(ty: &TensorType, bytes: &'a [u8]) -> Input<'a> {
    match ty.dtype {
        DType::F32 => Input::F32(bytemuck::cast_slice(bytes)),
        DType::I32 => Input::I32(bytemuck::cast_slice(bytes)),
        _ => Input::Raw(bytes),
    }
}

fn output_of<'a>(ty: &TensorType, bytes: &'a mut [u8]) -> Output<'a> {
    match ty.dtype {
        DType::F32 => Output::F32(bytemuck::cast_slice_mut(bytes)),
        _ => Output::Raw(bytes),
    }
}
