//! Tiles of rows: a rewrite of a forward pass, before its gradient is built, that joins the ops from attention to the end of a
//! block into one node, which works through its rows tile by tile. The widest tensors of a block then exist for one tile
//! only, in both passes. Models, other ops and the gradient pass do not know of it.

use crate::ops::{ByRows, Chain, ChainOp, Slot};
use crate::{Graph, Node, Pass, ProgramBuilder, Role, Storage, TensorId, TensorIds, TensorType};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The nodes that read each tensor.
type Readers = HashMap<TensorId, Vec<usize>>;

/// Joins nodes of a program that has only a forward pass yet. `rows`: those of a tile.
pub(crate) fn tile_rows(builder: &mut ProgramBuilder, rows: usize) {
    let nodes = std::mem::take(&mut builder.nodes);
    let mut readers = Readers::new();
    for (index, node) in nodes.iter().enumerate() {
        for &id in &node.inputs {
            readers.entry(id).or_default().push(index);
        }
    }
    let fetched = builder.ports.fetched().collect::<BTreeSet<_>>();
    let mut at = 0;
    while at < nodes.len() {
        let run = run_from(&nodes, at);
        let end = run.end;
        let found = longest(builder.graph, &nodes, &readers, &fetched, run, rows);
        let joined = found.as_ref().map_or(at..at, |(range, _)| range.clone());
        builder.nodes.extend(nodes[at..joined.start].iter().cloned());
        if let Some((_, node)) = found {
            // What the joined nodes passed to each other is part of the graph no more.
            let made = nodes[joined.clone()].iter().flat_map(|node| &node.outputs);
            made.filter(|id| !node.outputs.contains(id)).for_each(|&id| builder.graph[id].ty = TensorType::f32(&[0]));
            builder.nodes.push(node);
        }
        at = joined.end;
        if joined.is_empty() {
            let next = end.max(at + 1);
            builder.nodes.extend(nodes[at..next].iter().cloned());
            at = next;
        }
    }
}

/// The nodes from this one on that are of one block and work by rows.
fn run_from(nodes: &[Node], from: usize) -> Range<usize> {
    let belongs = |node: &&Node| node.block.is_some() && node.block == nodes[from].block && node.op.is_by_rows();
    from..from + nodes[from..].iter().take_while(belongs).count()
}

/// The longest part of a run that has one result and makes something wider, and the node that it is joined into.
fn longest(
    graph: &Graph,
    nodes: &[Node],
    readers: &Readers,
    fetched: &BTreeSet<TensorId>,
    run: Range<usize>,
    rows: usize,
) -> Option<(Range<usize>, Node)> {
    let lengths = (2..=run.len()).rev();
    let mut parts = lengths.flat_map(|length| (run.start..=run.end - length).map(move |from| from..from + length));
    parts.find_map(|part| {
        let is_outside = |id: &TensorId| {
            let is_read = readers.get(id).is_some_and(|all| all.iter().any(|reader| !part.contains(reader)));
            is_read || fetched.contains(id) || graph[*id].storage != Storage::Transient
        };
        let made = || nodes[part.clone()].iter().flat_map(|node| node.outputs.iter().copied());
        let mut results = made().filter(|id| is_outside(id));
        let (Some(result), None) = (results.next(), results.next()) else { return None };
        let is_wide = made().any(|id| graph[id].ty.columns() > graph[result].ty.columns());
        let is_last = nodes[part.end - 1].outputs.contains(&result);
        let node = if is_wide && is_last { joined(graph, &nodes[part.clone()], result, rows) } else { None };
        node.map(|node| (part, node))
    })
}

/// These nodes as one; `None` if their rows are those of a single tile, or there would be nothing to compute for a gradient.
fn joined(graph: &Graph, nodes: &[Node], result: TensorId, rows: usize) -> Option<Node> {
    let mut slots = HashMap::from([(result, Slot::Result(0))]);
    let (mut operands, mut inner) = (TensorIds::new(), 0);
    let mut ops = Vec::with_capacity(nodes.len());
    for node in nodes {
        for &id in &node.inputs {
            slots.entry(id).or_insert_with(|| {
                operands.push(id);
                Slot::Operand(operands.len() - 1)
            });
        }
        for &id in &node.outputs {
            slots.entry(id).or_insert_with(|| {
                inner += 1;
                Slot::Inner(inner - 1)
            });
        }
        let of = |ids: &[TensorId]| ids.iter().map(|id| slots[id]).collect();
        ops.push(ChainOp { op: node.op.clone(), inputs: of(&node.inputs), outputs: of(&node.outputs) });
    }
    // Norms of weights are neither weights nor have rows.
    let has_rows = operands.iter().map(|&id| graph[id].role != Role::Weight && graph[id].ty.shape.len() > 1);
    let chain = Chain { ops, has_rows: has_rows.collect(), results_with_rows: 1 };
    let types = operands.iter().map(|&id| &graph[id].ty).collect::<Vec<_>>();
    let extents = |id: TensorId| graph[id].ty.shape.iter().take(2).product::<usize>();
    let is_cut = extents(result) > rows && chain.is_differentiable(&types);
    let op = ByRows { chain: Arc::new(chain), rows }.into();
    is_cut.then(|| Node {
        op,
        inputs: operands,
        outputs: [result].into_iter().collect(),
        block: nodes[0].block,
        pass: Pass::Forward,
    })
}
