//! A body that must keep coming: a server that sends a byte now and then would hold a download forever.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

/// Bytes that must come in the time after which a connection counts as lost.
pub(crate) const LEAST: u64 = 16 << 10;

/// Reads what comes, as long as it comes fast enough.
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

    /// Counts bytes that came at a moment. Errors: fewer than [`LEAST`] came in the time before.
    fn count(&mut self, bytes: u64, now: Instant) -> io::Result<()> {
        self.came += bytes;
        if now.duration_since(self.since) < self.window {
            return Ok(());
        }
        if self.came < LEAST {
            let problem = format!("only {} bytes came in {} s", self.came, self.window.as_secs());
            return Err(io::Error::new(ErrorKind::TimedOut, problem));
        }
        (self.since, self.came) = (now, 0);
        Ok(())
    }
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        // What has come to its end can't be too slow any more.
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
    fn what_trickles_is_given_up_and_what_flows_is_not() {
        let mut body = Steady::new(io::empty(), Duration::from_secs(30));
        let at = |body: &Steady<_>, seconds| body.since + Duration::from_secs(seconds);
        for bytes in [LEAST, LEAST + 7] {
            let [soon, later] = [29, 31].map(|seconds| at(&body, seconds));
            body.count(0, soon).expect("it has time");
            body.count(bytes, later).expect("enough came");
        }
        let late = at(&body, 30);
        let error = body.count(1, late).expect_err("it trickles");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TimedOut, "only 1 bytes came in 30 s"));
    }
}
