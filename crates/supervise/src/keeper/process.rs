//! The keeper's process.

use super::protocol::{FINISH, Frame, KeeperMessage, Program, RELEASE, Spec, write_frame, write_output};
use super::socket::listen;
use crate::output::{OutputLog, TAIL, Tail};
use crate::pace::release_left;
use crate::signals::ASKING;
use plimsoll_registry::{ExitStatus, Process, ProgramEnd, pid, rows};
use plimsoll_telemetry::now_s;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec, read, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes per read.
const PIECE: usize = 64 << 10;

/// Runs the keeper of a program. The program inherits stdin; `stdout` of this process is a socket to the supervisor.
/// Returns once the program has ended and no supervisor needs the keeper. Errors: the supervisor sent no [`Spec`].
pub fn keep(stdout: impl AsFd) -> io::Result<()> {
    // The name in process lists, on systems that have one.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"plimsoll-keeper");
    // Ignore signals that ask the run to end: the keeper ends after its program. The program does not inherit the
    // handlers.
    for &signal in ASKING {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Orphans become children of this process, so that processes that left the program's group are found.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let supervisor = UnixStream::from(fcntl_dupfd_cloexec(stdout, 3)?);
    let mut requests = BufReader::new(supervisor.try_clone()?);
    let mut line = Vec::new();
    requests.read_until(b'\n', &mut line)?;
    // If the supervisor is gone, the line is empty and nothing is started.
    let spec = serde_json::from_slice::<Spec>(&line)?;
    let mut keeper = match Keeper::start(spec, supervisor.try_clone()?) {
        Ok(keeper) => keeper,
        Err(error) => {
            let refused = KeeperMessage::Refused { number: error.raw_os_error(), reason: error.to_string() };
            return write_frame(&mut &supervisor, &Frame::Message(refused));
        }
    };
    // Only the program keeps its stdin open, and only the keeper the socket.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    drop((requests, supervisor));
    keeper.run()
}

struct Keeper {
    spec: Spec,
    program: Program,
    child: Child,
    /// The pipes that the program prints to; `None` once closed.
    pipes: [Option<OwnedFd>; 2],
    log: OutputLog,
    has_reported_loss: bool,
    tail: Tail,
    supervisor: Option<UnixStream>,
    listener: Option<UnixListener>,
    /// Readable once the program has ended.
    over: OwnedFd,
    status: Option<ExitStatus>,
    /// Whether to carry only what is in the pipes now.
    is_finishing: bool,
    is_released: bool,
}

impl Keeper {
    /// Starts the program. Errors: those of the system.
    fn start(spec: Spec, supervisor: UnixStream) -> io::Result<Self> {
        let folder = Path::new(&spec.folder);
        let Some((name, arguments)) = spec.argv.split_first() else {
            return Err(io::Error::new(ErrorKind::NotFound, "there is no command"));
        };
        let [(out, out_end), (err, err_end)] = [pipe()?, pipe()?];
        let pipes = [&out, &err].into_iter().filter_map(|pipe| Some(rustix::fs::fstat(pipe).ok()?.st_ino)).collect();
        // Without a socket the keeper still works, but a later supervisor can only read the record of the end.
        let listener = listen(folder, spec.worker).ok();
        let mut command = Command::new(name);
        command.args(arguments).envs(spec.variables.iter().cloned());
        command.stdin(Stdio::inherit()).stdout(out_end).stderr(err_end).process_group(0);
        let child = command.spawn()?;
        // Close the keeper's copies of the write ends, so that the pipes close with the last process.
        drop(command);
        let leader = Process::of(child.id()).unwrap_or(Process { pid: child.id(), started: String::new() });
        let program = Program { attempt: spec.attempt, leader, pipes, keeper: Process::own() };
        let (over, more) = pipe_with(PipeFlags::CLOEXEC)?;
        let number = child.id();
        let wait = move || {
            wait_and_reap(number);
            drop(more);
        };
        std::thread::Builder::new().name("end".to_owned()).spawn(wait)?;
        let mut keeper = Self {
            log: OutputLog::new(Path::new(&spec.log), spec.log_bytes),
            has_reported_loss: false,
            tail: Tail::new(TAIL),
            supervisor: Some(supervisor),
            pipes: [Some(out), Some(err)],
            spec,
            program,
            child,
            listener,
            over,
            status: None,
            is_finishing: false,
            is_released: false,
        };
        keeper.send(&Frame::Message(KeeperMessage::Started(keeper.program.clone())));
        Ok(keeper)
    }

    fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; PIECE];
        while !self.is_over() {
            let ready = self.wait()?;
            for stream in (0..2).filter(|&stream| ready.output[stream]) {
                self.carry(stream, &mut buffer);
            }
            let has_output = ready.output.iter().any(|&ready| ready);
            if self.is_finishing && !has_output && self.pipes.iter().any(Option::is_some) {
                self.pipes = [None, None];
                self.send(&Frame::Message(KeeperMessage::Carried));
            }
            if ready.is_over && self.status.is_none() {
                self.ended();
            }
            if ready.supervisor {
                self.listen_to_supervisor();
            }
            if ready.listener {
                self.accept_supervisor();
            }
        }
        // Stop accepting supervisors, so that a new one reads the record instead.
        self.listener = None;
        if !self.is_released {
            self.write_end(Some(self.log.written()));
        }
        // Reap the program, which frees its process ID.
        self.child.wait().map(drop)
    }

    /// Whether this process can exit: it was released, or it has no supervisor and the record and the log are complete.
    fn is_over(&self) -> bool {
        let is_carried = self.pipes.iter().all(Option::is_none);
        self.is_released || (self.supervisor.is_none() && self.status.is_some() && is_carried)
    }

    /// Waits for the next event.
    fn wait(&self) -> io::Result<Ready> {
        let of = |fd: Option<PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        let over = (self.status.is_none()).then_some(&self.over);
        let mut waited = Vec::new();
        for fd in [self.pipes[0].as_ref(), self.pipes[1].as_ref(), over].into_iter().flatten() {
            waited.push(PollFd::new(fd, PollFlags::IN));
        }
        waited.extend(self.supervisor.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        waited.extend(self.listener.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // While draining, do not wait for more output.
        let none = rustix::event::Timespec::default();
        let is_draining = self.is_finishing && self.pipes.iter().any(Option::is_some);
        match poll(&mut waited, is_draining.then_some(&none)) {
            Ok(_) => {}
            Err(Errno::INTR) => waited.iter_mut().for_each(PollFd::clear_revents),
            Err(error) => return Err(error.into()),
        }
        let mut waited = waited.into_iter();
        let mut next = |is_there: bool| of(is_there.then(|| waited.next()).flatten());
        Ok(Ready {
            output: [next(self.pipes[0].is_some()), next(self.pipes[1].is_some())],
            is_over: next(over.is_some()),
            supervisor: next(self.supervisor.is_some()),
            listener: next(self.listener.is_some()),
        })
    }

    fn carry(&mut self, stream: usize, buffer: &mut [u8]) {
        let Some(pipe) = &self.pipes[stream] else { return };
        match retry_on_intr(|| read(pipe, &mut *buffer)) {
            Ok(0) | Err(_) => {
                self.pipes[stream] = None;
                if self.pipes.iter().all(Option::is_none) {
                    self.send(&Frame::Message(KeeperMessage::Carried));
                }
            }
            Ok(count) => {
                let bytes = &buffer[..count];
                self.log.append(bytes);
                self.tail.push(bytes);
                if let Some(supervisor) = &mut self.supervisor
                    && write_output(supervisor, stream, bytes).is_err()
                {
                    self.lose_supervisor();
                }
                if let Some(reason) = self.log.reason().filter(|_| !self.has_reported_loss) {
                    let lost = KeeperMessage::Lost(reason.to_owned());
                    self.has_reported_loss = true;
                    self.send(&Frame::Message(lost));
                }
            }
        }
    }

    fn ended(&mut self) {
        let status = wait(self.child.id());
        self.status = Some(status);
        self.write_end(None);
        self.send(&Frame::Message(KeeperMessage::Ended(status)));
    }

    fn write_end(&self, logged_bytes: Option<u64>) {
        let Some(status) = self.status else { return };
        let end = ProgramEnd { attempt: self.spec.attempt, status, time_s: now_s(), logged_bytes };
        // On a full disk, only a connected supervisor learns of the end.
        let _ = end.write(Path::new(&self.spec.folder), self.spec.worker);
    }

    fn listen_to_supervisor(&mut self) {
        let Some(supervisor) = &mut self.supervisor else { return };
        let mut byte = [0];
        match supervisor.read(&mut byte) {
            Ok(1..) if byte[0] == FINISH => self.is_finishing = true,
            Ok(1..) => self.is_released = byte[0] == RELEASE,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => self.lose_supervisor(),
        }
    }

    /// Handles the loss of the supervisor. Continues processes that it had stopped for heat, since nothing else would.
    fn lose_supervisor(&mut self) {
        self.supervisor = None;
        release_left(Path::new(&self.spec.folder), self.spec.worker, &self.program.leader);
    }

    /// Accepts a new supervisor. The run's lock ensures that there is only one.
    fn accept_supervisor(&mut self) {
        let Some(Ok((supervisor, _))) = self.listener.as_ref().map(UnixListener::accept) else { return };
        self.supervisor = Some(supervisor);
        self.is_finishing = false;
        self.send(&Frame::Message(KeeperMessage::Started(self.program.clone())));
        self.send(&Frame::Tail(self.tail.bytes()));
        if let Some(reason) = self.log.reason() {
            let lost = KeeperMessage::Lost(reason.to_owned());
            self.send(&Frame::Message(lost));
        }
        if let Some(status) = self.status {
            self.send(&Frame::Message(KeeperMessage::Ended(status)));
        }
        if self.pipes.iter().all(Option::is_none) {
            self.send(&Frame::Message(KeeperMessage::Carried));
        }
    }

    fn send(&mut self, frame: &Frame) {
        let is_gone = self.supervisor.as_mut().is_some_and(|supervisor| write_frame(supervisor, frame).is_err());
        if is_gone {
            self.lose_supervisor();
        }
    }
}

/// Which descriptors are ready.
struct Ready {
    output: [bool; 2],
    is_over: bool,
    supervisor: bool,
    listener: bool,
}

/// Waits for the program's end. Meanwhile reaps orphans that this process has adopted.
fn wait_and_reap(program: u32) {
    let own = std::process::id();
    // An error means that there are no children, so the program has ended.
    while retry_on_intr(|| waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)).is_ok() {
        let ended = rows().into_iter().filter(|row| row.parent == own && row.is_zombie).map(|row| row.pid);
        let ended = ended.collect::<Vec<_>>();
        if ended.contains(&program) || !cfg!(target_os = "linux") {
            break;
        }
        for child in ended.into_iter().filter_map(pid) {
            let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
    wait(program);
}

/// Waits for a child's end without reaping it, so that its process ID stays reserved.
fn wait(child: u32) -> ExitStatus {
    let Some(pid) = pid(child) else { return ExitStatus::default() };
    let wait = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    match retry_on_intr(wait) {
        Ok(Some(status)) => ExitStatus { code: status.exit_status(), signal: status.terminating_signal() },
        _ => ExitStatus::default(),
    }
}

/// The two ends of a pipe. On Linux the write end is also readable, so that writing never raises SIGPIPE after the
/// keeper is killed: the program blocks until a supervisor reads.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    if cfg!(target_os = "linux") {
        let path = format!("/proc/self/fd/{}", writing.as_raw_fd());
        if let Ok(both) = File::options().read(true).write(true).open(path) {
            // A larger buffer for times without a reader. If the system refuses, it stays at 64 KiB.
            #[cfg(target_os = "linux")]
            let _ = rustix::pipe::fcntl_setpipe_size(&both, 1 << 20);
            return Ok((reading, both.into()));
        }
    }
    Ok((reading, writing))
}
