//! Syncs an offline run with W&B's own program in the background, if it is installed. Only that process receives the
//! key, in its environment.

use plimsoll_secrets::Secret;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program that syncs.
const PROGRAM: &str = "wandb";

/// The file of its output, in the run's folder.
const LOG: &str = "sync.log";

/// A run being synced.
#[derive(Debug)]
pub struct Synced {
    /// W&B's program.
    pub process: Child,
    /// Its output.
    pub log: PathBuf,
}

/// Why a run is not synced.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The program is not installed.
    #[error("W&B's program, `wandb`, is not installed")]
    NotInstalled,
    /// The system refuses to start it.
    #[error("`wandb` can't be started: {0}")]
    Io(#[from] io::Error),
}

/// Starts to sync a run's folder. `path` is the value of `PATH`.
/// Errors: the program is not installed, or the system does not start it.
pub fn sync_in_background(run: &Path, key: &Secret, path: Option<&OsStr>) -> Result<Synced, SyncError> {
    let folders = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    // Never from the working folder, where another user may have put it.
    let programs = folders.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(PROGRAM));
    let program = programs.into_iter().find(|program| program.is_file()).ok_or(SyncError::NotInstalled)?;
    let log_path = run.join(LOG);
    let log = plimsoll_files::open_own(&log_path)?;
    let mut command = Command::new(program);
    // The program reads `wandb/settings` in its working folder, which could name the server that receives the key.
    command.current_dir("/");
    command.arg("sync").arg(std::path::absolute(run)?).env("WANDB_API_KEY", key.expose()).env("WANDB_SILENT", "false");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // An interrupt of the run must not reach it.
        command.process_group(0);
    }
    Ok(Synced { process: command.spawn()?, log: log_path })
}
