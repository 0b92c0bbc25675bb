//! Memory: the card's arena, which is one reservation, and pinned memory of the host, whose copies overlap with
//! kernels.
//!
//! ```text
//! addresses  ├────────── reserved, as many as the card has bytes ─────────┤
//! memory     ├── piece ──┤├── piece ──┤├── piece ──┤├─ last ─┤              if the driver maps memory
//!            ├────────────── allocated, in one piece ─────────────┤         if it does not
//! ```
//!
//! With pieces, the arena is one range even if the card's memory is fragmented, and it grows and shrinks where it is.

use super::context::Context;
use super::driver::call;
use super::error::CallError;
use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType, CUmemLocation, CUmemLocationType,
};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// Largest piece; a multiple of every card's granularity.
const PIECE: u64 = 256 << 20;

/// Granularity of allocations without mapping.
const PAGE: u64 = 2 << 20;

/// Memory of a card.
#[derive(Debug)]
pub(super) struct CardMemory {
    context: Arc<Context>,
    address: CUdeviceptr,
    /// Requested bytes.
    bytes: u64,
    /// Its allocations.
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Nothing: zero bytes were requested.
    Empty,
    /// One allocation.
    Allocated,
    /// A range of addresses, the first of which have memory, in these pieces.
    Mapped { addresses: u64, granularity: u64, pieces: Vec<u64> },
}

impl CardMemory {
    /// No memory.
    pub(super) fn empty(context: &Arc<Context>) -> Self {
        Self { context: context.clone(), address: 0, bytes: 0, kind: Kind::Empty }
    }

    /// Allocates memory with undefined contents. Errors: the driver's; nothing stays allocated.
    pub(super) fn take(context: &Arc<Context>, bytes: u64) -> Result<Self, CallError> {
        context.enter()?;
        let mut memory = Self::empty(context);
        memory.bytes = bytes;
        if bytes == 0 {
            return Ok(memory);
        }
        if context.card().maps_memory {
            memory.reserve()?;
            memory.map_until(bytes)?;
            return Ok(memory);
        }
        context.count_request();
        // SAFETY: the context is current; the destination is in this struct.
        unsafe { call!(cuMemAlloc_v2(&mut memory.address, bytes as usize)) }?;
        memory.kind = Kind::Allocated;
        Ok(memory)
    }

