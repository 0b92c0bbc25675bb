//! The weights with which a run starts, and the base below its adapters.

use crate::checkpoint::{load_adapters, load_weights};
use crate::{Base, Engine, Start, TrainError};

impl Base {
    /// Loads the frozen weights. Errors: they can't be read, or are those of another model.
    pub(crate) fn load(&self, engine: &mut Engine, seed: u64) -> Result<(), TrainError> {
        match &self.weights {
            Some(folder) => load_weights(engine, folder),
            None => engine.initialize(seed),
        }
    }

    /// Loads the adapters of the first step.
    fn load_adapters(&self, engine: &mut Engine, seed: u64) -> Result<(), TrainError> {
        match &self.adapters {
            Some(folder) => load_adapters(engine, folder),
            None => engine.initialize_adapters(seed),
        }
    }
}

/// Fills the weights of the first step of a run. `start` is not a checkpoint of the run.
pub(crate) fn load_first(engine: &mut Engine, start: &Start, base: Option<&Base>, seed: u64) -> Result<(), TrainError> {
    match (base, start) {
        (Some(base), _) => {
            base.load(engine, seed)?;
            base.load_adapters(engine, seed)
        }
        (None, Start::Weights(path)) => load_weights(engine, path),
        (None, _) => engine.initialize(seed),
    }
}
