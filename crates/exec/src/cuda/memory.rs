//! Memory: the card's arena, one reservation, and pinned memory of the host, which copies overlap with kernels from.
//!
//! ```text
//! addresses  ├────────────── reserved, in one piece ──────────────┤
//! memory     ├── piece ──┤├── piece ──┤├── piece ──┤├─ last ─┤         where the driver maps memory
//!            ├────────────── allocated, in one piece ─────────────┤    where it does not
//! ```
//!
//! Pieces make the card's memory one range however it is fragmented.

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

/// Mapped at a time at most; a multiple of every card's granularity.
const PIECE: u64 = 256 << 20;

/// Memory of a card that is not mapped is allocated in multiples of this.
const PAGE: u64 = 2 << 20;

/// Memory of a card.
#[derive(Debug)]
pub(super) struct CardMemory {
    context: Arc<Context>,
    address: CUdeviceptr,
    /// Bytes that it was asked for.
    bytes: u64,
    /// What makes it up.
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Nothing: no bytes were asked for.
    Empty,
    /// One allocation.
    Allocated,
    /// Addresses of so many bytes, of which the first `mapped` have memory, in these pieces.
    Mapped { reserved: u64, pieces: Vec<u64> },
}

impl CardMemory {
    /// Takes memory, whatever is in it. Errors: the driver's; nothing stays taken.
    pub(super) fn take(context: &Arc<Context>, bytes: u64) -> Result<Self, CallError> {
        context.enter()?;
        let mut memory = Self { context: context.clone(), address: 0, bytes, kind: Kind::Empty };
        if bytes == 0 {
            return Ok(memory);
        }
        if context.card().maps_memory {
            memory.map()?;
            return Ok(memory);
        }
        context.count_request();
        // SAFETY: the context is this thread's; the place is this struct's.
        unsafe { call!(cuMemAlloc_v2(&mut memory.address, bytes as usize)) }?;
        memory.kind = Kind::Allocated;
        Ok(memory)
    }

    /// Its first address; 0 where it has no bytes.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes that it was asked for.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that the driver reserved for it: whole pages of the card.
    pub(super) fn reserved_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Empty => 0,
            Kind::Allocated => self.bytes.next_multiple_of(PAGE),
            Kind::Mapped { reserved, .. } => *reserved,
        }
    }

    fn map(&mut self) -> Result<(), CallError> {
        let location =
            CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: self.context.card().handle };
        let properties = properties(location);
        let mut granularity = 0;
        let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: the places are on this stack.
        unsafe { call!(cuMemGetAllocationGranularity(&mut granularity, &properties, least)) }?;
        let reserved = self.bytes.next_multiple_of(granularity as u64);
        // SAFETY: addresses alone are asked for, of whole pieces; the place is this struct's.
        unsafe { call!(cuMemAddressReserve(&mut self.address, reserved as usize, 0, 0, 0)) }?;
        // From here on `drop` gives back what there is.
        self.kind = Kind::Mapped { reserved, pieces: Vec::with_capacity(reserved.div_ceil(PIECE) as usize) };
        let mut mapped = 0;
        while mapped < reserved {
            let piece = PIECE.min(reserved - mapped);
            self.map_piece(self.address + mapped, piece, &properties)?;
            mapped += piece;
        }
        let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: all of these addresses were mapped just now.
        unsafe { call!(cuMemSetAccess(self.address, reserved as usize, &access, 1)) }
    }

    fn map_piece(&mut self, at: CUdeviceptr, bytes: u64, properties: &CUmemAllocationProp) -> Result<(), CallError> {
        let mut handle = 0;
        self.context.count_request();
        // SAFETY: the places are on this stack, the size is a multiple of the granularity.
        unsafe { call!(cuMemCreate(&mut handle, bytes as usize, properties, 0)) }?;
        // SAFETY: the addresses are reserved, and nothing is mapped there yet.
        let mapped = unsafe { call!(cuMemMap(at, bytes as usize, 0, handle, 0)) };
        if let (Ok(()), Kind::Mapped { pieces, .. }) = (&mapped, &mut self.kind) {
            pieces.push(bytes);
        }
        // SAFETY: the handle was just made; what is mapped stays until it is unmapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped.and(released)
    }
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        // A driver that fails here leaves nothing that could still be done.
        let _ = self.context.enter();
        match &self.kind {
            Kind::Empty => {}
            // SAFETY: it was allocated; whoever holds this has waited for all that uses it.
            Kind::Allocated => drop(unsafe { call!(cuMemFree_v2(self.address)) }),
            Kind::Mapped { reserved, pieces } => {
                let mut at = self.address;
                for piece in pieces {
                    // SAFETY: this piece is mapped here; whoever holds this has waited for all that uses it.
                    let _ = unsafe { call!(cuMemUnmap(at, *piece as usize)) };
                    at += piece;
                }
                // SAFETY: these addresses are reserved, and nothing is mapped there any more.
                let _ = unsafe { call!(cuMemAddressFree(self.address, *reserved as usize)) };
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

/// Memory of the host that the driver pinned and gave.
#[derive(Debug)]
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    at: NonNull<u8>,
}

impl PinnedMemory {
    /// Takes memory. Errors: the driver's.
    pub(super) fn take(context: &Arc<Context>, bytes: usize) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        let mut at = std::ptr::null_mut::<c_void>();
        // SAFETY: the place is on this stack.
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
        // SAFETY: the driver gave it; whoever holds this has waited for all copies that use it.
        let _ = unsafe { call!(cuMemFreeHost(self.at.as_ptr().cast())) };
    }
}

/// Pins memory of the host that is somebody else's, who outlives this.
#[derive(Debug)]
pub(super) struct Pin {
    context: Arc<Context>,
    at: *mut c_void,
}

impl Pin {
    /// Pins these bytes. Errors: the driver's, who has not enough of what it pins with.
    ///
    /// # Safety
    /// The bytes stay where they are until this is dropped.
    pub(super) unsafe fn new(context: &Arc<Context>, at: *mut u8, bytes: usize) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        // SAFETY: the caller says that the bytes are there and stay.
        unsafe { call!(cuMemHostRegister_v2(at.cast(), bytes, 0)) }?;
        Ok(Self { context: context.clone(), at: at.cast() })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was pinned; whoever holds this has waited for all copies that use it.
        let _ = unsafe { call!(cuMemHostUnregister(self.at)) };
    }
}
