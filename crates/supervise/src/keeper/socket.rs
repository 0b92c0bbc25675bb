//! The keeper's socket in the run's folder.

use plimsoll_files::check_entry;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

fn name(worker: usize) -> String {
    format!("keeper-{worker}.sock")
}

/// Creates the socket for supervisors. Errors: those of the system.
pub(super) fn listen(folder: &Path, worker: usize) -> io::Result<UnixListener> {
    let _ = fs::remove_file(folder.join(name(worker)));
    let (_open, path) = short(folder, worker)?;
    UnixListener::bind(path)
}

/// Connects to a worker's keeper. Errors: there is none, or its socket may belong to another user.
pub(super) fn connect(folder: &Path, worker: usize) -> io::Result<UnixStream> {
    check_entry(&folder.join(name(worker)))?;
    let (_open, path) = short(folder, worker)?;
    UnixStream::connect(path)
}

/// Removes the socket at the end of a run.
pub(crate) fn remove(folder: &Path, worker: usize) {
    let _ = fs::remove_file(folder.join(name(worker)));
}

/// A short path of the socket. Socket addresses hold about a hundred bytes, but paths of folders may be longer, so on
/// Linux the path goes through a descriptor of the folder, which must stay open.
fn short(folder: &Path, worker: usize) -> io::Result<(File, PathBuf)> {
    use std::os::fd::AsRawFd;
    let open = File::open(folder)?;
    let folder = match cfg!(target_os = "linux") {
        true => PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())),
        false => folder.to_owned(),
    };
    Ok((open, folder.join(name(worker))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_keeper_is_reached_in_a_folder_with_a_long_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let long = folder.path().join("x".repeat(200));
        fs::create_dir(&long).expect("made");
        assert!(connect(&long, 0).is_err());
        for _ in 0..2 {
            // A second listener replaces the socket of a killed keeper.
            let listener = listen(&long, 0).expect("bound");
            connect(&long, 0).expect("connected");
            listener.accept().expect("accepted");
        }
        remove(&long, 0);
        assert!(connect(&long, 0).is_err());
    }
}
