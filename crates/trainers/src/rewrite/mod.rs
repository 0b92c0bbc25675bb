//! Rewrites files and command lines with new settings in their trainer's own keys. Keeps everything else byte for byte,
//! and adds missing keys.
//! Not here: the keys of a change (`keys/`), editing a text (`text.rs`) and arguments (`flags.rs`).

pub(crate) mod edit;
mod flags;
mod raw;
mod text;
mod tree;

pub use flags::{Rewritten, rewrite_command, rewrite_flags};
pub use raw::{rewrite_command_keys, rewrite_keys};

use crate::change::SettingChange;
use crate::document::Document;
use crate::keys;
use crate::kind::TrainerKind;
use edit::Edit;

/// Why settings can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// The text is not valid YAML or JSON, or has no keys.
    #[error("{what}")]
    Unreadable {
        /// The parser's message.
        what: String,
    },
    /// The trainer, or this file, has no key for the setting.
    #[error("{kind} has no key for {change}{}", why.map_or(String::new(), |why| format!(": {why}")))]
    NoKey {
        /// The trainer.
        kind: TrainerKind,
        /// The setting, for display.
        change: String,
        /// Where the setting belongs instead, if anywhere.
        why: Option<&'static str>,
    },
    /// The key can't be changed alone, for example because it is an alias.
    #[error("`{key}` can't be changed without changing something else{}", line.map_or(String::new(), |line| format!(" (line {line})")))]
    Entangled {
        /// The key.
        key: String,
        /// The line, from 1.
        line: Option<u64>,
    },
    /// The arguments do not start this trainer.
    #[error("these arguments do not start {kind}")]
    NoCommand {
        /// The trainer.
        kind: TrainerKind,
    },
}

/// Rewrites the text of a file: replaces values of existing keys in place, adds missing keys, and changes nothing else.
/// The caller is responsible for the effective batch: [`SettingChange::halve_micro_batch`] keeps it.
/// Errors: those of [`RewriteError`]; all changes are written or none.
pub fn rewrite(kind: TrainerKind, text: &str, changes: &[SettingChange]) -> Result<String, RewriteError> {
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

/// The edits that write a change to a trainer's keys. `document`: the current settings. Errors: it has no key.
fn edits(kind: TrainerKind, change: &SettingChange, document: &Document) -> Result<Vec<Edit>, RewriteError> {
    keys::edits(kind, change, document).map_err(|why| RewriteError::NoKey { kind, change: change.to_string(), why })
}

fn entangled(document: &Document, edit: &Edit) -> RewriteError {
    let root = edit.key().split('.').next().unwrap_or_default();
    let line = document.0.iter().find(|entry| entry.key == root).map(|entry| entry.line);
    RewriteError::Entangled { key: edit.key().to_owned(), line }
}

#[cfg(test)]
mod tests;
