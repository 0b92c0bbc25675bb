//! The supervisor's side of a keeper: starts it or reaches it again, and takes what it tells, from a thread. Where a keeper
//! is gone the supervisor carries the output itself, and can't learn how the program ends.

use super::place::{End, connect};
use super::protocol::{FINISH, Frame, Program, RELEASE, Spec, Status, Told, read_frame};
use crate::output::Carrier;
use crate::processes::{Group, Process};
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

/// How long a keeper may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a keeper that can't be reached may take to write how its program ended.
const WRITING: Duration = Duration::from_secs(2);

/// Who is told how a program ended.
pub(crate) type Take = Box<dyn FnOnce(Status) + Send>;

/// A keeper that answered.
pub(crate) struct Started {
    pub(crate) program: Program,
    /// What the program reads, if it was started with a pipe.
    pub(crate) stdin: Option<ChildStdin>,
    socket: UnixStream,
    keeper: Option<Child>,
}

impl Started {
    /// Starts a keeper, and it its program. `keeper`: the command that is one. Errors: what the system says of either.
    pub(crate) fn new(keeper: &[OsString], stdin: Stdio, spec: &Spec) -> io::Result<Self> {
        let none = || io::Error::new(ErrorKind::NotFound, "there is no keeper");
        let (name, arguments) = keeper.split_first().ok_or_else(none)?;
        let (mut socket, other) = UnixStream::pair()?;
        let mut command = Command::new(name);
        command.args(arguments).stdin(stdin).stdout(OwnedFd::from(other)).stderr(Stdio::null()).process_group(0);
        let mut keeper = command.spawn()?;
        // Else the socket would not end with the keeper.
        drop(command);
        let mut line = serde_json::to_vec(spec)?;
        line.push(b'\n');
        let answer = socket.write_all(&line).and_then(|()| read_frame(&mut socket));
        if !matches!(answer, Ok(Frame::Told(Told::Started(_)))) {
            // Nothing was started, or nobody can be asked about it.
            let _ = keeper.kill().and_then(|()| keeper.wait());
        }
        match answer {
            Ok(Frame::Told(Told::Started(program))) => {
                Ok(Self { program, stdin: keeper.stdin.take(), socket, keeper: Some(keeper) })
            }
            Ok(Frame::Told(Told::Refused { number: Some(number), .. })) => Err(io::Error::from_raw_os_error(number)),
            Ok(Frame::Told(Told::Refused { number: None, reason })) => Err(io::Error::other(reason)),
            Ok(_) | Err(_) => Err(io::Error::other("the process that was to start it ended")),
        }
    }

    /// Reaches the keeper of a worker. Errors: there is none.
    pub(crate) fn again(folder: &Path, worker: usize) -> io::Result<Self> {
        let mut socket = connect(folder, worker)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let Frame::Told(Told::Started(program)) = read_frame(&mut socket)? else {
            return Err(ErrorKind::InvalidData.into());
        };
        socket.set_read_timeout(None)?;
        Ok(Self { program, stdin: None, socket, keeper: None })
    }
}

/// A thread that takes what is told of a program, and what it prints.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Option<UnixStream>,
    thread: JoinHandle<()>,
    /// While it is open, a supervisor that carries output itself waits for more.
    more: Option<OwnedFd>,
    keeper: Option<Child>,
}

/// What is taken, and for whom.
pub(crate) struct Taking {
    pub(crate) folder: PathBuf,
    pub(crate) worker: usize,
    pub(crate) attempt: u32,
    pub(crate) group: Group,
    /// Of stdout and of stderr.
    pub(crate) carriers: [Carrier; 2],
    pub(crate) take: Take,
}

impl Link {
    /// Takes what a keeper tells. Errors: the system starts no thread.
    pub(crate) fn to_keeper(started: Started, taking: Taking) -> io::Result<Self> {
        let Started { program, socket, keeper, .. } = started;
        let (over, more) = pipe_with(PipeFlags::CLOEXEC)?;
        let told = socket.try_clone()?;
        let thread = std::thread::Builder::new().name("output".to_owned());
        let thread = thread.spawn(move || follow(told, taking, &program.pipes, &over))?;
        Ok(Self { socket: Some(socket), thread, more: Some(more), keeper })
    }

