//! The machine that tests run on: one with a real card, or the stand-in's with any description.

use libloading::Library;
use plimsoll_exec::cuda::{CudaDevice, CudaError, CudaOptions, Driver, LIBRARY};
use std::ffi::{CString, c_char};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The driver under test.
fn driver() -> &'static Driver {
    static DRIVER: OnceLock<&'static Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let named = std::env::var_os(LIBRARY).is_some_and(|name| !name.is_empty());
        // SAFETY: a driver's library only initializes itself when it is opened.
        let system = ["libcuda.so.1", "nvcuda.dll"].iter().any(|name| unsafe { Library::new(name) }.is_ok());
        if !named && !system {
            // SAFETY: all tests wait for this before they read the environment.
            unsafe { std::env::set_var(LIBRARY, plimsoll_fake_cuda::library()) };
        }
        let driver = Driver::find().expect("a driver or its stand-in");
        let kind = if driver.is_stand_in() { "the stand-in" } else { "a driver" };
        eprintln!("on {kind}: {}", driver.path());
        driver
    })
}

/// A machine, used by one test at a time.
pub struct Machine {
    _alone: MutexGuard<'static, ()>,
    driver: &'static Driver,
    /// The hooks of the stand-in.
    hooks: Library,
}

type Reset = unsafe extern "C" fn(*const c_char) -> u32;
type Used = unsafe extern "C" fn(*mut u64, *mut u64) -> u32;
type Count = unsafe extern "C" fn(*mut u64) -> u32;
type Calls = unsafe extern "C" fn(*const c_char, *mut u64) -> u32;

impl Machine {
    /// Any machine. The description is for the stand-in, without effect on a real card.
    pub fn of(description: &str) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = driver();
        // SAFETY: as when it was opened first.
        let hooks = unsafe { Library::new(driver.path()) }.expect("it was opened before");
        let machine = Self { _alone: alone, driver, hooks };
        machine.reset(description);
        machine
    }

    /// The stand-in with this description; `None` on a real card, which has no such faults, with a message.
    pub fn stand_in(description: &str) -> Option<Self> {
        let machine = Self::of(description);
        if machine.driver.is_stand_in() {
            return Some(machine);
        }
        eprintln!("SKIPPED: a real driver cannot be set to `{description}`");
        None
    }

    /// Resets the stand-in to a new machine.
    pub fn reset(&self, description: &str) {
        if self.driver.is_stand_in() {
            let description = CString::new(description).expect("no zeros");
            // SAFETY: the hook has this type, and takes a text that ends in a zero. No object of the driver exists.
            let code = unsafe { self.hooks.get::<Reset>(b"fake_cuda_reset").expect("a hook")(description.as_ptr()) };
            assert_eq!(code, 0, "{description:?} is not a description");
        }
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Its first card as a device.
    pub fn device(&self, options: CudaOptions) -> Result<CudaDevice, CudaError> {
        CudaDevice::open(self.driver, self.driver.card(0)?, options)
    }

    /// Bytes of the card that this process uses, and objects of the driver that it did not free.
    pub fn held(&self) -> (u64, u64) {
        let (mut now, mut most, mut leaks) = (0, 0, 0);
        // SAFETY: the hooks have these types; the places are on this stack.
        unsafe {
            self.hooks.get::<Used>(b"fake_cuda_used").expect("a hook")(&mut now, &mut most);
            self.hooks.get::<Count>(b"fake_cuda_leaks").expect("a hook")(&mut leaks);
        }
        (now, leaks)
    }

    /// Number of calls of a driver's function.
    pub fn calls(&self, function: &str) -> u64 {
        let (name, mut count) = (CString::new(function).expect("no zeros"), 0);
        // SAFETY: the hook has this type; the name ends in a zero, the place is on this stack.
        unsafe { self.hooks.get::<Calls>(b"fake_cuda_calls").expect("a hook")(name.as_ptr(), &mut count) };
        count
    }
}
