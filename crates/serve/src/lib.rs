//! The web page of runs: which there are, how they go, what the cards do, and buttons that ask runs for something. It reads runs'
//! folders as every view does (`plimsoll-watch`); a run doesn't depend on it.
//! Not here: flags and words of the command line (`plimsoll`), the terminal's screen (`plimsoll-top`), what `/metrics` says
//! (`metrics.rs`).
//!
//! ```text
//!   folders, cards ─► looker (a thread) ─► Seen ─┬─► GET /api/…, /metrics
//!                                                └─► stream.rs: server-sent events, one task a client ─► page/
//!   buttons ─► POST …/order ─► guard.rs ─► act.rs ─► orders.jsonl of the run, or signals
//! ```
//! Read next: `routes.rs`, then `guard.rs`.

mod act;
mod guard;
mod impatient;
mod listen;
mod looker;
mod map;
mod metrics;
mod places;
mod routes;
mod stream;
mod token;
mod wire;

pub use act::Action;
pub use listen::Limits;
pub use looker::LookError;
pub use routes::MakeReport;
pub use token::{Token, TokenError};

use listen::answer;
use looker::Looker;
use plimsoll_watch::Places;
use routes::{Shared, router};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use token::Lock;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};

/// Files of runs that are read at a time.
const READERS: usize = 2;

/// What a server is told.
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Who has it is let in.
    pub token: Token,
    /// Names beside `localhost` and addresses by which it may be asked.
    pub hosts: Vec<String>,
    /// Where runs are looked for.
    pub places: Places,
    /// The only runs that are shown, if any are named.
    pub named: Vec<PathBuf>,
    /// How often it is looked at runs and machine.
    pub every: Duration,
    /// How much clients may take.
    pub limits: Limits,
    /// Makes a run's report.
    pub report: Box<MakeReport>,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It can't listen there.
    #[error("{address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The system refused something else.
    #[error("the server can't start: {0}")]
    Start(#[source] io::Error),
    /// Nothing can be looked at.
    #[error(transparent)]
    Look(#[from] LookError),
}

/// Ends a server from elsewhere.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<bool>);

impl Stopper {
    /// What is on its way arrives, and then it ends.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

/// A server that listens already.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    listener: TcpListener,
    shared: Arc<Shared>,
    limits: Limits,
    ending: watch::Sender<bool>,
}

impl Server {
    /// Listens, and begins to look. Errors: it can't.
    pub fn start(options: Options) -> Result<Self, ServeError> {
        let Options { listen, token, hosts, places, named, every, limits, report } = options;
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(READERS + 2).build();
        let runtime = runtime.map_err(ServeError::Start)?;
        let failed = |source| ServeError::Listen { address: listen, source };
        let listener = runtime.block_on(TcpListener::bind(listen)).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let (ending, is_over) = watch::channel(false);
        let shared = Shared {
            lock: Lock::new(&token),
            // Ports of a host share cookies.
            cookie_name: format!("plimsoll_{port}"),
            hosts,
            looker: Looker::start(places, named, every)?,
            report,
            start: token::of_this_start(),
            host: host_name(),
            ending: is_over,
            patience: limits.request,
            streams: Arc::new(Semaphore::new(limits.streams)),
            readers: Arc::new(Semaphore::new(READERS)),
        };
        Ok(Self { runtime, listener, shared: Arc::new(shared), limits, ending })
    }

    /// Where it listens, with the port that it got if none was named.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.ending.clone())
    }

    /// Answers until it is stopped.
    pub fn run(self) {
        let Self { runtime, listener, shared, limits, ending } = self;
        runtime.block_on(answer(listener, router(shared), limits, ending.subscribe()));
        // Who still reads files reads for nobody.
        runtime.shutdown_background();
    }
}

/// The machine's name, as the system has it; empty where it does not tell.
#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}
