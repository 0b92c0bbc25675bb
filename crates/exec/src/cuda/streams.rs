//! Streams, events, and whole programs that were captured from streams. A stream does one thing after the other; what
//! different streams do is ordered by events and by nothing else.
//!
//! All functions need the context to be this thread's ([`Context::enter`]).

use super::context::Context;
use super::cublas_lt::ReadyProduct;
use super::driver::call;
use super::error::{CallError, CudaError};
use super::kernels::Kernel;
use super::launch::Arguments;
use cudarc::driver::sys::{CUevent, CUgraphExec, CUstream, CUstreamCaptureMode};
use std::ffi::c_void;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: not ordered with the stream that is used where none is named.
const NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`: most events order, they don't measure.
const NO_TIMING: u32 = 2;

/// How a kernel is started.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadyLaunch {
    pub(super) kernel: Kernel,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) arguments: Arguments,
}

/// What a stream is given for an op.
#[derive(Debug)]
pub(super) enum Ready {
    /// A kernel.
    Kernel(ReadyLaunch),
    /// A product of a library's.
    Product(Box<ReadyProduct>),
}

impl Ready {
    /// The addresses that it is handed, among other numbers.
    pub(super) fn addresses(&self) -> Vec<u64> {
        match self {
            Self::Kernel(launch) => launch.arguments.longs().collect(),
            Self::Product(product) => product.addresses().to_vec(),
        }
    }
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    context: Arc<Context>,
    handle: CUstream,
}

impl Stream {
    /// A new one. Errors: the driver's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is on this stack.
        unsafe { call!(cuStreamCreate(&mut handle, NON_BLOCKING)) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Starts a kernel or a product.
    ///
    /// # Safety
    /// What it is handed lies in memory that stays until this stream is done.
    pub(super) unsafe fn start(&self, ready: &Ready) -> Result<(), CudaError> {
        match ready {
            Ready::Kernel(launch) => Ok(self.launch(launch)?),
            // SAFETY: the caller's promise.
            Ready::Product(product) => unsafe { self.multiply(product) },
        }
    }

    /// Starts a product of a library's.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    pub(super) unsafe fn multiply(&self, product: &ReadyProduct) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { product.start(self.handle) }?)
    }

    /// Starts a kernel.
    fn launch(&self, launch: &ReadyLaunch) -> Result<(), CallError> {
        let bytes = launch.arguments.bytes();
        let pointer = |&offset: &usize| bytes[offset..].as_ptr().cast_mut().cast::<c_void>();
        let mut pointers = launch.arguments.offsets().iter().map(pointer).collect::<Vec<_>>();
        let ([x, y, z], threads) = (launch.grid, launch.threads);
        // SAFETY: the kernel's module is loaded for as long as there is a plan; a pointer for each of its parameters
        // leads to bytes of its type, which `ops/` packs and the tests of every kernel check; the driver copies them
        // now. The addresses among them lie in the arena, which stays until this stream is done.
        unsafe {
            call!(cuLaunchKernel(
                launch.kernel.handle(),
                x,
                y,
                z,
                threads,
                1,
                1,
                launch.shared_bytes,
                self.handle,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            ))
        }
    }

    /// Copies to the card.
    ///
    /// # Safety
    /// The bytes can be read, and the card's be written, until this stream is done with it; pageable ones until this
    /// returns.
    pub(super) unsafe fn copy_to_card(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.handle)) }
    }

    /// Copies from the card.
    ///
    /// # Safety
    /// The card's bytes can be read, and these be written, until this stream is done with it.
    pub(super) unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle)) }
    }

    /// Sets bytes of the card to zero.
    ///
    /// # Safety
    /// They can be written until this stream is done with it.
    pub(super) unsafe fn clear(&self, at: u64, bytes: u64) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemsetD8Async(at, 0, bytes as usize, self.handle)) }
    }

    /// Calls a function of the host when everything before is done; what follows waits for its end.
    ///
    /// # Safety
    /// The argument is what the function takes, and stays until this stream is done. The function calls no function of
    /// the driver, and does not unwind.
    pub(super) unsafe fn call_host(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuLaunchHostFunc(self.handle, Some(function), argument)) }
    }

    /// The event stands for all that the stream was given so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: both exist for as long as their owners.
        unsafe { call!(cuEventRecord(event.handle, self.handle)) }
    }

    /// What follows waits for what the event stands for now.
    pub(super) fn wait(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: both exist for as long as their owners.
        unsafe { call!(cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Waits until all is done. Errors: also those of what was started.
    pub(super) fn synchronize(&self) -> Result<(), CallError> {
        // SAFETY: it exists for as long as its owner.
        unsafe { call!(cuStreamSynchronize(self.handle)) }
    }

    /// Captures what `enqueue` gives to this stream, and to all that wait for it, instead of doing it.
    pub(super) fn capture<E: From<CallError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<CapturedProgram, E> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: it exists for as long as its owner.
        unsafe { call!(cuStreamBeginCapture_v2(self.handle, mode)) }?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: it is being captured; the place is on this stack. A capture must end whatever came of it.
        let ended = unsafe { call!(cuStreamEndCapture(self.handle, &mut graph)) };
        let captured = enqueued.and(ended.map_err(E::from)).and_then(|()| {
            let mut handle = std::ptr::null_mut();
            self.context.count_request();
            // SAFETY: the graph was just captured; the place is on this stack.
            unsafe { call!(cuGraphInstantiateWithFlags(&mut handle, graph, 0)) }?;
            let program = CapturedProgram { context: self.context.clone(), handle };
            // SAFETY: the graph was just instantiated.
            unsafe { call!(cuGraphUpload(handle, self.handle)) }?;
            Ok(program)
        });
        if !graph.is_null() {
            // SAFETY: it was captured, and what was instantiated of it does not need it any more.
            let destroyed = unsafe { call!(cuGraphDestroy(graph)) };
            return captured.and_then(|program| Ok(destroyed.map(|()| program)?));
        }
        captured
    }

    /// Starts a captured program.
    pub(super) fn launch_captured(&self, program: &CapturedProgram) -> Result<(), CallError> {
        // SAFETY: both exist for as long as their owners.
        unsafe { call!(cuGraphLaunch(program.handle, self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and nobody else has the handle. A driver that fails here leaves nothing to be done.
        let _ = unsafe { call!(cuStreamDestroy_v2(self.handle)) };
    }
}

/// A point in what a stream does.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

impl Event {
    /// A new one, which stands for nothing yet. Errors: the driver's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        Self::with(context, NO_TIMING)
    }

    /// A new one that tells when it was reached. Errors: the driver's.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Self, CallError> {
        Self::with(context, 0)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the place is on this stack.
        unsafe { call!(cuEventCreate(&mut handle, flags)) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Milliseconds from an earlier one to this. Both are timed, and were reached.
    pub(super) fn since(&self, earlier: &Self) -> Result<f32, CallError> {
        let mut milliseconds = 0.0;
        // SAFETY: both exist for as long as their owners; the place is on this stack.
        unsafe { call!(cuEventElapsedTime as cuEventElapsedTime_v2(&mut milliseconds, earlier.handle, self.handle)) }?;
        Ok(milliseconds)
    }

    /// The host waits for it.
    pub(super) fn synchronize(&self) -> Result<(), CallError> {
        // SAFETY: it exists for as long as its owner.
        unsafe { call!(cuEventSynchronize(self.handle)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and nobody else has the handle. A driver that fails here leaves nothing to be done.
        let _ = unsafe { call!(cuEventDestroy_v2(self.handle)) };
    }
}

/// A program that is started by one call.
#[derive(Debug)]
pub(super) struct CapturedProgram {
    context: Arc<Context>,
    handle: CUgraphExec,
}

impl Drop for CapturedProgram {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was instantiated, and whoever holds it has waited for its end.
        let _ = unsafe { call!(cuGraphExecDestroy(self.handle)) };
    }
}