    /// Its first address; 0 if it has no bytes.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Requested bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the driver allocated for it: whole pages of the card.
    pub(super) fn reserved_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Empty => 0,
            Kind::Allocated => self.bytes.next_multiple_of(PAGE),
            Kind::Mapped { pieces, .. } => pieces.iter().sum(),
        }
    }

    /// Whether [`resize`](Self::resize) can give it this size and keep its first `kept` bytes.
    pub(super) fn can_resize(&self, bytes: u64, kept: u64) -> bool {
        let Kind::Mapped { addresses, granularity, .. } = &self.kind else { return bytes == self.bytes };
        let end = bytes.next_multiple_of(*granularity);
        let (whole, _) = self.whole_pieces(end);
        bytes > 0 && end <= *addresses && (end >= self.reserved_bytes() || whole >= kept)
    }

    /// Gives it another size, for which [`can_resize`](Self::can_resize) is true: maps more memory at the end, or unmaps some.
    /// Nothing may be using it. Errors: the driver's; then it has the size that it had, unless it was to shrink.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<(), CallError> {
        self.context.enter()?;
        let end = self.granular(bytes);
        if end < self.reserved_bytes() {
            let (_, pieces) = self.whole_pieces(end);
            self.unmap_after(pieces);
        }
        let (_, pieces) = self.whole_pieces(end);
        let mapped = self.map_until(bytes);
        match mapped {
            Ok(()) => self.bytes = bytes,
            Err(_) => self.unmap_after(pieces),
        }
        mapped
    }

    /// Bytes in whole multiples of the granularity.
    fn granular(&self, bytes: u64) -> u64 {
        if let Kind::Mapped { granularity, .. } = &self.kind { bytes.next_multiple_of(*granularity) } else { bytes }
    }

    /// The pieces that end at or before this byte: their bytes and their number.
    fn whole_pieces(&self, end: u64) -> (u64, usize) {
        let (mut bytes, mut count) = (0, 0);
        if let Kind::Mapped { pieces, .. } = &self.kind {
            while pieces.get(count).is_some_and(|piece| bytes + piece <= end) {
                bytes += pieces[count];
                count += 1;
            }
        }
        (bytes, count)
    }

    fn location(&self) -> CUmemLocation {
        CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.context.card().handle }
    }

    /// Reserves addresses for as much memory as the card has.
    fn reserve(&mut self) -> Result<(), CallError> {
        let properties = properties(self.location());
        let mut granularity = 0;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the destinations are on this stack.
        unsafe { call!(cuMemGetAllocationGranularity(&mut granularity, &properties, least)) }?;
        let granularity = granularity as u64;
        let addresses = self.context.room()?.total.0.max(self.bytes).next_multiple_of(granularity);
        // SAFETY: only addresses of whole pieces are reserved; the destination is in this struct.
        unsafe { call!(cuMemAddressReserve(&mut self.address, addresses as usize, 0, 0, 0)) }?;
        // From here on `drop` frees what was allocated.
        self.kind = Kind::Mapped { addresses, granularity, pieces: Vec::new() };
        Ok(())
    }

    /// Maps pieces after those that are mapped, until there are this many bytes.
    fn map_until(&mut self, bytes: u64) -> Result<(), CallError> {
        let properties = properties(self.location());
        let (first, end) = (self.reserved_bytes(), self.granular(bytes));
        let mut mapped = first;
        while mapped < end {
            let piece = PIECE.min(end - mapped);
            self.map_piece(self.address + mapped, piece, &properties)?;
            mapped += piece;
        }
        if mapped == first {
            return Ok(());
        }
        let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = CUmemAccessDesc { location: self.location(), flags };
        // SAFETY: all of these addresses were just mapped.
        unsafe { call!(cuMemSetAccess(self.address + first, (mapped - first) as usize, &access, 1)) }
    }

    /// Unmaps all pieces after the first `kept`. If the driver fails here, nothing more can be done.
    fn unmap_after(&mut self, kept: usize) {
        let mut end = self.address + self.reserved_bytes();
        let Kind::Mapped { pieces, .. } = &mut self.kind else { return };
        for piece in pieces.drain(kept..).rev() {
            end -= piece;
            // SAFETY: this piece is mapped here, and the owner has waited for everything that uses it.
            let _ = unsafe { call!(cuMemUnmap(end, piece as usize)) };
        }
    }

    fn map_piece(&mut self, at: CUdeviceptr, bytes: u64, properties: &CUmemAllocationProp) -> Result<(), CallError> {
        let mut handle = 0;
        self.context.count_request();
        // SAFETY: the destinations are on this stack, the size is a multiple of the granularity.
        unsafe { call!(cuMemCreate(&mut handle, bytes as usize, properties, 0)) }?;
        // SAFETY: the addresses are reserved, and nothing is mapped there yet.
        let mapped = unsafe { call!(cuMemMap(at, bytes as usize, 0, handle, 0)) };
        if let (Ok(()), Kind::Mapped { pieces, .. }) = (&mapped, &mut self.kind) {
            pieces.push(bytes);
        }
        // SAFETY: the handle was just created; mapped memory exists until it is unmapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped.and(released)
    }
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        if matches!(self.kind, Kind::Empty) {
            return;
        }
        // If the driver fails here, nothing more can be done.
        let _ = self.context.enter();
        self.unmap_after(0);
        match &self.kind {
            Kind::Empty => {}
            // SAFETY: it was allocated, and the owner has waited for everything that uses it.
            Kind::Allocated => drop(unsafe { call!(cuMemFree_v2(self.address)) }),
            Kind::Mapped { addresses, .. } => {
                // SAFETY: these addresses are reserved, and no longer mapped.
                let _ = unsafe { call!(cuMemAddressFree(self.address, *addresses as usize)) };
            }
        }
    }
}

fn properties(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Pinned memory of the host that the driver allocated.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    at: NonNull<u8>,
}

impl PinnedMemory {
    /// Allocates memory. Errors: the driver's.
    pub(super) fn take(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        let mut at = std::ptr::null_mut::<c_void>();
        // SAFETY: the destination is on this stack.
        unsafe { call!(cuMemHostAlloc(&mut at, bytes, 0)) }?;
        Ok(Self { context: context.clone(), at: NonNull::new(at.cast()).expect("the driver succeeded") })
    }

    /// Its first byte.
    pub(super) fn at(&self) -> *mut u8 {
        self.at.as_ptr()
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: the driver allocated it, and the owner has waited for all copies that use it.
        let _ = unsafe { call!(cuMemFreeHost(self.at.as_ptr().cast())) };
    }
}

/// Pins memory of the host that another object owns, which outlives this.
#[derive(Debug)]
pub(super) struct Pin {
    context: Arc<Context>,
    at: *mut c_void,
}

impl Pin {
    /// Pins these bytes. Errors: the driver's, if it can't pin as many.
    ///
    /// # Safety
    /// The bytes don't move until this is dropped.
    pub(super) unsafe fn new(context: &Arc<Context>, at: *mut u8, bytes: usize) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        // SAFETY: the caller guarantees that the bytes exist and don't move.
        unsafe { call!(cuMemHostRegister_v2(at.cast(), bytes, 0)) }?;
        Ok(Self { context: context.clone(), at: at.cast() })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was pinned, and the owner has waited for all copies that use it.
        let _ = unsafe { call!(cuMemHostUnregister(self.at)) };
    }
}
