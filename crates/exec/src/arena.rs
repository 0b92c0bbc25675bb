//! The CPU's arena: one anonymous mapping, and the only place where regions of it become slices.
//!
//! Every page is in memory once it is reserved: `supply.rs` requests them, `resident.rs` checks the page table.

mod resident;
mod supply;

pub use supply::FreeMemory;
pub(crate) use supply::Supply;

use memmap2::MmapMut;
use plimsoll_plan::Region;

/// A contiguous range of memory that is reserved once, by a [`Supply`].
#[derive(Debug)]
pub(crate) struct Arena {
    memory: MmapMut,
}

impl Arena {
    /// Its size.
    pub(crate) fn size(&self) -> u64 {
        self.memory.len() as u64
    }

    /// The address of its first byte.
    pub(crate) fn address(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// Extends or shortens it, and moves it if necessary. The contents stay up to the smaller size.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn remap(&mut self, bytes: usize) -> std::io::Result<()> {
        // SAFETY: the mapping has no file, so every byte of any length exists; `self` is borrowed mutably, so no slice of the
        // old place remains.
        unsafe { self.memory.remap(bytes, memmap2::RemapOptions::new().may_move(true)) }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn remap(&mut self, _bytes: usize) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Bytes of its pages that are in memory now, in whole pages; `None` if the system does not report them.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        resident::bytes(&self.memory)
    }

    /// The bytes of a region. Panics if it is outside the arena.
    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        &self.memory[region.offset as usize..region.end() as usize]
    }

    /// The bytes of a region, mutable. Panics if it is outside the arena.
    pub(crate) fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        &mut self.memory[region.offset as usize..region.end() as usize]
    }

    /// Several regions at once: `shared` for reading, `exclusive` for writing. Panics if a region is outside the arena,
    /// or if an exclusive region overlaps any other region of the call; empty regions overlap nothing.
    pub(crate) fn split<'a>(
        &'a mut self,
        shared: &[Region],
        exclusive: &[Region],
    ) -> (Vec<&'a [u8]>, Vec<&'a mut [u8]>) {
        let length = self.memory.len() as u64;
        for (index, region) in exclusive.iter().enumerate() {
            for other in shared.iter().chain(&exclusive[..index]) {
                let apart = region.end() <= other.offset || other.end() <= region.offset;
                assert!(apart || region.bytes == 0 || other.bytes == 0, "{region:?} overlaps {other:?}");
            }
        }
        for region in shared.iter().chain(exclusive) {
            assert!(
                region.offset <= length && region.bytes <= length - region.offset,
                "{region:?} is outside the arena"
            );
        }
        let base = self.memory.as_mut_ptr();
        let read = |r: &Region| {
            // SAFETY: the region is inside the mapping, and no exclusive region of this call overlaps it (both asserted
            // above); `self` is borrowed mutably for 'a, so no other call can return slices meanwhile.
            unsafe { std::slice::from_raw_parts(base.add(r.offset as usize).cast_const(), r.bytes as usize) }
        };
        let write = |r: &Region| {
            // SAFETY: as above, and neither a shared nor another exclusive region overlaps it (asserted above).
            unsafe { std::slice::from_raw_parts_mut(base.add(r.offset as usize), r.bytes as usize) }
        };
        (shared.iter().map(read).collect(), exclusive.iter().map(write).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(offset: u64, bytes: u64) -> Region {
        Region { offset, bytes }
    }

    fn arena() -> Arena {
        let mut arenas = Supply::default().reserve(&[64].into_iter().collect()).expect("64 bytes").into_iter();
        arenas.next().expect("an arena")
    }

    #[test]
    fn disjoint_regions_can_be_borrowed_together() {
        let mut arena = arena();
        let (_, written) = arena.split(&[], &[region(0, 8), region(8, 8)]);
        written.into_iter().enumerate().for_each(|(i, slice)| slice.fill(i as u8 + 1));
        let (read, mut written) = arena.split(&[region(0, 8), region(4, 8)], &[region(32, 4)]);
        assert_eq!((read[0], &read[1][..5]), (&[1; 8][..], &[1, 1, 1, 1, 2][..]));
        written[0].copy_from_slice(&read[0][..4]);
        assert_eq!(arena.bytes(region(32, 4)), [1; 4]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn overlap_of_a_written_region_panics() {
        let _ = arena().split(&[region(0, 9)], &[region(8, 8)]);
    }

    #[test]
    #[should_panic(expected = "is outside the arena")]
    fn regions_outside_the_arena_panic() {
        let _ = arena().split(&[region(60, 8)], &[]);
    }
}
