//! How the optimizer's moments are kept between updates.

use graph::ops::{AdamW, StateFormat};
use graph::{Graph, Op, Role, Storage};
use std::collections::HashMap;

/// Parameters with fewer elements keep their moments as they are: they are few bytes, and mostly norms and biases.
/// Source: the default of bitsandbytes' 8-bit optimizers (`min_8bit_size`).
const FEWEST_QUANTISED: usize = 4096;

/// Rewrites the moments of all parameters, and the nodes that update them.
pub fn optimizer_state(graph: &mut Graph, format: StateFormat) {
    if format == StateFormat::F32 {
        return;
    }
    // The first moment of each parameter whose state changed, and all of its state.
    let mut changed = HashMap::new();
    for index in 0..graph.parameters.len() {
        let weight = graph[graph.parameters[index].tensor].clone();
        if format == StateFormat::Blockwise8 && weight.ty.elements() < FEWEST_QUANTISED {
            continue;
        }
        let Some(training) = &graph.parameters[index].training else { continue };
        let mut state = training.state.clone();
        for (number, ty) in AdamW::state_types(format, &weight.ty).into_iter().enumerate() {
            match state.get(number) {
                Some(&moment) => graph[moment].ty = ty,
                None => {
                    let name = format!("{}.scale", graph[state[number - 2]].name);
                    state.push(graph.tensor(name, ty, Role::Optimizer, Storage::Persistent));
                }
            }
        }
        graph.parameters[index].training.as_mut().expect("just seen").state = state.clone();
        changed.insert(state[0], state);
    }
    for node in graph.programs.iter_mut().flat_map(|p| &mut p.nodes) {
        if let Op::AdamW(op) = &mut node.op
            && let Some(state) = changed.get(&node.outputs[1])
        {
            op.state = format;
            node.outputs.truncate(1);
            node.outputs.extend(state);
        }
    }
}
