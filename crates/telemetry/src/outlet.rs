//! A stream whose reader may stop reading, such as a terminal or a pipe. A separate thread writes to it, so a blocked
//! `write` delays neither a step nor a signal.
//! Not here: the pending output, and what is dropped if there is too much of it (`W`).
//!
//! ```text
//!   a step ─► Outlet::put ─► W ─► Pieces::take ─► the writer's thread ─► a terminal, a pipe
//!   the end ─► Outlet::drain
//! ```

use crate::lane::{Lane, NextItem, Wake};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

/// A reader that takes nothing for this long counts as stopped.
pub const READER_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes per `write`: a pipe accepts this many at once or none, and each write is progress.
const PIECE: usize = 4096;

/// Delay before another attempt if another process has made the stream nonblocking.
const RETRY: Duration = Duration::from_millis(5);

/// Pending output.
pub trait Pieces: Send + 'static {
    /// The next bytes; `None` if nothing waits.
    fn take(&mut self) -> Option<Vec<u8>>;
}

#[derive(Debug)]
struct Pending<W> {
    pieces: W,
    /// Whether the thread took some bytes but has not written them yet.
    is_writing: bool,
    /// Bytes that were taken without a thread but are not written yet.
    unwritten: Vec<u8>,
    /// Whether the thread runs.
    is_started: bool,
}

/// A stream with a writer thread.
#[derive(Debug)]
pub struct Outlet<W> {
    lane: Arc<Lane<Pending<W>>>,
}

impl<W> Clone for Outlet<W> {
    fn clone(&self) -> Self {
        Self { lane: self.lane.clone() }
    }
}

impl<W: Pieces> Outlet<W> {
    /// An outlet without a thread. Added output waits.
    pub fn new(pieces: W) -> Self {
        Self { lane: Arc::new(Lane::new(Pending { pieces, is_writing: false, unwritten: vec![], is_started: false })) }
    }

    /// Starts the thread. Errors: the system refuses to start one; [`Outlet::write_now`] can write the pending output.
    pub fn start(&self, name: &str, stream: impl Write + Send + 'static) -> io::Result<()> {
        self.lane.start_at_once(name.to_owned(), |lane| write_all(lane, stream))?;
        self.lane.settle(|pending, _| pending.is_started = true);
        Ok(())
    }

    /// Whether a thread writes.
    pub fn is_started(&self) -> bool {
        self.lane.settle(|pending, _| pending.is_started)
    }

    /// Changes the pending output. Never waits for the reader.
    pub fn put<T>(&self, change: impl FnOnce(&mut W) -> T) -> Option<T> {
        let mut result = None;
        self.lane.put(|pending, _| {
            result = Some(change(&mut pending.pieces));
            Wake::Yes
        })?;
        result
    }

    /// Changes the pending output, and writes it on the calling thread as long as `is_ready` reports before each piece
    /// that the stream accepts it without waiting. Returns whether everything is written. For outlets without a thread.
    pub fn write_now(&self, stream: &mut impl Write, change: impl FnOnce(&mut W), is_ready: impl Fn() -> bool) -> bool {
        self.lane.settle(|pending, _| {
            change(&mut pending.pieces);
            loop {
                if pending.unwritten.is_empty() {
                    match pending.pieces.take() {
                        Some(bytes) => pending.unwritten = bytes,
                        None => return true,
                    }
                }
                if !is_ready() {
                    return false;
                }
                let piece = &pending.unwritten[..pending.unwritten.len().min(PIECE)];
                match write_patiently(stream, piece) {
                    Ok(()) => drop(pending.unwritten.drain(..piece.len())),
                    // Output that the stream refuses is lost; nothing else is.
                    Err(_) => pending.unwritten.clear(),
                }
            }
        })
    }

    /// Waits until `is_so` while the reader reads. Returns false if it reads nothing for `patience`.
    pub fn wait_for(&self, patience: Duration, is_so: impl Fn(&W) -> bool) -> bool {
        self.lane.wait_while_it_works(patience, |pending| is_so(&pending.pieces))
    }

    /// Waits until everything is written, while the reader reads. Returns false if it reads nothing for `patience`.
    /// `is_empty`: whether no output is pending.
    pub fn drain(&self, patience: Duration, is_empty: impl Fn(&W) -> bool) -> bool {
        self.lane.wait_while_it_works(patience, |pending| !pending.is_writing && is_empty(&pending.pieces))
    }

