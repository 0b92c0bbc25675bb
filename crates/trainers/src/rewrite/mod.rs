//! Files and command lines with other settings, in their trainer's own keys. What need not change stays as it is, byte for
//! byte; keys that are missing are added.
//! Not here: which keys a change has (`keys/`), the text (`text.rs`), and the arguments (`flags.rs`).

pub(crate) mod edit;
mod flags;
mod raw;
mod text;
mod tree;

pub use flags::{Rewritten, rewrite_command, rewrite_flags};
pub use raw::{rewrite_command_keys, rewrite_keys};

use crate::change::Change;
use crate::document::Document;
use crate::keys;
use crate::kind::Kind;
use edit::Edit;

/// Why settings can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The text is no YAML, no JSON, or has no keys.
    #[error("{what}")]
    Unreadable {
        /// What the parser says.
        what: String,
    },
    /// The trainer has no key for it, or none in this file.
    #[error("{kind} has no key for {change}{}", why.map_or(String::new(), |why| format!(": {why}")))]
    NoKey {
        /// Whose file.
        kind: Kind,
        /// What was to be changed, in words.
        change: String,
        /// Where it is said instead, if anywhere.
        why: Option<&'static str>,
    },
    /// The key stands where it can't be changed alone, such as behind an alias.
    #[error("`{key}` can't be changed without changing something else{}", line.map_or(String::new(), |line| format!(" (line {line})")))]
    Entangled {
        /// The key.
        key: String,
        /// Where it is, from 1.
        line: Option<u64>,
    },
    /// No command of this trainer's was found among the arguments.
    #[error("these arguments start no {kind} that is known")]
    NoCommand {
        /// Which trainer's.
        kind: Kind,
    },
}

/// The text of a file with these changes: values of keys that are there are replaced in place, missing keys are added, and
/// nothing else changes. The effective batch is the caller's: [`Change::halve_micro_batch`] keeps it.
/// Errors: those of [`RewriteError`]; nothing is written by halves.
pub fn rewrite(kind: Kind, text: &str, changes: &[Change]) -> Result<String, RewriteError> {
    let mut text = text.to_owned();
    for change in changes {
        let document = Document::parse(&text).map_err(|what| RewriteError::Unreadable { what })?;
        for edit in edits(kind, change, &document)? {
            let document = Document::parse(&text).map_err(|what| RewriteError::Unreadable { what })?;
            text = text::apply(&text, &document, &edit).ok_or_else(|| entangled(&document, &edit))?;
        }
    }
    Ok(text)
}

/// What a change is in a trainer's keys. `document`: the settings that are there. Errors: it has none.
fn edits(kind: Kind, change: &Change, document: &Document) -> Result<Vec<Edit>, RewriteError> {
    keys::edits(kind, change, document).map_err(|why| RewriteError::NoKey { kind, change: change.to_string(), why })
}

fn entangled(document: &Document, edit: &Edit) -> RewriteError {
    let root = edit.key().split('.').next().unwrap_or_default();
    let line = document.0.iter().find(|entry| entry.key == root).map(|entry| entry.line);
    RewriteError::Entangled { key: edit.key().to_owned(), line }
}

#[cfg(test)]
mod tests;
