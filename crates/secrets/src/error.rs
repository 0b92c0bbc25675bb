//! Why secrets cannot be used.

use std::io;
use std::path::PathBuf;

/// Why secrets cannot be used. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// Other users can read the file.
    #[error("{} is readable by other users (mode {mode:03o})", path.display())]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system does not provide file permissions.
    #[error("cannot check who can read {} on this system; use environment variables", path.display())]
    Unchecked {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line is not a key and a value.
    #[error("{}: line {line} is not KEY=VALUE", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// A secret file without any variable of Plimsoll.
    #[error("{} sets no known variable such as PLIMSOLL_NTFY_TOPIC", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
    },
    /// A `.env` that names the server for a secret that is not in it.
    #[error("{} names a server, {server}, for {secret}, which is not in that file", path.display())]
    ForeignServer {
        /// The file.
        path: PathBuf,
        /// The server's variable.
        server: &'static str,
        /// The secret's variable.
        secret: &'static str,
    },
    /// A value with invalid characters.
    #[error("{variable} contains line breaks or other invalid characters")]
    Characters {
        /// The variable.
        variable: &'static str,
    },
}
