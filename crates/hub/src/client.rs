//! Requests to the Hugging Face hub, or to the mirror that `HF_ENDPOINT` names.
//! Not here: which files are fetched (`download.rs`), and where they are stored (`store.rs`).
//!
//! This file follows redirects, not the library, since only the endpoint may receive the token, not even
//! another port of its host. Source of addresses and headers: huggingface_hub, `file_download.py` and "Environment variables".

use crate::HUB;
use crate::error::{HubError, SettingError};
use crate::steady::Steady;
use plimsoll_files::read_text;
use plimsoll_secrets::is_loopback;
use plimsoll_units::Bytes;
use serde::Deserialize;
use std::env::{var, var_os};
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, BodyReader};

/// The requested commit.
const BRANCH: &str = "main";

/// The longest accepted list of files; real lists are far shorter.
const LISTING_BYTES_MAX: Bytes = Bytes::mib(16);

/// The longest accepted token; real tokens have about forty characters.
const TOKEN_BYTES_MAX: Bytes = Bytes(4096);

/// Redirects that are followed for one file.
const REDIRECTS_MAX: usize = 8;

/// Seconds without a byte after which a connection counts as lost, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client for the hub. It has no `Debug`, since it holds the token.
pub(crate) struct Client {
    agent: Agent,
    /// The hub's address, without a slash at its end.
    endpoint: String,
    token: Option<String>,
    /// Time without enough bytes after which a connection counts as lost.
    timeout: Duration,
    /// Whether there is a token that is not sent, since the endpoint has no TLS.
    withholds_token: bool,
}

/// The files of a model at a commit.
#[derive(Debug, Deserialize)]
pub(crate) struct Listing {
    /// The commit that the branch is at.
    #[serde(rename = "sha")]
    pub(crate) commit: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    pub(crate) fn has(&self, file: &str) -> bool {
        self.siblings.iter().any(|sibling| sibling.rfilename == file)
    }
}

/// A file as the hub describes it.
#[derive(Debug, Clone)]
pub(crate) struct RemoteFile {
    /// Its name in the model's folder.
    pub(crate) name: String,
    pub(crate) size: Bytes,
    /// The name of its contents: their SHA-256 for large files, git's SHA-1 for others, or a mirror's own name.
    pub(crate) etag: String,
}

/// A hash that names contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hash {
    /// Of the contents.
    Sha256,
    /// Git's name of a file: SHA-1 of its kind, its length and its contents.
    Git,
}

impl RemoteFile {
    /// The hash in its ETag; `None` if the ETag is not a hash, so that the contents can't be verified.
    pub(crate) fn hash(&self) -> Option<Hash> {
        let is_hex = self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        match self.etag.len() {
            64 if is_hex => Some(Hash::Sha256),
            40 if is_hex => Some(Hash::Git),
            _ => None,
        }
    }
}

/// A part of a file that is being received.
pub(crate) struct Incoming {
    /// The offset of its first byte.
    pub(crate) start: u64,
    pub(crate) body: Steady<BodyReader<'static>>,
}

