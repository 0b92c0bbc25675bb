//! The tensors of a checkpoint: the names per file, and the tensors of the engine.

use super::{AVERAGE_FILE, MODEL_FILE, OPTIMIZER_FILE};
use crate::Engine;
use plimsoll_graph::{DType, Parameter, TensorId};

/// A tensor of a checkpoint.
pub(super) struct Content {
    /// Its name in the file.
    pub name: String,
    /// The tensors of the engine whose rows it has, one after another.
    pub parts: Vec<Part>,
}

/// A tensor of the engine.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub tensor: TensorId,
    /// The low-order bits of a weight, if they are stored in a separate tensor. A checkpoint stores the combined
    /// number, so it does not depend on the plan.
    pub remainder: Option<TensorId>,
}

impl Part {
    /// The dtype of its complete numbers.
    pub fn dtype(&self, engine: &Engine) -> DType {
        if self.remainder.is_some() { DType::F32 } else { engine.plan()[self.tensor].dtype() }
    }
}

impl Content {
    /// The dtype in the file: single precision if any part has it.
    pub fn dtype(&self, engine: &Engine) -> DType {
        let dtypes = self.parts.iter().map(|part| part.dtype(engine));
        dtypes.max_by_key(|dtype| dtype.size_bytes()).expect("there is a part")
    }

    /// The shape in the file.
    pub fn shape(&self, engine: &Engine) -> Vec<usize> {
        let mut shape = engine.plan()[self.parts[0].tensor].ty.shape.to_vec();
        shape[0] = self.parts.iter().map(|part| engine.plan()[part.tensor].ty.shape[0]).sum();
        shape
    }

    /// Its size in the file.
    pub fn bytes(&self, engine: &Engine) -> u64 {
        self.shape(engine).iter().product::<usize>() as u64 * self.dtype(engine).size_bytes()
    }
}

/// The name of a parameter in a model's files, where several parameters may be parts of one tensor.
pub(super) fn stored_name<'e>(engine: &'e Engine, parameter: &'e Parameter) -> &'e str {
    parameter.stored.as_ref().map_or_else(|| engine.name(parameter.tensor), |stored| &*stored.tensor)
}

/// The tensors of these names; parts of the same name are one tensor.
fn joined<'e>(parts: impl Iterator<Item = (&'e str, Part)>) -> Vec<Content> {
    let mut all: Vec<Content> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (name, part) in parts {
        let place = *places.entry(name).or_insert_with(|| {
            all.push(Content { name: name.to_owned(), parts: vec![] });
            all.len() - 1
        });
        all[place].parts.push(part);
    }
    all
}

/// The files of a run's checkpoints, with the tensors of each by name. A weight has its parameter's name, whichever of
/// its copies is the complete one.
pub(super) fn contents(engine: &Engine) -> Vec<(&'static str, Vec<Content>)> {
    let parameters = engine.parameters();
    let training = || parameters.iter().filter_map(|p| Some((p, p.training.as_ref()?)));
    let weights = parameters.iter().map(|p| {
        let remainder = p.training.as_ref().and_then(|t| t.remainder);
        (stored_name(engine, p), Part { tensor: p.master(), remainder })
    });
    let alone = |tensor| Part { tensor, remainder: None };
    let state = training().flat_map(|(_, t)| t.state.iter().map(|&id| (engine.name(id), alone(id))));
    let averages = training().filter_map(|(p, t)| Some((stored_name(engine, p), alone(t.average?))));
    let mut files = vec![(MODEL_FILE, joined(weights)), (OPTIMIZER_FILE, joined(state))];
    let averages = joined(averages);
    if !averages.is_empty() {
        files.push((AVERAGE_FILE, averages));
    }
    files
}
