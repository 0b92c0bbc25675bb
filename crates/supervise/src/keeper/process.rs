//! The keeper's own process.

use super::place::{End, listen};
use super::protocol::{FINISH, Frame, Program, RELEASE, Spec, Status, Told, write_frame, write_output};
use crate::output::{OutputLog, TAIL, Tail};
use crate::pace::release_left;
use crate::processes::{Process, pid, rows};
use crate::signals::ASKING;
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

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// Is the keeper of a program: stdin is the program's, and `stdout`, this process's, a socket to the supervisor. Returns once the program has
/// ended and nobody needs to hear of it any more. Errors: there is no supervisor that says what to start.
pub fn keep(stdout: impl AsFd) -> io::Result<()> {
    // For people who look for it; where the system knows no such names there is none.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"plimsoll-keeper");
    // What asks a run to end asks its programs; whoever keeps their output ends after them. Programs don't inherit this.
    for &signal in ASKING {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Processes whose parents end become this one's children, so that those that left the program's group are found.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let supervisor = UnixStream::from(fcntl_dupfd_cloexec(stdout, 3)?);
    let mut said = BufReader::new(supervisor.try_clone()?);
    let mut line = Vec::new();
    said.read_until(b'\n', &mut line)?;
    // A supervisor that is gone by now has said nothing, and nothing is started.
    let spec = serde_json::from_slice::<Spec>(&line)?;
    let mut keeper = match Keeper::start(spec, supervisor.try_clone()?) {
        Ok(keeper) => keeper,
        Err(error) => {
            let refused = Told::Refused { number: error.raw_os_error(), reason: error.to_string() };
            return write_frame(&mut &supervisor, &Frame::Told(refused));
        }
    };
    // The program alone holds its input, and nobody but the keeper the way to the supervisor.
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    drop((said, supervisor));
    keeper.run()
}

struct Keeper {
    spec: Spec,
    program: Program,
    child: Child,
    /// The pipes that the program prints to, while it or others may print.
    pipes: [Option<OwnedFd>; 2],
    log: OutputLog,
    has_told_loss: bool,
    tail: Tail,
    supervisor: Option<UnixStream>,
    listener: Option<UnixListener>,
    /// Can be read from once the program has ended; then `status` says how.
    over: OwnedFd,
    status: Option<Status>,
    /// Whether only what is in the pipes now is carried.
    is_finishing: bool,
    is_released: bool,
}

impl Keeper {
    /// Errors: what the system says of the program.
    fn start(spec: Spec, supervisor: UnixStream) -> io::Result<Self> {
        let folder = Path::new(&spec.folder);
        let Some((name, arguments)) = spec.argv.split_first() else {
            return Err(io::Error::new(ErrorKind::NotFound, "there is no command"));
        };
        let [(out, out_end), (err, err_end)] = [pipe()?, pipe()?];
        let pipes = [&out, &err].into_iter().filter_map(|pipe| Some(rustix::fs::fstat(pipe).ok()?.st_ino)).collect();
        // Where none can be bound, the program is kept all the same; a later supervisor then only learns of its end.
        let listener = listen(folder, spec.worker).ok();
        let mut command = Command::new(name);
        command.args(arguments).envs(spec.variables.iter().cloned());
        command.stdin(Stdio::inherit()).stdout(out_end).stderr(err_end).process_group(0);
        let child = command.spawn()?;
        // With the command go the keeper's own writing ends, so that the pipes end with the last process.
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
            has_told_loss: false,
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
        keeper.tell(&Frame::Told(Told::Started(keeper.program.clone())));
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
                self.tell(&Frame::Told(Told::Carried));
            }
            if ready.is_over && self.status.is_none() {
                self.ended();
            }
            if ready.supervisor {
                self.listen_to_supervisor();
            }
            if ready.listener {
                self.welcome();
            }
        }
        // From here on nobody is answered, so that whoever comes reads the file.
        self.listener = None;
        if !self.is_released {
            self.write_end(Some(self.log.written()));
        }
        // Its number is given back.
        self.child.wait().map(drop)
    }

    /// Whether nobody needs this process. Without a supervisor the end is in a file, and the output in another.
    fn is_over(&self) -> bool {
        let is_carried = self.pipes.iter().all(Option::is_none);
        self.is_released || (self.supervisor.is_none() && self.status.is_some() && is_carried)
    }

    /// Waits until something can be done.
    fn wait(&self) -> io::Result<Ready> {
        let of = |fd: Option<PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        let over = (self.status.is_none()).then_some(&self.over);
        let mut waited = Vec::new();
        for fd in [self.pipes[0].as_ref(), self.pipes[1].as_ref(), over].into_iter().flatten() {
            waited.push(PollFd::new(fd, PollFlags::IN));
        }
        waited.extend(self.supervisor.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        waited.extend(self.listener.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // What is in the pipes now is there now.
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
                    self.tell(&Frame::Told(Told::Carried));
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
                if let Some(reason) = self.log.reason().filter(|_| !self.has_told_loss) {
                    let lost = Told::Lost(reason.to_owned());
                    self.has_told_loss = true;
                    self.tell(&Frame::Told(lost));
                }
            }
        }
    }

    fn ended(&mut self) {
        let status = wait(self.child.id());
        self.status = Some(status);
        self.write_end(None);
        self.tell(&Frame::Told(Told::Ended(status)));
    }

    fn write_end(&self, logged_bytes: Option<u64>) {
        let Some(status) = self.status else { return };
        let end = End { attempt: self.spec.attempt, status, time_s: now_s(), logged_bytes };
        // Whoever listens is told; on a full disk nobody else is.
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

    /// The supervisor is gone. What it stopped for heat goes on: nobody else would see to that.
    fn lose_supervisor(&mut self) {
        self.supervisor = None;
        release_left(Path::new(&self.spec.folder), self.spec.worker, &self.program.leader);
    }

    /// Another supervisor came. The run's lock says that there is no other.
    fn welcome(&mut self) {
        let Some(Ok((supervisor, _))) = self.listener.as_ref().map(UnixListener::accept) else { return };
        self.supervisor = Some(supervisor);
        self.is_finishing = false;
        self.tell(&Frame::Told(Told::Started(self.program.clone())));
        self.tell(&Frame::Tail(self.tail.bytes()));
        if let Some(reason) = self.log.reason() {
            let lost = Told::Lost(reason.to_owned());
            self.tell(&Frame::Told(lost));
        }
        if let Some(status) = self.status {
            self.tell(&Frame::Told(Told::Ended(status)));
        }
        if self.pipes.iter().all(Option::is_none) {
            self.tell(&Frame::Told(Told::Carried));
        }
    }

    fn tell(&mut self, frame: &Frame) {
        let is_gone = self.supervisor.as_mut().is_some_and(|supervisor| write_frame(supervisor, frame).is_err());
        if is_gone {
            self.lose_supervisor();
        }
    }
}

