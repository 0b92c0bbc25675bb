//! The device's address space: regions with wide gaps, so that an address past one region is in no other.

use super::pages::{PAGE, Pages};
use super::rights::Rights;
use std::collections::BTreeMap;
use std::fmt;

/// Address of the first region.
pub const BASE: u64 = 0x3_0000_0000;
/// Gap between regions.
const GAP: u64 = 1 << 30;

/// A region of device memory.
#[derive(Debug)]
pub struct Region {
    /// Its bytes.
    pub pages: Pages,
    /// Whether the card may access it; mapped memory needs `cuMemSetAccess`.
    pub accessible: bool,
}

/// Why an access is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outside {
    /// The address is in no region.
    Nowhere,
    /// The access starts in a region and ends past it.
    Past {
        /// Offset of the first byte.
        offset: u64,
        /// Size of the region.
        bytes: u64,
    },
    /// The region is mapped, but access was not set.
    Inaccessible,
    /// The launch has no right to access it.
    NotAllowed,
}

impl fmt::Display for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => write!(f, "is in no allocation"),
            Self::Past { offset, bytes } => write!(f, "is out of bounds: offset {offset} of an allocation of {bytes}"),
            Self::Inaccessible => write!(f, "is mapped without access"),
            Self::NotAllowed => write!(f, "is outside the regions announced for the launch"),
        }
    }
}

/// An accessed range: start, end, whether written.
pub type Touched = (u64, u64, bool);

/// All device memory.
#[derive(Debug)]
pub struct Memory {
    regions: BTreeMap<u64, Region>,
    next: u64,
    launch: u64,
    /// Pages that the current launch accessed: region and index.
    touched: Vec<(u64, usize)>,
    /// Access rights of the current launch.
    pub rights: Rights,
}

impl Default for Memory {
    fn default() -> Self {
        Self { regions: BTreeMap::new(), next: BASE, launch: 0, touched: Vec::new(), rights: Rights::default() }
    }
}

