//! Safe access to files: opens files from untrusted sources, and writes files that concurrent processes and crashes
//! must not break. All file access of this program goes through this crate.
//! Not here: the contents of files.
//! A path from a user or a received folder may lead to anything: a pipe without a writer, an endless device, a kernel
//! file that waits for events. Only regular files are opened, and every read of a whole file has a limit.
//! A run's folder may come from another user: files in it are opened with [`open_inside`], which follows no symbolic
//! links.
//! A run writes its files through a [`Disk`]: synced, atomically, and never through a link. A file that a user names is
//! replaced with [`write_whole`], also atomically, by any number of processes at once.
//! A file that determines a command to run or a process to signal is used only if no other user can have written it
//! (`trust.rs`).

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
mod update;
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
pub use update::{read_if_there, update};
pub use write::{UNFINISHED, create_unique, remove_leftovers, replace_with, sync_folder, write_whole};
