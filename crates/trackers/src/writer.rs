//! What a tracker's writer does, and what it is told.

use crate::place::Place;
use crate::row::Row;
use serde_json::{Map, Value};
use std::sync::Arc;

/// How a session of a run begins.
#[derive(Debug)]
pub(crate) struct Begin {
    /// The first step that it makes; all from there on that were logged before are made again.
    pub(crate) first_step: u64,
    /// Seconds since 1970, UTC.
    pub(crate) time_s: f64,
    /// The run's name.
    pub(crate) name: String,
    /// The project, or experiment, that it is a part of.
    pub(crate) project: String,
    /// Its owner in W&B, if that is not the user.
    pub(crate) entity: Option<String>,
    /// Its settings, which are logged as hyperparameters.
    pub(crate) config: Map<String, Value>,
    /// Where its logs lie; why nowhere.
    pub(crate) place: Result<Place, String>,
}

impl Begin {
    /// Where its logs lie. Errors: nowhere.
    pub(crate) fn place(&self) -> Result<&Place, WriteError> {
        self.place.as_ref().map_err(|reason| WriteError { text: reason.clone(), is_passing: false })
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All its steps were made.
    Finished,
    /// It was asked to stop, or a card was too hot; it can be resumed.
    Stopped,
    /// It failed or diverged.
    Failed,
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) standing: Standing,
    /// Seconds since 1970, UTC.
    pub(crate) time_s: f64,
}

/// Why something could not be written.
#[derive(Debug)]
pub(crate) struct WriteError {
    /// What the system or the server says.
    pub(crate) text: String,
    /// Whether the same rows are worth another try.
    pub(crate) is_passing: bool,
}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self { text: error.to_string(), is_passing: false }
    }
}

/// Writes a session's rows. Everything slow happens here, on a thread of its own.
pub(crate) trait Writer: Send {
    /// Writes rows, in the order of their steps. Errors: they count as lost, or, if the error is passing, are given again.
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError>;

    /// Says how the session ended.
    fn end(&mut self, end: End) -> Result<(), WriteError>;
}

/// Begins a session: opens what is there and removes the steps that are made again.
pub(crate) type Open = Box<dyn Fn(&Begin) -> Result<Box<dyn Writer>, WriteError> + Send>;
