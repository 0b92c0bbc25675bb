//! The interface of a tracker's writer.

use crate::row::Row;
use crate::run_logs::RunLogs;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The beginning of a run's session.
#[derive(Debug)]
pub(crate) struct Begin {
    /// The first step of the session; earlier logs from this step on are repeated.
    pub(crate) first_step: u64,
    /// Seconds since 1970, UTC.
    pub(crate) time_s: f64,
    /// The run's name.
    pub(crate) name: String,
    /// The project or experiment of the run.
    pub(crate) project: String,
    /// Its owner in W&B, if not the user.
    pub(crate) entity: Option<String>,
    /// Its settings, which are logged as hyperparameters.
    pub(crate) config: Map<String, Value>,
    /// The folder of its logs, or why there is none.
    pub(crate) logs: Result<RunLogs, String>,
}

impl Begin {
    /// The folder of its logs. Errors: there is none.
    pub(crate) fn logs(&self) -> Result<&RunLogs, WriteError> {
        self.logs.as_ref().map_err(|reason| WriteError { text: reason.clone(), is_passing: false })
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionStatus {
    /// It made all its steps.
    Finished,
    /// It was interrupted, or a card was too hot; it can be resumed.
    Stopped,
    /// It failed or diverged.
    Failed,
}

/// The end of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) status: SessionStatus,
    /// Seconds since 1970, UTC.
    pub(crate) time_s: f64,
}

/// Why a write failed.
#[derive(Debug)]
pub(crate) struct WriteError {
    /// The error of the system or the server.
    pub(crate) text: String,
    /// Whether to retry the same rows.
    pub(crate) is_passing: bool,
}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self { text: error.to_string(), is_passing: false }
    }
}

/// Writes a session's rows. Everything slow happens here, on a separate thread.
pub(crate) trait Writer: Send {
    /// Writes rows, in step order. Errors: the rows count as lost, or, if the error is transient, are passed again.
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError>;

    /// Records how the session ended.
    fn end(&mut self, end: End) -> Result<(), WriteError>;
}

/// Begins a session: opens existing logs and removes the steps that it repeats.
pub(crate) type Open = Box<dyn Fn(&Begin) -> Result<Box<dyn Writer>, WriteError> + Send>;
