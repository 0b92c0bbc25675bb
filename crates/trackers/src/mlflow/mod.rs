//! MLflow: its file store (`files.rs`), or its server (`server.rs`).
//!
//! MLflow itself wants a database or a server since its version 3, and opens folders only where it is told to; what is in
//! folders it also takes into a database.

mod files;
mod server;

pub(crate) use files::Files;
pub(crate) use server::Server;

use crate::writer::{Begin, Standing};
use plimsoll_secrets::{Secret, Secrets};
use serde_json::Value;
use std::path::PathBuf;

/// MLflow's longest value of a parameter, in letters.
const PARAM_MAX: usize = 6000;

/// Where MLflow's runs are.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    /// A folder.
    Folder(PathBuf),
    /// A server, and who we are there.
    Server(server::Address),
}

impl Store {
    /// What `MLFLOW_TRACKING_URI` says; without it a folder. Errors: why it can't be used, without quoting it.
    pub(crate) fn of(secrets: &Secrets, folder: PathBuf) -> Result<Self, &'static str> {
        let Some(uri) = secrets.get("MLFLOW_TRACKING_URI").map(Secret::expose) else { return Ok(Self::Folder(folder)) };
        match uri.split_once("://") {
            Some(("http" | "https", _)) => server::Address::new(uri, secrets).map(Self::Server),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::Folder(PathBuf::from(path))),
            Some(_) => Err(
                "names a database or a service that is only reached through MLflow's server; start `mlflow server` on \
                            it and give the server's address",
            ),
            None => match uri.strip_prefix("file:") {
                Some(path) => Ok(Self::Folder(PathBuf::from(path))),
                None if uri == "databricks" => Err("names a service that is not supported; use a server's address"),
                None => Ok(Self::Folder(PathBuf::from(uri))),
            },
        }
    }
}

/// Settings as parameters: names that MLflow allows, and values no longer than it takes.
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

/// MLflow's name of how a run stands, and its number in files.
fn status(standing: Standing) -> (&'static str, u32) {
    match standing {
        Standing::Finished => ("FINISHED", 3),
        Standing::Failed => ("FAILED", 4),
        Standing::Stopped => ("KILLED", 5),
    }
}

/// The number of a status while a run is going.
const RUNNING: u32 = 1;

fn milliseconds(time_s: f64) -> u64 {
    (time_s * 1e3).max(0.0) as u64
}
