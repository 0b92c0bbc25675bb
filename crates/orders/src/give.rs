//! Gives a run an order.

use crate::{FILE, FULL, Order};
use plimsoll_files::{Distrust, check_file, check_folder, is_locked, is_there, open_own};
use std::io::{self, Write};
use std::path::Path;

/// Why an order could not be given.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    /// Nothing trains in the folder.
    #[error("nothing trains there")]
    NotTraining,
    /// The run takes no orders: it could not create the file, or has a version without orders.
    #[error("the run takes no orders")]
    TakesNone,
    /// Another user can replace the run's folder or its orders file.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// The file is full.
    #[error("the run has too many orders")]
    Full,
    /// A system call failed.
    #[error("orders.jsonl: {0}")]
    Io(#[from] io::Error),
}

/// Gives an order to the run in a folder. Returns its number, which the run's answer contains.
/// Errors: nothing trains there, the run takes no orders, another user controls its folder, or a system call fails.
pub fn give(run: &Path, order: Order) -> Result<u64, GiveError> {
    if !is_locked(run) {
        return Err(GiveError::NotTraining);
    }
    check_folder(run)?;
    let path = run.join(FILE);
    if !is_there(&path)? {
        return Err(GiveError::TakesNone);
    }
    let mut file = open_own(&path)?;
    check_file(&file, &path)?;
    // Other processes may append at the same time, so the offset of this line is known only after the write.
    if file.metadata()?.len() > FULL.0 {
        return Err(GiveError::Full);
    }
    // Start a new line, in case a full disk truncated the last one. Empty lines are ignored.
    let line = format!("\n{}\n", serde_json::to_string(&order).expect("plain data"));
    let written = file.write(line.as_bytes())?;
    if written < line.len() {
        return Err(io::Error::from(io::ErrorKind::StorageFull).into());
    }
    // After an append, the file position is the end of the appended bytes.
    let end = io::Seek::stream_position(&mut file)?;
    Ok(end - line.len() as u64 + 1)
}
