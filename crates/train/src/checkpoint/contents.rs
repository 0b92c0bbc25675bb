//! The tensors of a checkpoint: the names per file, and the tensors of the engine.

use super::{AVERAGE_FILE, MODEL_FILE, OPTIMIZER_FILE};
use crate::Engine;
use plimsoll_graph::{DType, TensorId};

/// A tensor of a checkpoint.
pub(super) struct Content {
    /// Its name in the file.
    pub name: String,
    /// Its tensor in the engine.
    pub tensor: TensorId,
    /// The low-order bits of a weight, if they are stored in a separate tensor. A checkpoint stores the combined
    /// number, so it does not depend on the plan.
    pub remainder: Option<TensorId>,
}

impl Content {
    fn new(name: &str, tensor: TensorId, remainder: Option<TensorId>) -> Self {
        Self { name: name.to_owned(), tensor, remainder }
    }

    /// The dtype in the file.
    pub fn dtype(&self, engine: &Engine) -> DType {
        if self.remainder.is_some() { DType::F32 } else { engine.plan()[self.tensor].dtype() }
    }

    /// Its size in the file.
    pub fn bytes(&self, engine: &Engine) -> u64 {
        engine.plan()[self.tensor].ty.with_dtype(self.dtype(engine)).bytes().0
    }
}

/// The files of a run's checkpoints, with the tensors of each by name. A weight has its parameter's name, whichever of
/// its copies is the complete one.
pub(super) fn contents(engine: &Engine) -> Vec<(&'static str, Vec<Content>)> {
    let parameters = engine.parameters();
    let training = || parameters.iter().filter_map(|p| Some((p, p.training.as_ref()?)));
    let name = |id: TensorId| engine.name(id);
    let weights = parameters.iter().map(|p| {
        let remainder = p.training.as_ref().and_then(|t| t.remainder);
        Content::new(name(p.tensor), p.master(), remainder)
    });
    let state = training().flat_map(|(_, t)| t.state.iter().map(|&id| Content::new(name(id), id, None)));
    let averages = training().filter_map(|(p, t)| Some(Content::new(name(p.tensor), t.average?, None)));
    let averages = averages.collect::<Vec<_>>();
    let mut files = vec![(MODEL_FILE, weights.collect()), (OPTIMIZER_FILE, state.collect())];
    if !averages.is_empty() {
        files.push((AVERAGE_FILE, averages));
    }
    files
}
