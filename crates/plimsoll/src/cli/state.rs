//! Where this program keeps what outlives a run: the user's state folder.

use std::env;
use std::path::PathBuf;

/// The folder `plimsoll` in the user's state folder; none where no home is known.
pub(super) fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    state.map(|state| state.join("plimsoll"))
}
