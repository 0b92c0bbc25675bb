//! MLflow: its file store (`files.rs`), or its server (`server.rs`).
//!
//! Since version 3, MLflow prefers a database or a server, and opens folders only on request; it can import folders
//! into a database.

mod files;
mod server;

pub(crate) use files::Files;
pub(crate) use server::Server;

use crate::writer::{Begin, SessionStatus};
use plimsoll_secrets::{Secret, Secrets};
use serde_json::Value;
use std::path::PathBuf;

/// MLflow's maximum length of a parameter's value, in characters.
const PARAM_MAX: usize = 6000;

/// Where MLflow's runs are stored.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    /// A folder.
    Folder(PathBuf),
    /// A server, with the credentials for it.
    Server(server::Address),
}

impl Store {
    /// Parses `MLFLOW_TRACKING_URI`; without it, uses a folder. Errors: why it can't be used, without quoting it.
    pub(crate) fn of(secrets: &Secrets, folder: PathBuf) -> Result<Self, &'static str> {
        let Some(uri) = secrets.get("MLFLOW_TRACKING_URI").map(Secret::expose) else { return Ok(Self::Folder(folder)) };
        match uri.split_once("://") {
            Some(("http" | "https", _)) => server::Address::new(uri, secrets).map(Self::Server),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Folder(PathBuf::from(path))),
            Some(_) => Err("names a database or service; start `mlflow server` on \
                            it and use the server's address"),
            None => match uri.strip_prefix("file:") {
                Some(path) => Ok(Self::Folder(PathBuf::from(path))),
                None if uri == "databricks" => Err("names an unsupported service; use a server's address"),
                None => Ok(Self::Folder(PathBuf::from(uri))),
            },
        }
    }
}

/// Settings as parameters: with names that MLflow allows, and truncated values.
fn params(begin: &Begin) -> impl Iterator<Item = (String, String)> {
    begin.config.iter().map(|(key, value)| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-. ".contains(c);
        let key = key.chars().map(|c| if is_allowed(c) { c } else { '_' }).take(250).collect::<String>();
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (key, value.chars().take(PARAM_MAX).collect())
    })
}

/// MLflow's name for a run's status, and its number in files.
fn status(status: SessionStatus) -> (&'static str, u32) {
    match status {
        SessionStatus::Finished => ("FINISHED", 3),
        SessionStatus::Failed => ("FAILED", 4),
        SessionStatus::Stopped => ("KILLED", 5),
    }
}

/// The status number of an active run.
const RUNNING: u32 = 1;

fn milliseconds(time_s: f64) -> u64 {
    (time_s * 1e3).max(0.0) as u64
}
