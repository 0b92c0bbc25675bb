//! Loads, stores and atomics: checks and counts addresses, and checks each byte.

use super::super::lanes::{bf16_bits, bf16_value, f16_bits, f16_value};
use super::super::program::{Access, Action, Address, Space, Update};
use super::super::types::Type;
use super::block::Block;
use super::fault::{FaultKind, Stop};
use super::mask::each;
use super::warp::{Row, Warp};
use super::{CONSTANT_WINDOW, LOCAL_WINDOW, SHARED_WINDOW, WINDOW};
use crate::shadow::{MOST_BYTES, copy};
use crate::trace::{sectors, wavefronts};

/// Resolved addresses of some lanes.
pub(super) struct Places {
    /// The lanes.
    pub lanes: u32,
    /// Space, and offset or address, per lane.
    pub at: [(Space, u64); 32],
    /// Bytes of each access.
    pub bytes: u64,
}

impl Block<'_, '_> {
    /// Resolves the addresses of accesses of `bytes` bytes. Errors: an unwritten register or a misaligned address.
    pub fn places(&self, warp: &Warp, lanes: u32, address: &Address, bytes: u64) -> Result<Places, Stop> {
        let base = warp.read(address.base, lanes)?;
        let mut at = [(address.space, 0); 32];
        for lane in each(lanes) {
            let place = base[lane].wrapping_add(address.offset as u64);
            at[lane] = match address.space {
                Space::Generic => windowed(place),
                Space::Global => match windowed(place) {
                    (Space::Constant, offset) => (Space::Constant, offset),
                    _ => (Space::Global, place),
                },
                // Addresses of these spaces have 32 bits.
                own => (own, place & 0xffff_ffff),
            };
            // The number of bytes is a power of two.
            if at[lane].1 & (bytes - 1) != 0 {
                return Err(Stop { lane: lane as u32, kind: FaultKind::Misaligned { address: place, bytes } });
            }
        }
        Ok(Places { lanes, at, bytes })
    }

    /// Counts a request's cost in the memory system.
    pub fn count(&mut self, site: usize, places: &Places, write: bool) {
        let of = |space: Space| each(places.lanes).filter(move |lane| places.at[*lane].0 == space);
        let (mut global, mut count) = ([0; 32], 0);
        for lane in of(Space::Global) {
            global[count] = places.at[lane].1;
            count += 1;
        }
        if count > 0 {
            self.sites[site].count(sectors(&global[..count], places.bytes));
            let total = if write { &mut self.counters.written_bytes } else { &mut self.counters.read_bytes };
            *total += count as u64 * places.bytes;
        }
        let (mut shared, mut count) = ([(0, 0); 32], 0);
        for lane in of(Space::Shared) {
            shared[count] = (lane, places.at[lane].1);
            count += 1;
        }
        if count > 0 {
            self.sites[site].shared = true;
            self.sites[site].count(wavefronts(&shared[..count], places.bytes));
        }
    }

    /// Reads for a lane.
    pub fn fetch(
        &mut self,
        warp: &Warp,
        lane: usize,
        place: (Space, u64),
        out: &mut [u8],
        strong: bool,
    ) -> Result<(), FaultKind> {
        let (space, at) = place;
        let end = at.saturating_add(out.len() as u64);
        let outside = |space, bytes: usize| FaultKind::SpaceBounds { space, offset: at, bytes: bytes as u64 };
        match space {
            Space::Parameter | Space::Constant => {
                let (source, name) = match space {
                    Space::Parameter => (self.launch.parameters, "parameters"),
                    _ => (&self.kernel.constants[..], "constants"),
                };
                let bytes = source.get(at as usize..end as usize).ok_or_else(|| outside(name, source.len()))?;
                out.copy_from_slice(bytes);
                Ok(())
            }
            Space::Local => {
                let (bytes, written) = warp.local.get(lane).ok_or_else(|| outside("local memory", 0))?;
                let range = at as usize..end as usize;
                let source = bytes.get(range.clone()).ok_or_else(|| outside("local memory", bytes.len()))?;
                if !written[range].iter().all(|written| *written) {
                    return Err(FaultKind::Memory(crate::shadow::Problem::Unwritten));
                }
                out.copy_from_slice(source);
                Ok(())
            }
            Space::Shared => {
                self.shared_bounds(at, end)?;
                let (shared, access, launch) = self.shared_by(warp, lane, strong);
                shared.read(at as usize, out, &access, launch).map_err(FaultKind::Memory)
            }
            Space::Global | Space::Generic => {
                let (memory, access) = self.global_by(warp, lane, strong);
                let (pages, at, launch) = memory.access(at, out.len() as u64, false).map_err(FaultKind::Bounds)?;
                pages.read(at, out, &access, launch).map_err(FaultKind::Memory)
            }
        }
    }