impl Memory {
    /// Unused addresses for a number of bytes, without memory.
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        let base = self.next;
        self.next += (bytes + GAP).next_multiple_of(GAP);
        base
    }

    /// Allocates memory at new addresses.
    pub fn allocate(&mut self, bytes: u64) -> u64 {
        let base = self.reserve(bytes);
        self.place(base, Region { pages: Pages::new(bytes), accessible: true });
        base
    }

    /// Inserts a region at an address.
    pub fn place(&mut self, base: u64, region: Region) {
        self.regions.insert(base, region);
    }

    /// Removes the region that starts at an address.
    pub fn remove(&mut self, base: u64) -> Option<Region> {
        self.regions.remove(&base)
    }

    /// The region that starts at an address.
    pub fn region(&mut self, base: u64) -> Option<&mut Region> {
        self.regions.get_mut(&base)
    }

    /// The region that contains these bytes, and their offset in it.
    fn find(&mut self, address: u64, bytes: u64) -> Result<(u64, &mut Region, u64), Outside> {
        find(&mut self.regions, address, bytes)
    }

    /// Starts a launch.
    pub fn begin_launch(&mut self) {
        self.launch += 1;
        self.touched.clear();
    }

    /// The pages, offset and launch number for a thread's access.
    pub fn access(&mut self, address: u64, bytes: u64, write: bool) -> Result<(&mut Pages, usize, u64), Outside> {
        if !self.rights.allows(address, bytes, write) {
            // Report an invalid address before missing rights: the message is clearer.
            self.find(address, bytes)?;
            return Err(Outside::NotAllowed);
        }
        let (base, region, offset) = find(&mut self.regions, address, bytes)?;
        let page = offset as usize / PAGE;
        if !region.pages.touched(page, self.launch) {
            self.touched.push((base, page));
        }
        Ok((&mut region.pages, offset as usize, self.launch))
    }

    /// Ranges that the launch read and wrote, ordered by address.
    pub fn end_launch(&mut self) -> Vec<Touched> {
        self.touched.sort_unstable();
        let mut all: Vec<Touched> = Vec::new();
        for write in [false, true] {
            for (base, page) in &self.touched {
                let Some(region) = self.regions.get(base) else { continue };
                let accesses = region.pages.accesses(*page, self.launch);
                for (start, end, _) in accesses.into_iter().filter(|access| access.2 == write) {
                    match all.last_mut() {
                        Some(last) if last.1 == base + start && last.2 == write => last.1 = base + end,
                        _ => all.push((base + start, base + end, write)),
                    }
                }
            }
        }
        all
    }

    /// The parts of regions that contain these bytes; copies may cross adjacent mapped regions.
    fn pieces(&mut self, address: u64, bytes: u64) -> Result<Vec<(u64, u64)>, Outside> {
        let (mut at, end) = (address, address.checked_add(bytes).ok_or(Outside::Nowhere)?);
        let mut pieces = Vec::new();
        while at < end {
            let (base, region, offset) = self.find(at, 1)?;
            let piece = (region.pages.bytes() - offset).min(end - at);
            // Only mapped regions can be adjacent.
            if at + piece < end && !self.regions.contains_key(&(at + piece)) {
                let bytes = at + piece - base;
                return Err(Outside::Past { offset, bytes });
            }
            pieces.push((at, piece));
            at += piece;
        }
        Ok(pieces)
    }

    /// Writes the bytes of a copy.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<(), Outside> {
        let mut done = 0;
        for (at, piece) in self.pieces(address, data.len() as u64)? {
            let (_, region, offset) = self.find(at, piece)?;
            region.pages.fill_from(offset as usize, &data[done..done + piece as usize]);
            done += piece as usize;
        }
        Ok(())
    }

    /// Reads the bytes of a copy, and whether each was written.
    pub fn read(&mut self, address: u64, bytes: u64) -> Result<(Vec<u8>, Vec<bool>), Outside> {
        let pieces = self.pieces(address, bytes)?;
        let (mut out, mut written) = (vec![0; bytes as usize], vec![false; bytes as usize]);
        let mut done = 0;
        for (at, piece) in pieces {
            let (_, region, offset) = self.find(at, piece)?;
            let range = done..done + piece as usize;
            region.pages.copy_out(offset as usize, &mut out[range.clone()], &mut written[range]);
            done += piece as usize;
        }
        Ok((out, written))
    }

    /// Copies within the device, including whether each byte was written.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> Result<(), Outside> {
        let (data, written) = self.read(from, bytes)?;
        self.write(to, &data)?;
        let mut at = 0;
        for same in written.chunk_by(|a, b| a == b) {
            if !same[0] {
                self.forget(to + at, same.len() as u64)?;
            }
            at += same.len() as u64;
        }
        Ok(())
    }

    /// Marks bytes as unwritten.
    pub fn forget(&mut self, address: u64, bytes: u64) -> Result<(), Outside> {
        for (at, piece) in self.pieces(address, bytes)? {
            let (_, region, offset) = self.find(at, piece)?;
            region.pages.forget(offset as usize, piece as usize);
        }
        Ok(())
    }
}

/// The region that contains these bytes, its base, and their offset in it.
fn find(regions: &mut BTreeMap<u64, Region>, address: u64, bytes: u64) -> Result<(u64, &mut Region, u64), Outside> {
    let (base, region) = regions.range_mut(..=address).next_back().ok_or(Outside::Nowhere)?;
    let (offset, size) = (address - base, region.pages.bytes());
    match offset.checked_add(bytes) {
        Some(end) if end <= size && region.accessible => Ok((*base, region, offset)),
        Some(end) if end <= size => Err(Outside::Inaccessible),
        _ if offset >= size + GAP / 2 => Err(Outside::Nowhere),
        _ => Err(Outside::Past { offset, bytes: size }),
    }
}
