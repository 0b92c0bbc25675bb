//! Every gradient rule against central differences in double precision, on every op's examples.

#[path = "support/block_of_experts.rs"]
mod block_of_experts;

use plimsoll_exec::cases::{Noise, fill_value};
use plimsoll_exec::reference::{Value, interpret};
use plimsoll_graph::ops::GradientFormat;
use plimsoll_graph::{
    Example, Graph, Init, Node, Op, Ports, Program, ProgramBuilder, ProgramKind, Scalars, TensorId, differentiate,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Differentiable ops whose gradient consists of other ops or is a result, not of one that is named after them.
const BY_OTHER_OPS: [&str; 8] =
    ["Add", "Dispatch", "Dropout", "LinearAdd", "Rotary", "RouterLoss", "Scale", "UniformNoise"];

/// Ops that replace others after the gradient pass, together with those of the gradient.
const REPLACING: [&str; 2] = ["QuantizedLinear", "QuantizedExpertLinear"];

/// Whether an op must have a gradient: there is an op of its name and `Grad`, or it is in the list above.
/// Differentiating any other op must be an error, so that no gradient is lost unnoticed.
fn is_differentiable(op: &str) -> bool {
    let is_gradient = |other: &&str| other.strip_prefix(op).is_some_and(|rest| rest.ends_with("Grad"));
    BY_OTHER_OPS.contains(&op) || !REPLACING.contains(&op) && Op::VARIANTS.iter().any(is_gradient)
}

/// Whether an example's gradient is compared: not of positions in sampling, and not of a sum of two losses.
fn is_tested(op: &Op) -> bool {
    let is_excluded = match op {
        Op::Positions(positions) => positions.offset,
        Op::RouterLoss(loss) => loss.accumulate,
        _ => false,
    };
    is_differentiable(op.variant()) && !is_excluded
}

/// All examples, each with the seed of its operands, which does not change with the examples of other ops: near a choice of
/// `Route` there are no differences.
fn seeded_examples() -> Vec<(u64, Example)> {
    let mut seeds = HashMap::new();
    let seeded = |example: Example| {
        let seed = seeds.entry(example.op.variant()).or_insert(0);
        *seed += 1;
        (*seed, example)
    };
    Op::all_examples().into_iter().map(seeded).collect()
}

/// The operand that is a constant to the op's gradient, as a parameter of a case.
fn constant(op: &Op) -> Option<String> {
    let index = match op {
        Op::ColumnScale(_) => 2,
        Op::ByRows(op) => op.chain.constants().into_iter().next()?,
        _ => return None,
    };
    Some(format!("input{index}"))
}

type Values = HashMap<TensorId, Value<f64>>;

/// A graph with one node, its gradient, and everything needed to run both.
struct Case {
    graph: Graph,
    inputs: Vec<TensorId>,
    forward: Node,
    backward: Program,
    /// Output and its random upstream gradient; empty if the output is a loss.
    cotangents: Vec<(TensorId, TensorId)>,
    /// Input and the tensor that holds its gradient.
    gradients: Vec<(usize, TensorId)>,
    values: Values,
    scalars: Scalars,
}

/// Builds the case of an example with some operands as frozen parameters.
fn build(example: &Example, frozen: &BTreeSet<String>, noise: &mut Noise) -> Case {
    let mut graph = Graph::default();
    let inputs = example
        .inputs
        .iter()
        .enumerate()
        .map(|(i, (ty, _))| match ty.dtype {
            plimsoll_graph::DType::F32 => graph.parameter(format!("input{i}"), &ty.shape, Init::Zeros, false),
            _ => graph.tensor(
                format!("input{i}"),
                ty.clone(),
                plimsoll_graph::Role::Staging,
                plimsoll_graph::Storage::Transient,
            ),
        })
        .collect::<Vec<_>>();
    graph.declare_training_state(&[], GradientFormat::F32, frozen);
    let mut builder = ProgramBuilder::new(&mut graph);
    let outputs = builder.push(example.op.clone(), &inputs).expect("examples are well-typed");
    let forward = builder.nodes[0].clone();
    let is_loss = matches!(
        example.op,
        Op::HeadLoss(_) | Op::PairedHeadLoss(_) | Op::ContrastiveLoss(_) | Op::PreferenceLoss(_) | Op::RouterLoss(_)
    );
    let cotangents = if is_loss {
        vec![]
    } else {
        let ty = builder.graph[outputs[0]].ty.clone();
        vec![(
            outputs[0],
            builder.graph.tensor("cotangent", ty, plimsoll_graph::Role::Activation, plimsoll_graph::Storage::Transient),
        )]
    };
    let roots = match cotangents.first() {
        Some(&(output, cotangent)) => (output, Some(cotangent)),
        None => (outputs[0], None),
    };
    let activations = differentiate(&mut builder, &[roots], false).expect("a differentiable op");
    let nodes = builder.nodes.clone();
    let written = nodes.iter().flat_map(|n| n.outputs.clone()).collect::<HashSet<_>>();
    let gradients = inputs
        .iter()
        .enumerate()
        .filter_map(|(index, id)| {
            let accumulator = graph.parameters.iter().find(|p| p.tensor == *id)?.training.as_ref()?.gradient;
            let through = activations.get(id).copied();
            Some((index, through.or(written.contains(&accumulator).then_some(accumulator))?))
        })
        .collect();
    let mut values = Values::new();
    for (id, (ty, fill)) in inputs.iter().zip(&example.inputs) {
        values.insert(*id, fill_value(ty, *fill, noise));
    }
    for (_, cotangent) in &cotangents {
        values.insert(*cotangent, fill_value(&graph[*cotangent].ty, plimsoll_graph::Fill::Uniform, noise));
    }
    let backward = Program { name: ProgramKind::Numbered(1).into(), nodes, ports: Ports::default() };
    Case { graph, inputs, forward, backward, cotangents, gradients, values, scalars: example.scalars }
}

impl Case {
    /// The sum of the op's output weighted by the cotangent, or the loss.
    fn objective(&self, values: &Values) -> f64 {
        let mut values = values.clone();
        let program = Program {
            name: ProgramKind::Numbered(0).into(),
            nodes: vec![self.forward.clone()],
            ports: Ports::default(),
        };
        interpret(&self.graph, &program, &mut values, &self.scalars);
        match self.cotangents.first() {
            Some((output, cotangent)) => {
                let pairs = values[output].floats().iter().zip(values[cotangent].floats());
                pairs.map(|(y, w)| y * w).sum()
            }
            None => values[&self.forward.outputs[0]].floats()[0],
        }
    }

    fn check(&self) {
        let mut results = self.values.clone();
        interpret(&self.graph, &self.backward, &mut results, &self.scalars);
        let name = self.forward.op.name();
        assert!(!self.gradients.is_empty(), "{name} gives no gradient");
        for &(input, gradient) in &self.gradients {
            let found = results[&gradient].floats();
            let id = self.inputs[input];
            let spacing = (found.len() / 24).max(1);
            for element in (0..found.len()).step_by(spacing) {
                let step = 1e-5;
                let at = |offset: f64| {
                    let mut values = self.values.clone();
                    let Some(Value::Float(x)) = values.get_mut(&id) else { panic!("a float operand") };
                    x[element] += offset;
                    self.objective(&values)
                };
                let expected = (at(step) - at(-step)) / (2.0 * step);
                let error = (found[element] - expected).abs() / (1.0 + expected.abs());
                assert!(
                    error < 1e-6,
                    "{name}: operand {input}[{element}]: rule {}, differences {expected}",
                    found[element]
                );
            }
        }
    }
}

#[test]
fn every_gradient_agrees_with_finite_differences() {
    let mut covered = HashSet::new();
    for (seed, example) in seeded_examples() {
        if !is_tested(&example.op) {
            continue;
        }
        covered.insert(example.op.variant());
        build(&example, &BTreeSet::new(), &mut Noise::new(seed)).check();
    }
    assert_eq!(
        covered,
        Op::VARIANTS.iter().copied().filter(|op| is_differentiable(op)).collect(),
        "an op without examples"
    );
}

/// Freezing any operands does not change the gradients of the others, and makes no gradient of the frozen ones.
#[test]
fn every_gradient_agrees_with_finite_differences_with_frozen_operands() {
    for (seed, example) in seeded_examples() {
        if !is_tested(&example.op) {
            continue;
        }
        let floats = example.inputs.iter().enumerate().filter(|(_, (ty, _))| ty.dtype == plimsoll_graph::DType::F32);
        let names = floats.map(|(index, _)| format!("input{index}")).collect::<BTreeSet<_>>();
        for name in names.iter().filter(|_| names.len() > 1) {
            let alone = BTreeSet::from([name.clone()]);
            let all_others = names.difference(&alone).cloned().collect();
            for frozen in [alone, all_others] {
                if constant(&example.op).is_some_and(|constant| !frozen.contains(&constant)) && frozen.len() > 1 {
                    continue;
                }
                let case = build(&example, &frozen, &mut Noise::new(seed));
                assert!(
                    !case.graph.tensors.iter().any(|t| frozen.iter().any(|name| *t.name == *format!("{name}.grad")))
                );
                case.check();
            }
        }
    }
}

#[test]
fn differentiating_any_other_op_is_an_error() {
    for example in Op::all_examples() {
        if is_differentiable(example.op.variant()) {
            continue;
        }
        let mut graph = Graph::default();
        let ids = example
            .inputs
            .iter()
            .map(|(ty, _)| graph.parameter("x", &ty.shape, Init::Zeros, false))
            .collect::<Vec<_>>();
        for (id, (ty, _)) in ids.iter().zip(&example.inputs) {
            graph.tensors[id.index()].ty = ty.clone();
        }
        graph.declare_training_state(&[], GradientFormat::F32, &BTreeSet::new());
        let mut builder = ProgramBuilder::new(&mut graph);
        // An op without results has no gradient to request.
        let made = builder.push(example.op.clone(), &ids).expect("examples are well-typed");
        let Some(&y) = made.first() else { continue };
        assert!(differentiate(&mut builder, &[(y, None)], false).is_err(), "{}", example.op.name());
    }
}
