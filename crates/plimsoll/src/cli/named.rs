//! Settings that decide where this user's secrets are sent: mail servers, recipients, files of secrets. The folder of a
//! run may come from another person, so a value that only such a folder contains is not used. A value counts as this
//! user's once it was given on this machine, by a flag or in a file that `--config` names; it is then kept in the user's
//! state folder, so that resuming a run and adopting one need no flags.

use super::quoted::for_a_shell;
use super::state::state_folder;
use plimsoll_files::{open_private, read_text};
use plimsoll_units::Bytes;
use std::io::Write;
use std::path::{Path, PathBuf, absolute};

/// Flags whose values are kept, without their hyphens and with underscores.
pub(super) const NAMED: [&str; 4] = ["smtp", "mail_to", "smtp_ca", "secrets"];

/// Some thousand values.
const KEPT_BYTES_MAX: Bytes = Bytes::mib(1);

/// A flag and one value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) flag: &'static str,
    pub(super) value: String,
}

impl Named {
    /// The values of a setting, if it is one of [`NAMED`]. Paths are made absolute, since they are read in other folders
    /// than the one in which they were given.
    pub(super) fn of<'v>(flag: &str, values: impl IntoIterator<Item = &'v str>) -> Vec<Self> {
        let Some(flag) = NAMED.into_iter().find(|named| *named == flag) else { return vec![] };
        let is_path = matches!(flag, "smtp_ca" | "secrets");
        let values = values.into_iter().flat_map(|value| match is_path {
            true => vec![absolute_path(Path::new(value)).to_string_lossy().into_owned()],
            false => value.split(',').map(|part| part.trim().to_owned()).collect(),
        });
        values.map(|value| Self { flag, value }).collect()
    }

    /// The flag as it is pasted into a shell.
    pub(super) fn as_flag(&self) -> String {
        format!("--{} {}", self.flag.replace('_', "-"), for_a_shell(&self.value))
    }

    fn line(&self) -> String {
        format!("{}={}", self.flag, self.value)
    }
}

/// The path from the root of the file system; as it is where the working folder is unknown.
pub(super) fn absolute_path(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Keeps values that this user gave. If they can't be written, a later resume asks for them again.
pub(super) fn remember(given: &[Named]) {
    let (Some(path), new) = (file(), unknown(given)) else { return };
    if new.is_empty() {
        return;
    }
    let lines = new.iter().filter(|named| !named.value.contains(char::is_control)).map(|named| named.line() + "\n");
    let write = || {
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        open_private(&path)?.write_all(lines.collect::<String>().as_bytes())
    };
    // The run needs nothing of it.
    let _ = write();
}

/// The values that this user never gave on this machine.
pub(super) fn unknown(values: &[Named]) -> Vec<Named> {
    let kept = file().and_then(|path| read_text(&path, KEPT_BYTES_MAX).ok()).unwrap_or_default();
    values.iter().filter(|named| !kept.lines().any(|line| line == named.line())).cloned().collect()
}

fn file() -> Option<PathBuf> {
    state_folder().map(|state| state.join("named"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_one_by_one_and_paths_from_the_root() {
        let to = Named::of("mail_to", ["a@b.example, c@d.example", "e@f.example"]);
        assert_eq!(
            to.iter().map(Named::line).collect::<Vec<_>>(),
            ["mail_to=a@b.example", "mail_to=c@d.example", "mail_to=e@f.example"]
        );
        let secrets = Named::of("secrets", ["mine"]);
        assert!(secrets[0].value.ends_with("/mine") && secrets[0].value.starts_with('/'), "{secrets:?}");
        assert!(Named::of("seed", ["7"]).is_empty());
    }
}