/// What can be done.
struct Ready {
    output: [bool; 2],
    is_over: bool,
    supervisor: bool,
    listener: bool,
}

/// Waits for the program's end, and until then reaps processes that it left behind, whose parent this process has become.
fn wait_and_reap(program: u32) {
    let own = std::process::id();
    // Errors only without children, so the program has ended.
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

/// Waits for a child's end and leaves it to be asked again, so that it keeps its number.
fn wait(child: u32) -> Status {
    let Some(pid) = pid(child) else { return Status::default() };
    let wait = || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    match retry_on_intr(wait) {
        Ok(Some(status)) => Status { code: status.exit_status(), signal: status.terminating_signal() },
        _ => Status::default(),
    }
}

/// A pipe's two ends. The end to write to can be read from as well, so that its holder is not ended by a signal where the
/// keeper is killed too: it waits until a supervisor reads from it.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    if cfg!(target_os = "linux") {
        let path = format!("/proc/self/fd/{}", writing.as_raw_fd());
        if let Ok(both) = File::options().read(true).write(true).open(path) {
            // More room for what is printed while nobody reads; a system that refuses leaves 64 KiB.
            #[cfg(target_os = "linux")]
            let _ = rustix::pipe::fcntl_setpipe_size(&both, 1 << 20);
            return Ok((reading, both.into()));
        }
    }
    Ok((reading, writing))
}
