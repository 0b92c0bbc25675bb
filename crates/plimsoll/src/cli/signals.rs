//! Ends a command on signals: the first one asks it to end, a second one ends the process. Not here: the signals of a
//! training run (`train/signals.rs`).

use super::Failure;
use super::failure::{io_failure, no_thread};
use crate::streams::end_soon;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Calls `end` at the first SIGINT or SIGTERM; a second one ends the process immediately.
pub(super) fn end_on_signals(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    let is_requested = Arc::new(AtomicBool::new(false));
    // Before the flags: the first of them replaces the default action, and from then on each signal must be seen here.
    let first = first_signal(is_requested.clone())?;
    for signal in [SIGINT, SIGTERM] {
        register_conditional_shutdown(signal, 128 + signal, is_requested.clone())
            .and_then(|_| register(signal, is_requested.clone()))
            .map_err(io_failure("can't handle signals"))?;
    }
    let wait = move || {
        first();
        end_soon();
        end();
    };
    let waiter = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    waiter.map(drop).map_err(no_thread("can't handle signals"))
}

/// Returns a function that waits for the first signal without waking up in between, so that an idle server uses no CPU.
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
fn first_signal(is_requested: Arc<AtomicBool>) -> Result<impl FnOnce() + Send + 'static, Failure> {
    Ok(move || {
        while !is_requested.load(std::sync::atomic::Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    })
}
