//! How files that others made are opened, and how files are made that others must not break. Whoever reads or writes
//! for this program does it through here.
//! Not here: what is in a file.
//!
//! A path that a user or a received folder names may be anything: a pipe that nobody writes to, a device without end, a
//! file of the kernel's that waits for events. Only regular files are opened, and nothing is read whole that has no
//! stated limit.

mod open;
mod write;

pub use open::{NotRegular, TooLong, open_regular, read_any_text, read_at_most, read_text};
pub use write::{create_unique, sync_folder};