    /// Writes for a lane.
    pub fn put(
        &mut self,
        warp: &mut Warp,
        lane: usize,
        place: (Space, u64),
        data: &[u8],
        strong: bool,
    ) -> Result<(), FaultKind> {
        let (space, at) = place;
        let end = at.saturating_add(data.len() as u64);
        match space {
            Space::Parameter | Space::Constant => Err(FaultKind::Operand("writes to constants")),
            Space::Local => {
                let empty = FaultKind::SpaceBounds { space: "local memory", offset: at, bytes: 0 };
                let (bytes, written) = warp.local.get_mut(lane).ok_or(empty)?;
                let size = bytes.len() as u64;
                let outside = FaultKind::SpaceBounds { space: "local memory", offset: at, bytes: size };
                let range = at as usize..end as usize;
                bytes.get_mut(range.clone()).ok_or(outside)?.copy_from_slice(data);
                written[range].fill(true);
                Ok(())
            }
            Space::Shared => {
                self.shared_bounds(at, end)?;
                let (shared, access, launch) = self.shared_by(warp, lane, strong);
                shared.write(at as usize, data, &access, launch).map_err(FaultKind::Memory)
            }
            Space::Global | Space::Generic => {
                let (memory, access) = self.global_by(warp, lane, strong);
                let (pages, at, launch) = memory.access(at, data.len() as u64, true).map_err(FaultKind::Bounds)?;
                pages.write(at, data, &access, launch).map_err(FaultKind::Memory)
            }
        }
    }

    /// Errors: the access from `at` to `end` exceeds shared memory.
    pub fn shared_bounds(&self, at: u64, end: u64) -> Result<(), FaultKind> {
        let bytes = self.shared.bytes();
        if end <= bytes { Ok(()) } else { Err(FaultKind::SpaceBounds { space: "shared memory", offset: at, bytes }) }
    }

    /// `ld`.
    pub fn load(&mut self, warp: &mut Warp, site: usize, lanes: u32, access: &Access) -> Result<(), Stop> {
        let (size, parts) = (access.ty.bytes() as usize, access.elements.len());
        let places = self.places(warp, lanes, &access.address, (size * parts) as u64)?;
        self.count(site, &places, false);
        let mut loaded = [[0; MOST_BYTES]; 32];
        for lane in each(lanes) {
            self.fetch(warp, lane, places.at[lane], &mut loaded[lane][..size * parts], access.strong)
                .map_err(|kind| Stop { lane: lane as u32, kind })?;
        }
        for (reg, at) in access.elements.iter().zip((0..).step_by(size)) {
            let mut row: Row = [0; 32];
            each(lanes).for_each(|lane| row[lane] = extended(&loaded[lane][at..at + size], access.ty));
            warp.write(*reg, lanes, &row);
        }
        Ok(())
    }

    /// `st`.
    pub fn store(&mut self, warp: &mut Warp, site: usize, lanes: u32, access: &Access) -> Result<(), Stop> {
        let (size, parts) = (access.ty.bytes() as usize, access.elements.len());
        let places = self.places(warp, lanes, &access.address, (size * parts) as u64)?;
        self.count(site, &places, true);
        let mut stored = [[0; MOST_BYTES]; 32];
        for (reg, at) in access.elements.iter().zip((0..).step_by(size)) {
            let row = warp.read(*reg, lanes)?;
            each(lanes).for_each(|lane| copy(&mut stored[lane][at..at + size], &row[lane].to_le_bytes()[..size]));
        }
        for lane in each(lanes) {
            self.put(warp, lane, places.at[lane], &stored[lane][..size * parts], access.strong)
                .map_err(|kind| Stop { lane: lane as u32, kind })?;
        }
        Ok(())
    }

