//! Where output is passed through to: a stream of the supervisor's own, written by a thread. Somebody who reads slowly
//! holds up the program that prints, as without a supervisor, but only once several MiB wait; somebody who goes away
//! holds up nobody.

use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Pieces that wait to be written, of at most 64 KiB each.
const WAITING: usize = 64;

/// A stream that takes bytes.
pub type Stream = Box<dyn Write + Send>;

/// The way to it.
#[derive(Debug, Clone)]
pub(crate) struct Screen {
    pieces: SyncSender<Vec<u8>>,
    gone: Arc<Mutex<Option<String>>>,
}

impl Screen {
    /// Starts the thread, which ends when nobody can send any more.
    pub(crate) fn start(stream: Stream) -> io::Result<(Self, JoinHandle<()>)> {
        let (pieces, waiting) = sync_channel(WAITING);
        let gone = Arc::new(Mutex::new(None));
        let told = Arc::clone(&gone);
        let thread = std::thread::Builder::new().name("screen".to_owned());
        let thread = thread.spawn(move || write_all(stream, &waiting, &told))?;
        Ok((Self { pieces, gone }, thread))
    }

    /// Passes bytes on, and waits where too many wait already.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        // The thread only ends when there is no sender.
        let _ = self.pieces.send(bytes);
    }

    /// Why nothing is passed on any more, once.
    pub(crate) fn take_reason(&self) -> Option<String> {
        self.gone.lock().ok()?.take()
    }
}

fn write_all(mut stream: Stream, waiting: &Receiver<Vec<u8>>, gone: &Mutex<Option<String>>) {
    let mut is_gone = false;
    for piece in waiting {
        if is_gone {
            continue;
        }
        if let Err(error) = write_patiently(&mut stream, &piece) {
            is_gone = true;
            if let Ok(mut gone) = gone.lock() {
                *gone = Some(error.to_string());
            }
        }
    }
}

/// Another program may have made the terminal, which is shared, one that does not wait.
fn write_patiently(stream: &mut Stream, mut piece: &[u8]) -> io::Result<()> {
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
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes some bytes, refuses for a moment, takes some more, and goes away.
    struct Moody {
        taken: Arc<Mutex<Vec<u8>>>,
        calls: usize,
        leaves_after: usize,
    }

    impl Write for Moody {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            match self.calls {
                calls if calls > self.leaves_after => Err(ErrorKind::BrokenPipe.into()),
                calls if calls % 2 == 0 => Err(ErrorKind::WouldBlock.into()),
                _ => {
                    let count = bytes.len().min(3);
                    self.taken.lock().expect("a lock").extend(&bytes[..count]);
                    Ok(count)
                }
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn check(leaves_after: usize, sent: &[&[u8]]) -> (Vec<u8>, Option<String>) {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let stream = Moody { taken: Arc::clone(&taken), calls: 0, leaves_after };
        let (screen, thread) = Screen::start(Box::new(stream)).expect("a thread");
        sent.iter().for_each(|piece| screen.send(piece.to_vec()));
        let gone = Arc::clone(&screen.gone);
        drop(screen);
        thread.join().expect("it ends");
        let taken = taken.lock().expect("a lock").clone();
        let reason = gone.lock().expect("a lock").take();
        (taken, reason)
    }

    #[test]
    fn all_is_written_to_somebody_who_is_slow_and_nothing_to_somebody_who_is_gone() {
        assert_eq!(check(1000, &[b"some words", b"", b"and more"]), (b"some wordsand more".to_vec(), None));
        let many = vec![&b"piece"[..]; 10 * WAITING];
        let (taken, reason) = check(1, &many);
        assert_eq!((taken, reason.is_some()), (b"pie".to_vec(), true));
    }
}
