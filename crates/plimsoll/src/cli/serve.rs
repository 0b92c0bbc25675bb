//! `plimsoll serve`: the web page of runs. Not here: its contents and access control (`plimsoll-serve`).

use super::Failure;
#[cfg(unix)]
use super::detach::{self, DetachArgs, same_command};
use super::failure::{io_failure, line, no_threads};
use super::places::{PlacesArgs, run_folder};
use super::signals::end_on_signals;
use super::state::state_folder;
use super::story::read_story;
use super::train::sample_time;
use crate::streams::{handle_signals, talk, write_data};
use clap::Args;
use plimsoll_render::run_html;
use plimsoll_serve::{Limits, Options, PollError, ServeError, Server, Token, TokenError};
use plimsoll_telemetry::lower_thread_priority;
use plimsoll_units::Seconds;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// The file in the user's state folder that stores a generated token.
const TOKEN_FILE: &str = "serve-token";

/// The file in the user's state folder for the messages of servers in the background.
#[cfg(unix)]
const LOG: &str = "serve.log";

/// The start of a link to the page.
const LINK: &str = "http://";

#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Address and port to listen on, or only a port; `[::1]:7077` for IPv6, `0.0.0.0:7077` for the whole network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7077", value_parser = address)]
    listen: SocketAddr,
    /// Access token (8+ letters or digits). Visible in the process list; set PLIMSOLL_TOKEN to hide it [default: generated
    /// once and stored]
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Allow this `Host` name in addition to IP addresses, for example behind a proxy; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Show only this run, by its name or folder; may be repeated
    #[arg(long, value_name = "RUN")]
    run: Vec<String>,
    #[command(flatten)]
    places: PlacesArgs,
    /// Time between two polls of runs and GPUs
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sample_time)]
    sample_every: Seconds,
    #[cfg(unix)]
    #[command(flatten)]
    detach: DetachArgs,
}

/// Parses an address with a port, or a port of 127.0.0.1.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    let found = text
        .to_socket_addrs()
        .map_err(|_| format!("`{text}` is not an address with a port, such as 127.0.0.1:7077"))?;
    let mut found = found.collect::<Vec<_>>();
    found.sort_by_key(|address| !address.is_ipv4());
    found.first().copied().ok_or_else(|| format!("`{text}` has no address"))
}

pub(super) fn run(args: &ServeArgs) -> Result<u8, Failure> {
    handle_signals();
    #[cfg(unix)]
    if args.detach.is_requested() {
        return start_in_background();
    }
    let state = state_folder();
    let given = args.token.clone().or_else(|| std::env::var("PLIMSOLL_TOKEN").ok());
    let token = match (&given, &state) {
        (Some(given), _) => Token::parse(given)?,
        (None, Some(state)) => Token::from_file(&state.join(TOKEN_FILE))?,
        (None, None) => {
            return Err(Failure::bad_flag("there is no folder to store a token in").hint("pass `--token TOKEN`"));
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
    // Training runs on this machine have priority.
    lower_thread_priority();
    let server = Server::start(options)?;
    let address = server.address().map_err(io_failure("the server"))?;
    let stopper = server.stopper();
    end_on_signals(move || stopper.stop())?;
    if !address.ip().is_loopback() {
        talk(format_args!(
            "warning: listening on {}, which other machines can reach; nothing is encrypted, including the token\n\
             hint: listen on 127.0.0.1 and connect with `ssh -L 7077:localhost:{port} HOST`",
            address.ip(),
            port = address.port()
        ));
    }
    talk(format_args!("open this link; {} stops the server, runs continue", args.how_to_stop()));
    write_data(format!("{LINK}{}/?token={}", reachable(address), token.as_str()))?;
    server.run();
    Ok(super::failure::exit_code::DONE)
}

impl ServeArgs {
    /// How a user stops this server.
    fn how_to_stop(&self) -> String {
        #[cfg(unix)]
        if self.detach.detached {
            return format!("`kill {}`", std::process::id());
        }
        "Ctrl-C".to_owned()
    }
}

/// Starts this process's command in the background and prints its link. Returns the exit code.
#[cfg(unix)]
fn start_in_background() -> Result<u8, Failure> {
    let state = state_folder().ok_or_else(|| {
        Failure::bad_flag("there is no folder for the server's log").hint("set `XDG_STATE_HOME` to a folder")
    })?;
    std::fs::create_dir_all(&state).map_err(io_failure(state.display()))?;
    let log = state.join(LOG);
    // The log has the link, and with it the token.
    plimsoll_files::open_private(&log).map_err(io_failure(log.display()))?;
    let started = detach::start(same_command(), &log, None, |_, lines| {
        let (links, others) = lines.lines().partition::<Vec<_>, _>(|line| line.starts_with(LINK));
        detach::show(&others.join("\n"));
        links.first().map(|link| (*link).to_owned())
    })?;
    match (started.found, started.code) {
        (Some(link), None) => {
            talk(format_args!("its messages are in {}", log.display()));
            write_data(link)?;
            Ok(super::failure::exit_code::DONE)
        }
        (_, code) => Ok(code.unwrap_or(super::failure::exit_code::DEVICE_FAILED)),
    }
}

/// The address for a browser on this machine: loopback in place of an unspecified address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]),
    };
    SocketAddr::new(ip, address.port())
}

impl From<TokenError> for Failure {
    fn from(error: TokenError) -> Self {
        let message = line(&error);
        match error {
            TokenError::Unfit => Self::bad_flag(message).hint("omit `--token` to generate one"),
            TokenError::Readable { path } => {
                Self::bad_input(message).hint(format!("delete it to generate a new token: `rm {}`", path.display()))
            }
            TokenError::Io { .. } => Self::device(message).hint("pass `--token TOKEN`, which is not stored"),
        }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let message = line(&error);
        match error {
            ServeError::Listen { address, source } if source.kind() == ErrorKind::AddrInUse => Self::device(format!(
                "{address} is in use by another program"
            ))
            .hint(
                "is `plimsoll serve` already running? Use another port with `--listen 7078`, or any with `--listen 0`",
            ),
            ServeError::Listen { address, source } if source.kind() == ErrorKind::PermissionDenied => {
                Self::device(message)
                    .hint(format!("ports below 1024 need privileges; use `--listen {}:7077`", address.ip()))
            }
            ServeError::Listen { source, .. } if source.kind() == ErrorKind::AddrNotAvailable => {
                Self::bad_flag(message)
                    .hint("this machine does not have this address; `--listen 0.0.0.0:7077` listens on all addresses")
            }
            ServeError::Listen { .. } => {
                Self::device(message).hint("`--listen 127.0.0.1:7077` listens for this machine only")
            }
            ServeError::Start(_) => Self::device(message).hint("check the limit on open files (`ulimit -n`)"),
            ServeError::Poll(PollError::Thread(_)) => no_threads(1, message),
            ServeError::Poll(PollError::Run(_)) => {
                Self::bad_input(message).hint("`--run` takes the folder of a run; `plimsoll ps --all` lists runs")
            }
        }
    }
}
