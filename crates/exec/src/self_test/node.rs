//! Plans of programs of one node each. All tensors are persistent, so that they can be written before and read after
//! the program.

use plimsoll_graph::{
    Example, Graph, MemoryId, Node, Pass, Ports, Program, ProgramKind, Role, Storage, Targets, TensorId, TensorType,
};
use plimsoll_plan::{Plan, lay_out, validate};

/// A node, and the places of its operands and results.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedNode<'a> {
    pub(super) example: &'a Example,
    pub(super) from: MemoryId,
    pub(super) to: MemoryId,
}

/// A plan with a program for each node, named by its number. Panics if an example is not well-typed, or if the plan is
/// invalid.
pub(super) fn plan_of_nodes<'a>(nodes: impl IntoIterator<Item = PlacedNode<'a>>, targets: &Targets) -> Plan {
    let mut graph = Graph::default();
    for (number, node) in (0..).zip(nodes) {
        let types = node.example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        let results = node.example.op.infer(&types).expect("examples are well-typed");
        let inputs = types.into_iter().map(|ty| tensor(&mut graph, ty, node.from)).collect();
        let outputs = results.iter().map(|ty| tensor(&mut graph, ty, node.to)).collect();
        let node = Node { op: node.example.op.clone(), inputs, outputs, block: None, pass: Pass::Forward };
        graph.programs.push(Program {
            name: ProgramKind::Numbered(number).into(),
            nodes: vec![node],
            ports: Ports::default(),
        });
    }
    let plan = lay_out(&graph, targets);
    assert_eq!(validate(&plan), Ok(()));
    plan
}

fn tensor(graph: &mut Graph, ty: &TensorType, memory: MemoryId) -> TensorId {
    let id = graph.tensor(graph.tensors.len().to_string(), ty.clone(), Role::Activation, Storage::Persistent);
    graph[id].memory = memory;
    id
}
