//! Device memory: allocations and mapped reservations. Pinned host memory.

use super::codes::{
    Code, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_SUPPORTED,
    STREAM_CAPTURE_UNSUPPORTED,
};
use super::state::{Driver, Physical};
use super::{entries, give};
use crate::shadow::{Pages, Region};
use std::alloc::Layout;
use std::ffi::{c_int, c_uint, c_void};

/// Sizes and addresses of mapped memory are multiples of this.
const GRANULARITY: u64 = 2 << 20;
const PAGE: usize = 4096;

/// `CUmemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Location {
    kind: c_uint,
    id: c_int,
}

/// `CUmemAllocationProp`, with the fields that are used.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    kind: c_uint,
    handle_types: c_uint,
    location: Location,
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AccessDescription {
    location: Location,
    flags: c_uint,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE` and `CU_MEM_ALLOCATION_TYPE_PINNED`.
const DEVICE: c_uint = 1;
const PINNED: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const READ_WRITE: c_uint = 3;

entries! {
    /// `cuMemGetInfo`.
    fn cuMemGetInfo_v2(driver, free: *mut usize, total: *mut usize) Context {
        let bytes = driver.free_bytes();
        give(free, bytes as usize)?;
        give(total, driver.memory() as usize)
    }

    /// `cuMemAlloc`.
    fn cuMemAlloc_v2(driver, address: *mut u64, bytes: usize) Context {
        not_capturing(driver)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        driver.take(bytes as u64)?;
        let at = driver.machinery.memory.allocate(bytes as u64);
        driver.allocations.insert(at, bytes as u64);
        give(address, at)
    }

    /// `cuMemFree`. Waits for all operations first.
    fn cuMemFree_v2(driver, address: u64) Context {
        not_capturing(driver)?;
        if address == 0 {
            return Ok(());
        }
        let bytes = driver.allocations.remove(&address).ok_or(INVALID_VALUE)?;
        driver.wait(|engine, machine| engine.synchronize_all(machine))?;
        driver.machinery.memory.remove(address);
        driver.engine.hazards.forget(address, address + bytes);
        driver.used -= bytes;
        Ok(())
    }

    /// `cuMemGetAllocationGranularity`.
    fn cuMemGetAllocationGranularity(
        driver,
        granularity: *mut usize,
        properties: *const Properties,
        _option: c_uint,
    ) Context {
        mapped(driver, properties)?;
        give(granularity, GRANULARITY as usize)
    }

    /// `cuMemAddressReserve`: reserves addresses without memory.
    fn cuMemAddressReserve(
        driver,
        address: *mut u64,
        bytes: usize,
        _alignment: usize,
        _wanted: u64,
        _flags: u64,
    ) Context {
        whole(driver, bytes as u64)?;
        let at = driver.machinery.memory.reserve(bytes as u64);
        driver.reservations.insert(at, bytes as u64);
        give(address, at)
    }

    /// `cuMemAddressFree`. Fails if anything is mapped there.
    fn cuMemAddressFree(driver, address: u64, bytes: usize) Context {
        let reserved = driver.reservations.get(&address).copied();
        let busy = driver.mappings.range(address..address + bytes as u64).next().is_some();
        if reserved != Some(bytes as u64) || busy {
            return Err(INVALID_VALUE);
        }
        driver.reservations.remove(&address);
        Ok(())
    }

    /// `cuMemCreate`: memory without addresses.
    fn cuMemCreate(driver, handle: *mut u64, bytes: usize, properties: *const Properties, _flags: u64) Context {
        mapped(driver, properties)?;
        whole(driver, bytes as u64)?;
        not_capturing(driver)?;
        driver.take(bytes as u64)?;
        let id = driver.handle();
        let pages = Some(Pages::new(bytes as u64));
        driver.physical.insert(id, Physical { bytes: bytes as u64, pages, released: false });
        give(handle, id)
    }

    /// `cuMemRelease`. Mapped memory is freed when it is unmapped.
    fn cuMemRelease(driver, handle: u64) Context {
        let physical = driver.physical.get_mut(&handle).filter(|physical| !physical.released).ok_or(INVALID_VALUE)?;
        physical.released = true;
        release(driver, handle);
        Ok(())
    }

    /// `cuMemMap`: maps a whole handle into a reservation. Fails if anything is mapped there.
    fn cuMemMap(driver, address: u64, bytes: usize, offset: usize, handle: u64, _flags: u64) Context {
        let bytes = bytes as u64;
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let reserved = driver.reservations.range(..=address).next_back();
        let inside = reserved.is_some_and(|(start, size)| end <= start + size);
        let before = driver.mappings.range(..end).next_back();
        let free = before.is_none_or(|(start, (_, size))| start + size <= address);
        let physical = driver.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if !inside || !free || !address.is_multiple_of(GRANULARITY) || offset != 0 || bytes != physical.bytes {
            return Err(INVALID_VALUE);
        }
        let pages = physical.pages.take().ok_or(INVALID_VALUE)?;
        driver.machinery.memory.place(address, Region { pages, accessible: false });
        driver.mappings.insert(address, (handle, bytes));
        Ok(())
    }

    /// `cuMemSetAccess`. Supports only reading and writing by the card.
    fn cuMemSetAccess(
        driver,
        address: u64,
        bytes: usize,
        descriptions: *const AccessDescription,
        count: usize,
    ) Context {
        if descriptions.is_null() || count != 1 {
            return Err(INVALID_VALUE);
        }
        let AccessDescription { location, flags } = descriptions.read();
        if location.kind != DEVICE || driver.device(location.id).is_err() || flags != READ_WRITE {
            return Err(NOT_SUPPORTED);
        }
        for at in mappings_of(driver, address, bytes as u64)? {
            if let Some(region) = driver.machinery.memory.region(at) {
                region.accessible = true;
            }
        }
        Ok(())
    }

    /// `cuMemUnmap`: unmaps whole mappings. Waits for all operations first.
    fn cuMemUnmap(driver, address: u64, bytes: usize) Context {
        driver.wait(|engine, machine| engine.synchronize_all(machine))?;
        for at in mappings_of(driver, address, bytes as u64)? {
            let Some((handle, size)) = driver.mappings.remove(&at) else { continue };
            let region = driver.machinery.memory.remove(at);
            driver.engine.hazards.forget(at, at + size);
            if let (Some(physical), Some(region)) = (driver.physical.get_mut(&handle), region) {
                physical.pages = Some(region.pages);
            }
            release(driver, handle);
        }
        Ok(())
    }

    /// `cuMemHostAlloc`.
    fn cuMemHostAlloc(driver, to: *mut *mut c_void, bytes: usize, _flags: c_uint) Context {
        let layout = layout(bytes).filter(|_| bytes > 0 && !to.is_null()).ok_or(INVALID_VALUE)?;
        let at = std::alloc::alloc_zeroed(layout);
        if at.is_null() {
            return Err(super::codes::OUT_OF_MEMORY);
        }
        driver.pinned.insert(at as usize, (bytes, true));
        give(to, at.cast())
    }

    /// `cuMemFreeHost`. Waits for all operations first.
    fn cuMemFreeHost(driver, at: *mut c_void) Context {
        let allocated = driver.pinned.get(&(at as usize)).filter(|(_, allocated)| *allocated);
        let bytes = allocated.ok_or(INVALID_VALUE)?.0;
        driver.wait(|engine, machine| engine.synchronize_all(machine))?;
        driver.pinned.remove(&(at as usize));
        driver.engine.hazards.forget(at as u64, at as u64 + bytes as u64);
        std::alloc::dealloc(at.cast(), layout(bytes).ok_or(INVALID_VALUE)?);
        Ok(())
    }

    /// `cuMemHostRegister`.
    fn cuMemHostRegister_v2(driver, at: *mut c_void, bytes: usize, _flags: c_uint) Context {
        let start = at as usize;
        if at.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let before = driver.pinned.range(..start + bytes).next_back();
        if before.is_some_and(|(other, (size, _))| other + size > start) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        driver.check_registered(bytes)?;
        driver.pinned.insert(start, (bytes, false));
        Ok(())
    }

    /// `cuMemHostUnregister`. Waits for all operations first.
    fn cuMemHostUnregister(driver, at: *mut c_void) Context {
        let registered = driver.pinned.get(&(at as usize)).is_some_and(|(_, allocated)| !*allocated);
        if !registered {
            return Err(HOST_MEMORY_NOT_REGISTERED);
        }
        driver.wait(|engine, machine| engine.synchronize_all(machine))?;
        if let Some((bytes, _)) = driver.pinned.remove(&(at as usize)) {
            driver.engine.hazards.forget(at as u64, at as u64 + bytes as u64);
        }
        Ok(())
    }
}

impl Driver {
    /// Fails if these bytes of the host can't be registered in addition to those that are.
    fn check_registered(&self, bytes: usize) -> Result<(), Code> {
        let registered = self.pinned.values().filter(|(_, allocated)| !*allocated);
        let registered = registered.map(|(bytes, _)| *bytes as u64).sum::<u64>();
        if registered + bytes as u64 > self.card.registrable { Err(super::codes::OUT_OF_MEMORY) } else { Ok(()) }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, PAGE).ok()
}

/// Fails while a stream is captured: then memory must not be allocated or freed.
fn not_capturing(driver: &Driver) -> Result<(), Code> {
    if driver.engine.capturing() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Checks that the properties are of memory of this card, the only kind that can be mapped.
///
/// # Safety
/// `properties` is null or points to a `Properties`.
unsafe fn mapped(driver: &Driver, properties: *const Properties) -> Result<(), Code> {
    if !driver.card.mapping {
        return Err(NOT_SUPPORTED);
    }
    if properties.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises that it then points to a `Properties`.
    let Properties { kind, location, .. } = unsafe { properties.read() };
    let here = location.kind == DEVICE && driver.device(location.id).is_ok();
    if kind == PINNED && here { Ok(()) } else { Err(NOT_SUPPORTED) }
}

fn whole(driver: &Driver, bytes: u64) -> Result<(), Code> {
    match driver.card.mapping {
        false => Err(NOT_SUPPORTED),
        true if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) => Err(INVALID_VALUE),
        true => Ok(()),
    }
}

/// The mappings that cover exactly these bytes.
fn mappings_of(driver: &Driver, address: u64, bytes: u64) -> Result<Vec<u64>, Code> {
    let (mut at, end) = (address, address.checked_add(bytes).ok_or(INVALID_VALUE)?);
    let mut found = Vec::new();
    while at < end {
        let (_, size) = driver.mappings.get(&at).ok_or(INVALID_VALUE)?;
        found.push(at);
        at += size;
    }
    if at == end { Ok(found) } else { Err(INVALID_VALUE) }
}

/// Frees memory whose handle was released and that is not mapped.
fn release(driver: &mut Driver, handle: u64) {
    let gone = driver.physical.get(&handle).filter(|physical| physical.released && physical.pages.is_some());
    if let Some(bytes) = gone.map(|physical| physical.bytes) {
        driver.physical.remove(&handle);
        driver.used -= bytes;
    }
}
