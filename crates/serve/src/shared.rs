//! State shared by all requests.

use crate::poller::Poller;
use crate::token::TokenVerifier;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Maximum size of a request's body.
pub(crate) const BODY_BYTES: usize = 4 << 10;

/// Makes a run's report as an HTML page. Errors: why the report failed.
pub type MakeReport = dyn Fn(&std::path::Path) -> Result<String, String> + Send + Sync;

/// State shared by all requests.
pub(crate) struct Shared {
    pub(crate) verifier: TokenVerifier,
    pub(crate) cookie_name: String,
    /// Names of this server in addition to `localhost` and IP addresses.
    pub(crate) hosts: Vec<String>,
    pub(crate) poller: Poller,
    /// Time limit for a request's body.
    pub(crate) patience: Duration,
    pub(crate) report: Box<MakeReport>,
    /// Random id of this start of the server.
    pub(crate) start: String,
    /// Name of the machine.
    pub(crate) host: String,
    pub(crate) ending: watch::Receiver<bool>,
    /// Permits for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Permits for requests that read files.
    pub(crate) readers: Arc<Semaphore>,
}
