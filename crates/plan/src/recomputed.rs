//! What a plan recomputes or sends to the host, by op, and what that costs.

use crate::cost::KnownTimes;
use crate::request::Request;
use crate::search::Found;
use plimsoll_graph::{ALIGNMENT, MemoryId, Op, Pass, Storage};
use plimsoll_units::{Bytes, Seconds};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Results of one op in the forward pass of a micro-batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Recomputed {
    /// The op.
    pub op: &'static str,
    /// Its nodes in the forward pass.
    pub nodes: usize,
    /// Those of them that are recomputed.
    pub recomputed: usize,
    /// Bytes of their results, which are not kept.
    pub bytes: Bytes,
    /// Predicted time of recomputing them, in a micro-batch.
    pub seconds: Seconds,
    /// Those that wait on the host until they are read again.
    pub sent: usize,
    /// Bytes of these.
    pub sent_bytes: Bytes,
    /// Predicted time of their transfers there and back, in a micro-batch.
    pub sent_seconds: Seconds,
}

/// By op, the most bytes first. Ops whose results are all kept are last.
pub fn recomputed(request: &Request, found: &Found) -> Vec<Recomputed> {
    let graph = &found.graph;
    let program = graph.repeated_micro_step();
    let mut known = KnownTimes::default();
    let mut by_op = BTreeMap::<&str, Recomputed>::new();
    let mut makers = HashMap::new();
    for node in program.map_or(&[][..], |program| &program.nodes) {
        let op = node.op.name();
        if let Op::Transfer(_) = node.op {
            let (from, to) = (node.inputs[0], node.outputs[0]);
            if let Some(&op) =
                makers.get(&from).filter(|_| graph[to].memory == MemoryId::HOST && node.pass == Pass::Forward)
            {
                let of: &mut Recomputed = by_op.get_mut(op).expect("a node made it");
                of.sent += 1;
                of.sent_bytes += graph[to].ty.bytes().align_up(ALIGNMENT);
                of.sent_seconds.0 += 2.0 * request.machine.on_device(graph, node, &request.targets, &mut known);
            }
            continue;
        }
        makers.extend(node.outputs.iter().map(|&id| (id, op)));
        if let Op::AwaitTransfer(_) = node.op {
            continue;
        }
        let of = by_op.entry(op).or_insert_with(|| Recomputed { op, ..Recomputed::default() });
        match node.pass {
            Pass::Forward => of.nodes += 1,
            Pass::Recompute => {
                let transient = node.outputs.iter().filter(|id| graph[**id].storage == Storage::Transient);
                of.recomputed += 1;
                of.bytes += transient.map(|id| graph[*id].ty.bytes().align_up(ALIGNMENT)).sum::<Bytes>();
                of.seconds.0 += request.machine.on_device(graph, node, &request.targets, &mut known);
            }
            _ => {}
        }
    }
    let mut ops = by_op.into_values().filter(|of| of.nodes > 0).collect::<Vec<_>>();
    ops.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.op.cmp(b.op)));
    ops
}
