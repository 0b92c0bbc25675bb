//! The kernels that a plan uses, compiled by the driver for its card: in parallel, since the driver takes tens of
//! milliseconds for each module that is not in its cache.

use super::context::Context;
use super::driver::call;
use super::error::{CallError, CudaError};
use super::launch::Launch;
use super::modules::{ptx, with_kernels};
use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUjit_option, CUmodule};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Shared memory that a block may use without setting an attribute.
const USUAL_SHARED_BYTES: u32 = 48 << 10;

/// Is called with the number of kernels whose compilation takes long.
pub type CompileNotice = fn(usize);

/// The least time of a compilation that takes long. Kernels that are in the driver's cache load in a few milliseconds each.
const LONG: Duration = Duration::from_secs(1);

/// Kernels by name, with the most dynamic shared memory of their launches.
type Entries = BTreeMap<String, u32>;

/// Does the work, and calls `notice` from another thread if the work is not done after this time.
fn noticed_after<R>(time: Duration, notice: impl FnOnce() + Send, work: impl FnOnce() -> R) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // If the system starts no thread, the work is done without a notice.
        let _ = thread::Builder::new().spawn_scoped(scope, move || {
            if is_done.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                notice();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kernel(CUfunction);

// SAFETY: the handle is only passed to the driver, whose functions may be called from any thread.
unsafe impl Send for Kernel {}

impl Kernel {
    /// The driver's handle.
    pub(super) fn handle(self) -> CUfunction {
        self.0
    }
}

/// The modules of a plan.
#[derive(Debug)]
pub(super) struct Kernels {
    kernels: HashMap<(&'static str, String), Kernel>,
    _modules: Vec<Module>,
}

impl Kernels {
    /// Loads the modules of these launches and no others; `notice` is called if that takes longer than [`LONG`]. Errors:
    /// `ModuleRefused`, `CardFailed`.
    pub(super) fn load<'a>(
        context: &Arc<Context>,
        launches: impl IntoIterator<Item = &'a Launch>,
        notice: Option<CompileNotice>,
    ) -> Result<Self, CudaError> {
        let mut needed = BTreeMap::<&'static str, Entries>::new();
        for launch in launches {
            let most = needed.entry(launch.module).or_default().entry(launch.entry.to_string()).or_default();
            *most = launch.shared_bytes.max(*most);
        }
        let needed = needed.into_iter().collect::<Vec<_>>();
        let count = needed.iter().map(|(_, entries)| entries.len()).sum();
        let load = || needed.par_iter().map(|(name, entries)| Module::load(context, name, entries)).collect::<Vec<_>>();
        let loaded = noticed_after(LONG, || notice.iter().for_each(|notice| notice(count)), load);
        let mut kernels = HashMap::new();
        let mut modules = Vec::with_capacity(needed.len());
        for loaded in loaded {
            let (module, entries) = loaded?;
            kernels.extend(entries.into_iter().map(|(entry, kernel)| ((module.name, entry), kernel)));
            modules.push(module);
        }
        Ok(Self { kernels, _modules: modules })
    }

    /// The kernel of a launch. Panics if it was not loaded.
    pub(super) fn of(&self, launch: &Launch) -> Kernel {
        let found = self.kernels.get(&(launch.module, launch.entry.to_string()));
        *found.unwrap_or_else(|| panic!("{} of {} was not loaded", launch.entry, launch.module))
    }
}

#[derive(Debug)]
struct Module {
    context: Arc<Context>,
    name: &'static str,
    handle: CUmodule,
}

// SAFETY: the handle is only passed to the driver, whose functions may be called from any thread.
unsafe impl Send for Module {}

impl Module {
    /// Loads a module and looks up its kernels.
    fn load(
        context: &Arc<Context>,
        name: &'static str,
        entries: &Entries,
    ) -> Result<(Self, Vec<(String, Kernel)>), CudaError> {
        let mut log = vec![0u8; 4096];
        let loaded = Self::compile(context, name, entries, &mut log).and_then(|module| {
            let kernels = entries.iter().map(|(entry, shared)| Ok((entry.clone(), module.kernel(entry, *shared)?)));
            let kernels = kernels.collect::<Result<Vec<_>, CallError>>()?;
            Ok((module, kernels))
        });
        loaded.map_err(|call| match CudaError::from(call) {
            CudaError::Call(call) => {
                let log = String::from_utf8_lossy(&log);
                let log = log.trim_end_matches('\0').trim().into();
                CudaError::ModuleRefused { module: name, call, log }
            }
            fault => fault,
        })
    }

    fn compile(
        context: &Arc<Context>,
        name: &'static str,
        entries: &Entries,
        log: &mut [u8],
    ) -> Result<Self, CallError> {
        let text = ptx(name, context.card().compute_capability);
        let text = text.unwrap_or_else(|| panic!("no PTX of {name} for {:?}", context.card()));
        let text = with_kernels(&text, |kernel| entries.contains_key(kernel));
        let text = CString::new(text).expect("PTX is text");
        context.enter()?;
        context.count_request();
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes numbers as pointers.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text is zero-terminated; each option has a value of its type, and the log has the given size; the
        // destination is on this stack.
        unsafe {
            call!(cuModuleLoadDataEx(
                &mut handle,
                text.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            ))
        }?;
        Ok(Self { context: context.clone(), name, handle })
    }

    fn kernel(&self, entry: &str, shared_bytes: u32) -> Result<Kernel, CallError> {
        let name = CString::new(entry).expect("a kernel's name is text");
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name is zero-terminated, the destination is on this stack.
        unsafe { call!(cuModuleGetFunction(&mut handle, self.handle, name.as_ptr())) }?;
        if shared_bytes > USUAL_SHARED_BYTES {
            let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just found.
            unsafe { call!(cuFuncSetAttribute(handle, most, shared_bytes as c_int)) }?;
        }
        Ok(Kernel(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: it was loaded, and the owner of the kernels has waited for everything that runs them.
        let _ = unsafe { call!(cuModuleUnload(self.handle)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn long_work_is_noticed_once_and_short_work_never() {
        let notices = AtomicUsize::new(0);
        let (noticed, is_noticed) = mpsc::channel();
        let notice = || {
            notices.fetch_add(1, Ordering::Relaxed);
            noticed.send(()).expect("the work waits for it");
        };
        // This work takes until it is noticed.
        let result = noticed_after(Duration::ZERO, notice, move || is_noticed.recv().map(|()| 7));
        assert_eq!((result, notices.load(Ordering::Relaxed)), (Ok(7), 1));
        noticed_after(Duration::MAX, || panic!("noticed"), || ());
    }
}
