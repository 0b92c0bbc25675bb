//! What a step takes in time, as far as it can be told beforehand: a roofline for each node. Read off the graph, so
//! that every lever's price is.

use graph::{DeviceKind, Graph, Io, Node, Op, Target};
use serde::{Deserialize, Serialize};
use units::Seconds;

/// What a machine does in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating point operations of matrix products and kernels.
    pub flops_per_s: f64,
    /// Bytes that kernels read and write.
    pub bytes_per_s: f64,
    /// Bytes that pass between device and host.
    pub transfer_bytes_per_s: f64,
    /// Seconds that a node takes beyond its work.
    pub node_s: f64,
}

impl Rates {
    /// Of a processor with 512-bit vectors, as a first guess: measured with `bench` on two cores of an AMD EPYC 9005.
    pub fn guess(target: &Target) -> Self {
        let threads = target.threads as f64;
        Self {
            flops_per_s: 150e9 * threads,
            bytes_per_s: 12e9 * threads.min(4.0),
            transfer_bytes_per_s: 8e9,
            node_s: 3e-6,
        }
    }

    /// Predicted time of an optimizer step with `accumulation` micro-batches.
    pub fn step(&self, graph: &Graph, accumulation: usize, target: &Target) -> Seconds {
        let programs = [("micro_step", 1), ("micro_step_add", accumulation.saturating_sub(1)), ("update", 1)];
        let seconds = programs.into_iter().filter(|(_, times)| *times > 0).map(|(name, times)| {
            let nodes = graph.program(name).map_or(&[][..], |program| &program.nodes);
            times as f64 * nodes.iter().map(|node| self.node(graph, node, target)).sum::<f64>()
        });
        Seconds(seconds.sum())
    }

    fn node(&self, graph: &Graph, node: &Node, target: &Target) -> f64 {
        let io: Io = graph.io(&node.inputs, &node.outputs);
        let moved = node.op.bytes_moved(&io).0 as f64;
        if matches!(node.op, Op::Transfer(_)) {
            return self.node_s + moved / 2.0 / self.transfer_bytes_per_s;
        }
        // What is widened is written once and read once.
        let DeviceKind::Cpu = target.device;
        let widened = node.op.widened(&io).map(|(_, bytes)| 2 * bytes.0).sum::<u64>();
        let flops = node.op.flops(&io) as f64 / self.flops_per_s;
        self.node_s + flops.max((moved + widened as f64) / self.bytes_per_s)
    }
}
