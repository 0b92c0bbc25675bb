//! A program that runs under a supervisor: its processes, and the way to its keeper. Not here: what follows from its end
//! (`supervisor/`).

use crate::keeper::{Link, Spec, Started, Take, Taking, reading_end};
use crate::output::{Carrier, Output, Screen};
use crate::processes::{Group, Process};
use crate::repair::Attempt;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ChildStdin, Stdio};

/// A program that runs, or that has ended and was not asked how.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) group: Group,
    /// The pipes that it prints to, by the numbers that the system has for them.
    pub(crate) pipes: Vec<u64>,
    /// Who keeps it, if anybody does.
    pub(crate) keeper: Option<Process>,
    /// Whether its output is not carried, since it could not be found.
    pub(crate) is_mute: bool,
    link: Link,
}

/// What is the same for a program however a supervisor comes by it.
pub(crate) struct Setting {
    /// The run's folder.
    pub(crate) folder: PathBuf,
    pub(crate) worker: usize,
    pub(crate) attempt: u32,
    /// The variable, and its value, by which its processes are found.
    pub(crate) mark: (String, String),
    pub(crate) output: Output,
    /// Where stdout and stderr are passed on to.
    pub(crate) screens: [Screen; 2],
    pub(crate) label: Option<String>,
    /// Who is told of its end. It keeps its number until [`Running::release`].
    pub(crate) take: Take,
}

impl Setting {
    fn taking(self, leader: Process, keeper: Option<Process>) -> Taking {
        let Setting { folder, worker, attempt, mark: (name, value), output, screens, label, take } = self;
        let carriers = screens.map(|screen| Carrier::new(&output, Some(screen), label.clone()));
        let group = Group { leader, mark: format!("{name}={value}"), keeper };
        Taking { folder, worker, attempt, group, carriers, take }
    }
}

impl Running {
    /// Starts a command; beside it comes what it reads. `keeper`: the command that is a keeper. Errors: what the system
    /// says.
    pub(crate) fn start(
        attempt: &Attempt,
        variables: Vec<(OsString, OsString)>,
        stdin: Stdio,
        keeper: &[OsString],
        setting: Setting,
    ) -> io::Result<(Self, Option<ChildStdin>)> {
        let (log, log_bytes) = setting.output.log();
        let log = log.into();
        let mark = (OsString::from(&setting.mark.0), OsString::from(&setting.mark.1));
        let spec = Spec {
            folder: setting.folder.clone().into(),
            worker: setting.worker,
            attempt: setting.attempt,
            argv: attempt.argv.clone(),
            variables: variables.into_iter().chain(attempt.env.iter().cloned()).chain([mark]).collect(),
            log,
            log_bytes,
        };
        let mut started = Started::new(keeper, stdin, &spec)?;
        let stdin = started.stdin.take();
        Ok((Self::kept(started, setting)?, stdin))
    }

    /// Takes over a program whose keeper answers.
    pub(crate) fn kept(started: Started, setting: Setting) -> io::Result<Self> {
        let program = started.program.clone();
        let taking = setting.taking(program.leader, Some(program.keeper.clone()));
        let group = taking.group.clone();
        let link = Link::to_keeper(started, taking)?;
        Ok(Self { group, pipes: program.pipes, keeper: Some(program.keeper), is_mute: false, link })
    }

    /// Takes over a program whose keeper does not answer, and what it prints where its pipes can still be read and nobody
    /// else reads them.
    pub(crate) fn unkept(
        leader: Process,
        pipes: Vec<u64>,
        keeper: Option<Process>,
        setting: Setting,
    ) -> io::Result<Self> {
        let taking = setting.taking(leader, keeper.clone());
        let group = taking.group.clone();
        let is_read = keeper.as_ref().is_some_and(Process::is_alive);
        let ours = pipes.iter().filter(|_| !is_read);
        let found = ours.filter_map(|&pipe| reading_end(&group, pipe)).collect::<Vec<_>>();
        let is_mute = found.is_empty();
        Ok(Self { group, pipes, keeper, is_mute, link: Link::to_program(found, taking)? })
    }

    /// Carries what was printed so far, and no more.
    pub(crate) fn finish_output(&mut self) {
        self.link.finish();
    }

    /// Whether all that it printed was carried.
    pub(crate) fn is_carried(&self) -> bool {
        self.link.is_finished()
    }

    /// Gives back its number. It has ended.
    pub(crate) fn release(self) {
        self.link.release();
    }
}

/// What shells say where a command can't be started: 127 if it is not there, 126 if it can't be executed. Where the system
/// could not start any command, that is neither's fault: [`SYSTEM_REFUSED`].
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

/// Whether a command that could not be started may be started a little later: a limit of the system was reached.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// The exit code of a command that the system could not start.
const SYSTEM_REFUSED: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_there_is_not_found_and_only_limits_pass() {
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
        assert_eq!(code_of(&io::Error::other("the process that was to start it ended")), SYSTEM_REFUSED);
    }
}
