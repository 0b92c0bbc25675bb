//! The precision of weights, activations and matrix products.
//!
//! ```text
//!   fp32         weight F32 ◄── adamw
//!   bf16         weight Bf16 and its remainder I16 ◄── adamw      together the master, to the bit
//!   fp16         weight F16 ◄── cast ◄── master F32 ◄── adamw
//!   bf16-pure    weight Bf16 ◄── adamw, stochastic rounding
//!   fp8          as bf16, with products of linear layers in 8 bits (`fp8.rs`)
//! ```
//! A half of `F16` is no part of a number of single precision, so that its master is whole. Gradients of parameters are computed
//! in single precision (`gradient_precision.rs` says how they are kept). Statistics of norms, sums and losses are in single
//! precision always, and so are parameters that say so.

use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{Levers, Precision, Settings};
use plimsoll_graph::ops::{Cast, WeightFormat};
use plimsoll_graph::{DType, Graph, Node, Pass, Role, Storage, TensorId};
use smallvec::smallvec;

/// Rewrites a graph that was built in single precision.
pub fn precision(graph: &mut Graph, precision: Precision) {
    if precision == Precision::Fp32 {
        return;
    }
    for index in 0..graph.parameters.len() {
        if graph.parameters[index].is_single {
            continue;
        }
        let tensor = graph.parameters[index].tensor;
        let full = graph[tensor].ty.clone();
        graph[tensor].ty.dtype = precision.dtype();
        let declare = |graph: &mut Graph, suffix: &str, dtype| {
            let (name, ty) = (format!("{}.{suffix}", graph[tensor].name), full.with_dtype(dtype));
            Some(graph.tensor(name, ty, Role::Optimizer, Storage::Persistent))
        };
        let Some(mut training) = graph.parameters[index].training.take() else { continue };
        match precision {
            Precision::Fp16 => training.master = declare(graph, MASTER, DType::F32),
            Precision::Bf16 | Precision::Fp8 => training.remainder = declare(graph, REMAINDER, DType::I16),
            Precision::Fp32 | Precision::Bf16Pure => {}
        }
        graph.parameters[index].training = Some(training);
    }
    for index in 0..graph.programs.len() {
        let nodes = std::mem::take(&mut graph.programs[index].nodes);
        let mut rewritten = Vec::with_capacity(nodes.len());
        for node in nodes {
            rewrite(graph, node, precision, &mut rewritten);
        }
        if let Some(logits) = graph.programs[index].ports.logits {
            let ty = graph[logits].ty.with_dtype(DType::F32);
            let full = graph.tensor("logits", ty, Role::Staging, Storage::Transient);
            rewritten.push(cast(DType::F32, logits, full, Pass::Forward));
            graph.programs[index].ports.logits = Some(full);
        }
        graph.programs[index].nodes = rewritten;
    }
}

/// The end of a master's name.
pub(super) const MASTER: &str = "master";

/// What the name of the remainder of a weight ends with.
const REMAINDER: &str = "remainder";

fn cast(to: DType, from: TensorId, into: TensorId, pass: Pass) -> Node {
    Node { op: Cast { to }.into(), inputs: smallvec![from], outputs: smallvec![into], block: None, pass }
}

fn rewrite(graph: &mut Graph, mut node: Node, precision: Precision, rewritten: &mut Vec<Node>) {
    if let Some(update) = node.op.update() {
        let weight = node.outputs[update.weight];
        let owner = graph.parameters.iter().find(|p| p.tensor == weight).expect("a parameter is updated");
        if owner.is_single {
            return rewritten.push(node);
        }
        let [master, remainder] = owner.training.as_ref().map_or([None; 2], |t| [t.master, t.remainder]);
        match master {
            Some(master) => {
                node.outputs[update.weight] = master;
                let pass = node.pass;
                rewritten.push(node);
                rewritten.push(cast(precision.dtype(), master, weight, pass));
            }
            None => {
                let format = if remainder.is_some() { WeightFormat::Bf16AndRemainder } else { WeightFormat::Bf16 };
                node.op = node.op.keeping_weight(format).expect("an optimizer keeps its weight as asked");
                if let (Some(at), Some(remainder)) = (node.op.update().and_then(|u| u.remainder), remainder) {
                    node.outputs.insert(at, remainder);
                }
                rewritten.push(node);
            }
        }
        return;
    }
    let types = {
        let inputs = node.inputs.iter().map(|&id| &graph[id].ty).collect::<Vec<_>>();
        node.op.infer(&inputs).expect("an op that takes single precision takes half")
    };
    for (&output, ty) in node.outputs.iter().zip(types) {
        if graph[output].storage != Storage::Persistent {
            graph[output].ty = ty;
        }
    }
    rewritten.push(node);
}

