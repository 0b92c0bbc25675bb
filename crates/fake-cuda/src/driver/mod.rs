//! The functions of the CUDA driver that Plimsoll reaches through cudarc, with names and arguments of NVIDIA's `cuda.h`.
//!
//! The state is behind a lock; the host counts as one thread. After a launch that faults, every call returns its error,
//! as on a real card; the fault is printed to stderr.

mod card;
pub mod codes;
mod copies;
mod device;
mod devices;
mod hooks;
mod memory;
mod modules;
mod state;
mod streams;

pub use card::{CallFault, Card};
pub(crate) use copies::enqueue;
pub use state::Driver;

use codes::{Code, INVALID_CONTEXT, INVALID_VALUE, NOT_INITIALIZED, SUCCESS};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// State that a call requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// None: it may be the first call.
    Nothing,
    /// `cuInit`.
    Init,
    /// A context that is current in this thread.
    Context,
}

thread_local! {
    /// The context that is current in this thread, 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn driver() -> MutexGuard<'static, Driver> {
    static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
    let lock = DRIVER.get_or_init(|| {
        let description = std::env::var("FAKE_CUDA").unwrap_or_default();
        let card = Card::parse(&description).unwrap_or_else(|error| panic!("{error}"));
        Mutex::new(Driver::new(card, visible_devices().as_deref()))
    });
    // The state stays usable after a test that panicked with the lock.
    lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// `CUDA_VISIBLE_DEVICES`, if it is set.
fn visible_devices() -> Option<String> {
    std::env::var_os("CUDA_VISIBLE_DEVICES").map(|value| value.to_string_lossy().into_owned())
}

/// Counts a call, fails it if the description says so, and otherwise runs it.
fn enter(name: &'static str, needs: Needs, body: impl FnOnce(&mut Driver) -> Result<(), Code>) -> Code {
    let driver = &mut *driver();
    if let Err(code) = driver.begin_call(name) {
        return code;
    }
    if needs != Needs::Nothing && !driver.initialized {
        return NOT_INITIALIZED;
    }
    if needs == Needs::Context && CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    body(driver).err().unwrap_or(SUCCESS)
}

/// The context that is current in this thread, 0 for none.
pub(crate) fn current_context() -> usize {
    CURRENT.get()
}

/// Writes a result to the caller's pointer. Errors: it is null.
///
/// # Safety
/// `to` is null or points to a `T`.
unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller promises that it then points to a `T`.
    unsafe { to.write(value) };
    Ok(())
}

/// Exported functions. `fn name(driver, arguments…) needs { body }`; the body returns `Result<(), Code>`.
macro_rules! entries {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $ty:ty)* $(,)?) $needs:ident $body:block)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As in NVIDIA's `cuda.h`: pointers are null or valid for the function's use of them.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "NVIDIA's name")]
            #[allow(clippy::too_many_arguments, reason = "NVIDIA's arguments")]
            pub unsafe extern "C" fn $name($($argument: $ty),*) -> $crate::driver::codes::Code {
                $crate::driver::enter(stringify!($name), $crate::driver::Needs::$needs, |$driver| {
                    let _ = &$driver;
                    // SAFETY: bodies use the arguments as cuda.h specifies, and the caller meets its conditions.
                    #[allow(unused_unsafe, reason = "some bodies have no unsafe operation")]
                    unsafe { $body }
                })
            }
        )*
    };
}
use entries;