    /// `atom` and `red`, lane by lane.
    pub fn atomic(&mut self, warp: &mut Warp, site: usize, lanes: u32, action: &Action) -> Result<(), Stop> {
        let Action::Atomic { address, ty, update, result, operands } = action else { return Ok(()) };
        let size = ty.bytes() as usize;
        let places = self.places(warp, lanes, address, size as u64)?;
        self.count(site, &places, true);
        let (first, second) = (*warp.read(operands[0], lanes)?, *warp.read(operands[1], lanes)?);
        let mut old: Row = [0; 32];
        for lane in each(lanes) {
            let stop = |kind| Stop { lane: lane as u32, kind };
            let mut buffer = [0; 8];
            self.fetch(warp, lane, places.at[lane], &mut buffer[..size], true).map_err(stop)?;
            old[lane] = u64::from_le_bytes(buffer);
            let new = updated(*update, *ty, old[lane], first[lane], second[lane]);
            self.put(warp, lane, places.at[lane], &new.to_le_bytes()[..size], true).map_err(stop)?;
        }
        if let Some(result) = result {
            warp.write(*result, lanes, &old);
        }
        Ok(())
    }
}

/// Space and offset of a generic address.
fn windowed(address: u64) -> (Space, u64) {
    // Device memory, which most accesses are to, is below all windows.
    if address < SHARED_WINDOW {
        return (Space::Global, address);
    }
    let within = |window: u64| address.checked_sub(window).filter(|offset| *offset < WINDOW);
    let windows = [(Space::Shared, SHARED_WINDOW), (Space::Local, LOCAL_WINDOW), (Space::Constant, CONSTANT_WINDOW)];
    let found = windows.into_iter().find_map(|(space, window)| Some((space, within(window)?)));
    found.unwrap_or((Space::Global, address))
}

/// Sign-extends an element in a register.
fn extended(element: &[u8], ty: Type) -> u64 {
    let mut bytes = [0; 8];
    copy(&mut bytes[..element.len()], element);
    let value = u64::from_le_bytes(bytes);
    match ty {
        Type::Signed(bits) => ((value << (64 - bits)) as i64 >> (64 - bits)) as u64,
        _ => value,
    }
}

/// The value that an atomic stores in memory.
fn updated(update: Update, ty: Type, old: u64, operand: u64, second: u64) -> u64 {
    let bits = ty.bits();
    let narrow = |value: u64| if bits == 64 { value } else { value & ((1 << bits) - 1) };
    let (old, operand, second) = (narrow(old), narrow(operand), narrow(second));
    let signed = |value: u64| ((value << (64 - bits)) as i64) >> (64 - bits);
    let smaller = match ty {
        Type::Signed(_) => signed(operand) < signed(old),
        _ => operand < old,
    };
    match update {
        Update::Add => narrow(sum(ty, old, operand)),
        Update::Min => {
            if smaller {
                operand
            } else {
                old
            }
        }
        Update::Max => {
            if smaller {
                old
            } else {
                operand
            }
        }
        Update::And => old & operand,
        Update::Or => old | operand,
        Update::Xor => old ^ operand,
        Update::Exchange => operand,
        Update::CompareAndSwap => {
            if old == operand {
                second
            } else {
                old
            }
        }
        Update::Increment => {
            if old >= operand {
                0
            } else {
                old + 1
            }
        }
        Update::Decrement => {
            if old == 0 || old > operand {
                operand
            } else {
                old - 1
            }
        }
    }
}

fn sum(ty: Type, a: u64, b: u64) -> u64 {
    let halves = |f: fn(u16, u16) -> u16| {
        let (low, high) = (f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16));
        u64::from(low) | u64::from(high) << 16
    };
    let f16 = |a: u16, b: u16| f16_bits(f64::from(f16_value(a)) + f64::from(f16_value(b)));
    let bf16 = |a: u16, b: u16| bf16_bits(f64::from(bf16_value(a)) + f64::from(bf16_value(b)));
    match ty {
        Type::F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits().into(),
        Type::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Type::F16 | Type::F16x2 => halves(f16),
        Type::Bf16 | Type::Bf16x2 => halves(bf16),
        _ => a.wrapping_add(b),
    }
}

/// Combines two values for `redux`, which supports fewer updates than atomics.
pub(super) fn reduced(update: Update, signed: bool, a: u64, b: u64) -> u64 {
    updated(update, if signed { Type::Signed(32) } else { Type::Unsigned(32) }, a, b, 0)
}
