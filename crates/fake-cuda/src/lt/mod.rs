//! The cuBLASLt functions that Plimsoll calls, with the names and arguments of `cublasLt.h`: products of column-major
//! matrices, strict about types, extents, strides, alignments, workspace and pointers. They are in the driver's
//! library, so that products are operations of its streams.
//!
//! `objects.rs`: objects by handle; `description.rs`: what they describe; `problem.rs`: a product without its addresses;
//! `algorithm.rs`: the algorithms; `product.rs`: the arithmetic.

mod algorithm;
mod description;
mod number;
mod objects;
mod problem;
mod product;

pub use objects::Lt;
pub use product::Product;

use crate::driver::codes::SUCCESS as DRIVER_SUCCESS;
use crate::driver::{Driver, current_context, driver, enqueue};
use crate::streams::Operation;
use algorithm::{Heuristic, candidates};
use description::{Description, Layout, Preference};
use objects::Handle;
use std::ffi::{c_int, c_void};

/// `cublasStatus_t`, of `cublas_api.h`.
pub type Status = u32;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const ALLOC_FAILED: Status = 3;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;
/// The highest code.
const LICENSE_ERROR: Status = 16;

/// Memory used by a handle, and by an algorithm's kernels when it first runs.
const HANDLE_BYTES: u64 = 8 << 20;
const KERNEL_BYTES: u64 = 1 << 20;

/// Counts a call, fails it if the description says so, and otherwise runs it.
fn enter(name: &'static str, body: impl FnOnce(&mut Driver) -> Result<(), Status>) -> Status {
    let driver = &mut *driver();
    if driver.sticky != DRIVER_SUCCESS {
        return EXECUTION_FAILED;
    }
    if let Err(code) = driver.begin_call(name) {
        return if code > LICENSE_ERROR { EXECUTION_FAILED } else { code };
    }
    if current_context() == 0 {
        return NOT_INITIALIZED;
    }
    body(driver).err().unwrap_or(SUCCESS)
}

/// Writes a result to the caller's pointer. Errors: it is null.
///
/// # Safety
/// `to` is null or points to a `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises that it then points to a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// The bytes of an attribute. Errors: the pointer is null.
///
/// # Safety
/// `from` is null or points to `bytes` bytes.
unsafe fn attribute<'a>(from: *const c_void, bytes: usize) -> Result<&'a [u8], Status> {
    if from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises that it then points to that many bytes.
    Ok(unsafe { std::slice::from_raw_parts(from.cast(), bytes) })
}

/// Exported functions. `fn name(driver, arguments…) { body }`; the body returns `Result<(), Status>`.
macro_rules! entries {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $ty:ty)* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As in NVIDIA's `cublasLt.h`: pointers are null or valid for the function's use of them.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "NVIDIA's name")]
            #[allow(clippy::too_many_arguments, reason = "NVIDIA's arguments")]
            pub unsafe extern "C" fn $name($($argument: $ty),*) -> Status {
                enter(stringify!($name), |$driver| {
                    // SAFETY: bodies use the arguments as cublasLt.h specifies, and the caller meets its conditions.
                    #[allow(unused_unsafe, reason = "some bodies have no unsafe operation")]
                    unsafe { $body }
                })
            }
        )*
    };
}

/// The version from the description.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVIDIA's name")]
pub extern "C" fn cublasLtGetVersion() -> usize {
    driver().card.cublas
}

