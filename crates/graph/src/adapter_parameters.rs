//! The parameters of adapters: their shapes, their first values, and where the files of adapters have them, in PEFT's layout.

use crate::adaptable::{ADAPTER_PREFIX, LayerRole, LinearLayer, WEIGHT, place};
use crate::adapters::Adapters;
use crate::magnitudes::Magnitudes;
use crate::{Graph, GraphError, Init, Parameter, StoredPiece, TensorId};

/// PEFT's name of what a layer with an adapter wraps.
pub(crate) const WRAPPED: &str = ".base_layer";

/// One of an adapter's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Down,
    Up,
}

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

    /// Declares a matrix of each expert's adapter: (E, rank, inputs) or (E, outputs, rank).
    fn declare_of_experts(
        &self,
        graph: &mut Graph,
        layer: &LinearLayer,
        count: usize,
        rank: usize,
        which: Which,
    ) -> TensorId {
        let (index, [rows, columns], init) = match which {
            Which::Down => (0, [rank, layer.inputs], random(layer)),
            Which::Up => (1, [layer.outputs, rank], Init::Zeros),
        };
        let elements = rows * columns;
        let piece = |layer: &LinearLayer, expert: usize, shape: Vec<usize>, transposed| StoredPiece {
            tensor: self.matrices(layer)[index].as_str().into(),
            elements: shape.iter().product(),
            shape,
            from: 0,
            at: expert * elements,
            transposed,
        };
        let pieces = match (layer.is_stacked(), which) {
            // The experts' matrices are stacked as rows of A, and interleaved as columns of B.
            (true, Which::Down) => vec![piece(layer, 0, vec![count * rows, columns], None)],
            (true, Which::Up) => vec![piece(layer, 0, vec![rows, columns * count], Some(elements))],
            (false, _) => {
                let single = layer.in_files();
                let single = single.iter().enumerate();
                single.map(|(expert, layer)| piece(layer, expert, vec![rows, columns], None)).collect()
            }
        };
        graph.pieces(&*self.matrices(layer)[index].replace(".*.", "."), &[count, rows, columns], init, true, pieces)
    }

    /// Declares the first matrix (rank, inputs); that of an embedding is transposed.
    pub(crate) fn declare_down(&self, graph: &mut Graph, layer: &LinearLayer, rank: usize) -> TensorId {
        let ([name, _], shape) = (self.matrices(layer), [rank, layer.inputs]);
        match layer.role {
            LayerRole::Embedding => {}
            LayerRole::Experts(count) => return self.declare_of_experts(graph, layer, count, rank, Which::Down),
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
        match layer.role {
            // The first matrix is zero.
            LayerRole::Embedding => return graph.parameter(path, &[layer.outputs, rank], Init::Normal(1.0), true),
            LayerRole::Experts(count) => return self.declare_of_experts(graph, layer, count, rank, Which::Up),
            LayerRole::Inner | LayerRole::Head => {}
        }
        let (_, whole, from) = place(graph, parameter).expect("the layer is in one tensor");
        if parameter.stored.is_empty() {
            return graph.parameter(path, &[layer.outputs, rank], Init::Zeros, true);
        }
        let own = graph[parameter.tensor].ty.shape[0];
        let piece = StoredPiece {
            tensor: path.as_str().into(),
            shape: vec![layer.outputs, rank],
            from: from / whole[1] * rank,
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
        let (_, whole, from) = place(graph, parameter).expect("the layer is in one tensor");
        if parameter.stored.is_empty() {
            return Ok(Magnitudes::declare(graph, parameter.tensor, layer.layout, path, vec![]));
        }
        let piece = StoredPiece {
            tensor: path.as_str().into(),
            shape: vec![layer.outputs],
            from: from / whole[1],
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
