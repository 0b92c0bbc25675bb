//! The token that grants access: given, generated, or read from a file. Only [`Token::as_str`] reveals it.

use plimsoll_files::{open_own, read_text};
use plimsoll_units::Bytes;
use ring::hmac::{HMAC_SHA256, Key, Tag, sign, verify};
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Minimum length of a token. With the delay of wrong answers, guessing takes many years.
const SHORTEST: usize = 8;

/// Maximum length of a token.
const LONGEST: usize = 200;

/// Random bytes of a generated token.
const RANDOM_BYTES: usize = 24;

/// Why a token is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It is too short, too long, or has characters that a link cannot contain.
    #[error("a token must have {SHORTEST} to {LONGEST} letters, digits, hyphens or underscores")]
    Unfit,
    /// Other users can read the file that stores it.
    #[error("{path}: other users can read this file")]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// The system refused to read or write the file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

/// Token that grants access.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// A token that the user chose. Errors: `Unfit`.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(is_fit) {
            true => Ok(Self(text.to_owned())),
            false => Err(TokenError::Unfit),
        }
    }

    /// The token in a file, which is created with a random token if missing, so that a link stays valid after a
    /// restart. Errors: other users can read the file, or the system refuses.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        let made = Self::random().map_err(failed)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        match create(path).and_then(|mut file| file.write_all(made.0.as_bytes()).and_then(|()| file.sync_all())) {
            Ok(()) => return Ok(made),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
        let file = open_own(path).map_err(failed)?;
        if is_readable_by_others(&file).map_err(failed)? {
            return Err(TokenError::Readable { path: path.to_owned() });
        }
        let text = read_text(path, Bytes(LONGEST as u64 + 1)).map_err(failed)?;
        // A crash while writing can leave an invalid token, which no client has received.
        let parsed = Self::parse(text.trim());
        parsed.map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))
    }

    fn random() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system has no random numbers"))?;
        Ok(Self(hex(&bytes)))
    }

    /// The text of the token.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Checks tokens and cookies in constant time.
#[derive(Clone)]
pub(crate) struct TokenVerifier {
    key: Key,
    of_token: Tag,
}

impl TokenVerifier {
    pub(crate) fn new(token: &Token) -> Self {
        let key = Key::new(HMAC_SHA256, token.0.as_bytes());
        let of_token = sign(&key, b"token");
        Self { key, of_token }
    }

    pub(crate) fn accepts_token(&self, given: &str) -> bool {
        // Compares hashes of equal length, so the time does not depend on the token.
        verify(&Key::new(HMAC_SHA256, given.as_bytes()), b"token", self.of_token.as_ref()).is_ok()
    }

    /// The value of the cookie, from which the token cannot be computed.
    pub(crate) fn cookie(&self) -> String {
        hex(sign(&self.key, b"cookie").as_ref())
    }

    pub(crate) fn accepts_cookie(&self, given: &str) -> bool {
        let bytes = given.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.collect::<Option<Vec<_>>>().is_some_and(|bytes| verify(&self.key, b"cookie", &bytes).is_ok())
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random digits that identify this start of the server.
pub(crate) fn start_id() -> String {
    let mut bytes = [0; 6];
    // If there are no random numbers, use the time.
    if SystemRandom::new().fill(&mut bytes).is_err() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes.copy_from_slice(&time.as_micros().to_le_bytes()[..6]);
    }
    hex(&bytes)
}

/// Creates a file that only this user can read. Errors: the file exists.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(unix)]
fn is_readable_by_others(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata()?;
    Ok(found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw())
}

/// Other systems control reading by access lists that files inherit from their folder.
#[cfg(not(unix))]
fn is_readable_by_others(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_valid_in_links_and_open_only_their_own_server() {
        for unfit in ["", "short", "with space", "a/b/c/d/e/f", "größe-größe", &"x".repeat(201)] {
            assert!(matches!(Token::parse(unfit), Err(TokenError::Unfit)), "{unfit}");
        }
        let [verifier, other] =
            ["first-token", "other-token"].map(|text| TokenVerifier::new(&Token::parse(text).expect("fit")));
        assert!(verifier.accepts_token("first-token") && !verifier.accepts_token("first-toke"));
        assert!(!verifier.accepts_token("") && !verifier.accepts_token("first-token2"));
        assert!(verifier.accepts_cookie(&verifier.cookie()));
        for wrong in ["", "zz", "first-token", "é", &other.cookie(), &verifier.cookie()[2..]] {
            assert!(!verifier.accepts_cookie(wrong), "{wrong}");
        }
        assert!(!verifier.cookie().contains("first"));
        assert_eq!(format!("{:?}", Token::parse("first-token").expect("fit")), "Token");
    }

    #[test]
    fn a_stored_token_is_reused_and_refused_if_others_can_read_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/er/serve-token");
        let [first, again] = [0; 2].map(|_| Token::from_file(&path).expect("kept"));
        assert_eq!(first.as_str(), again.as_str());
        assert_eq!(first.as_str().len(), 2 * RANDOM_BYTES);
        let other = Token::from_file(&folder.path().join("other")).expect("kept");
        assert_ne!(first.as_str(), other.as_str());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).expect("the file exists").permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("changed");
            assert!(matches!(Token::from_file(&path), Err(TokenError::Readable { .. })));
        }
        std::fs::write(folder.path().join("other"), "").expect("written");
        assert!(matches!(Token::from_file(&folder.path().join("other")), Err(TokenError::Io { .. })));
    }
}
