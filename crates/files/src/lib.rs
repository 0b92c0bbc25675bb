//! How files that others made are opened, and how files are made that others must not break. Whoever reads or writes
//! for this program does it through here.
//! Not here: what is in a file.
//!
//! A path that a user or a received folder names may be anything: a pipe that nobody writes to, a device without end, a
//! file of the kernel's that waits for events. Only regular files are opened, and nothing is read whole that has no
//! stated limit.
//!
//! A run's folder may have come from another person: what is read in it is opened by [`open_inside`], which follows no link.
//!
//! What a run writes, it writes through a [`Disk`]: synced, whole or not at all, and never through a link. A file that a
//! user names is replaced by [`write_whole`], whole or not at all too, by any number of processes at once.
//!
//! A file that decides what is run or signaled counts only if this user alone can have written it (`trust.rs`).

mod disk;
mod encoding;
#[cfg(unix)]
mod groups;
mod inside;
mod library;
mod lock;
mod open;
mod own;
mod read_at;
mod space;
mod trust;
mod write;

pub use disk::{Disk, Log, Operation, Watch};
pub use encoding::{Utf16, refuse_utf16};
pub use inside::{open_inside, read_end_inside, read_inside, read_text_inside};
pub use library::library_problem;
pub use lock::{FolderLock, LOCK, LockError, is_locked};
pub use open::{LfsPointer, NotRegular, TooLong, open_regular, read_any_text, read_at_most, read_text, rest_at_most};
pub use own::{is_file, is_folder, is_there, open_own, open_private};
pub use read_at::read_exact_at;
pub use space::{DiskSpace, disk_space, free_space};
pub use trust::{Distrust, TRUSTED_FOLDERS, check_entry, check_file, check_folder, read_trusted};
pub use write::{UNFINISHED, create_unique, remove_leftovers, sync_folder, write_whole};
