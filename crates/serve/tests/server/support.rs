//! Folders with runs, a server, and a client that sends exactly the given bytes.

use plimsoll_files::{Disk, FolderLock};
use plimsoll_orders::Inbox;
use plimsoll_serve::{Limits, Options, Server, Stopper, Token};
use plimsoll_telemetry::{Event, Journal, Sink};
use plimsoll_watch::Places;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

pub const TOKEN: &str = "a-token-for-tests";

/// Read timeout of a client.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server; stops when dropped.
pub struct Running {
    pub address: SocketAddr,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, None | Some(Ok(()))));
    }
}

/// A folder with runs.
pub struct Runs {
    pub folder: TempDir,
}

impl Runs {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a run whose journal has `steps` steps.
    pub fn add(&self, name: &str, steps: u64) -> Training {
        let folder = self.path(name);
        std::fs::create_dir_all(&folder).expect("a new folder");
        let mut training = Training::at(&folder);
        training.take(&Event::RunStarted {
            name: name.to_owned(),
            model: "nano".to_owned(),
            parameters: 1000,
            planned_bytes: 1 << 20,
            budget_bytes: 1 << 21,
            first_step: 1,
            last_step: Some(100),
        });
        (1..=steps).for_each(|step| training.step(step));
        training
    }

    pub fn serve(&self) -> Running {
        self.serve_at("127.0.0.1:0", Limits::default())
    }

    pub fn serve_at(&self, address: &str, limits: Limits) -> Running {
        let options = Options {
            listen: address.parse().expect("an address"),
            token: Token::parse(TOKEN).expect("fit"),
            hosts: vec!["box.example".to_owned()],
            places: Places { roots: vec![self.folder.path().to_owned()], state: None },
            named: vec![],
            every: Duration::from_millis(50),
            limits,
            report: Box::new(|folder| {
                Ok(format!("<p>report of {}</p>", folder.file_name().expect("a name").display()))
            }),
        };
        let server = Server::start(options).expect("it listens");
        let (address, stopper) = (server.address().expect("it has one"), server.stopper());
        Running { address, stopper, thread: Some(std::thread::spawn(move || server.run())) }
    }
}

/// A run that a process holds.
pub struct Training {
    pub folder: PathBuf,
    pub journal: Journal,
    pub inbox: Inbox,
    _lock: FolderLock,
}

impl Training {
    fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            journal: Journal::open(&Disk::default(), &folder.join("journal.jsonl")).expect("a journal"),
            inbox: Inbox::open(folder).expect("a file of orders"),
            _lock: FolderLock::take(folder).expect("no process has it"),
        }
    }

    pub fn take(&mut self, event: &Event) {
        self.journal.take(event);
    }

    pub fn step(&mut self, step: u64) {
        self.take(&Event::Step {
            step,
            loss: 5.0 / step as f64,
            learning_rate: 1e-3,
            grad_norm: 1.0,
            step_ms: 100.0,
            tokens_per_s: 2048.0,
            memory_bytes: 1 << 20,
        });
    }
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Running {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// Sends a request with its headers but without `Connection`, and reads the whole response.
    pub fn say(&self, request: &str, body: &str) -> Answer {
        let mut stream = self.connect();
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let text = format!("{request}\r\nConnection: close\r\n{length}\r\n{body}");
        // The server may answer and close the connection before it has read everything.
        let _ = stream.write_all(text.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Requests a path with these additional headers.
    pub fn ask(&self, path: &str, headers: &str) -> Answer {
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: {}{headers}", self.address), "")
    }

    /// Requests a path with the token.
    pub fn get(&self, path: &str) -> Answer {
        self.ask(path, &bearer())
    }

    pub fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        let head = format!("POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json{headers}", self.address);
        self.say(&head, body)
    }

    /// The id of the run with this name.
    pub fn id(&self, name: &str) -> String {
        let runs = self.get("/api/runs").json();
        let all = runs["runs"].as_array().expect("a list");
        let run = all.iter().find(|run| run["name"] == name).unwrap_or_else(|| panic!("no {name} in {runs}"));
        run["id"].as_str().expect("text").to_owned()
    }

    /// The cookie that the link sets.
    pub fn cookie(&self) -> String {
        let welcome = self.ask(&format!("/?token={TOKEN}"), "");
        assert_eq!(welcome.status, 200, "{welcome:?}");
        let cookie = welcome.header("set-cookie").expect("a cookie");
        format!("\r\nCookie: {}", cookie.split(';').next().expect("a pair"))
    }

    /// Opens the stream of server-sent events.
    pub fn events(&self, query: &str, headers: &str) -> Events {
        let mut stream = self.connect();
        let head = format!("GET /api/events{query} HTTP/1.1\r\nHost: {}{}{headers}\r\n\r\n", self.address, bearer());
        stream.write_all(head.as_bytes()).expect("the peer reads");
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).expect("it answers");
        assert!(line.contains(" 200 "), "{line}");
        Events { lines }
    }
}

pub fn bearer() -> String {
    format!("\r\nAuthorization: Bearer {TOKEN}")
}

/// A stream of server-sent events.
pub struct Events {
    lines: BufReader<TcpStream>,
}

/// A server-sent event.
#[derive(Debug)]
pub struct ServerEvent {
    pub name: String,
    pub id: String,
    pub data: Value,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub fn next(&mut self) -> Option<ServerEvent> {
        let mut event = ServerEvent { name: String::new(), id: String::new(), data: Value::Null };
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("the server sends a line") == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(name) = line.strip_prefix("event: ") {
                name.clone_into(&mut event.name);
            } else if let Some(id) = line.strip_prefix("id: ") {
                id.clone_into(&mut event.id);
            } else if let Some(data) = line.strip_prefix("data: ") {
                event.data = serde_json::from_str(data).expect("JSON");
            } else if line.is_empty() && !event.name.is_empty() {
                return Some(event);
            }
        }
    }

    /// The next event with this name whose data satisfies `is_it`.
    pub fn until(&mut self, name: &str, is_it: impl Fn(&Value) -> bool) -> ServerEvent {
        loop {
            let event = self.next().expect("the stream continues");
            if event.name == name && is_it(&event.data) {
                return event;
            }
        }
    }
}
