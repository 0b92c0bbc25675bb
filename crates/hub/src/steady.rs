//! A response body with a minimum rate. Without it, a server that sends a byte now and then would hold a download forever.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

/// Bytes that must arrive in each window, or the connection counts as lost.
pub(crate) const LEAST: u64 = 16 << 10;

/// Reads from a connection as long as it is fast enough.
pub(crate) struct Steady<R> {
    inner: R,
    window: Duration,
    since: Instant,
    came: u64,
}

impl<R: Read> Steady<R> {
    pub(crate) fn new(inner: R, window: Duration) -> Self {
        Self { inner, window, since: Instant::now(), came: 0 }
    }

    /// Counts bytes that arrived at a moment. Errors: fewer than [`LEAST`] arrived in the window before.
    fn count(&mut self, bytes: u64, now: Instant) -> io::Result<()> {
        self.came += bytes;
        if now.duration_since(self.since) < self.window {
            return Ok(());
        }
        if self.came < LEAST {
            let problem = format!("received only {} bytes in {} s", self.came, self.window.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, problem));
        }
        (self.since, self.came) = (now, 0);
        Ok(())
    }
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        // A body that has ended can't be too slow.
        if n > 0 {
            self.count(n as u64, Instant::now())?;
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_fails_and_a_steady_flow_does_not() {
        let mut body = Steady::new(io::empty(), Duration::from_secs(30));
        let at = |body: &Steady<_>, seconds| body.since + Duration::from_secs(seconds);
        for bytes in [LEAST, LEAST + 7] {
            let [soon, later] = [29, 31].map(|seconds| at(&body, seconds));
            body.count(0, soon).expect("the window has not ended");
            body.count(bytes, later).expect("enough came");
        }
        let late = at(&body, 30);
        let error = body.count(1, late).expect_err("it trickles");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "received only 1 bytes in 30 s"));
    }
}