pub(super) struct PrecisionLever;

impl Lever for PrecisionLever {
    fn name(&self) -> &'static str {
        "precision"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        now.levers.precision.name().to_owned()
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { precision: Precision::Fp32, ..now.levers }, ..*now }
    }

    fn coarser(&self, request: &Request) -> Vec<Alternative> {
        let asked = request.levers.precision;
        let fewer_bits = match asked {
            Precision::Fp32 => &[Precision::Bf16, Precision::Bf16Pure][..],
            Precision::Bf16 | Precision::Fp16 => &[Precision::Bf16Pure],
            Precision::Fp8 => &[Precision::Bf16, Precision::Bf16Pure],
            Precision::Bf16Pure => &[],
        };
        let alternative = |&precision: &Precision| {
            Alternative::of_lever(self, precision.name(), request, |levers| levers.precision = precision)
        };
        fewer_bits.iter().map(alternative).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_graph::{Optimizer, ProgramKind, TrainShape, build_training};

    fn graph_in(wanted: Precision) -> Graph {
        let model = ModelConfig::preset("nano").expect("a preset");
        let shape = TrainShape { seq_len: 8, head_chunk: 8, sample_prefill: Some(4), ..TrainShape::default() };
        let mut graph = build_training(&model, &Optimizer::default(), &shape).expect("a sensible model");
        precision(&mut graph, wanted);
        graph
    }

    /// Weights and activations are in the precision that was asked for, gradients, moments and losses in single. Each weight
    /// in `F16` has a master, from which it is rounded right after its update; one in `Bf16` has a remainder, and
    /// is the result of the update itself.
    #[test]
    fn every_tensor_is_in_the_precision_that_belongs_to_it() {
        for wanted in [Precision::Fp32, Precision::Bf16, Precision::Fp16, Precision::Bf16Pure, Precision::Fp8] {
            let graph = graph_in(wanted);
            for tensor in &graph.tensors {
                let is_weight = tensor.role == Role::Weight;
                let is_residual = tensor.name.ends_with("/add");
                if is_weight || is_residual {
                    assert_eq!(tensor.ty.dtype, wanted.dtype(), "{wanted:?}: {}", tensor.name);
                }
                let is_remainder = tensor.name.ends_with(".remainder");
                assert_eq!(tensor.ty.dtype == DType::I16, is_remainder, "{wanted:?}: {}", tensor.name);
                let is_single = matches!(tensor.role, Role::Gradient | Role::Optimizer) || *tensor.name == *"loss";
                let is_right = !is_single || is_remainder || tensor.ty.dtype == DType::F32;
                assert!(is_right, "{wanted:?}: {}", tensor.name);
            }
            assert!(graph.tensors.iter().any(|t| t.name.ends_with("/add")), "a model has residuals");
            let keeps_master = wanted == Precision::Fp16;
            let nodes = &graph.program(ProgramKind::Update).expect("a graph that trains").nodes;
            for parameter in &graph.parameters {
                let training = parameter.training.as_ref().expect("all are trained");
                assert_eq!(training.master.is_some(), keeps_master, "{wanted:?}");
                assert_eq!(
                    training.remainder.is_some(),
                    matches!(wanted, Precision::Bf16 | Precision::Fp8),
                    "{wanted:?}"
                );
                let of_it = |n: &Node| n.op.update().is_some_and(|u| n.outputs[u.weight] == parameter.master());
                let at = nodes.iter().position(of_it).expect("every parameter is updated");
                if let Some(remainder) = training.remainder {
                    let bytes = |id: TensorId| graph[id].ty.bytes().0;
                    let kept = bytes(parameter.tensor) + bytes(remainder);
                    assert_eq!(kept, 4 * graph[parameter.tensor].ty.elements() as u64);
                    assert_eq!(nodes[at].outputs[..2], [parameter.tensor, remainder]);
                    let reads = |n: &Node| n.inputs.contains(&parameter.tensor);
                    assert!(!nodes.iter().any(reads), "nothing is rounded once more");
                }
                if keeps_master {
                    let expected = cast(wanted.dtype(), parameter.master(), parameter.tensor, Pass::Update);
                    assert_eq!(nodes[at + 1], expected, "{wanted:?}");
                }
            }
            let logits = graph.program(ProgramKind::Sample).and_then(|p| p.ports.logits).expect("text is sampled");
            assert_eq!(graph[logits].ty.dtype, DType::F32);
        }
    }
}
