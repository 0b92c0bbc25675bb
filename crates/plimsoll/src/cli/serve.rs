//! `plimsoll serve`: the web page of runs. Not here: what is on it and who is let in (`plimsoll-serve`).

use super::Failure;
use super::failure::{THREAD_LIMITS, io_failure, line, no_thread};
use super::places::{PlacesArgs, run_folder};
use super::state::state_folder;
use super::story::read_story;
use super::train::sample_time;
use crate::streams::{end_soon, talk, wait_for_no_reader, write_data};
use clap::Args;
use plimsoll_render::run_html;
use plimsoll_serve::{Limits, Options, PollError, ServeError, Server, Token, TokenError};
use plimsoll_telemetry::lower_thread_priority;
use plimsoll_units::Seconds;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The file in the user's state folder that keeps a token that was made.
const KEPT: &str = "serve-token";

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Where to listen: an address and a port, or only a port; `[::1]:7077` for IPv6, `0.0.0.0:7077` for the whole network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077", value_parser = address)]
    listen: SocketAddr,
    /// Who has it is let in: 8 or more letters and digits; the list of processes shows it to others, which the variable
    /// PLIMSOLL_TOKEN does not [default: one that is made once and kept]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// A name by which the server is asked, beside its addresses, as behind a proxy; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Show only this run, by its name or folder; may be repeated
    #[arg(long, value_name = "RUN")]
    run: Vec<String>,
    #[command(flatten)]
    places: PlacesArgs,
    /// Time between two looks at runs and cards
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sample_time)]
    sample_every: Seconds,
}

/// An address with a port; a port alone is this machine's own.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let found =
        text.to_socket_addrs().map_err(|_| format!("`{text}` is not an address with a port, as 127.0.0.1:7077"))?;
    let mut found = found.collect::<Vec<_>>();
    found.sort_by_key(|address| !address.is_ipv4());
    found.first().copied().ok_or_else(|| format!("`{text}` has no address"))
}

pub(super) fn run(args: &ServeArgs) -> Result<u8, Failure> {
    wait_for_no_reader();
    let state = state_folder();
    let given = args.token.clone().or_else(|| std::env::var("PLIMSOLL_TOKEN").ok());
    let token = match (&given, &state) {
        (Some(given), _) => Token::parse(given)?,
        (None, Some(state)) => Token::from_file(&state.join(KEPT))?,
        (None, None) => {
            return Err(Failure::bad_flag("there is no folder to keep a token in").hint("`--token` gives one"));
        }
    };
    let places = args.places.places();
    let named = args.run.iter().map(|run| run_folder(run, &places)).collect::<Result<_, _>>()?;
    let options = Options {
        listen: args.listen,
        token: token.clone(),
        hosts: args.allow_host.clone(),
        places,
        named,
        every: Duration::from_secs_f64(args.sample_every.0),
        limits: Limits::default(),
        report: Box::new(|folder| read_story(folder).map(|run| run_html(&run)).map_err(|error| error.to_string())),
    };
    // Runs on this machine come before whoever looks at them.
    lower_thread_priority();
    let server = Server::start(options)?;
    let address = server.address().map_err(io_failure("the server"))?;
    let stopper = server.stopper();
    end_on_signals(move || stopper.stop())?;
    if !address.ip().is_loopback() {
        talk(format_args!(
            "warning: listening on {}, where others reach it; what it sends, its token too, is not encrypted\n\
             hint: `ssh -L 7077:localhost:{port} HOST` reaches a server that listens on 127.0.0.1 only",
            address.ip(),
            port = address.port()
        ));
    }
    talk("open this link; Ctrl-C ends the server, and no run depends on it");
    write_data(format!("http://{}/?token={}", reachable(address), token.as_str()))?;
    server.run();
    Ok(super::failure::exit_code::DONE)
}

/// The address as a browser on this machine has it: one that stands for all is none to be asked for.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]),
    };
    SocketAddr::new(ip, address.port())
}

/// Calls `end` at the first signal that asks to end; a second one ends the process where it stands.
fn end_on_signals(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_shutdown(signal, 128 + signal, asked.clone())
            .and_then(|_| register(signal, asked.clone()))
            .map_err(io_failure("can't handle signals"))?;
    }
    let first = first_signal(asked)?;
    let wait = move || {
        first();
        end_soon();
        end();
    };
    let waiter = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    waiter.map(drop).map_err(no_thread("can't handle signals"))
}

/// What waits for the first signal. Without waking up meanwhile: a server that nobody asks anything costs nothing.
#[cfg(unix)]
fn first_signal(_: Arc<AtomicBool>) -> Result<impl FnOnce() + Send + 'static, Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(io_failure("can't handle signals"))?;
    Ok(move || {
        signals.forever().next();
    })
}

#[cfg(not(unix))]
fn first_signal(asked: Arc<AtomicBool>) -> Result<impl FnOnce() + Send + 'static, Failure> {
    Ok(move || {
        while !asked.load(std::sync::atomic::Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let message = line(&error);
        match error {
            TokenError::Unfit => Self::bad_flag(message).hint("leave out `--token` for one that is made"),
            TokenError::Readable { path } => {
                Self::bad_input(message).hint(format!("delete it, and a new token is made: rm {}", path.display()))
            }
            TokenError::Io { .. } => Self::device(message).hint("`--token` gives one that is not kept"),
        }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let message = line(&error);
        match error {
            ServeError::Listen { address, source } if source.kind() == ErrorKind::AddrInUse => {
                Self::device(format!("{address} is in use by another program"))
                    .hint("is `plimsoll serve` running already? `--listen 7078` takes another port, `--listen 0` any")
            }
            ServeError::Listen { address, source } if source.kind() == ErrorKind::PermissionDenied => {
                Self::device(message)
                    .hint(format!("ports below 1024 are the system's: `--listen {}:7077`", address.ip()))
            }
            ServeError::Listen { source, .. } if source.kind() == ErrorKind::AddrNotAvailable => {
                Self::bad_flag(message)
                    .hint("this machine has no such address; `--listen 0.0.0.0:7077` takes all that it has")
            }
            ServeError::Listen { .. } => Self::device(message).hint("`--listen 127.0.0.1:7077` is this machine alone"),
            ServeError::Start(_) => Self::device(message).hint("is a limit of the system reached (`ulimit -n`)?"),
            ServeError::Poll(PollError::Thread(_)) => Self::device(message).hint(THREAD_LIMITS),
            ServeError::Poll(PollError::Run(_)) => {
                Self::bad_input(message).hint("`--run` takes the folder of a run; `plimsoll ps --all` lists runs")
            }
        }
    }
}
