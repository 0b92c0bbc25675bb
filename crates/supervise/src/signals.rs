//! Receives the supervisor's signals on a thread.

use plimsoll_registry::ignored_signals;
use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGVTALRM, SIGWINCH,
    SIGXCPU,
};
use signal_hook::iterator::Signals;
use std::io;

/// The exit code after the third interrupt.
const INTERRUPTED: i32 = 130;

/// Signals from terminals, job schedulers, power supplies and timers that ask a program to save or to end. Schedulers
/// send them to every process of a job.
pub(crate) const ASKING: &[i32] = &[
    SIGINT,
    SIGTERM,
    SIGHUP,
    SIGUSR1,
    SIGUSR2,
    SIGXCPU,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    #[cfg(target_os = "linux")]
    Signal::POWER.as_raw(),
];

/// Calls `take` for every signal, on a thread. Signals that this process was started to ignore, as under `nohup`, stay
/// ignored. A third SIGINT exits the process at once.
pub(crate) fn listen(take: impl Fn(Signal) + Send + 'static) -> io::Result<()> {
    let ignored = ignored();
    let others = [SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT];
    let heard = ASKING.iter().copied().chain(others).filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(heard)?;
    let listen = move || {
        let mut interrupts = 0;
        for signal in signals.forever() {
            interrupts += usize::from(signal == SIGINT);
            if interrupts > 2 {
                std::process::exit(INTERRUPTED);
            }
            if let Some(signal) = Signal::from_named_raw(signal) {
                take(signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
    Ok(())
}

/// The signals that this process ignores. Call before installing handlers.
fn ignored() -> u64 {
    ignored_signals(std::process::id())
}
