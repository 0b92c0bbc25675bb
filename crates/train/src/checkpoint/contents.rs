//! Which tensors make up a checkpoint: for each file, their names and where they are.

use super::{AVERAGE_FILE, MODEL_FILE, OPTIMIZER_FILE};
use crate::Engine;
use plimsoll_graph::TensorId;

/// The files of a run's checkpoints, with the tensors of each by name. Weights go by their parameter's name, whichever
/// of its copies holds all there is to know.
pub(super) fn contents(engine: &Engine) -> Vec<(&'static str, Vec<(String, TensorId)>)> {
    let parameters = engine.parameters();
    let training = || parameters.iter().filter_map(|p| Some((p, p.training.as_ref()?)));
    let name = |id: TensorId| engine.name(id).to_owned();
    let weights = parameters.iter().map(|p| (name(p.tensor), p.master())).collect();
    let state = training().flat_map(|(_, t)| t.state.iter().map(|&id| (name(id), id)).collect::<Vec<_>>()).collect();
    let averages = training().filter_map(|(p, t)| Some((name(p.tensor), t.average?))).collect::<Vec<_>>();
    let mut files = vec![(MODEL_FILE, weights), (OPTIMIZER_FILE, state)];
    if !averages.is_empty() {
        files.push((AVERAGE_FILE, averages));
    }
    files
}
