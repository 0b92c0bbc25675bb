//! A stand-in for the Hugging Face hub on this machine: the part of its protocol that downloads need, and its misbehavior.
#![allow(dead_code, reason = "each test binary uses a part")]

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The commit that every model is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub has, and how it behaves.
#[derive(Default)]
pub struct State {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Model that is here; others get 404.
    pub model: String,
    /// Commit that is named, if not [`COMMIT`].
    pub commit: Option<String>,
    /// ETags that are named instead of the right ones.
    pub etags: BTreeMap<String, String>,
    /// Sizes that are said instead of the right ones.
    pub sizes: BTreeMap<String, u64>,
    /// What every request gets.
    pub status: Option<u16>,
    /// How many requests get 503 first.
    pub busy: usize,
    /// Bytes of a weights' answer after which the connection is cut, one for each answer.
    pub cuts: Vec<usize>,
    /// The connection is not cut but stays silent for so long.
    pub silence: Duration,
    /// Ranges are not known.
    pub sends_all: bool,
    /// The range that is said to be sent, instead of the one that is.
    pub range: Option<String>,
    /// Who has the weights; the hub itself without.
    pub storage: Option<String>,
    /// The token without which nothing is given.
    pub token: Option<String>,
    pub asked: Vec<Asked>,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    /// Bytes of a body that were sent.
    pub sent: usize,
}

/// A server that runs until the process ends.
pub struct Hub {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Hub {
    pub fn new(state: State) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it has an address"));
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // Who asks may go away at any time.
                std::thread::spawn(move || answer(&stream, &shared).unwrap_or_default());
            }
        });
        Self { endpoint, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no answer panics")
    }

    /// Bytes that were sent of a file.
    pub fn sent(&self, file: &str) -> usize {
        self.state().asked.iter().filter(|asked| asked.path.ends_with(file)).map(|asked| asked.sent).sum()
    }
}

fn answer(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    let mut asked = Asked { method: String::new(), path: String::new(), range: None, authorization: None, sent: 0 };
    let mut words = first.split(' ').map(str::to_owned);
    (asked.method, asked.path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => asked.range = Some(value.to_owned()),
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                asked.authorization = Some(value.to_owned());
            }
            Some(_) => {}
            None => break,
        }
    }
    let (status, headers, body, cut, silence) = {
        let mut state = state.lock().expect("no answer panics");
        let (status, headers, body) = reply(&mut state, &asked);
        let body = if asked.method == "HEAD" { vec![] } else { body };
        let is_of_weights = asked.path.ends_with(".safetensors") && !body.is_empty() && status < 300;
        let cut = if is_of_weights { state.cuts.pop() } else { None };
        asked.sent = body.len().min(cut.unwrap_or(usize::MAX));
        state.asked.push(asked.clone());
        (status, headers, body, cut, state.silence)
    };
    let mut stream = stream;
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<String>();
    write!(stream, "HTTP/1.1 {status} it is\r\nConnection: close\r\n{headers}\r\n")?;
    stream.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])?;
    stream.flush()?;
    if cut.is_some() {
        std::thread::sleep(silence);
    }
    Ok(())
}

type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn reply(state: &mut State, asked: &Asked) -> Reply {
    let refused = |status: u16| (status, vec![("Content-Length", "0".to_owned())], vec![]);
    if state.busy > 0 {
        state.busy -= 1;
        return refused(503);
    }
    let authorization = state.token.as_ref().map(|token| format!("Bearer {token}"));
    if let Some(status) = state.status {
        return refused(status);
    } else if authorization.is_some() && authorization != asked.authorization {
        return refused(401);
    }
    let commit = state.commit.clone().unwrap_or(COMMIT.to_owned());
    if asked.path == format!("/api/models/{}/revision/main", state.model) {
        let siblings = state.files.keys().map(|file| json!({ "rfilename": file })).collect::<Vec<_>>();
        let text = json!({ "sha": commit, "siblings": siblings, "private": false }).to_string();
        return (200, vec![("Content-Length", text.len().to_string())], text.into_bytes());
    }
    let of_model = format!("/{}/resolve/{commit}/", state.model);
    let file = asked.path.strip_prefix(&of_model).or_else(|| asked.path.strip_prefix("/storage/"));
    let Some((file, contents)) = file.and_then(|file| state.files.get_key_value(file)) else { return refused(404) };
    let is_large = file.ends_with(".safetensors");
    let etag = state.etags.get(file).cloned().unwrap_or_else(|| etag(contents, is_large));
    let size = state.sizes.get(file).copied().unwrap_or(contents.len() as u64);
    if let Some(storage) = state.storage.as_ref().filter(|_| is_large) {
        let headers = vec![
            ("Location", format!("{storage}/storage/{file}")),
            ("X-Linked-Etag", format!("\"{etag}\"")),
            ("X-Linked-Size", size.to_string()),
            ("X-Repo-Commit", commit),
            ("ETag", "\"of-the-redirect\"".to_owned()),
            ("Content-Length", "0".to_owned()),
        ];
        return (302, headers, vec![]);
    }
    let start = asked.range.as_ref().filter(|_| !state.sends_all).map(|range| {
        let start = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-')).expect("a range to the end");
        start.parse::<usize>().expect("a number")
    });
    let body = contents[start.unwrap_or(0)..].to_vec();
    // What is said of a file is said before it is sent.
    let length = if asked.method == "HEAD" { size } else { body.len() as u64 };
    let mut headers =
        vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", commit), ("Content-Length", length.to_string())];
    if let Some(start) = start {
        let range = format!("bytes {start}-{}/{}", contents.len() - 1, contents.len());
        headers.push(("Content-Range", state.range.clone().unwrap_or(range)));
    }
    (if start.is_some() { 206 } else { 200 }, headers, body)
}

/// The hub's name for contents: SHA-256 of large files, git's name of others.
pub fn etag(contents: &[u8], is_large: bool) -> String {
    let mut hash = Context::new(if is_large { &SHA256 } else { &SHA1_FOR_LEGACY_USE_ONLY });
    if !is_large {
        hash.update(format!("blob {}\0", contents.len()).as_bytes());
    }
    hash.update(contents);
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
