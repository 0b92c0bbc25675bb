//! The moving average of the weights: kept by the update, and evaluated by a program of its own, into which each average
//! comes just before it is used.

use super::Lever;
use crate::request::Request;
use crate::settings::{Average, Levers, Settings};
use plimsoll_graph::ops::{Cast, MovingAverage};
use plimsoll_graph::{Graph, Node, Program, ProgramKind, ProgramName, Role, Storage, TensorId, TensorType};
use smallvec::smallvec;
use std::collections::HashMap;

/// Adds averages to all parameters that are trained, to the update, and to evaluation. Of the others the average is the
/// weight.
pub fn average(graph: &mut Graph, wanted: Average) {
    let mut averages = HashMap::new();
    let mut remainders = HashMap::new();
    for index in 0..graph.parameters.len() {
        if graph.parameters[index].training.is_none() {
            continue;
        }
        let parameter = graph.parameters[index].tensor;
        let weight = graph[parameter].clone();
        let name = format!("{}.average", weight.name);
        let full = TensorType::f32(&weight.ty.shape);
        let average = graph.tensor(name, full, Role::Optimizer, Storage::Persistent);
        graph[average].memory = wanted.memory;
        averages.insert(parameter, average);
        averages.insert(graph.parameters[index].master(), average);
        if let Some(training) = &mut graph.parameters[index].training {
            training.average = Some(average);
            remainders.extend(training.remainder.map(|remainder| (parameter, remainder)));
        }
    }
    for program in &mut graph.programs {
        let nodes = std::mem::take(&mut program.nodes);
        for node in nodes {
            let follows = node.op.update().map(|update| {
                let (weight, factor) = (node.outputs[update.weight], node.inputs[update.factor]);
                let op = MovingAverage { decay: wanted.decay }.into();
                let inputs = [weight, factor].into_iter().chain(remainders.get(&weight).copied()).collect();
                Node { op, inputs, outputs: smallvec![averages[&weight]], ..node.clone() }
            });
            program.nodes.push(node);
            program.nodes.extend(follows);
        }
    }
    let evaluations =
        graph.programs.iter().filter(|p| p.name.kind == ProgramKind::Evaluate).cloned().collect::<Vec<_>>();
    for evaluate in evaluations {
        let program = evaluate_averages(graph, evaluate, &averages);
        graph.programs.push(program);
    }
}

/// The program `evaluate` on tensors of its own, with averages in place of weights.
fn evaluate_averages(graph: &mut Graph, evaluate: Program, averages: &HashMap<TensorId, TensorId>) -> Program {
    let mut copies = HashMap::new();
    let mut copy = |graph: &mut Graph, id: TensorId| {
        *copies.entry(id).or_insert_with(|| {
            let tensor = graph[id].clone();
            graph.tensor(format!("{}/average", tensor.name), tensor.ty, tensor.role, tensor.storage)
        })
    };
    let mut nodes = Vec::with_capacity(evaluate.nodes.len());
    for mut node in evaluate.nodes {
        let (block, pass) = (node.block, node.pass);
        for input in &mut node.inputs {
            let Some(&average) = averages.get(input) else {
                if graph[*input].role != Role::Weight {
                    *input = copy(graph, *input);
                }
                continue;
            };
            let (weight, full) = (graph[*input].clone(), graph[average].ty.dtype);
            *input = average;
            if weight.ty.dtype != full {
                let op = Cast { to: weight.ty.dtype }.into();
                *input = graph.tensor(format!("{}/average", weight.name), weight.ty, weight.role, Storage::Transient);
                nodes.push(Node { op, inputs: smallvec![average], outputs: smallvec![*input], block, pass });
            }
        }
        for output in &mut node.outputs {
            *output = copy(graph, *output);
        }
        nodes.push(node);
    }
    let mut ports = evaluate.ports;
    for port in ports.each_mut() {
        *port = copy(graph, *port);
    }
    Program { name: ProgramName { kind: ProgramKind::EvaluateAverage, ..evaluate.name }, nodes, ports }
}

pub(super) struct AverageLever;

impl Lever for AverageLever {
    fn name(&self) -> &'static str {
        "moving-average"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        now.levers.average.map_or("off".to_owned(), |average| {
            let Average { decay, memory } = average;
            format!("decay {decay}, on the {memory}")
        })
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { average: None, ..now.levers }, ..*now }
    }
}
