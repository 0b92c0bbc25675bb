//! Reserves memory for arenas: every page is in memory before the arena is returned, no more than the free memory is
//! taken, and requests to the system are counted.
//!
//! Systems overcommit memory, and kill the process that then uses it. So pages are touched in steps, and before each
//! step the free memory is compared with the bytes that are still needed: other processes may allocate memory
//! meanwhile.

use super::Arena;
use crate::DeviceError;
use memmap2::MmapMut;
use plimsoll_graph::PerMemory;
use plimsoll_units::Bytes;
use rayon::prelude::*;
use std::io;
use std::ops::Range;

/// Reports how much memory is free.
#[derive(Debug, Clone, Copy)]
pub struct FreeMemory {
    /// Bytes of memory that the process can still get, regardless of its address space; `None` if the system does not
    /// report it.
    pub read: fn() -> Option<Bytes>,
    /// Bytes to leave free for everything except arenas.
    pub kept: Bytes,
}

/// The source of arenas.
#[derive(Debug, Default)]
pub(crate) struct Supply {
    free: Option<FreeMemory>,
    asked: u64,
}

/// Bytes taken between two checks of the free memory: some milliseconds, in which a limit may fall unnoticed. A check takes a
/// hundredth of that.
const STEP: usize = 16 << 20;

/// The part of the kept memory that may be missing once a reservation has begun: page tables, stacks of workers, and what the
/// system counts in batches.
const NOISE: u64 = 16;

/// Bytes that one worker touches at a time.
const PIECE: usize = 8 << 20;

/// The smallest page size of any system.
const SMALLEST_PAGE: usize = 4096;

impl Supply {
    /// A supply that takes no more than the free memory.
    pub(crate) fn of(free: FreeMemory) -> Self {
        Self { free: Some(free), asked: 0 }
    }

    /// Number of requests to the system for memory.
    pub(crate) fn requests(&self) -> u64 {
        self.asked
    }

    /// Zeroed arenas of these sizes, all of their pages in memory. Errors: `NoRoom`, and nothing stays reserved.
    pub(crate) fn reserve(&mut self, sizes: &PerMemory<u64>) -> Result<PerMemory<Arena>, DeviceError> {
        let mut reservation = Reservation { free: self.free, needed: sizes.values().sum(), taken: 0 };
        reservation.check()?;
        let mut arenas = PerMemory::default();
        for &size in sizes.values() {
            self.asked += 1;
            arenas.push(reservation.arena(size)?);
        }
        Ok(arenas)
    }

    /// Whether [`resize`](Self::resize) can give arenas of the first sizes the second ones: the system extends mappings, and not
    /// one arena grows while another shrinks, so that a refusal changes nothing.
    pub(crate) fn can_resize(from: &PerMemory<u64>, to: &PerMemory<u64>) -> bool {
        let pairs = || from.values().zip(to.values());
        let is_one_way = pairs().all(|(from, to)| to >= from) || pairs().all(|(from, to)| to <= from);
        cfg!(all(target_os = "linux", not(miri))) && from.values().count() == to.values().count() && is_one_way
    }

    /// Gives arenas other sizes, for which [`can_resize`](Self::can_resize) is true, and keeps the contents up to the smaller
    /// one. All pages are in memory. Errors: `NoRoom`, and the arenas stay as they were.
    pub(crate) fn resize(&mut self, arenas: &mut PerMemory<Arena>, sizes: &PerMemory<u64>) -> Result<(), DeviceError> {
        let before = arenas.map(|_, arena| arena.size());
        let growth = sizes.values().zip(before.values()).map(|(to, from)| to.saturating_sub(*from)).sum();
        let mut reservation = Reservation { free: self.free, needed: growth, taken: 0 };
        reservation.check()?;
        for ((arena, &size), &from) in arenas.values_mut().zip(sizes.values()).zip(before.values()) {
            if size == from {
                continue;
            }
            self.asked += 1;
            if let Err(refused) = reservation.resize(arena, size) {
                let grown = arenas.values_mut().zip(before.values()).filter(|(arena, from)| arena.size() > **from);
                grown.for_each(|(arena, from)| arena.remap(*from as usize).expect("a mapping can shrink"));
                return Err(refused);
            }
        }
        Ok(())
    }
}

/// Arenas, some of whose pages may be in memory already.
struct Reservation {
    free: Option<FreeMemory>,
    /// Bytes of all arenas.
    needed: u64,
    /// Bytes that are in memory.
    taken: u64,
}

