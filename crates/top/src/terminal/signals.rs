//! Signals that this process receives and sends.

use super::sources::Message;
use plimsoll_watch::ProcessInfo;
use std::io;
use std::sync::mpsc::SyncSender;
#[cfg(unix)]
use {
    plimsoll_telemetry::READER_PATIENCE, ratatui::crossterm::terminal::disable_raw_mode, std::sync::mpsc::TrySendError,
};

/// Listens for signals to terminate, suspend and resume.
#[cfg(unix)]
pub(super) fn listen(send: &SyncSender<Message>) -> io::Result<()> {
    use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGTSTP, SIGCONT])?;
    let send = send.clone();
    let hear = move || {
        for signal in signals.forever() {
            let message = match signal {
                SIGTSTP => Message::Suspend,
                SIGCONT => Message::Resumed,
                ends => Message::End(ends),
            };
            let is_end = matches!(message, Message::End(_));
            // A full channel means that the loop is blocked by a terminal that does not read.
            if matches!(send.try_send(message), Err(TrySendError::Disconnected(_))) {
                return;
            }
            if is_end {
                std::thread::sleep(READER_PATIENCE);
                // Still here after this time: the terminal does not read. End the process.
                let _ = disable_raw_mode();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(hear)?;
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn listen(_: &SyncSender<Message>) -> io::Result<()> {
    Ok(())
}

/// Sends SIGTERM or SIGKILL to a process. Errors: a message that the process is gone or belongs to another user.
#[cfg(unix)]
pub(super) fn signal(process: &ProcessInfo, is_kill: bool) -> Result<(), String> {
    use rustix::io::Errno;
    use rustix::process::{Pid, Signal};
    let gone = || "it has already ended".to_owned();
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let signal = if is_kill { Signal::KILL } else { Signal::TERM };
    match send(pid, process, signal) {
        Ok(()) => Ok(()),
        Err(Errno::SRCH) => Err(gone()),
        Err(Errno::PERM) => {
            let flag = if is_kill { " -9" } else { "" };
            Err(format!("it belongs to another user; try `sudo kill{flag} {}`", process.pid))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Signals through a process descriptor, which stays valid if the pid is reused.
#[cfg(target_os = "linux")]
fn send(pid: rustix::process::Pid, process: &ProcessInfo, signal: rustix::process::Signal) -> rustix::io::Result<()> {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    if !process.is_alive() {
        return Err(rustix::io::Errno::SRCH);
    }
    pidfd_send_signal(&descriptor, signal)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn send(pid: rustix::process::Pid, process: &ProcessInfo, signal: rustix::process::Signal) -> rustix::io::Result<()> {
    if !process.is_alive() {
        return Err(rustix::io::Errno::SRCH);
    }
    rustix::process::kill_process(pid, signal)
}

#[cfg(not(unix))]
pub(super) fn signal(_: &ProcessInfo, _: bool) -> Result<(), String> {
    Err("ending processes is not supported on this system".to_owned())
}
