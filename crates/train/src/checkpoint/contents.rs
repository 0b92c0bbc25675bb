//! The tensors of a checkpoint: the names per file, and the tensors of the engine.

use super::{ADAPTER_FILE, AVERAGE_FILE, MODEL_FILE, OPTIMIZER_FILE};
use crate::Engine;
use plimsoll_graph::{ADAPTER_PREFIX, DType, Parameter, StoredPiece, TensorId};
use std::collections::HashMap;
use std::iter;
use std::ops::Range;

/// A tensor of a checkpoint.
pub(super) struct Content {
    /// Its name in the file.
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// The elements of the engine's tensors that it has, one after another.
    pub parts: Vec<Part>,
}

/// Elements of a tensor of the engine.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub tensor: TensorId,
    /// The low-order bits of a weight, if they are stored in a separate tensor. A checkpoint stores the combined
    /// number, so it does not depend on the plan.
    pub remainder: Option<TensorId>,
    /// The first element, and the number of elements.
    pub elements: [usize; 2],
    /// The first element in the tensor of the checkpoint.
    from: usize,
    /// Columns of the engine's matrix, if the tensor of the checkpoint is its transpose.
    pub transposed: Option<usize>,
}

impl Part {
    /// The dtype of its complete numbers.
    pub fn dtype(&self, engine: &Engine) -> DType {
        if self.remainder.is_some() { DType::F32 } else { engine.plan()[self.tensor].dtype() }
    }

    /// Its bytes in the engine's tensor, or in the remainder, which has numbers of the same size.
    pub fn bytes(&self, engine: &Engine) -> Range<usize> {
        let size = engine.plan()[self.tensor].dtype().size_bytes() as usize;
        let [first, count] = self.elements;
        first * size..(first + count) * size
    }
}

impl Content {
    fn whole(engine: &Engine, tensor: TensorId) -> Self {
        let shape = engine.plan()[tensor].ty.shape.to_vec();
        let elements = [0, shape.iter().product()];
        let part = Part { tensor, remainder: None, elements, from: 0, transposed: None };
        Self { name: engine.name(tensor).to_owned(), shape, parts: vec![part] }
    }

    /// The dtype in the file: single precision if any part has it.
    pub fn dtype(&self, engine: &Engine) -> DType {
        let dtypes = self.parts.iter().map(|part| part.dtype(engine));
        dtypes.max_by_key(|dtype| dtype.size_bytes()).expect("there is a part")
    }
}

/// The pieces of a parameter in a model's files.
pub(super) fn pieces(engine: &Engine, parameter: &Parameter) -> Vec<StoredPiece> {
    if !parameter.stored.is_empty() {
        return parameter.stored.clone();
    }
    let shape = parameter.shape(&engine.plan()[parameter.tensor].ty).to_vec();
    let elements = shape.iter().product();
    let tensor = engine.name(parameter.tensor).into();
    vec![StoredPiece { tensor, shape, from: 0, at: 0, elements, transposed: None }]
}

/// The transpose of a matrix with this many columns.
pub(super) fn transposed<T: Copy>(matrix: &[T], columns: usize) -> Vec<T> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|index| matrix[index % rows * columns + index / rows]).collect()
}

/// The bytes of the transpose of a matrix of floats of this type.
pub(super) fn transposed_bytes(bytes: &[u8], columns: usize, dtype: DType) -> Vec<u8> {
    match dtype.is_half() {
        true => transposed(bytes.as_chunks::<2>().0, columns).into_flattened(),
        false => transposed(bytes.as_chunks::<4>().0, columns).into_flattened(),
    }
}

/// The name of a tensor in a file of adapters, which may also have parameters of the model.
pub(super) fn adapter_name(name: &str) -> String {
    if name.starts_with(ADAPTER_PREFIX) { name.to_owned() } else { format!("{ADAPTER_PREFIX}{name}") }
}

/// The tensors of a parameter's codes and scales, if its weights are in codes.
pub(super) fn coded_tensors(parameter: &Parameter) -> impl Iterator<Item = TensorId> {
    let coded = parameter.coded.iter();
    coded.flat_map(|coded| iter::once(parameter.tensor).chain(coded.scales.iter().copied()))
}

/// The tensors in which a model's files store these tensors of parameters, each with its remainder.
fn stored<'p>(
    engine: &Engine,
    tensors: impl Iterator<Item = (&'p Parameter, TensorId, Option<TensorId>)>,
) -> Vec<Content> {
    let mut all: Vec<Content> = Vec::new();
    let mut places = HashMap::new();
    for (parameter, tensor, remainder) in tensors {
        for StoredPiece { tensor: name, shape, from, at, elements, transposed } in pieces(engine, parameter) {
            let name = if engine.is_adapted() { adapter_name(&name).into() } else { name };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                all.push(Content { name: name.to_string(), shape, parts: vec![] });
                all.len() - 1
            });
            all[place].parts.push(Part { tensor, remainder, elements: [at, elements], from, transposed });
        }
    }
    for content in &mut all {
        content.parts.sort_by_key(|part| part.from);
    }
    all
}

/// The files of a run's checkpoints, with the tensors of each by name. A weight has its parameter's name, whichever of
/// its copies is the complete one.
pub(super) fn contents(engine: &Engine) -> Vec<(&'static str, Vec<Content>)> {
    let (parameters, is_adapted) = (engine.parameters(), engine.is_adapted());
    let training = || parameters.iter().filter_map(|p| Some((p, p.training.as_ref()?)));
    // Checkpoints of adapters do not contain the weights below them.
    let saved = parameters.iter().filter(|p| !is_adapted || p.training.is_some());
    let weights = saved.clone().filter(|p| p.coded.is_none());
    let weights = weights.map(|p| (p, p.master(), p.training.as_ref().and_then(|t| t.remainder)));
    let coded = saved.flat_map(coded_tensors).map(|id| Content::whole(engine, id));
    let state = training().flat_map(|(_, t)| t.state.iter().map(|&id| Content::whole(engine, id)));
    let averages = training().filter_map(|(p, t)| Some((p, t.average?, None)));
    let of_weights = if is_adapted { ADAPTER_FILE } else { MODEL_FILE };
    let mut files = vec![
        (of_weights, stored(engine, weights).into_iter().chain(coded).collect()),
        (OPTIMIZER_FILE, state.collect()),
    ];
    let averages = stored(engine, averages);
    if !averages.is_empty() {
        files.push((AVERAGE_FILE, averages));
    }
    files
}