impl Reservation {
    fn arena(&mut self, size: u64) -> Result<Arena, DeviceError> {
        let length = usize::try_from(size).map_err(|e| self.no_room(None, e.to_string()))?;
        let mut memory = MmapMut::map_anon(length).map_err(|e| self.no_room(self.available(), e.to_string()))?;
        #[cfg(all(target_os = "linux", not(miri)))]
        // Large pages save most address translation; if they are disabled, nothing is lost. The system uses one only if
        // the mapping contains all of its bytes, so they add no memory.
        let _ = memory.advise(memmap2::Advice::HugePage);
        self.populate(&mut memory, 0..length)?;
        Ok(Arena { memory })
    }

    /// Gives an arena another size. On an error it may have the new one, with pages that are not in memory.
    fn resize(&mut self, arena: &mut Arena, size: u64) -> Result<(), DeviceError> {
        let length = usize::try_from(size).map_err(|e| self.no_room(None, e.to_string()))?;
        let before = arena.memory.len();
        arena.remap(length).map_err(|e| self.no_room(self.available(), e.to_string()))?;
        self.populate(&mut arena.memory, before..length.max(before))
    }

    fn populate(&mut self, memory: &mut MmapMut, range: Range<usize>) -> Result<(), DeviceError> {
        for start in range.clone().step_by(STEP) {
            self.check()?;
            let step = start..range.end.min(start + STEP);
            populate(memory, step.clone()).map_err(|e| self.no_room(self.available(), e.to_string()))?;
            self.taken += step.len() as u64;
        }
        Ok(())
    }

    /// Bytes available to all arenas together.
    fn available(&self) -> Option<Bytes> {
        let FreeMemory { read, kept } = self.free?;
        let noise = if self.taken > 0 { kept.0 / NOISE } else { 0 };
        Some((read()? + Bytes(self.taken)).saturating_sub(Bytes(kept.0 - noise)))
    }