    /// Carries the output of a program whose keeper is gone out of these pipes. Errors: the system starts no thread.
    pub(crate) fn to_program(pipes: Vec<OwnedFd>, taking: Taking) -> io::Result<Self> {
        let (over, more) = pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new().name("output".to_owned());
        let Taking { folder, worker, attempt, group, mut carriers, take } = taking;
        let carry = move || {
            let wait = || take(status_of(&folder, worker, attempt, &group.leader));
            carry_alone(&pipes, &over, &mut carriers, wait);
            carriers.iter_mut().for_each(Carrier::finish);
        };
        Ok(Self { socket: None, thread: thread.spawn(carry)?, more: Some(more), keeper: None })
    }

    /// Lets it take what is in the pipes, and no more: a process that left its group may keep them open for ever.
    pub(crate) fn finish(&mut self) {
        if self.more.take().is_some()
            && let Some(socket) = &mut self.socket
        {
            // A keeper that is gone has nothing more.
            let _ = socket.write_all(&[FINISH]);
        }
    }

    /// Whether all was carried, which takes as long as somebody takes to read it.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The end is judged, and the program's number is given back.
    pub(crate) fn release(self) {
        if let Some(mut socket) = self.socket {
            let _ = socket.write_all(&[RELEASE]);
        }
        if let Some(mut keeper) = self.keeper {
            // Nobody waits for one that somebody stopped. Without a thread the system keeps its number until this process ends.
            let _ = std::thread::Builder::new().name("keeper".to_owned()).spawn(move || keeper.wait());
        }
    }
}

fn follow(mut socket: UnixStream, taking: Taking, pipes: &[u64], over: &OwnedFd) {
    let Taking { folder, worker, attempt, group, mut carriers, take } = taking;
    let mut take = Some(take);
    // Which comes first is open: a program may close its output and run on, and one that it left may print on.
    let mut is_carried = false;
    while !(is_carried && take.is_none()) {
        match read_frame(&mut socket) {
            Ok(Frame::Output(stream, bytes)) => carriers[stream].carry(&bytes),
            Ok(Frame::Tail(bytes)) => carriers[0].recall(&bytes),
            Ok(Frame::Told(Told::Lost(reason))) => carriers[0].lost(reason),
            Ok(Frame::Told(Told::Ended(status))) => {
                if let Some(take) = take.take() {
                    take(status);
                }
            }
            Ok(Frame::Told(Told::Carried)) => is_carried = true,
            Ok(Frame::Told(Told::Started(_) | Told::Refused { .. })) => {}
            Err(_) => break,
        }
    }
    if !is_carried || take.is_some() {
        let found = pipes.iter().filter_map(|&pipe| reading_end(&group, pipe)).collect::<Vec<_>>();
        let wait = || {
            if let Some(take) = take {
                take(status_of(&folder, worker, attempt, &group.leader));
            }
        };
        carry_alone(&found, over, &mut carriers, wait);
    }
    carriers.iter_mut().for_each(Carrier::finish);
}

/// Does what a keeper does, but for what only a parent can. `wait`: returns once the program has ended.
fn carry_alone(pipes: &[OwnedFd], over: &OwnedFd, carriers: &mut [Carrier; 2], wait: impl FnOnce()) {
    let parts = pipes.iter().zip(carriers).map(|(pipe, carrier)| (pipe, Mutex::new(carrier))).collect::<Vec<_>>();
    std::thread::scope(|threads| {
        for (pipe, carrier) in &parts {
            let drain = move || carrier.lock().unwrap_or_else(PoisonError::into_inner).drain(pipe, over);
            // Without a thread the end is learned after the output, and nothing of either is lost.
            if std::thread::Builder::new().name("output".to_owned()).spawn_scoped(threads, drain).is_err() {
                drain();
            }
        }
        wait();
    });
}

/// Opens a pipe that a process of the group writes to, for reading.
pub(crate) fn reading_end(group: &Group, pipe: u64) -> Option<OwnedFd> {
    let name = format!("pipe:[{pipe}]");
    group.members().iter().find_map(|member| {
        let ends = [1, 2].map(|number| format!("/proc/{}/fd/{number}", member.row.pid));
        let end = ends.iter().find(|end| std::fs::read_link(end).is_ok_and(|link| link.as_os_str() == &*name))?;
        Some(std::fs::File::open(end).ok()?.into())
    })
}

/// Waits for the end of a process that is nobody's child here, and asks what its keeper wrote of it.
fn status_of(folder: &Path, worker: usize, attempt: u32, leader: &Process) -> Status {
    leader.wait();
    let start = std::time::Instant::now();
    loop {
        if let Some(end) = End::read(folder, worker, attempt) {
            return end.status;
        }
        if start.elapsed() > WRITING {
            return Status::default();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
