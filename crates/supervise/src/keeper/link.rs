//! The supervisor's side of a keeper: starts it or reconnects to it, and receives its frames on a thread. If a keeper
//! is gone, the supervisor carries the output itself, and can't learn the exit status.

use super::protocol::{FINISH, Frame, KeeperMessage, Program, RELEASE, Spec, read_frame};
use super::socket::connect;
use crate::output::Carrier;
use plimsoll_registry::{ExitStatus, Group, Process, ProgramEnd};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long to wait for a keeper's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for an unreachable keeper to record how its program ended.
const WRITING: Duration = Duration::from_secs(2);

/// Called with the exit status when a program ends.
pub(crate) type OnEnd = Box<dyn FnOnce(ExitStatus) + Send>;

/// A connection to a keeper that answered.
pub(crate) struct KeeperConnection {
    pub(crate) program: Program,
    /// The write end of the program's stdin, if that is a pipe.
    pub(crate) stdin: Option<ChildStdin>,
    socket: UnixStream,
    keeper: Option<Child>,
}

impl KeeperConnection {
    /// Starts a keeper, which starts its program. `keeper`: the command line of a keeper. Errors: those of the system
    /// for either start.
    pub(crate) fn start(keeper: &[OsString], stdin: Stdio, spec: &Spec) -> io::Result<Self> {
        let none = || io::Error::new(ErrorKind::NotFound, "no keeper command is set");
        let (name, arguments) = keeper.split_first().ok_or_else(none)?;
        let (mut socket, other) = UnixStream::pair()?;
        let mut command = Command::new(name);
        command.args(arguments).stdin(stdin).stdout(OwnedFd::from(other)).stderr(Stdio::null()).process_group(0);
        let mut keeper = command.spawn()?;
        // Close this process's copy of the other end, so that the socket closes when the keeper exits.
        drop(command);
        let mut line = serde_json::to_vec(spec)?;
        line.push(b'\n');
        let answer = socket.write_all(&line).and_then(|()| read_frame(&mut socket));
        if !matches!(answer, Ok(Frame::Message(KeeperMessage::Started(_)))) {
            // No program was started, or its state is unknown.
            let _ = keeper.kill().and_then(|()| keeper.wait());
        }
        match answer {
            Ok(Frame::Message(KeeperMessage::Started(program))) => {
                Ok(Self { program, stdin: keeper.stdin.take(), socket, keeper: Some(keeper) })
            }
            Ok(Frame::Message(KeeperMessage::Refused { number: Some(number), .. })) => {
                Err(io::Error::from_raw_os_error(number))
            }
            Ok(Frame::Message(KeeperMessage::Refused { number: None, reason })) => Err(io::Error::other(reason)),
            Ok(_) | Err(_) => Err(io::Error::other("its keeper ended before it started")),
        }
    }

    /// Connects to the running keeper of a worker. Errors: there is none.
    pub(crate) fn reconnect(folder: &Path, worker: usize) -> io::Result<Self> {
        let mut socket = connect(folder, worker)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let Frame::Message(KeeperMessage::Started(program)) = read_frame(&mut socket)? else {
            return Err(ErrorKind::InvalidData.into());
        };
        socket.set_read_timeout(None)?;
        Ok(Self { program, stdin: None, socket, keeper: None })
    }
}

/// A thread that receives a program's output and exit status.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Option<UnixStream>,
    thread: JoinHandle<()>,
    /// While this is open, a supervisor that carries output itself waits for more.
    more: Option<OwnedFd>,
    keeper: Option<Child>,
}

/// Where a link delivers the output and the exit status of an attempt.
pub(crate) struct LinkTarget {
    pub(crate) folder: PathBuf,
    pub(crate) worker: usize,
    pub(crate) attempt: u32,
    pub(crate) group: Group,
    /// For stdout and stderr.
    pub(crate) carriers: [Carrier; 2],
    pub(crate) on_end: OnEnd,
}

impl Link {
    /// Receives the frames of a keeper. Errors: the system can't start a thread.
    pub(crate) fn to_keeper(connection: KeeperConnection, target: LinkTarget) -> io::Result<Self> {
        let KeeperConnection { program, socket, keeper, .. } = connection;
        let (over, more) = pipe_with(PipeFlags::CLOEXEC)?;
        let frames = socket.try_clone()?;
        let thread = std::thread::Builder::new().name("output".to_owned());
        let thread = thread.spawn(move || follow(frames, target, &program.pipes, &over))?;
        Ok(Self { socket: Some(socket), thread, more: Some(more), keeper })
    }

