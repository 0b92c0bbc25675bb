//! Bytes with their shadow state, in pages that are allocated at the first access.

use super::stamp::{Access, Stamp};
use std::fmt;

/// Page size. Aligned accesses of up to 16 bytes never cross pages.
pub const PAGE: usize = 4096;
const WORD: usize = 4;
/// Size of the widest access.
pub const MOST_BYTES: usize = 16;
const WRITTEN: u8 = 1;
const IN_FLIGHT: u8 = 2;
/// Contents of unwritten memory.
const POISON: u8 = 0xA5;

/// Why an access is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// It reads unwritten bytes.
    Unwritten,
    /// It accesses bytes that an asynchronous copy has yet to write.
    InFlight,
    /// It races with another access: not ordered with a write, or a write not ordered with a read.
    Race {
        /// The other thread.
        other: Stamp,
        /// Whether the other one wrote.
        wrote: bool,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwritten => write!(f, "reads unwritten bytes"),
            Self::InFlight => write!(f, "touches bytes that cp.async has not delivered"),
            Self::Race { other, wrote } => {
                let verb = if *wrote { "writes" } else { "reads" };
                write!(f, "race: thread {} of block {} {verb} it, no barrier between", other.thread(), other.block())
            }
        }
    }
}

/// The last accesses of a byte, or of a word as long as a page has only word accesses.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    writer: Stamp,
    /// The last reader.
    reader: Stamp,
    /// The last reader with a larger distance than `reader`: another block, warp or thread.
    other: Stamp,
}

impl Cell {
    fn read(&mut self, access: &Access) -> Result<(), Problem> {
        if !access.follows(self.writer) {
            return Err(Problem::Race { other: self.writer, wrote: true });
        }
        let now = access.stamp();
        if self.reader.distance(now) >= self.other.distance(now) {
            self.other = self.reader;
        }
        self.reader = now;
        Ok(())
    }

    fn write(&mut self, access: &Access) -> Result<(), Problem> {
        for (other, wrote) in [(self.writer, true), (self.reader, false), (self.other, false)] {
            if !access.follows(other) {
                return Err(Problem::Race { other, wrote });
            }
        }
        self.writer = access.stamp();
        Ok(())
    }
}

/// Whether all bytes of an access are written. Compares fixed sizes, because it runs for every lane.
fn all_written(state: &[u8]) -> bool {
    match state.len() {
        2 => state == [WRITTEN; 2],
        4 => state == [WRITTEN; 4],
        8 => state == [WRITTEN; 8],
        16 => state == [WRITTEN; 16],
        _ => state.iter().all(|state| *state == WRITTEN),
    }
}

/// Copies the bytes of an access. Moves fixed sizes, because a `memcpy` call per lane would cost more.
pub fn copy(to: &mut [u8], from: &[u8]) {
    fn fixed<const N: usize>(to: &mut [u8], from: &[u8]) {
        if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk::<N>()) {
            *to = *from;
        }
    }
    match to.len() {
        2 => fixed::<2>(to, from),
        4 => fixed::<4>(to, from),
        8 => fixed::<8>(to, from),
        16 => fixed::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

struct Page {
    bytes: [u8; PAGE],
    state: [u8; PAGE],
    /// One cell per word or, after a narrower access, per byte.
    cells: Vec<Cell>,
    /// The launch to which `cells` belong.
    launch: u64,
}

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self { bytes: [POISON; PAGE], state: [0; PAGE], cells: Vec::new(), launch: 0 })
    }

    /// The cells of some bytes in this launch.
    fn cells(&mut self, at: usize, bytes: usize, launch: u64) -> &mut [Cell] {
        if self.launch != launch {
            self.launch = launch;
            self.cells.clear();
            self.cells.resize(PAGE / WORD, Cell::default());
        }
        let words = self.cells.len() == PAGE / WORD;
        if words && at.is_multiple_of(WORD) && bytes.is_multiple_of(WORD) {
            return &mut self.cells[at / WORD..(at + bytes) / WORD];
        }
        if words {
            self.cells = self.cells.iter().flat_map(|cell| [*cell; WORD]).collect();
        }
        &mut self.cells[at..at + bytes]
    }
}

/// A range of memory.
pub struct Pages {
    pages: Vec<Option<Box<Page>>>,
    bytes: u64,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes)", self.bytes)
    }
}

impl Pages {
    /// A range of unwritten bytes.
    pub fn new(bytes: u64) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(bytes.div_ceil(PAGE as u64) as usize, || None);
        Self { pages, bytes }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a launch already accessed the page.
    pub fn touched(&self, page: usize, launch: u64) -> bool {
        self.pages[page].as_ref().is_some_and(|page| page.launch == launch)
    }

    fn page(&mut self, at: usize) -> &mut Page {
        self.pages[at / PAGE].get_or_insert_with(Page::new)
    }

