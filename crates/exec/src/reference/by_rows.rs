//! Reference of `ops/by_rows.rs`: the reference kernels of the chain's ops, a tile after another.

use super::{Real, RefCall, Reference, Value, run, value_of};
use plimsoll_graph::ops::{ByRows, ByRowsGrad, Chain, Slot};
use std::collections::HashMap;

impl Reference for ByRows {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        compute(call, outputs, self.rows, |_| &self.chain);
    }
}

impl Reference for ByRowsGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        compute(call, outputs, self.rows, |tile| self.chain(tile));
    }
}

fn compute<'c, F: Real>(call: &RefCall<F>, outputs: &mut [Vec<F>], rows: usize, chain_of: impl Fn(usize) -> &'c Chain) {
    for (index, tile) in chain_of(0).tiles(&call.io.inputs, rows).iter().enumerate() {
        let chain = chain_of(index);
        // The elements of the tile in an operand or result.
        let part = |slot: Slot| {
            let ty = tile.ty(slot);
            let from = (chain.offset(tile, slot) / ty.dtype.size_bytes()) as usize;
            from..from + ty.elements()
        };
        let mut inner = HashMap::<Slot, Value<F>>::new();
        for own in &chain.ops {
            let input = |&slot: &Slot| match slot {
                Slot::Operand(index) => match call.inputs[index] {
                    Value::Float(all) => Value::Float(all[part(slot)].to_vec()),
                    Value::Int(all) => Value::Int(all[part(slot)].to_vec()),
                },
                Slot::Result(index) => Value::Float(outputs[index][part(slot)].to_vec()),
                slot @ Slot::Inner(_) => inner[&slot].clone(),
            };
            let inputs = own.inputs.iter().map(input).collect::<Vec<_>>();
            let mut results = own.outputs.iter().map(|&slot| match slot {
                Slot::Result(index) => outputs[index][part(slot)].to_vec(),
                slot => vec![F::from_f64(f64::NAN); tile.ty(slot).elements()],
            });
            let mut results = results.by_ref().collect::<Vec<_>>();
            let call = RefCall { inputs: inputs.iter().collect(), io: tile.io(own), scalars: call.scalars };
            run(&own.op, &call, &mut results);
            for (&slot, found) in own.outputs.iter().zip(results) {
                match slot {
                    Slot::Result(index) => outputs[index][part(slot)].copy_from_slice(&found),
                    slot => drop(inner.insert(slot, value_of(tile.ty(slot).dtype, found))),
                }
            }
        }
    }
}
