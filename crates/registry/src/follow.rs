//! Reads a growing file in a run's folder, such as a log. Continues with the new file after a rotation. Does not follow
//! symbolic links.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file that is read as it grows.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    file: Option<File>,
}

impl Follower {
    /// Follows the file at a path, which need not exist yet. Starts `tail_bytes` before its end, or at its beginning if
    /// it is shorter.
    pub fn new(path: &Path, tail_bytes: u64) -> io::Result<Self> {
        let mut follower = Self { path: path.to_owned(), file: None };
        if let Some(file) = follower.open()? {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(tail_bytes)))?;
        }
        Ok(follower)
    }

    /// Reads bytes that were added since the last call; returns 0 if there are none. Errors: those of the system.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(file) = self.open()? else { return Ok(0) };
            match file.read(buffer) {
                Ok(0) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => return read,
            } // At the end of the file, check whether another file has replaced it.
            let (own, there) = (file.metadata()?, std::fs::symlink_metadata(&self.path));
            match there {
                Ok(there) if there.ino() != own.ino() => self.file = None,
                _ => return Ok(0),
            }
        }
    }

    fn open(&mut self) -> io::Result<Option<&mut File>> {
        if self.file.is_none() {
            match plimsoll_files::open_inside(&self.path, 1) {
                Ok(file) => self.file = Some(file),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.file.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn rest(follower: &mut Follower) -> String {
        let mut all = Vec::new();
        let mut buffer = [0; 7];
        while let count @ 1.. = follower.read(&mut buffer).expect("readable") {
            all.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn added_bytes_are_read_across_a_rotation() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("output.log");
        let mut early = Follower::new(&path, u64::MAX).expect("a follower");
        assert_eq!(rest(&mut early), "");
        let mut file = File::create(&path).expect("a file");
        file.write_all(b"first line\n").expect("written");
        let mut late = Follower::new(&path, 5).expect("a follower");
        assert_eq!((rest(&mut early), rest(&mut late)), ("first line\n".to_owned(), "line\n".to_owned()));
        file.write_all(b"second\n").expect("written");
        std::fs::rename(&path, folder.path().join("output.log.1")).expect("renamed");
        std::fs::write(&path, "third\n").expect("written");
        for follower in [&mut early, &mut late] {
            assert_eq!(rest(follower), "second\nthird\n");
        }
    }

    /// In a folder from another user, the link may point to a private file.
    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [private, path] = ["private", "output.log"].map(|name| folder.path().join(name));
        std::fs::write(&private, "precious").expect("written");
        std::os::unix::fs::symlink(&private, &path).expect("a link");
        assert_eq!(Follower::new(&path, 5).expect_err("a link").kind(), ErrorKind::InvalidInput);
    }
}
