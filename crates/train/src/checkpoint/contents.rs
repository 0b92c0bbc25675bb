//! Which tensors make up a checkpoint: for each file, their names and where they are.

use super::{AVERAGE_FILE, MODEL_FILE, OPTIMIZER_FILE};
use crate::Engine;
use plimsoll_graph::{DType, TensorId};

/// A tensor of a checkpoint.
pub(super) struct Content {
    /// What it is called there.
    pub name: String,
    /// Where it is.
    pub tensor: TensorId,
    /// What it lacks of single precision, if that is beside it. A checkpoint has the number that both are, so it does not
    /// depend on which plan made it.
    pub remainder: Option<TensorId>,
}

impl Content {
    fn new(name: &str, tensor: TensorId, remainder: Option<TensorId>) -> Self {
        Self { name: name.to_owned(), tensor, remainder }
    }

    /// The precision that it is saved in.
    pub fn dtype(&self, engine: &Engine) -> DType {
        if self.remainder.is_some() { DType::F32 } else { engine.plan()[self.tensor].dtype() }
    }

    /// What it takes of a file.
    pub fn bytes(&self, engine: &Engine) -> u64 {
        engine.plan()[self.tensor].ty.with_dtype(self.dtype(engine)).bytes().0
    }
}

/// The files of a run's checkpoints, with the tensors of each by name. Weights go by their parameter's name, whichever
/// of its copies holds all there is to know.
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
