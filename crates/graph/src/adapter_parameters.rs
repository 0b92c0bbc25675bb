//! The parameters of adapters: their shapes, their first values, and where the files of adapters have them, in PEFT's layout.

use crate::adaptable::{ADAPTER_PREFIX, LayerRole, LinearLayer, WEIGHT};
use crate::adapters::Adapters;
use crate::magnitudes::Magnitudes;
use crate::ops::WeightLayout;
use crate::{Graph, GraphError, Init, Parameter, StoredPiece, TensorId};

/// PEFT's name of what a layer with an adapter wraps.
pub(crate) const WRAPPED: &str = ".base_layer";

/// The first matrix is random: PEFT draws it uniformly within 1/√inputs; this has the same variance.
fn random(layer: &LinearLayer) -> Init {
    Init::Normal((3.0 * layer.inputs as f32).sqrt().recip())
}

impl Adapters {
    /// The names of an adapter's matrices in a file of adapters, A (rank, inputs) and B (outputs, rank), as PEFT writes them.
    /// Experts whose weights are stacked have A (E·rank, inputs) and B (outputs, rank·E), and names by what other tensors of
    /// their list have adapters: PEFT wraps the list in one layer after the other.
    pub fn matrices(&self, layer: &LinearLayer) -> [String; 2] {
        let path = match layer.in_list() {
            Some((list, name)) => {
                let is_around = |other: &&String| other.rsplit_once('.').is_some_and(|(l, n)| l == list && n < name);
                let around = self.layers.keys().filter(is_around).count();
                format!("{ADAPTER_PREFIX}{list}{}", WRAPPED.repeat(around))
            }
            None => format!("{ADAPTER_PREFIX}{}", layer.module),
        };
        match layer.role {
            LayerRole::Embedding => ["A", "B"].map(|letter| format!("{path}.lora_embedding_{letter}")),
            LayerRole::Inner | LayerRole::Head | LayerRole::Experts(_) => {
                ["A", "B"].map(|letter| format!("{path}.lora_{letter}{WEIGHT}"))
            }
        }
    }

    /// Declares a matrix (rows, columns) of each expert's adapter, in one tensor (E, rows, columns). `in_files`: where the files
    /// have all of them, if not one by one. `index`: of the matrix.
    fn declare_of_experts(
        &self,
        graph: &mut Graph,
        layer: &LinearLayer,
        [count, rows, columns]: [usize; 3],
        init: Init,
        index: usize,
        in_files: Option<StoredPiece>,
    ) -> TensorId {
        let of_expert = |(expert, layer): (usize, &LinearLayer)| StoredPiece {
            tensor: self.matrices(layer)[index].as_str().into(),
            shape: vec![rows, columns],
            from: 0,
            at: expert * rows * columns,
            elements: rows * columns,
            transposed: None,
        };
        let one_by_one = || layer.in_files().iter().enumerate().map(of_expert).collect();
        let name = self.matrices(layer)[index].replace(".*.", ".");
        let name = if layer.first > 0 { format!("{name}:{}", layer.first) } else { name };
        let pieces = in_files.map_or_else(one_by_one, |piece| vec![piece]);
        graph.pieces(name, &[count, rows, columns], init, true, pieces)
    }

    /// Declares the first matrix (rank, inputs); that of an embedding is transposed.
    pub(crate) fn declare_down(&self, graph: &mut Graph, layer: &LinearLayer, rank: usize) -> TensorId {
        let ([name, _], shape) = (self.matrices(layer), [rank, layer.inputs]);
        match layer.role {
            LayerRole::Embedding => {}
            LayerRole::Experts(count) => {
                // Those of experts whose weights are stacked are rows of one matrix.
                let stacked = layer.is_stacked().then(|| StoredPiece {
                    tensor: name.as_str().into(),
                    shape: vec![count * rank, layer.inputs],
                    from: 0,
                    at: 0,
                    elements: count * rank * layer.inputs,
                    transposed: None,
                });
                let shape = [count, rank, layer.inputs];
                return self.declare_of_experts(graph, layer, shape, random(layer), 0, stacked);
            }
            LayerRole::Inner | LayerRole::Head => return graph.parameter(name, &shape, random(layer), true),
        }
        let elements = rank * layer.inputs;
        let tensor = name.as_str().into();
        let piece = StoredPiece { tensor, shape: shape.to_vec(), from: 0, at: 0, elements, transposed: Some(rank) };
        graph.pieces(name, &[layer.inputs, rank], Init::Zeros, true, vec![piece])
    }