    /// The last error of the stream since the last call.
    pub fn take_error(&self) -> Option<String> {
        self.lane.settle(|_, counts| counts.last_error.take())
    }
}

fn write_all<W: Pieces>(lane: &Lane<Pending<W>>, mut stream: impl Write) {
    let next = |pending: &mut Pending<W>, deadline| {
        let bytes = pending.pieces.take();
        pending.is_writing = bytes.is_some();
        match (bytes, deadline) {
            (Some(bytes), _) => NextItem::Item(bytes),
            (None, None) => NextItem::WaitForChange,
            (None, Some(_)) => NextItem::Closed,
        }
    };
    while let Some(bytes) = lane.next(next) {
        for piece in bytes.chunks(PIECE) {
            match write_patiently(&mut stream, piece) {
                Ok(()) => lane.settle(|_, counts| counts.done += 1),
                Err(error) => {
                    lane.settle(|_, counts| counts.last_error = Some(error.to_string()));
                    break;
                }
            }
        }
        lane.settle(|pending, _| pending.is_writing = false);
    }
}

/// Writes a piece, even to a terminal that another process has made nonblocking.
fn write_patiently(stream: &mut impl Write, mut piece: &[u8]) -> io::Result<()> {
    loop {
        let result = match piece.is_empty() {
            true => stream.flush().map(|()| 0),
            false => stream.write(piece),
        };
        match result {
            Ok(0) if piece.is_empty() => return Ok(()),
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => piece = &piece[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    impl Pieces for VecDeque<Vec<u8>> {
        fn take(&mut self) -> Option<Vec<u8>> {
            self.pop_front()
        }
    }

    /// Accepts a given number of bytes for each message.
    struct Reader {
        allowed: Receiver<usize>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.allowed.recv().map_err(|_| ErrorKind::BrokenPipe)?.min(bytes.len());
            self.taken.lock().expect("whole").extend(&bytes[..count]);
            if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_is_written_in_order_and_a_stalled_reader_blocks_no_one() {
        let (allow, allowed) = channel();
        let taken = Arc::new(Mutex::new(vec![]));
        let outlet = Outlet::new(VecDeque::new());
        outlet.start("writer", Reader { allowed, taken: taken.clone() }).expect("a thread");
        for word in [&b"some words"[..], b"", b" and more"] {
            outlet.put(|waiting| waiting.push_back(word.to_vec()));
        }
        assert!(!outlet.drain(Duration::from_millis(1), VecDeque::is_empty), "no reader");
        for count in [3, 0, 1000, 1000] {
            allow.send(count).expect("it is read");
        }
        assert!(outlet.drain(LONG, VecDeque::is_empty));
        assert_eq!(*taken.lock().expect("whole"), b"some words and more");
        assert_eq!(outlet.take_error(), None);
        drop(allow);
        outlet.put(|waiting| waiting.push_back(b"lost".to_vec()));
        assert!(outlet.drain(LONG, VecDeque::is_empty), "a closed reader does not block");
        assert!(outlet.take_error().is_some_and(|error| error.contains("broken pipe")));
    }

    #[test]
    fn without_a_thread_the_caller_writes_what_the_stream_accepts() {
        let outlet = Outlet::new(VecDeque::from([b"a".to_vec()]));
        let mut stream = vec![];
        assert!(outlet.write_now(&mut stream, |waiting| waiting.push_back(b"b".to_vec()), || true));
        assert_eq!((stream.as_slice(), outlet.is_started()), (&b"ab"[..], false));
        let accepted = std::cell::Cell::new(1_u32);
        let is_ready = || accepted.replace(accepted.get().saturating_sub(1)) > 0;
        let long = vec![b'.'; PIECE + 1];
        assert!(!outlet.write_now(&mut stream, |waiting| waiting.push_back(long), is_ready), "one piece is accepted");
        assert_eq!(stream.len(), 2 + PIECE);
        assert!(outlet.write_now(&mut stream, |waiting| waiting.push_back(b"c".to_vec()), || true));
        assert_eq!(stream[2 + PIECE..], *b".c", "the rest is written in order");
    }
}
