//! A stand-in for the Hugging Face hub: the part of its protocol that downloads need, with configurable faults.
#![allow(dead_code, reason = "each test binary uses a part")]

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The commit of every model.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Contents and behavior of the hub.
#[derive(Default)]
pub struct HubState {
    pub files: BTreeMap<String, Vec<u8>>,
    /// Name of the model; other names get status 404.
    pub model: String,
    /// Commit to report in place of [`COMMIT`].
    pub commit: Option<String>,
    /// ETags to send in place of the correct ones.
    pub etags: BTreeMap<String, String>,
    /// Sizes to report in place of the correct ones.
    pub sizes: BTreeMap<String, u64>,
    /// Status of every response.
    pub status: Option<u16>,
    /// Number of requests that get status 503 first.
    pub busy: usize,
    /// Number of bytes of weights after which the connection is closed, one entry per response.
    pub cuts: Vec<usize>,
    /// Stay silent for this long in place of closing the connection.
    pub silence: Duration,
    /// Ignore ranges.
    pub sends_all: bool,
    /// The range to report in place of the one sent.
    pub range: Option<String>,
    /// Address of the server with the weights; `None` for the hub itself.
    pub storage: Option<String>,
    /// The token that requests need.
    pub token: Option<String>,
    pub asked: Vec<HubRequest>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct HubRequest {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    /// Number of bytes sent of its body.
    pub sent: usize,
}

/// A server that runs until the process ends.
pub struct Hub {
    pub endpoint: String,
    state: Arc<Mutex<HubState>>,
}

impl Hub {
    pub fn new(state: HubState) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it has an address"));
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A client may disconnect at any time.
                std::thread::spawn(move || answer(&stream, &shared).unwrap_or_default());
            }
        });
        Self { endpoint, state }
    }

    pub fn state(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().expect("no answer panics")
    }

    /// Number of bytes sent of a file.
    pub fn sent(&self, file: &str) -> usize {
        self.state().asked.iter().filter(|asked| asked.path.ends_with(file)).map(|asked| asked.sent).sum()
    }
}

fn answer(stream: &TcpStream, state: &Mutex<HubState>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
    let mut asked =
        HubRequest { method: String::new(), path: String::new(), range: None, authorization: None, sent: 0 };
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

fn reply(state: &mut HubState, asked: &HubRequest) -> Reply {
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
    // The headers of a file come before its contents.
    let length = if asked.method == "HEAD" { size } else { body.len() as u64 };
    let mut headers =
        vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", commit), ("Content-Length", length.to_string())];
    if let Some(start) = start {
        let range = format!("bytes {start}-{}/{}", contents.len() - 1, contents.len());
        headers.push(("Content-Range", state.range.clone().unwrap_or(range)));
    }
    (if start.is_some() { 206 } else { 200 }, headers, body)
}

/// The hub's ETag: SHA-256 for large files, git's hash for others.
pub fn etag(contents: &[u8], is_large: bool) -> String {
    let mut hash = Context::new(if is_large { &SHA256 } else { &SHA1_FOR_LEGACY_USE_ONLY });
    if !is_large {
        hash.update(format!("blob {}\0", contents.len()).as_bytes());
    }
    hash.update(contents);
    hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
