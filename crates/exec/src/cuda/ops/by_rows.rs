//! Chains of ops: for each tile of rows, the launches of its ops. Inner tensors are in scratch.

use super::{CudaKernel, parts};
use crate::cuda::launch::{Operands, Part, Scratch};
use plimsoll_graph::ops::{ByRows, ByRowsGrad, Chain, Slot};
use plimsoll_graph::{Io, Target};

impl CudaKernel for ByRows {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        in_tiles(operands, self.rows, |_| &self.chain)
    }

    fn refusal(&self, io: &Io, compute_capability: (u8, u8)) -> Option<String> {
        refusal_of(&self.chain, io, self.rows, compute_capability)
    }
}

impl CudaKernel for ByRowsGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        in_tiles(operands, self.rows, |tile| self.chain(tile))
    }

    fn refusal(&self, io: &Io, compute_capability: (u8, u8)) -> Option<String> {
        refusal_of(&self.further, io, self.rows, compute_capability)
    }
}

fn in_tiles<'c>(operands: &Operands, rows: usize, chain_of: impl Fn(usize) -> &'c Chain) -> Vec<Part> {
    let target = Target::Cuda { compute_capability: operands.compute_capability, products: Default::default() };
    let workspace = chain_of(0).workspace(&operands.io.inputs, rows, &target);
    let scratch = Scratch {
        address: operands.scratch.address + workspace.scratch,
        bytes: operands.scratch.bytes.saturating_sub(workspace.scratch),
    };
    let inner = &workspace.inner;
    let tiles = chain_of(0).tiles(&operands.io.inputs, rows);
    let of_tile = tiles.iter().enumerate().flat_map(|(index, tile)| {
        let chain = chain_of(index);
        let address = move |slot: &Slot| match *slot {
            Slot::Operand(index) => operands.inputs[index] + chain.offset(tile, *slot),
            Slot::Result(index) => operands.outputs[index] + chain.offset(tile, *slot),
            Slot::Inner(index) => operands.scratch.address + inner[index],
        };
        let of_op = chain.ops.iter().flat_map(|own| {
            let operands = Operands {
                inputs: own.inputs.iter().map(&address).collect(),
                outputs: own.outputs.iter().map(&address).collect(),
                scratch,
                io: tile.io(own),
                ..operands.clone()
            };
            parts(&own.op, &operands)
        });
        of_op.collect::<Vec<_>>()
    });
    of_tile.collect()
}

fn refusal_of(chain: &Chain, io: &Io, rows: usize, compute_capability: (u8, u8)) -> Option<String> {
    let tiles = chain.tiles(&io.inputs, rows);
    chain.ops.iter().find_map(|own| super::refusal(&own.op, &tiles[0].io(own), compute_capability))
}
