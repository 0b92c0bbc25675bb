//! A program under a supervisor: its processes and the link to its keeper. Not here: decisions after its end
//! (`supervisor/`).

use crate::keeper::{KeeperConnection, Link, LinkTarget, OnEnd, Spec, reading_end};
use crate::output::{Carrier, Output, Screen};
use plimsoll_registry::{Attempt, Group, Process};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

/// A program that runs, or that has ended and was not reaped.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) group: Group,
    /// Inode numbers of the pipes that it prints to.
    pub(crate) pipes: Vec<u64>,
    /// Its keeper; `None` if that is unknown.
    pub(crate) keeper: Option<Process>,
    /// Whether its output is lost, because its pipes could not be opened.
    pub(crate) is_mute: bool,
    link: Link,
}

/// What a supervisor needs for a program, whether it starts it or adopts it.
pub(crate) struct AttemptSetup {
    /// The run's folder.
    pub(crate) folder: PathBuf,
    pub(crate) worker: usize,
    pub(crate) attempt: u32,
    /// The environment variable and the value that mark its processes.
    pub(crate) mark: (String, String),
    pub(crate) output: Output,
    /// Where stdout and stderr are forwarded to.
    pub(crate) screens: [Screen; 2],
    pub(crate) label: Option<String>,
    /// Called when it ends. Its process ID stays reserved until [`Running::release`].
    pub(crate) on_end: OnEnd,
}

impl AttemptSetup {
    fn target(self, leader: Process, keeper: Option<Process>) -> LinkTarget {
        let AttemptSetup { folder, worker, attempt, mark: (name, value), output, screens, label, on_end } = self;
        let carriers = screens.map(|screen| Carrier::new(&output, Some(screen), label.clone()));
        let group = Group { leader, mark: format!("{name}={value}"), keeper };
        LinkTarget { folder, worker, attempt, group, carriers, on_end }
    }
}

impl Running {
    /// Starts a command. Returns it with the write end of its stdin, if that is a pipe. `keeper`: the command line of a
    /// keeper. Errors: those of the system.
    pub(crate) fn start(
        attempt: &Attempt,
        variables: Vec<(OsString, OsString)>,
        stdin: Stdio,
        keeper: &[OsString],
        setup: AttemptSetup,
    ) -> io::Result<(Self, Option<ChildStdin>)> {
        let (log, log_bytes) = setup.output.log();
        let log = log.into();
        let mark = (OsString::from(&setup.mark.0), OsString::from(&setup.mark.1));
        let spec = Spec {
            folder: setup.folder.clone().into(),
            worker: setup.worker,
            attempt: setup.attempt,
            argv: attempt.argv.clone(),
            variables: variables.into_iter().chain(attempt.env.iter().cloned()).chain([mark]).collect(),
            log,
            log_bytes,
        };
        let mut connection = KeeperConnection::start(keeper, stdin, &spec)?;
        let stdin = connection.stdin.take();
        Ok((Self::kept(connection, setup)?, stdin))
    }

    /// Takes over a program whose keeper answers.
    pub(crate) fn kept(connection: KeeperConnection, setup: AttemptSetup) -> io::Result<Self> {
        let program = connection.program.clone();
        let target = setup.target(program.leader, Some(program.keeper.clone()));
        let group = target.group.clone();
        let link = Link::to_keeper(connection, target)?;
        Ok(Self { group, pipes: program.pipes, keeper: Some(program.keeper), is_mute: false, link })
    }

    /// Takes over a program whose keeper does not answer. Also takes over its output if its pipes can be opened and no
    /// other process reads them.
    pub(crate) fn unkept(
        leader: Process,
        pipes: Vec<u64>,
        keeper: Option<Process>,
        setup: AttemptSetup,
    ) -> io::Result<Self> {
        let target = setup.target(leader, keeper.clone());
        let group = target.group.clone();
        let is_read = keeper.as_ref().is_some_and(Process::is_alive);
        let unread = pipes.iter().filter(|_| !is_read);
        let found = unread.filter_map(|&pipe| reading_end(&group, pipe)).collect::<Vec<_>>();
        let is_mute = found.is_empty();
        Ok(Self { group, pipes, keeper, is_mute, link: Link::to_program(found, target)? })
    }

    /// Carries the output that is in the pipes now, then stops.
    pub(crate) fn finish_output(&mut self) {
        self.link.finish();
    }

    /// Whether all of its output was carried.
    pub(crate) fn is_carried(&self) -> bool {
        self.link.is_finished()
    }

    /// Releases the process ID of the ended program.
    pub(crate) fn release(self) {
        self.link.release();
    }
}

/// The exit code of a command that can't be started: as in shells, 127 if it does not exist and 126 if it can't be
/// executed; [`SYSTEM_REFUSED`] if the system could not start any command.
pub(crate) fn code_of(error: &io::Error) -> i32 {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NOTDIR) => 127,
        Some(
            Errno::ACCESS
            | Errno::PERM
            | Errno::ISDIR
            | Errno::NOEXEC
            | Errno::TXTBSY
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::TOOBIG,
        ) => 126,
        _ => SYSTEM_REFUSED,
    }
}

/// Whether the start of a command failed because of a system limit, so that a retry may succeed.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// The exit code of a command that the system could not start.
const SYSTEM_REFUSED: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_errors_have_the_exit_codes_of_shells_and_only_limits_are_transient() {
        for (errno, code, transient) in [
            (Errno::NOENT, 127, false),
            (Errno::NOTDIR, 127, false),
            (Errno::ACCESS, 126, false),
            (Errno::NOEXEC, 126, false),
            (Errno::TXTBSY, 126, false),
            (Errno::LOOP, 126, false),
            (Errno::NAMETOOLONG, 126, false),
            (Errno::TOOBIG, 126, false),
            (Errno::AGAIN, 5, true),
            (Errno::MFILE, 5, true),
            (Errno::NFILE, 5, true),
            (Errno::NOMEM, 5, true),
            (Errno::IO, 5, false),
        ] {
            let error = io::Error::from(errno);
            assert_eq!((code_of(&error), is_transient(&error)), (code, transient), "{errno:?}");
        }
        assert_eq!(code_of(&io::Error::other("its keeper ended before it started")), SYSTEM_REFUSED);
    }
}
