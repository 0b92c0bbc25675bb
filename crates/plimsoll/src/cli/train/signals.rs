//! How a run is stopped from outside. Every signal asks it to finish its step and save; only a second Ctrl-C leaves at
//! once. A terminal that is closed sends more than one signal, and so do managers of jobs: none of them means haste.

use crate::cli::Failure;
use crate::cli::failure::{exit_code, io_failure};
use crate::streams::{end_soon, finish, talk};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long what was said may take to be written once the run quits immediately.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// The flag that is set when the run is asked to stop.
#[cfg(unix)]
pub(super) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use std::sync::atomic::Ordering;
    let stop = Arc::new(AtomicBool::new(false));
    // Whoever started the run with `nohup`, or in the background of a script, had these ignored for it.
    let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(heard).map_err(io_failure("can't handle signals"))?;
    let asked = Arc::clone(&stop);
    let listen = move || {
        let mut is_interrupted = false;
        for signal in signals.forever() {
            if signal == SIGINT && is_interrupted {
                plimsoll_power::put_back_all();
                finish(LAST_WORDS);
                std::process::exit(i32::from(exit_code::INTERRUPTED));
            }
            is_interrupted |= signal == SIGINT;
            end_soon();
            if !asked.swap(true, Ordering::Relaxed) || signal == SIGINT {
                let again = if is_interrupted { "Ctrl-C again" } else { "Ctrl-C twice" };
                talk(format_args!("\nstopping after this step and saving a checkpoint; {again} quits immediately"));
            }
        }
    };
    let listener = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
    listener.map_err(io_failure("can't handle signals"))?;
    Ok(stop)
}

/// Whether this process was started with a signal ignored.
#[cfg(unix)]
fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one, to memory that is large enough for it; all
    // zeros, which stay if it fails, are an action too, the default.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// The flag that is set when the run is asked to stop. A second Ctrl-C leaves at once.
#[cfg(not(unix))]
pub(super) fn stop_on_signals() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    let (stop, interrupted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    register_conditional_shutdown(SIGINT, i32::from(exit_code::INTERRUPTED), Arc::clone(&interrupted))
        .and_then(|_| register(SIGINT, interrupted))
        .and_then(|_| register(SIGINT, Arc::clone(&stop)))
        .and_then(|_| register(SIGTERM, Arc::clone(&stop)))
        .map_err(io_failure("can't handle signals"))?;
    talk("Ctrl-C stops after the current step and saves a checkpoint; twice quits immediately");
    Ok(stop)
}
