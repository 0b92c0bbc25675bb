//! A stream with a reader that may stop reading, such as a terminal or a pipe. A thread of its own writes to it, so a `write`
//! that blocks stops neither a step nor a signal.
//! Not here: what waits to be written, and what is dropped when there is too much of it (`W`).
//!
//! ```text
//!   a step ─► Outlet::put ─► W ─► Pieces::take ─► the writer's thread ─► a terminal, a pipe
//!   the end ─► Outlet::drain
//! ```

use crate::lane::{Lane, Next, Wake};
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

/// How long a reader may take nothing before it counts as one that has stopped reading.
pub const READER_PATIENCE: Duration = Duration::from_secs(2);

/// Bytes per `write`: a pipe takes so many at once or none, and each is progress.
const PIECE: usize = 4096;

/// How long to wait before another try, if another process has made the stream one that does not block.
const RETRY: Duration = Duration::from_millis(5);

/// What waits to be written.
pub trait Pieces: Send + 'static {
    /// The next bytes; `None` if nothing waits.
    fn take(&mut self) -> Option<Vec<u8>>;
}

#[derive(Debug)]
struct Pending<W> {
    pieces: W,
    /// Whether bytes that were taken are not written yet.
    is_writing: bool,
    /// Whether the thread runs.
    is_started: bool,
}

/// A stream that a thread writes to.
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
    /// An outlet without a thread. What is put in waits.
    pub fn new(pieces: W) -> Self {
        Self { lane: Arc::new(Lane::new(Pending { pieces, is_writing: false, is_started: false })) }
    }

    /// Starts the thread. Errors: the system refuses one; what waits can be written by [`Outlet::write_now`].
    pub fn start(&self, name: &str, stream: impl Write + Send + 'static) -> io::Result<()> {
        self.lane.start_at_once(name.to_owned(), |lane| write_all(lane, stream))?;
        self.lane.settle(|pending, _| pending.is_started = true);
        Ok(())
    }

    /// Whether a thread writes.
    pub fn is_started(&self) -> bool {
        self.lane.settle(|pending, _| pending.is_started)
    }

    /// Changes what waits. Never waits for the reader.
    pub fn put<T>(&self, change: impl FnOnce(&mut W) -> T) -> Option<T> {
        let mut result = None;
        self.lane.put(|pending, _| {
            result = Some(change(&mut pending.pieces));
            Wake::Yes
        })?;
        result
    }

    /// Changes what waits and writes all of it on the calling thread, which waits for the reader.
    pub fn write_now(&self, stream: &mut impl Write, change: impl FnOnce(&mut W)) {
        self.lane.settle(|pending, _| {
            change(&mut pending.pieces);
            while let Some(bytes) = pending.pieces.take() {
                // What the stream refuses is lost, and nothing else is.
                let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
            }
        });
    }

    /// Waits until `is_so`, for as long as the reader reads. Returns false once it has read nothing for `patience`.
    pub fn wait_for(&self, patience: Duration, is_so: impl Fn(&W) -> bool) -> bool {
        self.lane.wait_while_it_works(patience, |pending| is_so(&pending.pieces))
    }

    /// Waits until everything is written, for as long as the reader reads. Returns false once it has read nothing for
    /// `patience`. `is_empty`: whether nothing waits.
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
            (Some(bytes), _) => Next::Now(bytes),
            (None, None) => Next::Later,
            (None, Some(_)) => Next::Over,
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

/// Writes a piece, also to a terminal that another process has made one that does not block.
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

    /// Takes what it is allowed to: a number of bytes for each message.
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
    fn all_is_written_in_order_while_the_reader_reads_and_nobody_waits_for_one_that_does_not() {
        let (allow, allowed) = channel();
        let taken = Arc::new(Mutex::new(vec![]));
        let outlet = Outlet::new(VecDeque::new());
        outlet.start("writer", Reader { allowed, taken: taken.clone() }).expect("a thread");
        for word in [&b"some words"[..], b"", b" and more"] {
            outlet.put(|waiting| waiting.push_back(word.to_vec()));
        }
        assert!(!outlet.drain(Duration::from_millis(1), VecDeque::is_empty), "nobody reads");
        for count in [3, 0, 1000, 1000] {
            allow.send(count).expect("it is read");
        }
        assert!(outlet.drain(LONG, VecDeque::is_empty));
        assert_eq!(*taken.lock().expect("whole"), b"some words and more");
        assert_eq!(outlet.take_error(), None);
        drop(allow);
        outlet.put(|waiting| waiting.push_back(b"lost".to_vec()));
        assert!(outlet.drain(LONG, VecDeque::is_empty), "a reader that is gone keeps nobody waiting");
        assert!(outlet.take_error().is_some_and(|error| error.contains("broken pipe")));
    }

    #[test]
    fn without_a_thread_the_caller_writes() {
        let outlet = Outlet::new(VecDeque::from([b"a".to_vec()]));
        let mut stream = vec![];
        outlet.write_now(&mut stream, |waiting| waiting.push_back(b"b".to_vec()));
        assert_eq!((stream.as_slice(), outlet.is_started()), (&b"ab"[..], false));
    }
}
