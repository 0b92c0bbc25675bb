//! The graph of a micro-batch, read off the graphs of a smaller and a larger one: they have the same nodes, and the extents of
//! their tensors grow linearly with the samples.

use plimsoll_graph::{Graph, Tensor};

/// The graph of `micro_batch`; `None` if it is not between the two, if the graphs differ by more than extents, or if an extent does
/// not grow by whole numbers. Each graph comes with its micro-batch.
pub(super) fn between([(low, first), (high, last)]: [(usize, &Graph); 2], micro_batch: usize) -> Option<Graph> {
    let is_between = low < micro_batch && micro_batch < high;
    let are_alike = first.tensors.len() == last.tensors.len()
        && first.parameters == last.parameters
        && first.programs == last.programs
        && first.memories == last.memories;
    if !is_between || !are_alike {
        return None;
    }
    let extent = |(&first, &last): (&usize, &usize)| {
        let grown = last.checked_sub(first)? * (micro_batch - low);
        grown.is_multiple_of(high - low).then(|| first + grown / (high - low))
    };
    let tensor = |(first, last): (&Tensor, &Tensor)| {
        if first.ty == last.ty {
            return (first == last).then(|| first.clone());
        }
        let mut tensor = last.clone();
        tensor.ty.shape.clone_from(&first.ty.shape);
        if tensor != *first || first.ty.shape.len() != last.ty.shape.len() {
            return None;
        }
        tensor.ty.shape = first.ty.shape.iter().zip(&last.ty.shape).map(extent).collect::<Option<_>>()?;
        Some(tensor)
    };
    let tensors = first.tensors.iter().zip(&last.tensors).map(tensor).collect::<Option<Vec<_>>>()?;
    Some(Graph {
        tensors,
        parameters: first.parameters.clone(),
        programs: first.programs.clone(),
        memories: first.memories.clone(),
    })
}
