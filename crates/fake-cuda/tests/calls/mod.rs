//! Safe wrappers of the driver's C functions, called as by a program that loads the library.
#![allow(dead_code, reason = "every test file compiles its own copy and uses a part of it")]

use crate::support::text;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

// Links the library, whose functions are declared below.
use plimsoll_fake_cuda as _;

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> u32;
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> u32;
    fn cuDevicePrimaryCtxRetain(to: *mut *mut c_void, device: c_int) -> u32;
    fn cuCtxSetCurrent(context: *mut c_void) -> u32;
    fn cuCtxSynchronize() -> u32;
    fn cuGetErrorName(error: u32, to: *mut *const c_char) -> u32;
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32;
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32;
    fn cuMemFree_v2(address: u64) -> u32;
    fn cuMemAddressReserve(address: *mut u64, bytes: usize, align: usize, wanted: u64, flags: u64) -> u32;
    fn cuMemAddressFree(address: u64, bytes: usize) -> u32;
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const [u32; 8], flags: u64) -> u32;
    fn cuMemRelease(handle: u64) -> u32;
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32;
    fn cuMemSetAccess(address: u64, bytes: usize, descriptions: *const [u32; 3], count: usize) -> u32;
    fn cuMemUnmap(address: u64, bytes: usize) -> u32;
    fn cuMemHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> u32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> u32;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> u32;
    fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> u32;
    fn cuModuleLoadData(module: *mut u64, image: *const c_char) -> u32;
    fn cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) -> u32;
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: u64) -> u32;
    fn cuLaunchKernel(
        function: u64,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: u64,
        parameters: *const *const c_void,
        extra: *const *const c_void,
    ) -> u32;
    fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> u32;
    fn cuStreamSynchronize(stream: u64) -> u32;
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> u32;
    fn cuStreamBeginCapture_v2(stream: u64, mode: c_uint) -> u32;
    fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> u32;
    fn cuEventCreate(event: *mut u64, flags: c_uint) -> u32;
    fn cuEventRecord(event: u64, stream: u64) -> u32;
    fn cuEventQuery(event: u64) -> u32;
    fn cuGraphInstantiateWithFlags(executable: *mut u64, graph: u64, flags: u64) -> u32;
    fn cuGraphLaunch(executable: u64, stream: u64) -> u32;
    fn fake_cuda_reset(description: *const c_char) -> u32;
    fn fake_cuda_allow(address: u64, bytes: usize, mode: c_uint) -> u32;
    fn fake_cuda_calls(name: *const c_char, count: *mut u64) -> u32;
    fn fake_cuda_failure(to: *mut c_char, size: usize) -> u32;
    fn fake_cuda_leaks(count: *mut u64) -> u32;
    fn fake_cuda_trace(path: *const c_char) -> u32;
}

/// Result of a call.
pub type Call<T = ()> = Result<T, u32>;

/// 0, or the code of the error.
pub fn code<T>(call: Call<T>) -> u32 {
    call.err().unwrap_or(0)
}

