//! Launches of `kernels/route.cu`.

use super::CudaKernel;
use super::shape::{THREADS, WARP, extent, launch, line, number};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::{Route, RouteGrad, tokens_of_part};

/// Warps of a block: `WARPS` of `route.cu`.
const WARPS: usize = THREADS as usize / WARP;

impl CudaKernel for Route {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let logits = operands.io.inputs[0];
        let (tokens, count, chosen) = (logits.rows(), logits.columns(), self.experts_per_token);
        let each = tokens_of_part(tokens);
        let parts = tokens.div_ceil(each);
        let [weights, experts, places, bounds] = [0, 1, 2, 3].map(|index| operands.outputs[index]);
        let counts = operands.scratch.address;
        let (sums, sums_of_parts) =
            if self.sums { (operands.outputs[4], counts + (4 * parts * count) as u64) } else { (0, 0) };
        let arguments = Arguments::default()
            .address(operands.inputs[0])
            .addresses(&[weights, experts, counts, sums_of_parts])
            .int(tokens)
            .int(each)
            .int(count)
            .int(chosen)
            .flag(self.normalized)
            .int(number(logits.dtype));
        let choose = Launch {
            shared_bytes: if self.sums { extent(4 * WARPS * count) } else { 0 },
            ..launch("route", "route", line(parts), arguments)
        };
        let arguments = Arguments::default().addresses(&[counts, sums_of_parts, bounds, sums]).int(parts).int(count);
        let bound = launch("route", "route_bounds", line(1), arguments);
        let arguments = Arguments::default().addresses(&[experts, counts, places]);
        let arguments = arguments.int(tokens).int(each).int(count).int(chosen);
        let place = launch("route", "route_places", line(parts), arguments);
        vec![choose.into(), bound.into(), place.into()]
    }
}

impl CudaKernel for RouteGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let logits = operands.io.inputs[0];
        let dsums = if self.sums { operands.inputs[3] } else { 0 };
        let arguments = Arguments::default()
            .addresses(&operands.inputs[..3])
            .addresses(&[dsums, operands.outputs[0]])
            .int(logits.rows())
            .int(logits.columns())
            .int(operands.io.inputs[1].columns())
            .flag(self.normalized)
            .int(number(logits.dtype));
        vec![launch("route", "route_grad", line(logits.rows().div_ceil(WARPS)), arguments).into()]
    }
}
