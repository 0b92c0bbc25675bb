//! An HTTP server with configurable faults.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The response to a connection. The last of a list is used for all further ones.
#[derive(Clone)]
pub enum Answer {
    /// A status, further headers with line ends, and a body.
    Status(u16, String, String),
    /// The normal response of the service whose path is requested.
    Service,
    /// Returns the request as the body, as servers do that quote what was wrong.
    Echo(u16),
    /// Sends nothing for as long as the client waits.
    Hang,
    /// Sends a byte of a header from time to time, for as long as the client waits.
    Drip,
    /// Closes the connection without reading the request.
    Reset,
    /// Sends less than the announced length.
    MidBody(u16),
    /// Sends an endless body.
    Endless(u16),
    /// Sends something other than HTTP.
    Noise,
}

/// A request and its time of arrival.
#[derive(Clone)]
pub struct Request {
    pub head: String,
    pub body: String,
    pub at: Instant,
}

impl Request {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
}

pub struct HttpServer {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl HttpServer {
    pub fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let seen = Arc::new(Seen::default());
        let (of_thread, answers) = (seen.clone(), answers.to_vec());
        thread::spawn(move || {
            for (number, stream) in listener.incoming().flatten().enumerate() {
                let answer = answers.get(number).or(answers.last()).cloned().expect("an answer");
                let seen = of_thread.clone();
                // The result of a connection to a faulty server does not matter.
                thread::spawn(move || drop(serve(stream, &answer, &seen)));
            }
        });
        Self { address, seen }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.seen.requests.lock().expect("no panic").clone()
    }

    /// Waits for this many requests.
    pub fn wait_for(&self, count: usize) -> Vec<Request> {
        let begun = Instant::now();
        let mut requests = self.seen.requests.lock().expect("no panic");
        while requests.len() < count {
            assert!(begun.elapsed() < Duration::from_secs(8), "{} of {count} requests", requests.len());
            requests = self.seen.changed.wait_timeout(requests, Duration::from_secs(1)).expect("no panic").0;
        }
        requests.clone()
    }
}

fn serve(mut stream: TcpStream, answer: &Answer, seen: &Seen) -> std::io::Result<()> {
    if matches!(answer, Answer::Reset) {
        // Unread data at the close of a socket makes the system reset the connection.
        stream.read_exact(&mut [0])?;
        note(seen, String::new(), String::new());
        return Ok(());
    }
    let (head, body) = read_request(&mut stream)?;
    note(seen, head.clone(), body.clone());
    let start = |status: u16, length: usize| format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n");
    match answer {
        Answer::Status(status, headers, body) => {
            write!(stream, "{}{headers}\r\n{body}", start(*status, body.len()))
        }
        Answer::Service => {
            let path = head.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match path {
                _ if path.starts_with("/api/webhooks/") => (204, ""),
                _ if path.starts_with("/services/") => (200, "ok"),
                _ if path.starts_with("/bot") => (200, r#"{"ok":true,"result":{"message_id":1}}"#),
                "/" => (200, r#"{"id":"hwQ2YpKdmg","event":"message"}"#),
                _ => (202, "<html>whatever</html>"),
            };
            write!(stream, "{}\r\n{body}", start(status, body.len()))
        }
        Answer::Echo(status) => {
            let body = format!("what is this? {head} {body}");
            write!(stream, "{}\r\n{body}", start(*status, body.len()))
        }
        Answer::Hang => stream.read(&mut [0]).map(drop),
        Answer::Drip => {
            write!(stream, "HTTP/1.1 200 OK\r\nx-slow: ")?;
            loop {
                stream.write_all(b"x")?;
                thread::sleep(Duration::from_millis(20));
            }
        }
        Answer::Reset => Ok(()),
        Answer::MidBody(status) => write!(stream, "{}\r\nonly", start(*status, 1000)),
        Answer::Endless(status) => {
            write!(stream, "{}\r\n", start(*status, usize::MAX / 4))?;
            loop {
                stream.write_all(&[b'x'; 65536])?;
            }
        }
        Answer::Noise => stream.write_all(b"220 mail.example ESMTP\r\n\r\n"),
    }
}

fn note(seen: &Seen, head: String, body: String) {
    seen.requests.lock().expect("no panic").push(Request { head, body, at: Instant::now() });
    seen.changed.notify_all();
}

fn read_request(stream: &mut TcpStream) -> std::io::Result<(String, String)> {
    let mut bytes = Vec::new();
    let mut block = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length =
                head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let length: usize = length.unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                return Ok((head, String::from_utf8_lossy(&bytes[end + 4..]).into_owned()));
            }
        }
        match stream.read(&mut block)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&block[..read]),
        }
    }
}