impl Client {
    /// The hub that the environment names, and the token that it has for it; `home` is the folder of `hf auth login`'s.
    pub(crate) fn from_environment(home: Option<PathBuf>) -> Result<Self, SettingError> {
        let endpoint = var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| HUB.to_owned()).trim_end_matches('/').to_owned();
        let Some((scheme, host, _)) = origin(&endpoint) else { return Err(SettingError::Endpoint(endpoint)) };
        if endpoint.parse::<Uri>().ok().and_then(|uri| Some(uri.authority()?.as_str().contains('@'))) == Some(true) {
            return Err(SettingError::Login);
        }
        let token = token(home)?;
        let withholds_token = token.is_some() && scheme != "https" && !is_loopback(&host);
        let token = token.filter(|_| !withholds_token);
        let seconds = var("HF_HUB_DOWNLOAD_TIMEOUT").ok().and_then(|text| text.parse::<u32>().ok());
        let timeout = seconds.filter(|&n| n > 0).map_or(TIMEOUT, |n| Duration::from_secs(n.into()));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .accept_encoding("identity")
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self { agent: config.new_agent(), endpoint, token, timeout, withholds_token })
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(crate) fn withholds_token(&self) -> bool {
        self.withholds_token
    }

    /// The files of a model's main branch.
    pub(crate) fn listing(&self, model: &str) -> Result<Listing, HubError> {
        let url = format!("{}/api/models/{model}/revision/{BRANCH}", self.endpoint);
        let text = self.read(self.follow(&url, |url| self.agent.get(url), |_| false)?, &url, LISTING_BYTES_MAX)?;
        let listing = serde_json::from_slice::<Listing>(&text).map_err(|error| strange(&url, error))?;
        if !is_name(&listing.commit) {
            return Err(strange(&url, "the name of its commit has invalid characters"));
        }
        Ok(listing)
    }

    /// The hub's description of a file.
    pub(crate) fn describe(&self, model: &str, commit: &str, file: &str) -> Result<RemoteFile, HubError> {
        let url = self.url(model, commit, file);
        let response = self.follow(
            &url,
            |url| self.agent.head(url),
            |response| header(response, "x-linked-etag").is_some() && header(response, "x-linked-size").is_some(),
        )?;
        let either = |of_large, of_small| header(&response, of_large).or_else(|| header(&response, of_small));
        let size = either("x-linked-size", "content-length").and_then(|size| size.parse().ok());
        let etag = either("x-linked-etag", "etag").map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        match (size, etag) {
            (Some(size), Some(etag)) if is_name(etag) => {
                Ok(RemoteFile { name: file.to_owned(), size: Bytes(size), etag: etag.to_owned() })
            }
            (Some(_), _) => Err(strange(&url, "its ETag does not identify its contents")),
            (None, _) => Err(strange(&url, "the server does not say how large it is")),
        }
    }

    /// A whole file of at most `limit`.
    pub(crate) fn contents(&self, model: &str, commit: &str, file: &str, limit: Bytes) -> Result<Vec<u8>, HubError> {
        let url = self.url(model, commit, file);
        self.read(self.follow(&url, |url| self.agent.get(url), |_| false)?, &url, limit)
    }

    /// The bytes of a file from `start` on, or all of it from a server that sends no parts.
    pub(crate) fn open(&self, model: &str, commit: &str, file: &RemoteFile, start: u64) -> Result<Incoming, HubError> {
        let url = self.url(model, commit, &file.name);
        let get = |url: &str| {
            let request = self.agent.get(url);
            if start > 0 { request.header("range", format!("bytes={start}-")) } else { request }
        };
        let response = self.follow(&url, get, |_| false)?;
        let is_part = response.status() == 206;
        let coming = file.size.0 - if is_part { start } else { 0 };
        let length = header(&response, "content-length").and_then(|length| length.parse::<u64>().ok());
        if let Some(length) = length.filter(|length| *length != coming) {
            return Err(strange(&url, format!("it must send {coming} bytes, but announces {length}")));
        }
        let incoming = |start, response: Response<Body>| Incoming {
            start,
            body: Steady::new(response.into_body().into_reader(), self.timeout),
        };
        if !is_part {
            return Ok(incoming(0, response));
        }
        let range = header(&response, "content-range").unwrap_or_default();
        let expected = format!("bytes {start}-{}/{}", file.size.0.saturating_sub(1), file.size.0);
        if range != expected {
            return Err(strange(&url, format!("asked for `{expected}`, it sends `{range}`")));
        }
        Ok(incoming(start, response))
    }

    fn read(&self, response: Response<Body>, url: &str, limit: Bytes) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        let body = Steady::new(response.into_body().into_reader(), self.timeout);
        let read = body.take(limit.0.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| HubError::Lost { url: url.to_owned(), problem: error.to_string() })?;
        match bytes.len() as u64 > limit.0 {
            true => Err(strange(url, format!("it is longer than {limit}"))),
            false => Ok(bytes),
        }
    }

    pub(crate) fn url(&self, model: &str, commit: &str, file: &str) -> String {
        format!("{}/{model}/resolve/{commit}/{file}", self.endpoint)
    }

    /// The response after all redirects, or the first response that `is_enough` accepts. Only the endpoint
    /// receives the token.
    fn follow(
        &self,
        url: &str,
        ask: impl Fn(&str) -> ureq::RequestBuilder<ureq::typestate::WithoutBody>,
        is_enough: impl Fn(&Response<Body>) -> bool,
    ) -> Result<Response<Body>, HubError> {
        let mut here = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let token = self.token.as_ref().filter(|_| origin(&here) == origin(&self.endpoint));
            let request = ask(&here);
            let request = match token {
                Some(token) => request.header("authorization", format!("Bearer {token}")),
                None => request,
            };
            let response = request.call().map_err(|error| refusal(url, &error))?;
            let status = response.status();
            if status.is_success() || (status.is_redirection() && is_enough(&response)) {
                return Ok(response);
            }
            if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
                return Err(HubError::Lost { url: url.to_owned(), problem: format!("status {}", status.as_u16()) });
            }
            if !status.is_redirection() {
                return Err(HubError::Refused { url: url.to_owned(), status: status.as_u16() });
            }
            let to = header(&response, "location").and_then(|location| redirected(&here, location));
            here = to.ok_or_else(|| strange(url, "the server redirects to an invalid or insecure address"))?;
        }
        Err(strange(url, format!("more than {REDIRECTS_MAX} redirects")))
    }
}

