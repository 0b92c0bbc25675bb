//! Signals: those that this process gets, and those that it sends.

use super::sources::Message;
use plimsoll_watch::ProcessInfo;
use std::io;
use std::sync::mpsc::SyncSender;
#[cfg(unix)]
use {
    plimsoll_telemetry::READER_PATIENCE, ratatui::crossterm::terminal::disable_raw_mode, std::sync::mpsc::TrySendError,
};

/// Hears signals: to end, to stop, and to go on.
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
            // With no room the loop is stuck in a terminal that takes nothing.
            if matches!(send.try_send(message), Err(TrySendError::Disconnected(_))) {
                return;
            }
            if is_end {
                std::thread::sleep(READER_PATIENCE);
                // The process has ended by now unless its terminal takes nothing.
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

/// Asks a process to end, or kills it. Errors, in words: it is gone, or is not ours to end.
#[cfg(unix)]
pub(super) fn signal(process: &ProcessInfo, is_kill: bool) -> Result<(), String> {
    use rustix::io::Errno;
    use rustix::process::{Pid, Signal};
    let gone = || "it has ended already".to_owned();
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let signal = if is_kill { Signal::KILL } else { Signal::TERM };
    match send(pid, process, signal) {
        Ok(()) => Ok(()),
        Err(Errno::SRCH) => Err(gone()),
        Err(Errno::PERM) => {
            let flag = if is_kill { " -9" } else { "" };
            Err(format!("not permitted, it is another user's; `sudo kill{flag} {}` may", process.pid))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// By a descriptor that stays that process's, whatever has its number by then.
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
    Err("processes are not ended from here on this system".to_owned())
}
