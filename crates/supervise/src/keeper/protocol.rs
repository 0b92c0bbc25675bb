//! The protocol between a keeper and a supervisor over a socket. The supervisor sends a [`Spec`] as a line of JSON,
//! then single bytes. The keeper sends frames: a type byte, a length, and the payload.

use plimsoll_registry::{ExitStatus, Process};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};

/// To the keeper: carry what is still in the pipes, then stop.
pub(super) const FINISH: u8 = b'F';

/// To the keeper: the supervisor has handled the end; exit.
pub(super) const RELEASE: u8 = b'R';

/// Size limit of a frame. Pieces of output have 64 KiB.
const LONGEST: u32 = 16 << 20;

/// What a keeper starts, and where it stores the output and the exit status. Paths need not be UTF-8.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The run's folder.
    pub(crate) folder: OsString,
    /// The worker.
    pub(crate) worker: usize,
    /// The number of the attempt, from 1.
    pub(crate) attempt: u32,
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Environment variables in addition to the keeper's own.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The log of its output.
    pub(crate) log: OsString,
    /// Size limit of the log.
    pub(crate) log_bytes: u64,
}

/// A started program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The number of the attempt.
    pub(crate) attempt: u32,
    /// The first process. Its ID is the group's.
    pub(crate) leader: Process,
    /// Inode numbers of the pipes that it prints to.
    pub(crate) pipes: Vec<u64>,
    /// The keeper.
    pub(crate) keeper: Process,
}

/// A message from a keeper.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum KeeperMessage {
    /// The program was started.
    Started(Program),
    /// The program could not be started. `number`: the system's error code, if it has one.
    Refused { number: Option<i32>, reason: String },
    /// Output could not be logged, for this reason.
    Lost(String),
    /// The program ended.
    Ended(ExitStatus),
    /// All of its output was carried.
    Carried,
}

/// A frame from a keeper.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message.
    Message(KeeperMessage),
    /// Output of the program: stream (0 for stdout, 1 for stderr) and bytes.
    Output(usize, Vec<u8>),
    /// The last bytes of output from before this supervisor connected.
    Tail(Vec<u8>),
}

const MESSAGE: u8 = b'j';
const TAIL: u8 = b't';
const OUTPUT: [u8; 2] = [b'o', b'e'];

/// Writes a frame. Errors: the supervisor is gone.
pub(super) fn write_frame(to: &mut impl Write, frame: &Frame) -> io::Result<()> {
    match frame {
        Frame::Message(told) => write_piece(to, MESSAGE, &serde_json::to_vec(told)?),
        Frame::Output(stream, bytes) => write_output(to, *stream, bytes),
        Frame::Tail(bytes) => write_piece(to, TAIL, bytes),
    }
}

/// Writes an output frame without copying the bytes.
pub(super) fn write_output(to: &mut impl Write, stream: usize, bytes: &[u8]) -> io::Result<()> {
    write_piece(to, OUTPUT[stream], bytes)
}

fn write_piece(to: &mut impl Write, kind: u8, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_le_bytes();
    to.write_all(&[kind, a, b, c, d])?;
    to.write_all(bytes)
}

/// Reads a frame. Errors: the keeper is gone, or the other side is not a keeper.
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
        MESSAGE => Frame::Message(serde_json::from_slice(&bytes)?),
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
            Frame::Message(KeeperMessage::Started(program)),
            Frame::Message(KeeperMessage::Refused { number: Some(2), reason: "none".to_owned() }),
            Frame::Output(0, b"a\n\0\xff".to_vec()),
            Frame::Output(1, vec![]),
            Frame::Tail(b"t".to_vec()),
            Frame::Message(KeeperMessage::Ended(ExitStatus { code: None, signal: Some(9) })),
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
        fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(0u8..255, 0..40)) {
            let _ = read_frame(&mut &bytes[..]);
        }
    }
}
