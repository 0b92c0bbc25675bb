//! Copies and fills. A copy from pageable memory takes its bytes during the call; a copy to pageable memory, and any
//! copy without a stream, is done when the call returns. Other copies run in the order of their stream.

use super::codes::{Code, INVALID_HANDLE, INVALID_VALUE, STREAM_CAPTURE_IMPLICIT, STREAM_CAPTURE_UNSUPPORTED};
use super::entries;
use super::state::Driver;
use crate::streams::{HostSource, LEGACY, Operation};
use std::ffi::{c_uchar, c_uint, c_ushort};

entries! {
    /// `cuMemcpyHtoD`.
    fn cuMemcpyHtoD_v2(driver, to: u64, from: *const u8, bytes: usize) Context {
        synchronous(driver, to_device(driver, to, from, bytes, true)?)
    }

    /// `cuMemcpyHtoDAsync`.
    fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: *const u8, bytes: usize, stream: u64) Context {
        let operation = to_device(driver, to, from, bytes, false)?;
        enqueue(driver, stream, operation)
    }

    /// `cuMemcpyDtoH`.
    fn cuMemcpyDtoH_v2(driver, to: *mut u8, from: u64, bytes: usize) Context {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        synchronous(driver, Operation::ToHost { to: to as usize, from, bytes })
    }

    /// `cuMemcpyDtoHAsync`.
    fn cuMemcpyDtoHAsync_v2(driver, to: *mut u8, from: u64, bytes: usize, stream: u64) Context {
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        let pinned = driver.is_pinned(to as usize, bytes);
        if !pinned && driver.engine.capture_of(stream).is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        enqueue(driver, stream, Operation::ToHost { to: to as usize, from, bytes })?;
        if pinned { Ok(()) } else { driver.wait(|engine, machine| engine.synchronize(stream, machine)) }
    }

    /// `cuMemcpyDtoD`: ordered with all blocking streams; does not wait.
    fn cuMemcpyDtoD_v2(driver, to: u64, from: u64, bytes: usize) Context {
        enqueue(driver, LEGACY, Operation::Within { to, from, bytes })
    }

    /// `cuMemcpyDtoDAsync`.
    fn cuMemcpyDtoDAsync_v2(driver, to: u64, from: u64, bytes: usize, stream: u64) Context {
        enqueue(driver, stream, Operation::Within { to, from, bytes })
    }

    /// `cuMemsetD8`.
    fn cuMemsetD8_v2(driver, to: u64, value: c_uchar, count: usize) Context {
        enqueue(driver, LEGACY, Operation::Fill { to, pattern: vec![value], count })
    }

    /// `cuMemsetD8Async`.
    fn cuMemsetD8Async(driver, to: u64, value: c_uchar, count: usize, stream: u64) Context {
        enqueue(driver, stream, Operation::Fill { to, pattern: vec![value], count })
    }

    /// `cuMemsetD16Async`.
    fn cuMemsetD16Async(driver, to: u64, value: c_ushort, count: usize, stream: u64) Context {
        aligned(to, 2)?;
        enqueue(driver, stream, Operation::Fill { to, pattern: value.to_le_bytes().to_vec(), count })
    }

    /// `cuMemsetD32Async`.
    fn cuMemsetD32Async(driver, to: u64, value: c_uint, count: usize, stream: u64) Context {
        aligned(to, 4)?;
        enqueue(driver, stream, Operation::Fill { to, pattern: value.to_le_bytes().to_vec(), count })
    }
}

fn aligned(address: u64, bytes: u64) -> Result<(), Code> {
    if address.is_multiple_of(bytes) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Enqueues an operation. Errors: the stream does not exist, or a capture does not allow the operation.
pub(crate) fn enqueue(driver: &mut Driver, stream: u64, operation: Operation) -> Result<(), Code> {
    if !driver.engine.has_stream(stream) {
        return Err(INVALID_HANDLE);
    }
    if stream == LEGACY && driver.engine.capturing() {
        return Err(STREAM_CAPTURE_IMPLICIT);
    }
    driver.enqueue(stream, operation);
    Ok(())
}

fn synchronous(driver: &mut Driver, operation: Operation) -> Result<(), Code> {
    enqueue(driver, LEGACY, operation)?;
    driver.wait(|engine, machine| engine.synchronize(LEGACY, machine))
}

/// Enqueues a copy to the device; with `now` the bytes are taken immediately.
///
/// # Safety
/// `from` is null or has these bytes; pinned ones stay valid until the copy has run.
unsafe fn to_device(driver: &Driver, to: u64, from: *const u8, bytes: usize, now: bool) -> Result<Operation, Code> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    let source = if driver.is_pinned(from as usize, bytes) && !now {
        HostSource::Pinned(from as usize)
    } else {
        // SAFETY: not null, and the caller promises that the bytes are valid.
        HostSource::Staged(unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec())
    };
    Ok(Operation::ToDevice { to, from: source, bytes })
}
