//! Web page that shows runs and GPUs, with buttons that send orders to runs. It reads run folders through
//! `plimsoll-watch` as every view does; runs do not depend on it.
//! Not here: the command's flags and messages (`plimsoll`), the terminal screen (`plimsoll-top`).
//!
//! ```text
//!   folders, cards ─► poller (a thread) ─► Snapshot ─┬─► GET /api/…, /metrics
//!                                                   └─► stream.rs: server-sent events, one task per client ─► page/
//!   buttons ─► POST …/order ─► guard.rs ─► act.rs ─► orders.jsonl of the run, or signals
//! ```
//! Read next: `routes.rs`, then `guard.rs`.

mod act;
mod guard;
mod listen;
mod map;
mod metrics;
mod poller;
mod routes;
mod shared;
mod slots;
mod stall;
mod stream;
mod token;
mod wire;

pub use act::Action;
pub use listen::Limits;
pub use poller::PollError;
pub use shared::MakeReport;
pub use token::{Token, TokenError};

use listen::serve;
use plimsoll_watch::Places;
use poller::Poller;
use routes::router;
use shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use token::TokenVerifier;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};

/// Maximum number of requests that read files of runs at a time.
const READERS: usize = 2;

/// Settings of a server.
pub struct Options {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Token that clients need.
    pub token: Token,
    /// Names that requests may use as `Host`, in addition to `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// Folders to search for runs.
    pub places: Places,
    /// Show these runs only, unless empty.
    pub named: Vec<PathBuf>,
    /// Time between two polls of runs and machine.
    pub every: Duration,
    /// Limits on the resources that clients use.
    pub limits: Limits,
    /// Makes a run's report.
    pub report: Box<MakeReport>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is not available.
    #[error("{address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Another error of the system.
    #[error("the server can't start: {0}")]
    Start(#[source] io::Error),
    /// The poller did not start.
    #[error(transparent)]
    Poll(#[from] PollError),
}

/// Handle that stops a server.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// Finishes the current responses and stops the server.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// Server with an open listening socket.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    shared: Arc<Shared>,
    limits: Limits,
    ending: watch::Sender<bool>,
}

impl Server {
    /// Opens the listening socket and starts the poller. Errors: [`ServeError`].
    pub fn start(options: Options) -> Result<Self, ServeError> {
        let Options { listen, token, hosts, places, named, every, limits, report } = options;
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(READERS + 2).build();
        let runtime = runtime.map_err(ServeError::Start)?;
        let failed = |source| ServeError::Listen { address: listen, source };
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (ending, is_over) = watch::channel(false);
        let shared = Shared {
            verifier: TokenVerifier::new(&token),
            // Servers on other ports of this host receive the same cookies.
            cookie_name: format!("plimsoll_{port}"),
            hosts,
            poller: Poller::start(places, named, every)?,
            report,
            start: token::start_id(),
            host: host_name(),
            ending: is_over,
            patience: limits.request,
            streams: Arc::new(Semaphore::new(limits.streams)),
            readers: Arc::new(Semaphore::new(READERS)),
        };
        Ok(Self { runtime, listener, shared: Arc::new(shared), limits, ending })
    }

    /// Address of the listening socket, with the port that the system chose if the options had port 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Handle that stops this server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.ending.clone())
    }

    /// Serves until stopped.
    pub fn run(self) {
        let Self { runtime, listener, shared, limits, ending } = self;
        runtime.block_on(serve(listener, router(shared), limits, ending.subscribe()));
        // Abandon tasks that still read files: their clients are gone.
        runtime.shutdown_background();
    }
}

/// Name of the machine; empty if the system has none.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