    /// Reads the output of a program without a keeper from these pipes. Errors: the system can't start a thread.
    pub(crate) fn to_program(pipes: Vec<OwnedFd>, target: LinkTarget) -> io::Result<Self> {
        let (over, more) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name("output".to_owned());
        let LinkTarget { folder, worker, attempt, group, mut carriers, on_end } = target;
        let carry = move || {
            let wait = || on_end(status_of(&folder, worker, attempt, &group.leader));
            carry_alone(&pipes, &over, &mut carriers, wait);
            carriers.iter_mut().for_each(Carrier::finish);
        };
        Ok(Self { socket: None, thread: thread.spawn(carry)?, more: Some(more), keeper: None })
    }

    /// Carries what is in the pipes now, then stops: a process that left the group may keep them open forever.
    pub(crate) fn finish(&mut self) {
        if self.more.take().is_some()
            && let Some(socket) = &mut self.socket
        {
            // If the keeper is gone, there is no more output.
            let _ = socket.write_all(&[FINISH]);
        }
    }

    /// Whether all output was carried. A slow reader delays this.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets the keeper exit and reap the program, whose process ID becomes free.
    pub(crate) fn release(self) {
        if let Some(mut socket) = self.socket {
            let _ = socket.write_all(&[RELEASE]);
        }
        if let Some(mut keeper) = self.keeper {
            // Reap the keeper on a thread, since a stopped one would block. Without a thread it stays a zombie until
            // this process ends.
            let _ = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || keeper.wait());
        }
    }
}

fn follow(mut socket: UnixStream, target: LinkTarget, pipes: &[u64], over: &OwnedFd) {
    let LinkTarget { folder, worker, attempt, group, mut carriers, on_end } = target;
    let mut on_end = Some(on_end);
    // Either may come first: a program may close its output and keep running, and its children may outlive it and
    // print.
    let mut is_carried = false;
    while !(is_carried && on_end.is_none()) {
        match read_frame(&mut socket) {
            Ok(Frame::Output(stream, bytes)) => carriers[stream].carry(&bytes),
            Ok(Frame::Tail(bytes)) => carriers[0].recall(&bytes),
            Ok(Frame::Message(KeeperMessage::Lost(reason))) => carriers[0].lost(reason),
            Ok(Frame::Message(KeeperMessage::Ended(status))) => {
                if let Some(on_end) = on_end.take() {
                    on_end(status);
                }
            }
            Ok(Frame::Message(KeeperMessage::Carried)) => is_carried = true,
            Ok(Frame::Message(KeeperMessage::Started(_) | KeeperMessage::Refused { .. })) => {}
            Err(_) => break,
        }
    }
    if !is_carried || on_end.is_some() {
        let found = pipes.iter().filter_map(|&pipe| reading_end(&group, pipe)).collect::<Vec<_>>();
        let wait = || {
            if let Some(on_end) = on_end {
                on_end(status_of(&folder, worker, attempt, &group.leader));
            }
        };
        carry_alone(&found, over, &mut carriers, wait);
    }
    carriers.iter_mut().for_each(Carrier::finish);
}

/// Carries output like a keeper. `wait` returns once the program has ended.
fn carry_alone(pipes: &[OwnedFd], over: &OwnedFd, carriers: &mut [Carrier; 2], wait: impl FnOnce()) {
    let parts = pipes.iter().zip(carriers).map(|(pipe, carrier)| (pipe, Mutex::new(carrier))).collect::<Vec<_>>();
    std::thread::scope(|threads| {
        for (pipe, carrier) in &parts {
            let drain = move || carrier.lock().unwrap_or_else(PoisonError::into_inner).drain(pipe, over);
            // Without a thread, the end is noticed only after all output. Neither is lost.
            if std::thread::Builder::new().name("output".to_owned()).spawn_scoped(threads, drain).is_err() {
                drain();
            }
        }
        wait();
    });
}

/// Opens the reading end of a pipe that a process of the group writes to.
pub(crate) fn reading_end(group: &Group, pipe: u64) -> Option<OwnedFd> {
    let name = format!("pipe:[{pipe}]");
    group.members().iter().find_map(|member| {
        let ends = [1, 2].map(|number| format!("/proc/{}/fd/{number}", member.row.pid));
        let end = ends.iter().find(|end| std::fs::read_link(end).is_ok_and(|link| link.as_os_str() == &*name))?;
        Some(std::fs::File::open(end).ok()?.into())
    })
}

/// Waits for the end of a process that is not a child, and reads its keeper's record.
fn status_of(folder: &Path, worker: usize, attempt: u32, leader: &Process) -> ExitStatus {
    leader.wait();
    let start = std::time::Instant::now();
    loop {
        if let Some(end) = ProgramEnd::read(folder, worker, attempt) {
            return end.status;
        }
        if start.elapsed() > WRITING {
            return ExitStatus::default();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
