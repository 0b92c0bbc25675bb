//! Files of lines that each contain a step, in order: finds where the repeated steps begin.

use plimsoll_files::Log;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

/// Longer lines are not ours.
const LINE_MAX: u64 = 1 << 20;

/// Number of bytes of the complete lines before the first one whose step is `first_step` or later. Keeps lines without
/// a step, but not an incomplete last line.
pub(crate) fn before_step(log: &mut Log, first_step: u64, step_of: impl Fn(&[u8]) -> Option<u64>) -> io::Result<u64> {
    log.file().seek(SeekFrom::Start(0))?;
    let mut lines = BufReader::new(log.file());
    let (mut line, mut kept, mut at) = (Vec::new(), 0, 0);
    // Whether the next part starts a line, rather than continuing one that is too long.
    let mut begins = true;
    loop {
        line.clear();
        let read = (&mut lines).take(LINE_MAX).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(kept);
        }
        let is_whole = line.last() == Some(&b'\n');
        if begins && is_whole && step_of(&line).is_some_and(|step| step >= first_step) {
            return Ok(kept);
        }
        at += read;
        begins = is_whole;
        if is_whole {
            kept = at;
        }
    }
}