/// Converts a code to a result.
fn of(code: u32) -> Call {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// Returns the value that a call writes to a pointer.
fn made<T: Default>(call: impl FnOnce(*mut T) -> u32) -> Call<T> {
    let mut value = T::default();
    of(call(&mut value)).map(|()| value)
}

/// A machine with its context. The process has one at a time.
pub struct Machine {
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

macro_rules! calls {
    ($($(#[$doc:meta])* pub fn $name:ident(&self $(, $argument:ident: $ty:ty)*) -> $result:ty { $call:expr })*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self $(, $argument: $ty)*) -> $result {
                // SAFETY: arguments are those of the C function, and places for results are on this stack.
                unsafe { $call }
            }
        )*
    };
}

impl Machine {
    /// A machine with this description, ready for use.
    pub fn of(description: &str) -> Self {
        Self::try_of(description).unwrap_or_else(|code| panic!("{description}: code {code}"))
    }

    /// A machine with this description. Errors: the code with which it fails to start.
    pub fn try_of(description: &str) -> Call<Self> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let text = CString::new(description).expect("no zeros");
        // SAFETY: `text` is NUL-terminated, and the pointer is to a local variable.
        unsafe {
            of(fake_cuda_reset(text.as_ptr()))?;
            of(cuInit(0))?;
            let mut context = std::ptr::null_mut();
            of(cuDevicePrimaryCtxRetain(&mut context, 0))?;
            of(cuCtxSetCurrent(context))?;
        }
        Ok(Self { _alone: alone })
    }

    /// Handle of the kernel that doubles numbers.
    pub fn double_it(&self) -> u64 {
        self.kernel("double_it")
    }

    /// Handle of a kernel in the tests' module.
    pub fn kernel(&self, name: &str) -> u64 {
        let module = self.load(&text("tests/driver.ptx")).expect("loads");
        self.function(module, name).expect("is there")
    }

    /// Launches one block of threads with one pointer argument.
    pub fn launch(&self, function: u64, threads: u32, x: u64, stream: u64) -> Call {
        let parameters = [(&raw const x).cast::<c_void>()];
        // SAFETY: the kernel has one parameter of 8 bytes, which is valid until the call returns.
        of(unsafe {
            cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, parameters.as_ptr(), std::ptr::null())
        })
    }

    /// Loads PTX.
    pub fn load(&self, ptx: &str) -> Call<u64> {
        let image = CString::new(ptx).expect("no zeros");
        // SAFETY: the image is NUL-terminated.
        made(|module| unsafe { cuModuleLoadData(module, image.as_ptr()) })
    }

    /// Handle of a function.
    pub fn function(&self, module: u64, name: &str) -> Call<u64> {
        let name = CString::new(name).expect("no zeros");
        // SAFETY: the name is NUL-terminated.
        made(|function| unsafe { cuModuleGetFunction(function, module, name.as_ptr()) })
    }

    /// An attribute of a function.
    pub fn function_attribute(&self, module: u64, name: &str, attribute: u32) -> Call<i32> {
        let function = self.function(module, name)?;
        // SAFETY: the pointer is to a local variable.
        made(|value| unsafe { cuFuncGetAttribute(value, attribute, function) })
    }

    /// Reads bytes of the device.
    pub fn read(&self, address: u64, bytes: usize) -> Call<Vec<u8>> {
        let mut data = vec![0; bytes];
        // SAFETY: the buffer has this many bytes.
        of(unsafe { cuMemcpyDtoH_v2(data.as_mut_ptr(), address, bytes) }).map(|()| data)
    }

    /// Message of the last failure.
    pub fn failure(&self) -> String {
        let mut text = [0; 512];
        // SAFETY: the buffer has room for 512 characters including the NUL.
        unsafe {
            fake_cuda_failure(text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        }
    }

    /// The name of an error.
    pub fn error_name(&self, error: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the pointer is to a local variable, and names are static.
        unsafe {
            assert_eq!(cuGetErrorName(error, &mut name), 0);
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }

    /// Number of calls of a function.
    pub fn calls(&self, name: &str) -> u64 {
        let name = CString::new(name).expect("no zeros");
        // SAFETY: the name is NUL-terminated.
        made(|count| unsafe { fake_cuda_calls(name.as_ptr(), count) }).expect("counts")
    }

    /// Writes the trace.
    pub fn trace(&self, path: &Path) -> Call {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no zeros");
        // SAFETY: the path is NUL-terminated.
        of(unsafe { fake_cuda_trace(path.as_ptr()) })
    }

    /// Free memory.
    pub fn free(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to local variables.
        assert_eq!(unsafe { cuMemGetInfo_v2(&mut free, &mut total) }, 0);
        free as u64
    }

    /// Pinned memory.
    pub fn pinned(&self, bytes: usize) -> *mut c_void {
        let mut at = std::ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        assert_eq!(unsafe { cuMemHostAlloc(&mut at, bytes, 0) }, 0);
        at
    }

    calls! {
        pub fn attribute(&self, attribute: u32) -> Call<i32> { made(|value| cuDeviceGetAttribute(value, attribute, 0)) }
        pub fn synchronize(&self) -> Call { of(cuCtxSynchronize()) }
        pub fn alloc(&self, bytes: usize) -> Call<u64> { made(|address| cuMemAlloc_v2(address, bytes)) }
        pub fn alloc_into(&self, address: *mut u64, bytes: usize) -> Call { of(cuMemAlloc_v2(address, bytes)) }
        pub fn release(&self, address: u64) -> Call { of(cuMemFree_v2(address)) }
        pub fn reserve(&self, bytes: usize) -> Call<u64> { made(|at| cuMemAddressReserve(at, bytes, 0, 0, 0)) }
        pub fn unreserve(&self, address: u64, bytes: usize) -> Call { of(cuMemAddressFree(address, bytes)) }
        // Pinned memory, no handle types, of device 0.
        pub fn create(&self, bytes: usize) -> Call<u64> { made(|to| cuMemCreate(to, bytes, &[1, 0, 1, 0, 0, 0, 0, 0], 0)) }
        pub fn drop_handle(&self, handle: u64) -> Call { of(cuMemRelease(handle)) }
        pub fn map(&self, at: u64, bytes: usize, handle: u64) -> Call { of(cuMemMap(at, bytes, 0, handle, 0)) }
        // Device 0, reading and writing.
        pub fn access(&self, at: u64, bytes: usize) -> Call { of(cuMemSetAccess(at, bytes, &[1, 0, 3], 1)) }
        pub fn unmap(&self, at: u64, bytes: usize) -> Call { of(cuMemUnmap(at, bytes)) }
        pub fn write(&self, to: u64, data: &[u8]) -> Call { of(cuMemcpyHtoD_v2(to, data.as_ptr(), data.len())) }
        pub fn copy_to(&self, to: u64, from: *const c_void, bytes: usize, stream: u64) -> Call {
            of(cuMemcpyHtoDAsync_v2(to, from, bytes, stream))
        }
        // Non-blocking streams, which the legacy stream does not wait for.
        pub fn stream(&self) -> u64 { made(|stream| cuStreamCreate(stream, 1)).expect("a stream") }
        pub fn synchronize_stream(&self, stream: u64) -> Call { of(cuStreamSynchronize(stream)) }
        pub fn wait(&self, stream: u64, event: u64) -> Call { of(cuStreamWaitEvent(stream, event, 0)) }
        pub fn event(&self) -> u64 { made(|event| cuEventCreate(event, 2)).expect("an event") }
        pub fn record(&self, event: u64, stream: u64) -> Call { of(cuEventRecord(event, stream)) }
        pub fn query(&self, event: u64) -> Call { of(cuEventQuery(event)) }
        pub fn begin_capture(&self, stream: u64) -> Call { of(cuStreamBeginCapture_v2(stream, 0)) }
        pub fn end_capture(&self, stream: u64) -> Call<u64> { made(|graph| cuStreamEndCapture(stream, graph)) }
        pub fn instantiate(&self, graph: u64) -> Call<u64> { made(|to| cuGraphInstantiateWithFlags(to, graph, 0)) }
        pub fn launch_graph(&self, graph: u64, stream: u64) -> Call { of(cuGraphLaunch(graph, stream)) }
        pub fn allow(&self, at: u64, bytes: usize, mode: u32) -> Call { of(fake_cuda_allow(at, bytes, mode)) }
        pub fn leaks(&self) -> u64 { made(|count| fake_cuda_leaks(count)).expect("counts") }
    }
}
