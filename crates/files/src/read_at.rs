//! Reads a file at an offset. Any number of threads may do so at once.

use std::fs::File;
use std::io;

/// Fills `out` with the bytes of a file at `offset`.
/// Errors: those of the system; `UnexpectedEof` if the file ends before.
pub fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, out, offset);
    #[cfg(windows)]
    {
        use std::os::windows::fs::FileExt;
        let (mut offset, mut out) = (offset, out);
        while !out.is_empty() {
            let count = file.seek_read(out, offset)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            (offset, out) = (offset + count as u64, &mut out[count..]);
        }
        Ok(())
    }
}
