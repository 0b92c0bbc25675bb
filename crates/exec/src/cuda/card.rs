//! The machine's cards in the driver's order: as `CUDA_VISIBLE_DEVICES` lists them, or the fastest first.

use super::driver::call;
use super::error::{CallError, CudaError};
use super::library::Driver;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};
use plimsoll_units::Bytes;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

/// The oldest cards that the kernels are compiled for: Turing.
pub const OLDEST_CAPABILITY: (u8, u8) = (7, 5);

/// How many processes may use a card at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number.
    Shared,
    /// One.
    Exclusive,
    /// None.
    Prohibited,
}

/// A card, or a slice of one in MIG mode, which the driver shows instead. Its free memory is known only after it is
/// opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its number.
    pub index: usize,
    /// The product: `NVIDIA GeForce RTX 3060`.
    pub name: String,
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`, as other tools show it; `MIG-` and its own UUID for a slice.
    pub uuid: String,
    /// Major and minor.
    pub compute_capability: (u8, u8),
    /// All of its memory.
    pub memory: Bytes,
    /// Its compute mode.
    pub mode: ComputeMode,
    /// Whether memory can be allocated in pieces that are mapped into one range of addresses.
    pub maps_memory: bool,
    /// Whether the system ends kernels that run too long: the card drives a display, or Windows manages it.
    pub limits_kernels: bool,
    pub(super) handle: CUdevice,
}

impl Card {
    /// Checks that there are kernels for it, and that its mode allows processes. Errors: `CardTooOld`, `Prohibited`.
    pub fn check(&self) -> Result<(), CudaError> {
        if self.compute_capability < OLDEST_CAPABILITY {
            let found = self.compute_capability;
            return Err(CudaError::CardTooOld { name: self.name.clone(), found, oldest: OLDEST_CAPABILITY });
        }
        match self.mode {
            ComputeMode::Prohibited => Err(CudaError::Prohibited { name: self.name.clone() }),
            ComputeMode::Shared | ComputeMode::Exclusive => Ok(()),
        }
    }
}

impl Driver {
    /// All cards. Errors: `NoCards`; the driver does not start.
    pub fn cards(&self) -> Result<Vec<Card>, CudaError> {
        (0..self.count()?).map(|index| Ok(read(index)?)).collect()
    }

    /// The card of this number. Errors: `NoCards`, `NoSuchCard`.
    pub fn card(&self, index: usize) -> Result<Card, CudaError> {
        let count = self.count()?;
        if index >= count {
            return Err(CudaError::NoSuchCard { index, count, visible: visible() });
        }
        Ok(read(index)?)
    }

    fn count(&self) -> Result<usize, CudaError> {
        /// `CUDA_ERROR_NO_DEVICE`, and `CUDA_ERROR_INVALID_DEVICE` if `CUDA_VISIBLE_DEVICES` names an invalid one.
        const NO_DEVICE: [u32; 2] = [100, 101];
        let mut count = 0;
        // SAFETY: may be called at any time and repeatedly; the destination is on this stack.
        let counted = unsafe { call!(cuInit(0)).and_then(|()| call!(cuDeviceGetCount(&mut count))) };
        match counted {
            Ok(()) if count > 0 => Ok(count as usize),
            Ok(()) => Err(CudaError::NoCards { visible: visible() }),
            Err(error) if NO_DEVICE.contains(&error.code) => Err(CudaError::NoCards { visible: visible() }),
            Err(error) => Err(error.into()),
        }
    }
}

fn visible() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// In the names of slices: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
const OF_A_SLICE: &str = " MIG ";

/// The card of this number, which must exist, as the driver describes it.
fn read(index: usize) -> Result<Card, CallError> {
    let mut handle = 0;
    // SAFETY: the driver was initialized when the cards were counted; the destination is on this stack.
    unsafe { call!(cuDeviceGet(&mut handle, index as c_int)) }?;
    let mut bytes = 0;
    // SAFETY: the driver just returned the card's handle; the destination is on this stack.
    unsafe { call!(cuDeviceTotalMem_v2(&mut bytes, handle)) }?;
    let capability = [
        attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ];
    let mode = match attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? {
        // CU_COMPUTEMODE_PROHIBITED, and both kinds of exclusive mode.
        2 => ComputeMode::Prohibited,
        1 | 3 => ComputeMode::Exclusive,
        _ => ComputeMode::Shared,
    };
    let maps = attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
    let limits_kernels = attribute(handle, Attribute::CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT)? != 0;
    let name = name(handle)?;
    Ok(Card {
        index,
        uuid: uuid(handle, if name.contains(OF_A_SLICE) { "MIG" } else { "GPU" })?,
        name,
        compute_capability: (capability[0] as u8, capability[1] as u8),
        memory: Bytes(bytes as u64),
        mode,
        maps_memory: maps != 0,
        limits_kernels,
        handle,
    })
}

fn attribute(handle: CUdevice, attribute: Attribute) -> Result<c_int, CallError> {
    let mut value = 0;
    // SAFETY: the handle is a card's; the destination is on this stack.
    unsafe { call!(cuDeviceGetAttribute(&mut value, attribute, handle)) }?;
    Ok(value)
}

fn name(handle: CUdevice) -> Result<String, CallError> {
    let mut text = [0u8; 256];
    // SAFETY: the handle is a card's; the driver writes at most the buffer's length, zero-terminated.
    unsafe { call!(cuDeviceGetName(text.as_mut_ptr().cast::<c_char>(), text.len() as c_int, handle)) }?;
    let name = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy);
    Ok(name.map_or_else(|_| "NVIDIA GPU".to_owned(), |name| name.into_owned()))
}

fn uuid(handle: CUdevice, kind: &str) -> Result<String, CallError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the handle is a card's; the destination is on this stack.
    unsafe { call!(cuDeviceGetUuid_v2(&mut uuid, handle)) }?;
    let mut text = kind.to_owned();
    for (index, byte) in uuid.bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{:02x}", *byte as u8);
    }
    Ok(text)
}
