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
    /// The run takes no orders: it could not make the file, or is of a version without them.
    #[error("the run takes no orders")]
    TakesNone,
    /// Another user can replace the run's folder or its file of orders.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// There is no room for more.
    #[error("the run was given too many orders")]
    Full,
    /// The system refused.
    #[error("orders.jsonl: {0}")]
    Io(#[from] io::Error),
}

/// Gives the run in a folder an order. Returns its number, which the events have that answer it.
/// Errors: nothing trains there, it takes none, another user controls its folder, or the system refuses.
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
    // Whoever else gives one now writes behind this or before; a number is where a line begins, so it is looked for after.
    if file.metadata()?.len() > FULL.0 {
        return Err(GiveError::Full);
    }
    // A line that a full disk cut off must not take this one with it: empty lines are nothing.
    let line = format!("\n{}\n", serde_json::to_string(&order).expect("plain data"));
    let written = file.write(line.as_bytes())?;
    if written < line.len() {
        return Err(io::Error::from(io::ErrorKind::StorageFull).into());
    }
    // Appending moves the position to behind what was appended.
    let end = io::Seek::stream_position(&mut file)?;
    Ok(end - line.len() as u64 + 1)
}