/// The token in the environment, else the one that `hf auth login` saved.
fn token(home: Option<PathBuf>) -> Result<Option<String>, SettingError> {
    for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = var_os(variable).filter(|text| !text.is_empty()) {
            return checked_token(&text.to_string_lossy(), variable);
        }
    }
    let given = var_os("HF_TOKEN_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(path) = given.or_else(|| home.map(|home| home.join("token"))) else { return Ok(None) };
    match read_text(&path, TOKEN_BYTES_MAX) {
        Ok(text) => checked_token(&text, &path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingError::TokenFile { path, source }),
    }
}

fn checked_token(text: &str, place: &str) -> Result<Option<String>, SettingError> {
    let text = text.trim();
    match text.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(Some(text.to_owned()).filter(|text| !text.is_empty())),
        false => Err(SettingError::Token(place.to_owned())),
    }
}

/// Whether a text can name a commit or contents: no path can.
fn is_name(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// Scheme, host and port of an address on the web.
fn origin(url: &str) -> Option<(String, String, u16)> {
    let url = url.parse::<Uri>().ok()?;
    let usual = match url.scheme_str()? {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let host = url.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
    Some((url.scheme_str()?.to_owned(), host, url.port_u16().unwrap_or(usual)))
}

/// The target of a redirect; `None` if it is not a web address, or drops encryption.
fn redirected(here: &str, location: &str) -> Option<String> {
    let (scheme, rest) = here.split_once("://")?;
    let to = match location {
        _ if location.starts_with("//") => format!("{scheme}:{location}"),
        _ if location.starts_with('/') => format!("{scheme}://{}{location}", rest.split('/').next()?),
        _ => location.to_owned(),
    };
    let [from, into] = [origin(here)?, origin(&to)?].map(|(scheme, ..)| scheme);
    (from != "https" || into == "https").then_some(to)
}

fn header<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

/// The error of a failed request, which says whether a retry may succeed.
fn refusal(url: &str, error: &ureq::Error) -> HubError {
    let problem = error.to_string();
    match error {
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::BodyStalled
        | ureq::Error::Protocol(_) => HubError::Lost { url: url.to_owned(), problem },
        _ => strange(url, problem),
    }
}

pub(crate) fn strange(url: &str, problem: impl ToString) -> HubError {
    HubError::Strange { url: url.to_owned(), problem: problem.to_string() }
}
