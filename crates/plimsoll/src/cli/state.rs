//! Where programs of this user keep what they know from one run to the next.

use std::env;
use std::path::PathBuf;

/// The user's folder for it; none where there is no place for one. Source: the XDG Base Directory Specification.
pub(super) fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(folder("HOME")?.join(".local/state"));
    // Windows has no home by that name.
    folder("XDG_STATE_HOME").or_else(home).or_else(|| folder("LOCALAPPDATA"))
}
