//! Where output is passed through to: a stream of the supervisor's own, written by a thread. A reader that is slow holds up
//! the program that prints, as without a supervisor, but only once several MiB wait. One that has stopped reading, or is
//! gone, holds up nothing: what has no room then is dropped, and counted. The log has all of it.

use plimsoll_telemetry::{Outlet, Pieces, READER_PATIENCE};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

/// Pieces that wait to be written, of at most 64 KiB each.
const WAITING: usize = 64;

/// A stream that takes bytes.
pub type Stream = Box<dyn Write + Send>;

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Vec<u8>>,
    /// Whether nothing was taken since the reader's patience ended.
    is_stuck: bool,
    /// Bytes that had no room.
    dropped: u64,
}

impl Pieces for Waiting {
    fn take(&mut self) -> Option<Vec<u8>> {
        let piece = self.pieces.pop_front();
        self.is_stuck = self.is_stuck && piece.is_none();
        piece
    }
}

impl Waiting {
    fn has_room(&self) -> bool {
        self.pieces.len() < WAITING
    }
}

/// The way to it.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    outlet: Outlet<Waiting>,
    patience: Duration,
}

impl Screen {
    /// Starts the thread. Errors: the system refuses one.
    pub(crate) fn start(stream: Stream) -> io::Result<Self> {
        Self::start_with(stream, READER_PATIENCE)
    }

    fn start_with(stream: Stream, patience: Duration) -> io::Result<Self> {
        let outlet = Outlet::new(Waiting::default());
        outlet.start("screen", stream)?;
        Ok(Self { outlet, patience })
    }

    /// Passes bytes on. If too many wait already, it waits for as long as the reader reads, and then drops them.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        let has_room = self.outlet.wait_for(self.patience, |waiting| waiting.is_stuck || waiting.has_room());
        self.outlet.put(|waiting| {
            waiting.is_stuck |= !has_room;
            match waiting.has_room() {
                true => waiting.pieces.push_back(bytes),
                false => waiting.dropped += bytes.len() as u64,
            }
        });
    }

    /// Why bytes were not passed on, since the last call.
    pub(crate) fn take_reason(&self) -> Option<String> {
        self.outlet.take_error()
    }

    /// How many bytes had no room since the last call; `None` while the reader has not read on.
    pub(crate) fn take_dropped(&self) -> Option<u64> {
        let take = |waiting: &mut Waiting| (!waiting.is_stuck).then(|| std::mem::take(&mut waiting.dropped));
        self.outlet.put(take).flatten().filter(|&dropped| dropped > 0)
    }

    /// Waits until everything is written, for as long as the reader reads.
    pub(crate) fn finish(&self) {
        self.outlet.drain(self.patience, |waiting| waiting.pieces.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};

    /// Takes as many pieces as messages allow, and is gone after them.
    struct Reader {
        allowed: Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.allowed.recv().map_err(|_| ErrorKind::BrokenPipe)?;
            self.taken.lock().expect("a lock").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const PIECES: usize = 2 * WAITING;

    fn reader() -> (std::sync::mpsc::Sender<()>, Arc<Mutex<Vec<u8>>>, Stream) {
        let (allow, allowed) = channel();
        let taken = Arc::new(Mutex::new(vec![]));
        (allow, taken.clone(), Box::new(Reader { allowed, taken }))
    }

    #[test]
    fn a_reader_that_reads_gets_everything() {
        let (allow, taken, stream) = reader();
        let screen = Screen::start_with(stream, Duration::from_secs(60)).expect("a thread");
        (0..PIECES).for_each(|_| allow.send(()).expect("it reads"));
        (0..PIECES).for_each(|_| screen.send(b"piece".to_vec()));
        screen.finish();
        assert_eq!(*taken.lock().expect("a lock"), b"piece".repeat(PIECES));
        assert_eq!((screen.take_dropped(), screen.take_reason()), (None, None));
        drop(allow);
        screen.send(b"lost".to_vec());
        screen.finish();
        assert!(screen.take_reason().is_some(), "it is gone");
    }

    #[test]
    fn a_reader_that_stopped_is_waited_for_once_and_what_it_missed_is_counted_when_it_reads_on() {
        let (allow, taken, stream) = reader();
        let patience = Duration::from_millis(200);
        let screen = Screen::start_with(stream, patience).expect("a thread");
        screen.send(b"first".to_vec());
        // The thread has taken it, so that as many as have room wait for it.
        assert!(screen.outlet.wait_for(Duration::from_secs(60), |waiting| waiting.pieces.is_empty()));
        let begun = std::time::Instant::now();
        (0..PIECES).for_each(|_| screen.send(b"piece".to_vec()));
        assert!(begun.elapsed() < patience * 30, "every piece was waited for: {:?}", begun.elapsed());
        assert_eq!(screen.take_dropped(), None, "it has not read on");
        (0..=WAITING).for_each(|_| allow.send(()).expect("it reads"));
        screen.outlet.drain(Duration::from_secs(60), |waiting| waiting.pieces.is_empty());
        assert_eq!(*taken.lock().expect("a lock"), [b"first".to_vec(), b"piece".repeat(WAITING)].concat());
        assert_eq!(screen.take_dropped(), Some(5 * WAITING as u64));
        assert_eq!(screen.take_dropped(), None, "it is counted once");
    }
}
