//! Why weights are not fetched.

use crate::HUB;
use plimsoll_units::Bytes;
use std::io;
use std::path::PathBuf;

/// Why a request to the hub failed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The connection broke, or the server is busy: it may work later.
    #[error("{url}: {problem}")]
    Lost {
        /// The requested address.
        url: String,
        /// What went wrong.
        problem: String,
    },
    /// The server refused.
    #[error("{url}: status {status}")]
    Refused {
        /// The requested address.
        url: String,
        /// Its HTTP status, such as 401 or 404.
        status: u16,
    },
    /// An invalid or too long answer.
    #[error("{url}: {problem}")]
    Strange {
        /// The requested address.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that differs from the hub's description.
    #[error("{file}: {problem}")]
    Damaged {
        /// Its name.
        file: String,
        /// What is wrong with it, with the numbers.
        problem: String,
    },
    /// A file whose contents can't be verified.
    #[error("{file}: {problem}")]
    Unverified {
        /// Its name.
        file: String,
        /// Why.
        problem: &'static str,
    },
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why the environment's settings of the hub can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// An invalid address.
    #[error("HF_ENDPOINT is `{0}`, which is not an address such as {HUB}")]
    Endpoint(String),
    /// An address with a password, which is not shown.
    #[error("HF_ENDPOINT has a name or a password in it; only a token is sent to the hub")]
    Login,
    /// A token with invalid characters. The error does not show it.
    #[error("the token of {0} has invalid characters")]
    Token(String),
    /// The file with the token can't be read.
    #[error("the token in {} can't be read: {source}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a model was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// The environment forbids to use the network.
    #[error("{variable} is set, so downloads are disabled")]
    Offline {
        /// The variable.
        variable: &'static str,
    },
    /// The environment names no home folder.
    #[error("there is no folder for the Hugging Face cache")]
    NoCache,
    /// The environment's settings of the hub can't be used.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The disk has no room. Nothing was written.
    #[error("{} has room for {room}, {missing} must still be downloaded", cache.display())]
    NoRoom {
        /// The cache.
        cache: PathBuf,
        /// Free bytes.
        room: Bytes,
        /// Bytes still to be downloaded.
        missing: Bytes,
    },
    /// The model has no weights that can be read, or no configuration. Nothing was fetched.
    #[error("{name} has no {lacks}, so nothing was fetched")]
    NoWeights {
        /// The model's name.
        name: String,
        /// What it lacks.
        lacks: &'static str,
        /// Address of the model's page.
        page: String,
    },
    /// The hub, the way to it, or the disk failed.
    #[error("{source}")]
    Hub {
        /// Address of the hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
        /// Whether there is a token that was not sent, since the address has no TLS.
        withholds_token: bool,
        /// What happened.
        source: HubError,
    },
}
