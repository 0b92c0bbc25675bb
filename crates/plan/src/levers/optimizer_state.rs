//! How the optimizer's moments are kept between updates.

use super::{Alternative, Lever};
use crate::request::Request;
use crate::settings::{Levers, Settings};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{Graph, Node, Role, Storage};

/// Parameters with fewer elements keep their moments as they are: they are few bytes, and mostly norms and biases.
/// Source: the default of bitsandbytes' 8-bit optimizers (`min_8bit_size`).
const FEWEST_QUANTISED: usize = 4096;

/// Rewrites the moments of all parameters, and the nodes that update them.
pub fn optimizer_state(graph: &mut Graph, format: StateFormat) {
    if format == StateFormat::F32 {
        return;
    }
    for program in 0..graph.programs.len() {
        let mut nodes = std::mem::take(&mut graph.programs[program].nodes);
        for node in &mut nodes {
            keep_as(graph, node, format);
        }
        graph.programs[program].nodes = nodes;
    }
}

/// Rewrites an optimizer's node and the state that it updates; leaves any other as it is.
fn keep_as(graph: &mut Graph, node: &mut Node, format: StateFormat) {
    let Some(update) = node.op.update() else { return };
    let weight = graph[node.outputs[update.weight]].ty.clone();
    if format == StateFormat::Blockwise8 && weight.elements() < FEWEST_QUANTISED {
        return;
    }
    node.op = node.op.keeping_state(format).expect("an optimizer keeps its state in any format");
    let types = {
        let inputs = node.inputs.iter().map(|&id| &graph[id].ty).collect::<Vec<_>>();
        node.op.infer(&inputs).expect("an optimizer takes the gradient that it took")
    };
    let moments = node.outputs.drain(update.state..).collect::<Vec<_>>();
    for (number, ty) in types.into_iter().skip(update.state).enumerate() {
        let kept = match moments.get(number) {
            Some(&moment) => {
                graph[moment].ty = ty;
                moment
            }
            None => {
                let name = format!("{}.scale", graph[moments[number - moments.len()]].name);
                graph.tensor(name, ty, Role::Optimizer, Storage::Persistent)
            }
        };
        node.outputs.push(kept);
    }
    let owner = graph.parameters.iter_mut().filter_map(|p| p.training.as_mut()).find(|t| t.state == moments);
    owner.expect("an optimizer's state is a parameter's").state = node.outputs[update.state..].to_vec();
}

pub(super) struct OptimizerStateLever;

/// As flags and files name it.
fn name(format: StateFormat) -> &'static str {
    match format {
        StateFormat::F32 => "fp32",
        StateFormat::Bf16 => "bf16",
        StateFormat::Blockwise8 => "8bit",
    }
}

impl Lever for OptimizerStateLever {
    fn name(&self) -> &'static str {
        "optimizer-state"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        name(now.levers.optimizer_state).to_owned()
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { optimizer_state: StateFormat::F32, ..now.levers }, ..*now }
    }

    fn coarser(&self, request: &Request) -> Vec<Alternative> {
        if request.levers.optimizer_state.is_some() {
            return Vec::new();
        }
        let format = StateFormat::Blockwise8;
        vec![Alternative::of_lever(self, name(format), request, |levers| levers.optimizer_state = Some(format))]
    }
}
