//! Forwards output to one of the supervisor's own streams, on a thread. A slow reader blocks the printing program, as
//! without a supervisor, but only once several MiB are queued. A reader that has stopped or is gone blocks nothing:
//! output without room is dropped and counted. The log still contains all of it.

use plimsoll_telemetry::{Outlet, Pieces, READER_PATIENCE};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

/// Length of the queue, in pieces of at most 64 KiB.
const WAITING: usize = 64;

/// A stream to write to.
pub type Stream = Box<dyn Write + Send>;

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Vec<u8>>,
    /// Whether the reader exceeded its time limit and has taken nothing since.
    is_stuck: bool,
    /// Dropped bytes.
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

/// A handle to the forwarding thread.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    outlet: Outlet<Waiting>,
    patience: Duration,
}

impl Screen {
    /// Starts the thread. Errors: the system can't start one.
    pub(crate) fn start(stream: Stream) -> io::Result<Self> {
        Self::start_with(stream, READER_PATIENCE)
    }

    fn start_with(stream: Stream, patience: Duration) -> io::Result<Self> {
        let outlet = Outlet::new(Waiting::default());
        outlet.start("screen", stream)?;
        Ok(Self { outlet, patience })
    }

    /// Forwards bytes. If the queue is full, waits as long as the reader makes progress, then drops them.
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

    /// The error that stopped forwarding since the last call.
    pub(crate) fn take_reason(&self) -> Option<String> {
        self.outlet.take_error()
    }

    /// Bytes dropped since the last call; `None` if there are none, or while the reader is still stuck.
    pub(crate) fn take_dropped(&self) -> Option<u64> {
        let take = |waiting: &mut Waiting| (!waiting.is_stuck).then(|| std::mem::take(&mut waiting.dropped));
        self.outlet.put(take).flatten().filter(|&dropped| dropped > 0)
    }

    /// Waits until everything is written, as long as the reader makes progress.
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

    /// Takes one piece per message, and fails once the sender is gone.
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
    fn an_active_reader_gets_everything() {
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
    fn a_stuck_reader_is_waited_for_once_and_dropped_bytes_are_reported_when_it_resumes() {
        let (allow, taken, stream) = reader();
        let patience = Duration::from_millis(200);
        let screen = Screen::start_with(stream, patience).expect("a thread");
        screen.send(b"first".to_vec());
        // The thread has taken the first piece, so the queue is empty.
        assert!(screen.outlet.wait_for(Duration::from_secs(60), |waiting| waiting.pieces.is_empty()));
        let begun = std::time::Instant::now();
        (0..PIECES).for_each(|_| screen.send(b"piece".to_vec()));
        assert!(begun.elapsed() < patience * 30, "it waited for every piece: {:?}", begun.elapsed());
        assert_eq!(screen.take_dropped(), None, "it is still stuck");
        (0..=WAITING).for_each(|_| allow.send(()).expect("it reads"));
        screen.outlet.drain(Duration::from_secs(60), |waiting| waiting.pieces.is_empty());
        assert_eq!(*taken.lock().expect("a lock"), [b"first".to_vec(), b"piece".repeat(WAITING)].concat());
        assert_eq!(screen.take_dropped(), Some(5 * WAITING as u64));
        assert_eq!(screen.take_dropped(), None, "it is reported once");
    }
}
