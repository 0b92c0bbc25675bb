//! Calls of the driver's functions. Each names its function once, and an error says which one failed.
//!
//! The crate that has the functions looks them up when they are first called and panics if one is missing, so
//! `library.rs` asks for all of [`FUNCTIONS`] before anything is called.

use super::error::CallError;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::CStr;

/// All functions that are called with `call!`, whatever the plan. In every driver since CUDA 11.4.
pub(super) const FUNCTIONS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Calls a function of the driver. Needs an `unsafe` block, which says why its arguments are sound.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::check(stringify!($function), cudarc::driver::sys::$function($($argument),*))
    };
}
pub(super) use call;

/// An error if the function did not succeed.
pub(super) fn check(function: &'static str, result: CUresult) -> Result<(), CallError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let [name, words] = [sys::cuGetErrorName, sys::cuGetErrorString].map(|text_of| {
        let mut text = std::ptr::null();
        // SAFETY: the place is on this stack; `library.rs` found both functions before anything was called.
        let found = unsafe { text_of(result, &mut text) };
        if found != CUresult::CUDA_SUCCESS || text.is_null() {
            return Box::from("unknown");
        }
        // SAFETY: the driver succeeded, so this is a text of its own that stays, with a zero at its end.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into()
    });
    let detail = super::library::Driver::opened().and_then(|driver| driver.hooks().failure()).map(Into::into);
    Err(CallError { function, code: result as u32, name, words, detail })
}

#[cfg(test)]
mod tests {
    use super::FUNCTIONS;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A function that is called and not asked for first would panic on a driver that lacks it.
    #[test]
    fn every_function_that_is_called_is_asked_for_first() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
        let mut called = BTreeSet::from(["cuGetErrorName".to_owned(), "cuGetErrorString".to_owned()]);
        for entry in std::fs::read_dir(folder).expect("this folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            for call in text.split(concat!("call", "!(cu")).skip(1) {
                let end = call.find('(').expect("a call");
                called.insert(format!("cu{}", &call[..end]));
            }
        }
        let asked = FUNCTIONS.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(called, asked);
    }
}
