//! The token that lets somebody in: given, made, or kept in a file from the time before. Nothing here shows it but [`Token::as_str`].

use plimsoll_files::{open_own, read_text};
use plimsoll_units::Bytes;
use ring::hmac::{HMAC_SHA256, Key, Tag, sign, verify};
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Letters of a token at least: who guesses is slowed down, so that these are many years.
const SHORTEST: usize = 8;

/// Letters at the most.
const LONGEST: usize = 200;

/// Bytes of chance in one that is made.
const MADE: usize = 24;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It is too short, too long, or has letters that no link can have.
    #[error("a token has {SHORTEST} to {LONGEST} letters, digits, hyphens or underscores")]
    Unfit,
    /// Others can read the file that it is kept in.
    #[error("{path}: others can read it")]
    Readable {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Who has it is let in.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// One that was chosen. Errors: `Unfit`.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        match (SHORTEST..=LONGEST).contains(&text.len()) && text.bytes().all(is_fit) {
            true => Ok(Self(text.to_owned())),
            false => Err(TokenError::Unfit),
        }
    }

    /// That of a file, which is made with a new one if it is not there, so that a link outlives a restart.
    /// Errors: others can read the file, or the system refuses.
    pub fn kept(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io { path: path.to_owned(), source };
        let made = Self::made().map_err(failed)?;
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
        // One that a crash cut off is none, and was nobody's.
        let parsed = Self::parse(text.trim());
        parsed.map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error)))
    }

    fn made() -> io::Result<Self> {
        let mut bytes = [0; MADE];
        SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random numbers"))?;
        Ok(Self(hex(&bytes)))
    }

    /// The token itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Knows whoever has the token, and takes as long for a wrong one as for a right one.
#[derive(Clone)]
pub(crate) struct Lock {
    key: Key,
    of_token: Tag,
}

impl Lock {
    pub(crate) fn new(token: &Token) -> Self {
        let key = Key::new(HMAC_SHA256, token.0.as_bytes());
        let of_token = sign(&key, b"token");
        Self { key, of_token }
    }

    pub(crate) fn opens_by_token(&self, given: &str) -> bool {
        // What is compared is of one length, whatever was given, and tells nothing of what it was made from.
        verify(&Key::new(HMAC_SHA256, given.as_bytes()), b"token", self.of_token.as_ref()).is_ok()
    }

    /// What a browser keeps, from which nobody learns the token.
    pub(crate) fn cookie(&self) -> String {
        hex(sign(&self.key, b"cookie").as_ref())
    }

    pub(crate) fn opens_by_cookie(&self, given: &str) -> bool {
        let bytes = given.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.collect::<Option<Vec<_>>>().is_some_and(|bytes| verify(&self.key, b"cookie", &bytes).is_ok())
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Some digits that no other start of a server has.
pub(crate) fn of_this_start() -> String {
    let mut bytes = [0; 6];
    // Without chance, the time tells starts apart.
    if SystemRandom::new().fill(&mut bytes).is_err() {
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        bytes.copy_from_slice(&time.as_micros().to_le_bytes()[..6]);
    }
    hex(&bytes)
}

/// Makes a file that only this user can read. Errors: it is there already.
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

/// Other systems keep who may read in lists that the folder hands down.
#[cfg(not(unix))]
fn is_readable_by_others(_: &File) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_fit_for_links_and_one_opens_only_its_own_lock() {
        for unfit in ["", "short", "with space", "a/b/c/d/e/f", "größe-größe", &"x".repeat(201)] {
            assert!(matches!(Token::parse(unfit), Err(TokenError::Unfit)), "{unfit}");
        }
        let [lock, other] = ["first-token", "other-token"].map(|text| Lock::new(&Token::parse(text).expect("fit")));
        assert!(lock.opens_by_token("first-token") && !lock.opens_by_token("first-toke"));
        assert!(!lock.opens_by_token("") && !lock.opens_by_token("first-token2"));
        assert!(lock.opens_by_cookie(&lock.cookie()));
        for wrong in ["", "zz", "first-token", "é", &other.cookie(), &lock.cookie()[2..]] {
            assert!(!lock.opens_by_cookie(wrong), "{wrong}");
        }
        assert!(!lock.cookie().contains("first"));
        assert_eq!(format!("{:?}", Token::parse("first-token").expect("fit")), "Token");
    }

    #[test]
    fn a_kept_token_is_the_same_again_and_is_refused_where_others_read_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/er/serve-token");
        let [first, again] = [0; 2].map(|_| Token::kept(&path).expect("kept"));
        assert_eq!(first.as_str(), again.as_str());
        assert_eq!(first.as_str().len(), 2 * MADE);
        let other = Token::kept(&folder.path().join("other")).expect("kept");
        assert_ne!(first.as_str(), other.as_str());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("changed");
            assert!(matches!(Token::kept(&path), Err(TokenError::Readable { .. })));
        }
        std::fs::write(folder.path().join("other"), "").expect("written");
        assert!(matches!(Token::kept(&folder.path().join("other")), Err(TokenError::Io { .. })));
    }
}