    fn check(&self) -> Result<(), DeviceError> {
        match self.available() {
            Some(available) if available < Bytes(self.needed) => {
                Err(self.no_room(Some(available), "it is not free".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn no_room(&self, available: Option<Bytes>, reason: String) -> DeviceError {
        // If the system refuses although enough memory is free, its own reason is the cause.
        let available = available.filter(|available| available.0 < self.needed);
        DeviceError::NoRoom { needed: Bytes(self.needed), available, reason, card: None }
    }
}

/// Makes the system map a page for every byte of the range.
fn populate(memory: &mut MmapMut, range: Range<usize>) -> io::Result<()> {
    match populate_range(memory, range.clone()) {
        // Linux before 5.14, or another system.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            touch(&mut memory[range]);
            Ok(())
        }
        asked => asked,
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn populate_range(memory: &MmapMut, range: Range<usize>) -> io::Result<()> {
    let pieces = range.clone().into_par_iter().step_by(PIECE);
    pieces
        .try_for_each(|start| memory.advise_range(memmap2::Advice::PopulateWrite, start, PIECE.min(range.end - start)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn populate_range(_memory: &MmapMut, _range: Range<usize>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Writes to every page of new memory, which is zero and stays zero.
fn touch(memory: &mut [u8]) {
    memory.par_chunks_mut(PIECE).for_each(|piece| piece.iter_mut().step_by(SMALLEST_PAGE).for_each(|byte| *byte = 0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::MemoryId;
    use std::cell::Cell;

    thread_local! {
        /// Free memory of the tests' machine.
        static FREE: Cell<u64> = const { Cell::new(0) };
        /// Bytes that another process takes at each check.
        static TAKEN: Cell<u64> = const { Cell::new(0) };
    }

    fn free() -> Option<Bytes> {
        let free = FREE.get();
        FREE.set(free.saturating_sub(TAKEN.get()));
        Some(Bytes(free))
    }

    fn reserve(free_bytes: u64, taken: u64, kept: u64, sizes: [u64; 2]) -> Result<PerMemory<Arena>, DeviceError> {
        FREE.set(free_bytes);
        TAKEN.set(taken);
        Supply::of(FreeMemory { read: free, kept: Bytes(kept) }).reserve(&sizes.into_iter().collect())
    }

    fn pages(bytes: u64) -> u64 {
        bytes.next_multiple_of(super::super::resident::page_bytes())
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn all_pages_are_in_memory_and_no_more() {
        // Less than a page, a page, one byte more, more than a large page, just below a page, more than a step, and
        // zero bytes.
        for bytes in [1, 4096, 4097, (2 << 20) + 1, (5 << 20) - 3, (STEP as u64) + (3 << 20) + 77, 0] {
            let arenas = Supply::default().reserve(&[bytes].into_iter().collect()).expect("little memory");
            let arena = &arenas[MemoryId::DEVICE];
            let Some(resident) = arena.resident_bytes() else {
                eprintln!("SKIPPED: this system does not report which pages are in memory");
                return;
            };
            assert_eq!(resident, pages(bytes), "an arena of {bytes} bytes");
            assert_eq!(arena.size(), bytes);
            assert!(arena.memory.iter().all(|&byte| byte == 0));
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn pages_are_in_memory_after_writes_if_the_system_cannot_populate_them() {
        let bytes = 2 * PIECE + 5;
        let mut memory = MmapMut::map_anon(bytes).expect("little memory");
        let Some(before) = super::super::resident::bytes(&memory) else {
            eprintln!("SKIPPED: this system does not report which pages are in memory");
            return;
        };
        assert_eq!(before, 0, "pages that were never touched");
        touch(&mut memory);
        assert_eq!(super::super::resident::bytes(&memory), Some(pages(bytes as u64)));
    }

    #[test]
    fn no_more_than_the_free_memory_is_taken() {
        let sizes = [3 << 20, 1 << 20];
        assert!(reserve(4 << 20, 0, 0, sizes).is_ok());
        for (free_bytes, kept) in [((4 << 20) - 1, 0), (4 << 20, 1), (0, 0)] {
            let error = reserve(free_bytes, 0, kept, sizes).expect_err("too little");
            let available = Some(Bytes(free_bytes - kept));
            let expected =
                DeviceError::NoRoom { needed: Bytes::mib(4), available, reason: "it is not free".into(), card: None };
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn memory_that_other_processes_take_meanwhile_is_detected() {
        let step = STEP as u64;
        // Enough at first; another process takes half a step before the second and every later check.
        let error = reserve(2 * step, step / 2, 0, [2 * step, 0]).expect_err("other processes took the memory");
        assert!(
            matches!(error, DeviceError::NoRoom { available: Some(free), .. } if free < Bytes(2 * step)),
            "{error}"
        );
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn arenas_are_resized_with_their_contents() {
        let of = |sizes: [u64; 2]| sizes.into_iter().collect::<PerMemory<u64>>();
        let mut supply = Supply::default();
        let mut arenas = supply.reserve(&of([5000, 0])).expect("little memory");
        let first = |arena: &Arena| arena.memory.iter().take(5000).map(|byte| u64::from(*byte)).sum::<u64>();
        arenas[MemoryId::DEVICE].memory.fill(7);
        for sizes in [[3 * STEP as u64 + 77, 9000], [6000, 4096], [5000, 0], [5000, 1]] {
            assert!(Supply::can_resize(&arenas.map(|_, arena| arena.size()), &of(sizes)));
            supply.resize(&mut arenas, &of(sizes)).expect("enough memory");
            for (arena, size) in arenas.values().zip(sizes) {
                let resident = arena.resident_bytes();
                assert_eq!((arena.size(), resident.unwrap_or(pages(size))), (size, pages(size)));
            }
            assert_eq!(first(&arenas[MemoryId::DEVICE]), 7 * 5000, "{sizes:?}");
        }
        assert!(!Supply::can_resize(&of([5000, 1]), &of([6000, 0])), "one grows and the other shrinks");
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn arenas_that_cannot_grow_stay_as_they_were() {
        let of = |sizes: [u64; 2]| sizes.into_iter().collect::<PerMemory<u64>>();
        let mut arenas = Supply::default().reserve(&of([5000, 100])).expect("little memory");
        arenas[MemoryId::DEVICE].memory.fill(7);
        // Another process takes memory before the second arena grows.
        FREE.set(3 * STEP as u64);
        TAKEN.set(STEP as u64);
        let mut supply = Supply::of(FreeMemory { read: free, kept: Bytes::ZERO });
        let larger = of([STEP as u64, 2 * STEP as u64 - 5000]);
        let refused = supply.resize(&mut arenas, &larger).expect_err("too little");
        assert!(matches!(refused, DeviceError::NoRoom { .. }), "{refused}");
        assert_eq!(arenas.map(|_, arena| arena.size()), of([5000, 100]));
        assert!(arenas[MemoryId::DEVICE].memory.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn requests_are_counted() {
        let mut supply = Supply::default();
        let _first = supply.reserve(&[1, 1].into_iter().collect()).expect("two bytes");
        let _second = supply.reserve(&[1].into_iter().collect()).expect("a byte");
        assert_eq!(supply.requests(), 3);
    }

    #[test]
    fn more_than_the_address_space_is_refused() {
        let error =
            Supply::default().reserve(&[u64::MAX / 2].into_iter().collect()).expect_err("too much for any machine");
        assert!(matches!(error, DeviceError::NoRoom { available: None, .. }), "{error}");
    }
}
