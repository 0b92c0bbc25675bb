//! Streams, events, and programs captured from streams. The work of one stream runs in order; only events order the
//! work of different streams.
//!
//! All functions require the context to be current ([`Context::enter`]).

use super::context::Context;
use super::cublas_lt::ReadyProduct;
use super::driver::call;
use super::error::{CallError, CudaError};
use super::kernels::Kernel;
use super::launch::Arguments;
use cudarc::driver::sys::{CUevent, CUgraphExec, CUstream, CUstreamCaptureMode};
use std::ffi::c_void;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream.
const NON_BLOCKING: u32 = 1;

/// `CU_EVENT_DISABLE_TIMING`: most events are not used to measure time.
const NO_TIMING: u32 = 2;

/// A kernel and its launch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ReadyLaunch {
    pub(super) kernel: Kernel,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared_bytes: u32,
    pub(super) arguments: Arguments,
}

/// Work of a stream for an op.
#[derive(Debug)]
pub(super) enum Ready {
    /// A kernel.
    Kernel(ReadyLaunch),
    /// A library's product.
    Product(Box<ReadyProduct>),
}

impl Ready {
    /// Its addresses, among other numbers.
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
        // SAFETY: the destination is on this stack.
        unsafe { call!(cuStreamCreate(&mut handle, NON_BLOCKING)) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Starts a kernel or a product.
    ///
    /// # Safety
    /// Its addresses are in memory that exists until this stream is done.
    pub(super) unsafe fn start(&self, ready: &Ready) -> Result<(), CudaError> {
        match ready {
            Ready::Kernel(launch) => Ok(self.launch(launch)?),
            // SAFETY: the caller's promise.
            Ready::Product(product) => unsafe { self.multiply(product) },
        }
    }

    /// Starts a library's product.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    pub(super) unsafe fn multiply(&self, product: &ReadyProduct) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { product.start(self.handle) }?)
    }