    /// Declares the second matrix (outputs, rank). If the layer is a part of a layer in the files, so is the matrix.
    pub(crate) fn declare_up(
        &self,
        graph: &mut Graph,
        parameter: &Parameter,
        layer: &LinearLayer,
        rank: usize,
    ) -> TensorId {
        let [_, path] = self.matrices(layer);
        let shape = &graph[parameter.tensor].ty.shape;
        match layer.role {
            // The first matrix is zero.
            LayerRole::Embedding => return graph.parameter(path, &[layer.outputs, rank], Init::Normal(1.0), true),
            LayerRole::Experts(count) => {
                let own = if layer.layout == WeightLayout::OutIn { shape[1] } else { shape[2] };
                // Those of experts whose weights are stacked are columns of one matrix, those of the first rank first.
                let stacked = layer.is_stacked().then(|| StoredPiece {
                    tensor: path.as_str().into(),
                    shape: vec![layer.outputs, rank * count],
                    from: layer.first * rank * count,
                    at: 0,
                    elements: own * rank * count,
                    transposed: Some(own * rank),
                });
                return self.declare_of_experts(graph, layer, [count, own, rank], Init::Zeros, 1, stacked);
            }
            LayerRole::Inner | LayerRole::Head if parameter.stored.is_empty() => {
                return graph.parameter(path, &[layer.outputs, rank], Init::Zeros, true);
            }
            LayerRole::Inner | LayerRole::Head => {}
        }
        let own = shape[0];
        let piece = StoredPiece {
            tensor: path.as_str().into(),
            shape: vec![layer.outputs, rank],
            from: layer.first * rank,
            at: 0,
            elements: own * rank,
            transposed: None,
        };
        graph.pieces(part_name(graph, parameter, &path), &[own, rank], Init::Zeros, true, vec![piece])
    }

    /// Declares the magnitudes of a layer. If it is a part of a layer in the files, so are they. Errors: `NoMagnitudes`.
    pub(crate) fn declare_magnitudes(
        &self,
        graph: &mut Graph,
        parameter: &Parameter,
        layer: &LinearLayer,
    ) -> Result<Magnitudes, GraphError> {
        let refused = |because| GraphError::NoMagnitudes { module: layer.module.clone(), because };
        let path = layer.magnitudes();
        if let Some(because) = layer.role.lacks_magnitudes() {
            return Err(refused(because));
        }
        if self.saved.contains(&layer.weight) {
            return Err(refused("its weight is trained whole"));
        }
        if parameter.stored.is_empty() {
            return Ok(Magnitudes::declare(graph, parameter.tensor, layer.layout, path, vec![]));
        }
        let piece = StoredPiece {
            tensor: path.as_str().into(),
            shape: vec![layer.outputs],
            from: layer.first,
            at: 0,
            elements: graph[parameter.tensor].ty.shape[0],
            transposed: None,
        };
        let name = part_name(graph, parameter, &path);
        Ok(Magnitudes::declare(graph, parameter.tensor, layer.layout, name, vec![piece]))
    }
}

/// The name of a tensor of an adapter for a part of a layer.
fn part_name(graph: &Graph, parameter: &Parameter, path: &str) -> String {
    let name = &graph[parameter.tensor].name;
    let part = name.rsplit_once(':').map_or("part", |(_, part)| part);
    format!("{path}:{part}")
}