entries! {
    /// `cublasLtCreate`.
    fn cublasLtCreate(driver, to: *mut u64) {
        driver.take(HANDLE_BYTES).map_err(|_| ALLOC_FAILED)?;
        let handle = driver.handle();
        driver.lt.handles.insert(handle, Handle::default());
        give(to, handle)
    }

    /// `cublasLtDestroy`.
    fn cublasLtDestroy(driver, handle: u64) {
        let kernels = driver.lt.handles.remove(&handle).ok_or(INVALID_VALUE)?.loaded.len() as u64;
        driver.used -= HANDLE_BYTES + kernels * KERNEL_BYTES;
        Ok(())
    }

    /// `cublasLtMatmulDescCreate`.
    fn cublasLtMatmulDescCreate(driver, to: *mut u64, compute: c_int, scale: c_int) {
        let description = Description::new(compute, scale)?;
        let handle = driver.handle();
        driver.lt.descriptions.insert(handle, description);
        give(to, handle)
    }

    /// `cublasLtMatmulDescDestroy`.
    fn cublasLtMatmulDescDestroy(driver, at: u64) {
        driver.lt.descriptions.remove(&at).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// `cublasLtMatmulDescSetAttribute`.
    fn cublasLtMatmulDescSetAttribute(driver, at: u64, which: c_int, value: *const c_void, bytes: usize) {
        let value = attribute(value, bytes)?;
        driver.lt.descriptions.get_mut(&at).ok_or(INVALID_VALUE)?.set(which, value)
    }

    /// `cublasLtMatrixLayoutCreate`.
    fn cublasLtMatrixLayoutCreate(driver, to: *mut u64, kind: c_int, rows: u64, columns: u64, stride: i64) {
        let layout = Layout::new(kind, rows, columns, stride)?;
        let handle = driver.handle();
        driver.lt.layouts.insert(handle, layout);
        give(to, handle)
    }

    /// `cublasLtMatrixLayoutDestroy`.
    fn cublasLtMatrixLayoutDestroy(driver, at: u64) {
        driver.lt.layouts.remove(&at).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// `cublasLtMatmulPreferenceCreate`.
    fn cublasLtMatmulPreferenceCreate(driver, to: *mut u64) {
        let handle = driver.handle();
        driver.lt.preferences.insert(handle, Preference::default());
        give(to, handle)
    }

    /// `cublasLtMatmulPreferenceDestroy`.
    fn cublasLtMatmulPreferenceDestroy(driver, at: u64) {
        driver.lt.preferences.remove(&at).map(|_| ()).ok_or(INVALID_VALUE)
    }

    /// `cublasLtMatmulPreferenceSetAttribute`.
    fn cublasLtMatmulPreferenceSetAttribute(driver, at: u64, which: c_int, value: *const c_void, bytes: usize) {
        let value = attribute(value, bytes)?;
        driver.lt.preferences.get_mut(&at).ok_or(INVALID_VALUE)?.set(which, value)
    }

    /// `cublasLtMatmulAlgoGetHeuristic`: algorithms that the preference allows, the preferred one first.
    fn cublasLtMatmulAlgoGetHeuristic(
        driver, handle: u64, description: u64, a: u64, b: u64, c: u64, d: u64, preference: u64,
        asked: c_int, to: *mut Heuristic, count: *mut c_int,
    ) {
        driver.lt.handle(handle)?;
        let problem = driver.lt.problem(description, [a, b, c, d], driver.card.capability)?;
        let preference = driver.lt.preferences.get(&preference).ok_or(INVALID_VALUE)?;
        let asked = usize::try_from(asked).ok().filter(|asked| *asked > 0).ok_or(INVALID_VALUE)?;
        let found = candidates(&problem, preference);
        let fitting = &found[..found.len().min(asked)];
        if to.is_null() {
            return Err(INVALID_VALUE);
        }
        for (place, heuristic) in fitting.iter().enumerate() {
            to.add(place).write(*heuristic);
        }
        give(count, fitting.len() as c_int)
    }

    /// `cublasLtMatmulAlgoCheck`.
    fn cublasLtMatmulAlgoCheck(
        driver, handle: u64, description: u64, a: u64, b: u64, c: u64, d: u64, algorithm: *const [u64; 8],
        to: *mut Heuristic,
    ) {
        driver.lt.handle(handle)?;
        let problem = driver.lt.problem(description, [a, b, c, d], driver.card.capability)?;
        if algorithm.is_null() {
            return Err(INVALID_VALUE);
        }
        give(to, Heuristic::of(&*algorithm, &problem).ok_or(NOT_SUPPORTED)?)
    }

    /// `cublasLtMatmul`.
    fn cublasLtMatmul(
        driver, handle: u64, description: u64, alpha: *const f32, a: u64, a_layout: u64, b: u64, b_layout: u64,
        beta: *const f32, c: u64, c_layout: u64, d: u64, d_layout: u64, algorithm: *const [u64; 8],
        workspace: u64, workspace_bytes: usize, stream: u64,
    ) {
        driver.lt.handle(handle)?;
        let layouts = [a_layout, b_layout, c_layout, d_layout];
        let problem = driver.lt.problem(description, layouts, driver.card.capability)?;
        if alpha.is_null() || beta.is_null() || algorithm.is_null() {
            return Err(INVALID_VALUE);
        }
        let factors = problem.factors(alpha, beta);
        let product =
            Product::new(problem, factors, [a, b, c, d], *algorithm, (workspace, workspace_bytes as u64))?;
        let loaded = &driver.lt.handles[&handle].loaded;
        if !loaded.contains(&product.algorithm()) {
            if driver.engine.capture_of(stream).is_some() {
                driver.last_failure = "a library's kernels can't be loaded while a stream is captured".to_owned();
                return Err(EXECUTION_FAILED);
            }
            driver.take(KERNEL_BYTES).map_err(|_| ALLOC_FAILED)?;
            driver.lt.handle(handle)?.loaded.insert(product.algorithm());
        }
        enqueue(driver, stream, Operation::Product(Box::new(product))).map_err(|_| EXECUTION_FAILED)
    }
}
