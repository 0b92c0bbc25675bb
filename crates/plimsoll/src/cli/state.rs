//! Where this program keeps what outlives a run: the user's state folder.

use std::env;
use std::path::PathBuf;

/// The folder `plimsoll` in the user's state folder; `None` if no home folder is known. Source: the XDG Base Directory Specification.
pub(super) fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(folder("HOME")?.join(".local/state"));
    // Windows has no home by that name.
    let state = folder("XDG_STATE_HOME").or_else(home).or_else(|| folder("LOCALAPPDATA"));
    state.map(|state| state.join("plimsoll"))
}
