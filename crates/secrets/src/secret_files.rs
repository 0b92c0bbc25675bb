//! Secret files: one `KEY=VALUE` per line, as in a `.env`. A file that other users can read is rejected.

use crate::error::SecretsError;
use plimsoll_files::open_regular;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum size of such a file, far more than it needs.
const BYTES_MAX: u64 = 1 << 16;

/// The contents of a secret file.
pub(crate) struct SecretFile {
    /// Keys and values, in order.
    pub(crate) pairs: Vec<(String, String)>,
    /// Why it must not be used, if it contains any variable of Plimsoll.
    pub(crate) problem: Option<SecretsError>,
}

/// Reads a file. Permissions are checked on the open file, not on its path.
/// Errors: the file cannot be read, or is not a regular text file of limited size.
pub(crate) fn read(path: &Path) -> Result<SecretFile, SecretsError> {
    let failed = |source| SecretsError::Io { path: path.to_owned(), source };
    let file = open_regular(path).map_err(failed)?;
    let problem = problem_of(&file, path).map_err(failed)?;
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too large for a secret file")));
    }
    let (pairs, odd_line) = parsed(&text);
    let odd = odd_line.map(|line| SecretsError::Syntax { path: path.to_owned(), line });
    Ok(SecretFile { pairs, problem: problem.or(odd) })
}

#[cfg(unix)]
fn problem_of(file: &File, path: &Path) -> io::Result<Option<SecretsError>> {
    use std::os::unix::fs::PermissionsExt;
    // The group bits also bound access-control lists.
    let mode = file.metadata()?.permissions().mode() & 0o777;
    Ok((mode & 0o077 != 0).then(|| SecretsError::NotPrivate { path: path.to_owned(), mode }))
}

#[cfg(not(unix))]
fn problem_of(_: &File, path: &Path) -> io::Result<Option<SecretsError>> {
    Ok(Some(SecretsError::Unchecked { path: path.to_owned() }))
}

/// Keys and values, and the number of the first line that is neither a pair, nor a comment, nor empty.
fn parsed(text: &str) -> (Vec<(String, String)>, Option<usize>) {
    let mut pairs = Vec::new();
    let mut odd = None;
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.strip_prefix("export ").unwrap_or(line).split_once('=');
        match pair.and_then(|(key, value)| Some((key.trim().to_owned(), unquoted(value.trim())?))) {
            Some(pair) => pairs.push(pair),
            None => odd = odd.or(Some(number + 1)),
        }
    }
    (pairs, odd)
}

/// A value without quotes and without a trailing comment. A `#` within a word does not start a comment, since URLs and
/// passwords may contain it.
fn unquoted(value: &str) -> Option<String> {
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let (inside, rest) = value[1..].split_once(quote)?;
            matches!(rest.trim().chars().next(), None | Some('#')).then(|| inside.to_owned())
        }
        _ => Some(value.split(" #").next().unwrap_or_default().trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_in_a_dot_env() {
        let text = "\u{feff}# comment\n\nA=1\n export B = two words # said\r\nC=\"a # b\" # c\nD='x\"y'\nE=a#b=c\nF=\n";
        let expected = [("A", "1"), ("B", "two words"), ("C", "a # b"), ("D", "x\"y"), ("E", "a#b=c"), ("F", "")];
        assert_eq!(parsed(text), (expected.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(), None));
        for (text, line) in [("A=1\nCANARY", 2), ("A=\"open", 1), ("\nA='x'y", 2)] {
            assert_eq!(parsed(text).1, Some(line), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in proptest::prelude::any::<String>()) {
            let _ = parsed(&text);
        }
    }
}
