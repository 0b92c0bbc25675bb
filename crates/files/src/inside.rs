//! Files inside a run's folder. The folder may come from another user and contain links to this user's other files:
//! pages would show what is read through them, and writes would replace their targets. So no link below a run's folder
//! is followed. The folder itself and its parents may be links, since this user names them.

use crate::encoding::text;
use crate::open::{check, not_regular, open_regular_with, rest_at_most};
use crate::read_at::read_exact_at;
use plimsoll_units::Bytes;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a regular file for reading. The last `depth` components of its path are below a run's folder and must not be
/// links.
/// Errors: those of [`open_regular`](crate::open_regular); `NotRegular` for a link.
pub fn open_inside(path: &Path, depth: usize) -> io::Result<File> {
    let names = path.ancestors().take(depth).collect::<Vec<_>>();
    for name in names.iter().rev() {
        let found = fs::symlink_metadata(name)?;
        if found.is_symlink() {
            return Err(not_regular("a symbolic link"));
        }
        if *name == path {
            check(&found)?;
        }
    }
    open_regular_with(path, true)
}

/// Reads such a file of at most `limit` bytes.
/// Errors: those of [`open_inside`]; `TooLong`.
pub fn read_inside(path: &Path, depth: usize, limit: Bytes) -> io::Result<Vec<u8>> {
    rest_at_most(open_inside(path, depth)?, limit)
}

/// Reads the text of such a file of at most `limit` bytes.
/// Errors: those of [`read_inside`]; `InvalidData` if it is not UTF-8.
pub fn read_text_inside(path: &Path, depth: usize, limit: Bytes) -> io::Result<String> {
    text(read_inside(path, depth, limit)?)
}

/// Reads the last `limit` bytes of such a file, or all of it if it is shorter.
/// Errors: those of [`open_inside`]; the file was truncated during the read.
pub fn read_end_inside(path: &Path, depth: usize, limit: Bytes) -> io::Result<Vec<u8>> {
    let file = open_inside(path, depth)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(limit.0);
    let mut end = vec![0; (length - start) as usize];
    read_exact_at(&file, &mut end, start)?;
    Ok(end)
}

/// Checks that no existing folder from below `root` down to `path` is a link. Ignores a path outside of `root`.
/// Errors: one of them is a link; the system can't tell.
pub(crate) fn check_folders(root: &Path, path: &Path) -> io::Result<()> {
    for folder in path.ancestors().take_while(|folder| *folder != root && folder.starts_with(root)) {
        match fs::symlink_metadata(folder) {
            Ok(found) if found.is_symlink() => {
                let problem =
                    format!("{} is a symbolic link; a run writes only inside its own folder", folder.display());
                return Err(io::Error::new(ErrorKind::InvalidInput, problem));
            }
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::Disk;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_end_of_a_file_is_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        for (contents, end) in [("", ""), ("abc", "abc"), ("abcd", "abcd"), ("abcde", "bcde")] {
            fs::write(&path, contents).unwrap();
            assert_eq!(read_end_inside(&path, 1, Bytes(4)).unwrap(), end.as_bytes());
        }
    }

    #[test]
    fn links_in_a_runs_folder_are_not_followed_and_links_to_it_are() {
        let folder = tempfile::tempdir().unwrap();
        let (run, private) = (folder.path().join("run"), folder.path().join("private"));
        fs::create_dir_all(run.join("samples")).unwrap();
        fs::create_dir(&private).unwrap();
        fs::write(private.join("a"), "precious").unwrap();
        fs::write(run.join("samples/a"), "mine").unwrap();
        symlink(private.join("a"), run.join("a")).unwrap();
        symlink(&private, run.join("logs")).unwrap();
        symlink(&run, folder.path().join("named")).unwrap();
        let read = |name: &str, depth| {
            read_text_inside(&folder.path().join(name), depth, Bytes(99)).map_err(|error| error.to_string())
        };
        assert_eq!(read("named/samples/a", 2).as_deref(), Ok("mine"));
        let link = Err("it is a symbolic link, not a regular file".to_owned());
        assert_eq!((read("run/a", 1), read("run/logs/a", 2)), (link.clone(), link));
        assert!(read_end_inside(&run.join("a"), 1, Bytes(99)).is_err());
    }

    #[test]
    fn nothing_is_written_through_a_linked_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (run, private) = (folder.path().join("run"), folder.path().join("private"));
        fs::create_dir(&run).unwrap();
        fs::create_dir(&private).unwrap();
        fs::write(private.join("a"), "precious").unwrap();
        symlink(&private, run.join("logs")).unwrap();
        symlink(&run, folder.path().join("named")).unwrap();
        let named = folder.path().join("named");
        let disk = Disk::default().within(&named);
        disk.create_folders(&named.join("samples/deeper")).unwrap();
        disk.replace(&named.join("samples/deeper/a"), b"new").unwrap();
        let below = |name: &str| named.join("logs").join(name);
        for refused in [
            disk.create_folders(&named.join("logs")),
            disk.create_folders(&below("deeper")),
            disk.replace(&below("a"), b"new"),
            disk.write_new(&below("b"), b"new"),
            disk.open_log(&below("a")).map(drop),
            disk.remove_if_there(&below("a")),
            disk.rename(&named.join("samples/deeper/a"), &below("a")),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.ends_with("named/logs is a symbolic link; a run writes only inside its own folder"),
                "{error}"
            );
        }
        assert_eq!(fs::read_to_string(private.join("a")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&private).unwrap().count(), 1);
    }
}
