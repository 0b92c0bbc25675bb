//! Requests to the supervisor: signals, and the time limit of the run.

use super::Supervisor;
use crate::worker::Live;
use plimsoll_registry::{Status, SupervisorEvent};
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;

impl Supervisor<'_> {
    /// Forwards a signal to the programs. Stops and continues them along with the supervisor.
    pub(super) fn take_signal(&mut self, signal: Signal) {
        match signal {
            Signal::TSTP => {
                self.lives().for_each(Live::pause);
                let _ = kill_process(getpid(), Signal::STOP);
            }
            Signal::CONT => self.lives().for_each(|live| live.resume()),
            Signal::INT if self.interrupts > 0 => {
                self.interrupts += 1;
                self.lives().for_each(Live::kill);
                self.emit(SupervisorEvent::Forwarded { signal: name_of(Signal::KILL).to_owned() });
            }
            _ => {
                self.lives().for_each(|live| live.forward(signal));
                self.emit(SupervisorEvent::Forwarded { signal: name_of(signal).to_owned() });
            }
        }
        if [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].contains(&signal) {
            self.interrupts += u32::from(signal == Signal::INT && self.interrupts == 0);
            self.early_end.get_or_insert(Status::Stopped);
            self.early_end_code = 128 + signal.as_raw();
            if signal != Signal::INT {
                let grace = self.settings.grace;
                let kill = [(grace, Signal::KILL, "it did not end in time")];
                self.lives().filter(|live| !live.has_pending_signals()).for_each(|live| live.schedule(&kill));
            }
        }
    }

    pub(super) fn check_time(&mut self) {
        let Some(duration) = self.settings.duration.filter(|&duration| self.began.elapsed() >= duration) else {
            return;
        };
        if self.early_end.is_some() {
            return;
        }
        self.early_end = Some(Status::TimeOver);
        self.early_end_code = 0;
        self.emit(SupervisorEvent::TimeOver { duration_s: duration.as_secs_f64() });
        let grace = self.settings.grace;
        let signals = [
            (Duration::ZERO, Signal::INT, "the run reached its time limit"),
            (grace, Signal::TERM, "it ignored SIGINT"),
            (grace * 2, Signal::KILL, "it ignored SIGTERM"),
        ];
        self.lives().for_each(|live| live.schedule(&signals));
    }
}

pub(super) fn name_of(signal: Signal) -> &'static str {
    match signal {
        Signal::INT => "SIGINT",
        Signal::TERM => "SIGTERM",
        Signal::HUP => "SIGHUP",
        Signal::QUIT => "SIGQUIT",
        Signal::USR1 => "SIGUSR1",
        Signal::USR2 => "SIGUSR2",
        Signal::WINCH => "SIGWINCH",
        Signal::ABORT => "SIGABRT",
        Signal::KILL => "SIGKILL",
        Signal::XCPU => "SIGXCPU",
        Signal::ALARM => "SIGALRM",
        Signal::VTALARM => "SIGVTALRM",
        Signal::PROF => "SIGPROF",
        #[cfg(target_os = "linux")]
        Signal::POWER => "SIGPWR",
        _ => "a signal",
    }
}
