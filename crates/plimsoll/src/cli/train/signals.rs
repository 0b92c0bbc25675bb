//! Stops a run on signals. Every signal that would end the process makes the run finish its step and save; only a
//! second Ctrl-C quits immediately. Closed terminals and job schedulers may send several signals, and none of these
//! asks to hurry.

use crate::cli::Failure;
use crate::cli::failure::{exit_code, io_failure};
use crate::streams::{end_soon, finish, talk};
use plimsoll_session::Control;
use plimsoll_telemetry::{Event, Sink};
use plimsoll_units::{Seconds, format_duration};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time to write pending output when the run quits immediately.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Signals that ask the run to save and end. Job schedulers announce the end of a job's time with SIGUSR1 (Slurm, Grid
/// Engine), SIGUSR2 (LSF, Flux) or SIGXCPU, uninterruptible power supplies send SIGPWR, and timers the alarms. SIGQUIT
/// is not one of them: it quits immediately, with a core dump, as its sender wants.
#[cfg(unix)]
const ASKING: &[libc::c_int] = &[
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGXCPU,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    libc::SIGPWR,
];

/// The duration of the last step, for the message about a stop during the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct StepClock(Arc<AtomicU64>);

impl StepClock {
    /// The expected time of the current step, in words; empty before the first step.
    pub(super) fn words(&self) -> String {
        match self.0.load(Ordering::Relaxed) {
            0 => String::new(),
            milliseconds => {
                let time = Seconds(milliseconds as f64 / 1000.0);
                let time =
                    if time.0 < 1.0 { "less than 1 s".to_owned() } else { format!("about {}", format_duration(time)) };
                format!(" ({time})")
            }
        }
    }
}

impl Sink for StepClock {
    fn take(&mut self, event: &Event) {
        if let Event::Step { step_ms, .. } = event {
            self.0.store(step_ms.ceil().max(1.0) as u64, Ordering::Relaxed);
        }
    }
}

/// Stops the run when a signal asks for it, within the grace period if there is one.
#[cfg(unix)]
pub(super) fn stop_on_signals(control: &Control, grace: Option<Seconds>, clock: StepClock) -> Result<(), Failure> {
    use signal_hook::consts::SIGINT;
    use signal_hook::iterator::Signals;
    // A file over the limit (`ulimit -f`) is then an error of the write, which the run survives.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map_err(io_failure("can't handle signals"))?;
    // `nohup` and shells that start background jobs ignore some signals, and preloaded profilers use some.
    let heard = ASKING.iter().copied().filter(|&signal| has_default_action(signal)).collect::<Vec<_>>();
    let mut signals = Signals::new(&heard).map_err(io_failure("can't handle signals"))?;
    let (stop, control) = (control.stop_flag(), control.clone());
    let period = grace.map(|grace| Duration::from_secs_f64(grace.0));
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
            if control.stop_within(period) || signal == SIGINT {
                let again = if is_interrupted { "Ctrl-C again" } else { "Ctrl-C twice" };
                let step = clock.words();
                let within = grace.map_or(String::new(), |grace| format!(" within {}", format_duration(grace)));
                talk(format_args!(
                    "\nstopping after this step{step} and saving a checkpoint{within}; {again} quits immediately"
                ));
            }
        }
    };
    let listener = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
    // Without a thread, signals still end the run after its step; only the message and the second Ctrl-C are missing.
    let set_flag = |signal| signal_hook::flag::register(signal, stop.clone()).map(drop);
    let handled = listener.map(drop).or_else(|_| heard.into_iter().try_for_each(set_flag));
    handled.map_err(io_failure("can't handle signals"))
}

/// Whether a signal has no handler and is not ignored.
#[cfg(unix)]
fn has_default_action(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the present one, to memory that is large enough for it; all
    // zeros, which stay if it fails, are a valid action too, the default.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_DFL
}

/// Sets the flag when a signal asks the run to stop. A second Ctrl-C quits immediately.
#[cfg(not(unix))]
pub(super) fn stop_on_signals(control: &Control, _: Option<Seconds>, _: StepClock) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    use std::sync::atomic::AtomicBool;
    let (stop, interrupted) = (control.stop_flag(), Arc::new(AtomicBool::new(false)));
    register_conditional_shutdown(SIGINT, i32::from(exit_code::INTERRUPTED), Arc::clone(&interrupted))
        .and_then(|_| register(SIGINT, interrupted))
        .and_then(|_| register(SIGINT, Arc::clone(&stop)))
        .and_then(|_| register(SIGTERM, stop))
        .map_err(io_failure("can't handle signals"))?;
    talk("Ctrl-C stops after the current step and saves a checkpoint; twice quits immediately");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_step_is_expected_to_take_as_long_as_the_last() {
        let mut clock = StepClock::default();
        assert_eq!(clock.words(), "", "before the first step nothing is known");
        for (step_ms, words) in
            [(12_345.0, " (about 12 s)"), (0.2, " (less than 1 s)"), (95_000.0, " (about 1 min 35 s)")]
        {
            let (loss, learning_rate, grad_norm, tokens_per_s) = (1.0, 1e-3, 1.0, 1.0);
            clock.take(&Event::Step {
                step: 1,
                loss,
                learning_rate,
                grad_norm,
                step_ms,
                tokens_per_s,
                memory_bytes: 1,
            });
            assert_eq!(clock.words(), words);
        }
    }
}
