//! What a keeper and a supervisor tell each other, over a socket. To the keeper goes a [`Spec`] as a line of JSON, and
//! then single bytes; from it come frames: a byte that says what it is, a length, and so many bytes.

use crate::processes::Process;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};

/// To the keeper: what is still in the pipes, and no more.
pub(super) const FINISH: u8 = b'F';

/// To the keeper: the end is judged, nothing more is needed.
pub(super) const RELEASE: u8 = b'R';

/// More than any frame has: pieces of output have 64 KiB.
const LONGEST: u32 = 16 << 20;

/// What a keeper starts, and where it keeps what comes of it. Paths are words that may be no text.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The run's folder.
    pub(crate) folder: OsString,
    /// Which worker.
    pub(crate) worker: usize,
    /// Which attempt of it, from 1.
    pub(crate) attempt: u32,
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Variables that it gets besides the keeper's own.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The file of its output.
    pub(crate) log: OsString,
    /// How much of its output is kept.
    pub(crate) log_bytes: u64,
}

/// A program that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Which attempt it is.
    pub(crate) attempt: u32,
    /// The process, whose number is its group's.
    pub(crate) leader: Process,
    /// The pipes that it prints to, by the numbers that the system has for them.
    pub(crate) pipes: Vec<u64>,
    /// The keeper.
    pub(crate) keeper: Process,
}

/// How a process ended; nothing is known of one whose keeper is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// What a keeper tells.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The program runs, or ran.
    Started(Program),
    /// The system refused, by its number for the reason where it has one.
    Refused { number: Option<i32>, reason: String },
    /// Output is not kept.
    Lost(String),
    /// The program ended.
    Ended(Status),
    /// All of its output was carried.
    Carried,
}

/// What comes from a keeper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// What it tells.
    Told(Told),
    /// What the program printed to stdout, 0, or stderr, 1.
    Output(usize, Vec<u8>),
    /// The last bytes that it printed before this supervisor was there.
    Tail(Vec<u8>),
}

const TOLD: u8 = b'j';
const TAIL: u8 = b't';
const OUTPUT: [u8; 2] = [b'o', b'e'];

/// Errors: nobody reads any more.
pub(super) fn write_frame(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Told(told) => write_piece(to, TOLD, &serde_json::to_vec(told)?),
        Frame::Output(stream, bytes) => write_output(to, *stream, bytes),
        Frame::Tail(bytes) => write_piece(to, TAIL, bytes),
    }
}

/// Like [`write_frame`] of output, without a copy.
pub(super) fn write_output(to: &mut impl Write, stream: usize, bytes: &[u8]) -> io::Result<()> {
    write_piece(to, OUTPUT[stream], bytes)
}

fn write_piece(to: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_le_bytes();
    to.write_all(&[kind, a, b, c, d])?;
    to.write_all(bytes)
}

/// Errors: the keeper is gone, or it is no keeper.
pub(super) fn read_frame(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [kind, length @ ..] = head;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(match kind {
        TOLD => Frame::Told(serde_json::from_slice(&bytes)?),
        TAIL => Frame::Tail(bytes),
        kind => match OUTPUT.iter().position(|&output| output == kind) {
            Some(stream) => Frame::Output(stream, bytes),
            None => return Err(ErrorKind::InvalidData.into()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let leader = Process { pid: 7, started: "9".to_owned() };
        let program = Program { attempt: 2, leader: leader.clone(), pipes: vec![3], keeper: leader };
        let frames = [
            Frame::Told(Told::Started(program)),
            Frame::Told(Told::Refused { number: Some(2), reason: "none".to_owned() }),
            Frame::Output(0, b"a\n\0\xff".to_vec()),
            Frame::Output(1, vec![]),
            Frame::Tail(b"t".to_vec()),
            Frame::Told(Told::Ended(Status { code: None, signal: Some(9) })),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| write_frame(&mut bytes, frame).expect("written"));
        let mut rest = &bytes[..];
        for frame in &frames {
            assert_eq!(&read_frame(&mut rest).expect("a frame"), frame);
        }
        assert!(read_frame(&mut rest).is_err());
    }

    proptest! {
        #[test]
        fn what_is_no_frame_is_an_error(bytes in proptest::collection::vec(0u8..255, 0..40)) {
            let _ = read_frame(&mut &bytes[..]);
        }
    }
}