    /// Reads for a thread. The bytes are within this range and one page.
    pub fn read(&mut self, at: usize, out: &mut [u8], access: &Access, launch: u64) -> Result<(), Problem> {
        let (page, at) = (self.page(at), at % PAGE);
        let state = &page.state[at..at + out.len()];
        if !all_written(state) {
            let in_flight = state.iter().find(|state| **state != WRITTEN).is_some_and(|state| state & IN_FLIGHT != 0);
            return Err(if in_flight { Problem::InFlight } else { Problem::Unwritten });
        }
        for cell in page.cells(at, out.len(), launch) {
            cell.read(access)?;
        }
        copy(out, &page.bytes[at..at + out.len()]);
        Ok(())
    }

    /// Writes for a thread. The bytes are within this range and one page.
    pub fn write(&mut self, at: usize, data: &[u8], access: &Access, launch: u64) -> Result<(), Problem> {
        let (page, at) = (self.page(at), at % PAGE);
        if page.state[at..at + data.len()].iter().any(|state| state & IN_FLIGHT != 0) {
            return Err(Problem::InFlight);
        }
        for cell in page.cells(at, data.len(), launch) {
            cell.write(access)?;
        }
        copy(&mut page.bytes[at..at + data.len()], data);
        copy(&mut page.state[at..at + data.len()], &[WRITTEN; MOST_BYTES][..data.len()]);
        Ok(())
    }

    /// Marks bytes that an asynchronous copy will write: earlier accesses must be ordered before it.
    pub fn depart(&mut self, at: usize, bytes: usize, access: &Access, launch: u64) -> Result<(), Problem> {
        let (page, at) = (self.page(at), at % PAGE);
        if page.state[at..at + bytes].iter().any(|state| state & IN_FLIGHT != 0) {
            return Err(Problem::InFlight);
        }
        for cell in page.cells(at, bytes, launch) {
            cell.write(access)?;
        }
        page.state[at..at + bytes].iter_mut().for_each(|state| *state |= IN_FLIGHT);
        Ok(())
    }

    /// Writes the bytes of an asynchronous copy that [`Pages::depart`] announced.
    pub fn arrive(&mut self, at: usize, data: &[u8], access: &Access, launch: u64) -> Result<(), Problem> {
        let (page, start) = (self.page(at), at % PAGE);
        page.state[start..start + data.len()].iter_mut().for_each(|state| *state &= !IN_FLIGHT);
        self.write(at, data, access, launch)
    }

    /// Writes for the host or a copy, with any length.
    pub fn fill_from(&mut self, at: usize, data: &[u8]) {
        let mut at = at;
        let mut left = data;
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(PAGE - at % PAGE));
            let page = self.page(at);
            page.bytes[at % PAGE..][..piece.len()].copy_from_slice(piece);
            page.state[at % PAGE..][..piece.len()].fill(WRITTEN);
            at += piece.len();
            left = rest;
        }
    }

    /// Reads for the host, with any length: the bytes, and whether each was written.
    pub fn copy_out(&self, at: usize, out: &mut [u8], written: &mut [bool]) {
        for (offset, (byte, written)) in out.iter_mut().zip(written).enumerate() {
            let place = at + offset;
            let page = self.pages[place / PAGE].as_ref();
            *byte = page.map_or(POISON, |page| page.bytes[place % PAGE]);
            *written = page.is_some_and(|page| page.state[place % PAGE] == WRITTEN);
        }
    }

    /// Marks bytes as unwritten.
    pub fn forget(&mut self, at: usize, bytes: usize) {
        let end = at + bytes;
        let mut at = at;
        while at < end {
            let piece = (end - at).min(PAGE - at % PAGE);
            if let Some(page) = &mut self.pages[at / PAGE] {
                page.state[at % PAGE..][..piece].fill(0);
                page.bytes[at % PAGE..][..piece].fill(POISON);
            }
            at += piece;
        }
    }

    /// Ranges of a page that a launch read and wrote, as `(start, end, written)` offsets into this range.
    pub fn accesses(&self, page: usize, launch: u64) -> Vec<(u64, u64, bool)> {
        let Some(content) = self.pages[page].as_ref().filter(|content| content.launch == launch) else {
            return Vec::new();
        };
        let size = (PAGE / content.cells.len()) as u64;
        let mut found: Vec<(u64, u64, bool)> = Vec::new();
        for written in [false, true] {
            for (index, cell) in content.cells.iter().enumerate() {
                if !(if written { cell.writer } else { cell.reader }).is_access() {
                    continue;
                }
                let start = (page * PAGE) as u64 + index as u64 * size;
                match found.last_mut() {
                    Some(last) if last.1 == start && last.2 == written => last.1 += size,
                    _ => found.push((start, start + size, written)),
                }
            }
        }
        found
    }
}