    /// Starts a product if its algorithm can run on this card. Returns whether it can. Errors: the library fails otherwise.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    pub(super) unsafe fn try_product(&self, product: &ReadyProduct) -> Result<bool, CudaError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { product.can_run(self.handle) }?)
    }

    /// Starts a kernel.
    fn launch(&self, launch: &ReadyLaunch) -> Result<(), CallError> {
        let bytes = launch.arguments.bytes();
        let pointer = |&offset: &usize| bytes[offset..].as_ptr().cast_mut().cast::<c_void>();
        let mut pointers = launch.arguments.offsets().iter().map(pointer).collect::<Vec<_>>();
        let ([x, y, z], threads) = (launch.grid, launch.threads);
        // SAFETY: the kernel's module is loaded as long as the plan is; there is a pointer for each parameter to bytes
        // of its type, which `ops/` packs and the tests of every kernel check; the driver copies them now. The
        // addresses among them are in the arena, which exists until this stream is done.
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
    /// The bytes may be read, and the card's written, until this stream has done the copy; pageable bytes
    /// until this returns.
    pub(super) unsafe fn copy_to_card(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.handle)) }
    }

    /// Copies from the card.
    ///
    /// # Safety
    /// The card's bytes may be read, and these written, until this stream has done the copy.
    pub(super) unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.handle)) }
    }

    /// Sets bytes of the card to zero.
    ///
    /// # Safety
    /// They may be written until this stream has done it.
    pub(super) unsafe fn clear(&self, at: u64, bytes: u64) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuMemsetD8Async(at, 0, bytes as usize, self.handle)) }
    }

    /// Enqueues a call of a function of the host; later work waits for its end.
    ///
    /// # Safety
    /// The argument has the function's type, and exists until this stream is done. The function does not call
    /// the driver, and does not unwind.
    pub(super) unsafe fn call_host(
        &self,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { call!(cuLaunchHostFunc(self.handle, Some(function), argument)) }
    }

    /// Records the event after all work that was enqueued so far.
    pub(super) fn record(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: both live as long as their owners.
        unsafe { call!(cuEventRecord(event.handle, self.handle)) }
    }

    /// Makes later work wait for the event's last record.
    pub(super) fn wait(&self, event: &Event) -> Result<(), CallError> {
        // SAFETY: both live as long as their owners.
        unsafe { call!(cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Waits until all work is done. Errors: also of that work.
    pub(super) fn synchronize(&self) -> Result<(), CallError> {
        // SAFETY: it lives as long as its owner.
        unsafe { call!(cuStreamSynchronize(self.handle)) }
    }

    /// Captures the work that `enqueue` enqueues on this stream, and on streams that wait for it, instead of executing
    /// it.
    pub(super) fn capture<E: From<CallError>>(
        &self,
        enqueue: impl FnOnce() -> Result<(), E>,
    ) -> Result<CapturedProgram, E> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: it lives as long as its owner.
        unsafe { call!(cuStreamBeginCapture_v2(self.handle, mode)) }?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: it is being captured; the destination is on this stack. A capture must be ended even after an error.
        let ended = unsafe { call!(cuStreamEndCapture(self.handle, &mut graph)) };
        let captured = enqueued.and(ended.map_err(E::from)).and_then(|()| {
            let mut handle = std::ptr::null_mut();
            self.context.count_request();
            // SAFETY: the graph was just captured; the destination is on this stack.
            unsafe { call!(cuGraphInstantiateWithFlags(&mut handle, graph, 0)) }?;
            let program = CapturedProgram { context: self.context.clone(), handle };
            // SAFETY: the graph was just instantiated.
            unsafe { call!(cuGraphUpload(handle, self.handle)) }?;
            Ok(program)
        });
        if !graph.is_null() {
            // SAFETY: it was captured, and its instance does not need it any more.
            let destroyed = unsafe { call!(cuGraphDestroy(graph)) };
            return captured.and_then(|program| Ok(destroyed.map(|()| program)?));
        }
        captured
    }

    /// Starts a captured program.
    pub(super) fn launch_captured(&self, program: &CapturedProgram) -> Result<(), CallError> {
        // SAFETY: both live as long as their owners.
        unsafe { call!(cuGraphLaunch(program.handle, self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and there is no other copy of the handle. If the driver fails here, nothing more can
        // be done.
        let _ = unsafe { call!(cuStreamDestroy_v2(self.handle)) };
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    handle: CUevent,
}

impl Event {
    /// A new event, not recorded. Errors: the driver's.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CallError> {
        Self::with(context, NO_TIMING)
    }

    /// A new event that measures time. Errors: the driver's.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Self, CallError> {
        Self::with(context, 0)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self, CallError> {
        context.enter()?;
        context.count_request();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the destination is on this stack.
        unsafe { call!(cuEventCreate(&mut handle, flags)) }?;
        Ok(Self { context: context.clone(), handle })
    }

    /// Milliseconds from an earlier event to this. Both measure time and were reached.
    pub(super) fn since(&self, earlier: &Self) -> Result<f32, CallError> {
        let mut milliseconds = 0.0;
        // SAFETY: both live as long as their owners; the destination is on this stack.
        unsafe { call!(cuEventElapsedTime as cuEventElapsedTime_v2(&mut milliseconds, earlier.handle, self.handle)) }?;
        Ok(milliseconds)
    }

    /// Makes the host wait for it.
    pub(super) fn synchronize(&self) -> Result<(), CallError> {
        // SAFETY: it lives as long as its owner.
        unsafe { call!(cuEventSynchronize(self.handle)) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was created, and there is no other copy of the handle. If the driver fails here, nothing more can
        // be done.
        let _ = unsafe { call!(cuEventDestroy_v2(self.handle)) };
    }
}

/// A captured program, which one call starts.
#[derive(Debug)]
pub(super) struct CapturedProgram {
    context: Arc<Context>,
    handle: CUgraphExec,
}

impl Drop for CapturedProgram {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was instantiated, and the owner has waited for its end.
        let _ = unsafe { call!(cuGraphExecDestroy(self.handle)) };
    }
}
