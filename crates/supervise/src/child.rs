//! Starts a command in a process group of its own, and waits for its end. Not here: what follows (`supervisor.rs`).

use crate::output::{Output, Pump, Screen};
use crate::processes::{Group, Process};
use crate::repair::Attempt;
use rustix::io::retry_on_intr;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A command that runs, or that has ended and was not asked how.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) group: Group,
    /// `None` where somebody else started it.
    child: Option<Child>,
    pumps: Vec<Pump>,
    /// The pipes that it prints to, by the numbers that the system has for them.
    pub(crate) pipes: Vec<u64>,
}

/// How a process ended; nothing is known of one that somebody else started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// What a command is started with besides what it is.
pub(crate) struct Setting<'a> {
    pub(crate) variables: Vec<(OsString, OsString)>,
    pub(crate) mark: (String, String),
    pub(crate) stdin: Stdio,
    pub(crate) output: &'a Output,
    /// Where stdout and stderr are passed on to.
    pub(crate) screens: [Option<Screen>; 2],
    pub(crate) label: Option<String>,
}

impl Running {
    /// Starts a command. Errors: what the system says of it.
    pub(crate) fn start(attempt: &Attempt, setting: Setting<'_>) -> io::Result<Self> {
        let Some((program, arguments)) = attempt.argv.split_first() else {
            return Err(io::Error::new(ErrorKind::NotFound, "there is no command"));
        };
        let [(out, out_end), (err, err_end)] = [pipe()?, pipe()?];
        let pipes = [&out, &err].into_iter().filter_map(|pipe| Some(rustix::fs::fstat(pipe).ok()?.st_ino)).collect();
        let mut command = Command::new(program);
        command.args(arguments).envs(setting.variables).envs(attempt.env.iter().cloned());
        command.env(&setting.mark.0, &setting.mark.1);
        command.stdin(setting.stdin).stdout(out_end).stderr(err_end).process_group(0);
        let child = command.spawn()?;
        // With the command go the supervisor's own writing ends, so that the pipes end with the last process.
        drop(command);
        let leader = Process::of(child.id()).unwrap_or(Process { pid: child.id(), started: String::new() });
        let mark = format!("{}={}", setting.mark.0, setting.mark.1);
        let mut running = Self { group: Group { leader, mark }, child: Some(child), pumps: vec![], pipes };
        running.carry([out, err], setting.output, setting.screens, setting.label)?;
        Ok(running)
    }

    /// Takes over a group that somebody else started, and what it prints where its pipes can still be read.
    pub(crate) fn adopt(
        group: Group,
        pipes: Vec<u64>,
        output: &Output,
        screens: [Option<Screen>; 2],
        label: Option<String>,
    ) -> io::Result<Self> {
        let found = pipes.iter().filter_map(|&pipe| reading_end(&group, pipe)).collect::<Vec<_>>();
        let mut running = Self { group, child: None, pumps: vec![], pipes };
        running.carry(found, output, screens, label)?;
        Ok(running)
    }

    fn carry(
        &mut self,
        pipes: impl IntoIterator<Item = OwnedFd>,
        output: &Output,
        screens: [Option<Screen>; 2],
        label: Option<String>,
    ) -> io::Result<()> {
        for (pipe, screen) in pipes.into_iter().zip(screens) {
            self.pumps.push(Pump::start(pipe, output, screen, label.clone())?);
        }
        Ok(())
    }

    /// Whether its output is not carried, since it was started by somebody else and could not be found.
    pub(crate) fn is_mute(&self) -> bool {
        self.pumps.is_empty()
    }

    /// What it reads, if it was started with a pipe.
    pub(crate) fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.as_mut()?.stdin.take()
    }

    /// Tells `take` when the first process has ended, from a thread. It keeps its number until [`Running::release`].
    pub(crate) fn watch(&self, take: impl FnOnce(Status) + Send + 'static) -> io::Result<()> {
        let (is_own, leader) = (self.child.is_some(), self.group.leader.clone());
        let watch = move || {
            let status = if is_own { wait(leader.pid) } else { wait_for_other(&leader) };
            take(status);
        };
        std::thread::Builder::new().name("end".to_owned()).spawn(watch)?;
        Ok(())
    }

    /// Carries what was printed so far, and no more.
    pub(crate) fn finish_output(&mut self) {
        self.pumps.iter_mut().for_each(Pump::finish);
    }

    /// Whether all that it printed was carried.
    pub(crate) fn is_carried(&self) -> bool {
        self.pumps.iter().all(Pump::is_finished)
    }

    /// Gives back its number. It has ended.
    pub(crate) fn release(self) {
        if let Some(mut child) = self.child {
            // How it ended is known.
            let _ = child.wait();
        }
    }
}

/// A pipe's two ends. The end to write to can be read from as well, so that its holder is not ended by a signal where the
/// supervisor is gone: it waits until somebody adopts it.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    if cfg!(target_os = "linux") {
        let path = format!("/proc/self/fd/{}", writing.as_raw_fd());
        if let Ok(both) = std::fs::File::options().read(true).write(true).open(path) {
            // More room for what is printed while nobody reads; a system that refuses leaves 64 KiB.
            #[cfg(target_os = "linux")]
            let _ = rustix::pipe::fcntl_setpipe_size(&both, 1 << 20);
            return Ok((reading, both.into()));
        }
    }
    Ok((reading, writing))
}

/// Opens a pipe that a process of the group writes to, for reading.
fn reading_end(group: &Group, pipe: u64) -> Option<OwnedFd> {
    let name = format!("pipe:[{pipe}]");
    group.members().iter().find_map(|member| {
        let ends = [1, 2].map(|number| format!("/proc/{}/fd/{number}", member.row.pid));
        let end = ends.iter().find(|end| std::fs::read_link(end).is_ok_and(|link| link.as_os_str() == &*name))?;
        Some(std::fs::File::open(end).ok()?.into())
    })
}

/// Waits for a child's end and leaves it to be asked again.
fn wait(pid: u32) -> Status {
    let Some(pid) = crate::processes::pid(pid) else { return Status::default() };
    let wait = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    match retry_on_intr(wait) {
        Ok(Some(status)) => Status { code: status.exit_status(), signal: status.terminating_signal() },
        _ => Status::default(),
    }
}

/// Waits for the end of a process that is nobody's child here.
fn wait_for_other(process: &Process) -> Status {
    while process.is_alive() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Status::default()
}

/// What shells say where a command can't be started: 127 if it is not there, 126 if it can't be executed.
pub(crate) fn code_of(error: &io::Error) -> i32 {
    const NO_EXECUTABLE: i32 = 8;
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::IsADirectory => 126,
        _ if error.raw_os_error() == Some(NO_EXECUTABLE) => 126,
        _ => 127,
    }
}
