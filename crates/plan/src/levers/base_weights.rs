//! Frozen weight matrices in codes: the weights of linear layers in blocks, those of experts among them, except single ones with
//! the layout (in, out). Embeddings, norms, output heads and routers keep their precision: a router's rounding would send tokens to
//! other experts.
//!
//! ```text
//!   linear                    x, weight           ──►  quantized_linear                    x, codes, scales …
//!   linear_input_grad         dy, weight          ──►  quantized_linear_input_grad         dy, codes, scales …
//!   expert_linear             x, weight, bounds   ──►  quantized_expert_linear             x, codes, scales … bounds
//!   expert_linear_input_grad  dy, weight, bounds  ──►  quantized_expert_linear_input_grad  dy, codes, scales … bounds
//! ```

use super::Lever;
use crate::request::Request;
use crate::settings::{Levers, Settings};
use plimsoll_graph::{ADAPTER_PREFIX, Coded, Graph, Node, Op, Role, Storage, TensorId, WeightCodes};
use std::collections::HashMap;

/// Stores all frozen weights that can be in this format in it, and replaces the nodes that read them.
pub fn base_weights(graph: &mut Graph, format: WeightCodes) {
    let mut coded = HashMap::new();
    for index in quantizable(graph, format) {
        let tensor = graph.parameters[index].tensor;
        let weight = graph[tensor].clone();
        let codes = format.codes(&weight.ty).expect("a weight that the format can store");
        let declared = format.scales(&format.shape(&codes)).into_iter().map(|(suffix, ty)| {
            graph.tensor(format!("{}.{suffix}", weight.name), ty, Role::Weight, Storage::Persistent)
        });
        let scales = declared.collect::<Vec<_>>();
        graph[tensor].ty = codes;
        graph.parameters[index].coded = Some(Coded { format, scales: scales.clone() });
        coded.insert(tensor, scales);
    }
    for node in graph.programs.iter_mut().flat_map(|program| &mut program.nodes) {
        // From the last on, so that scales do not move the weights that are yet to come.
        for place in (0..node.inputs.len()).rev() {
            let Some(scales) = coded.get(&node.inputs[place]) else { continue };
            node.op = node.op.with_codes(place, format).expect("only such products read the weight");
            node.inputs.insert_many(place + 1, scales.iter().copied());
        }
    }
}

/// The indices of the frozen parameters that a format can store.
pub(crate) fn quantizable(graph: &Graph, format: WeightCodes) -> Vec<usize> {
    let mut readers = HashMap::<TensorId, Vec<(&Node, usize)>>::new();
    for node in graph.programs.iter().flat_map(|program| &program.nodes) {
        for (place, &input) in node.inputs.iter().enumerate() {
            readers.entry(input).or_default().push((node, place));
        }
    }
    let chooses = |tensor: &TensorId| {
        readers.get(tensor).is_some_and(|readers| readers.iter().any(|(node, _)| matches!(node.op, Op::Route(_))))
    };
    let takes_codes = |(node, place): &(&Node, usize)| {
        node.block.is_some() && node.op.with_codes(*place, format).is_some() && !node.outputs.iter().any(chooses)
    };
    let is_quantizable = |tensor: TensorId| {
        let readers = readers.get(&tensor).map_or(&[][..], Vec::as_slice);
        format.codes(&graph[tensor].ty).is_some() && !readers.is_empty() && readers.iter().all(takes_codes)
    };
    let frozen = graph.parameters.iter().enumerate().filter(|(_, parameter)| parameter.training.is_none());
    // Where text is written, adapters are not trained either.
    let of_model = frozen.filter(|(_, parameter)| !graph[parameter.tensor].name.starts_with(ADAPTER_PREFIX));
    of_model.filter(|(_, parameter)| is_quantizable(parameter.tensor)).map(|(index, _)| index).collect()
}

pub(super) struct BaseWeightsLever;

impl Lever for BaseWeightsLever {
    fn name(&self) -> &'static str {
        "base-weights"
    }

    fn describe(&self, now: &Settings, _: &Request) -> String {
        now.levers.base_weights.map_or("off", WeightCodes::name).to_owned()
    }

    fn off(&self, now: &Settings, _: &Request) -> Settings {
        Settings { levers: Levers { base_weights: None, ..now.levers }, ..*now }
    }
}
