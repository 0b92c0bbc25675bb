//! Calls of the driver's functions. Each call names its function once, and errors contain the name.
//!
//! The crate that declares the functions has an enum for their codes, which newer drivers extend. So we use its
//! declarations for the arguments' types, and call the functions with numeric codes.

use super::error::CallError;
use super::functions::{Address, place_of};
use super::library::Driver;
use cudarc::driver::sys::CUresult;
use std::ffi::{CStr, c_char};

/// `CUDA_SUCCESS`
const SUCCESS: u32 = 0;

/// Calls a function of the driver, or one with the declaration of another if the crate does not declare it. Needs an
/// `unsafe` block with the reason why its arguments are sound.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::driver::call!($function as $function($($argument),*))
    };
    ($function:ident as $declared:ident($($argument:expr),*)) => {{
        const PLACE: usize = $crate::cuda::functions::place_of(stringify!($function));
        let declared: unsafe fn($($crate::cuda::driver::inferred!($argument)),*) -> cudarc::driver::sys::CUresult =
            cudarc::driver::sys::$declared;
        let function = $crate::cuda::driver::function(PLACE, declared);
        $crate::cuda::driver::check(stringify!($function), function($($argument),*))
    }};
}
pub(super) use call;

/// The type of an argument, inferred from its function's declaration.
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}
pub(super) use inferred;

/// A function's declaration, whose type has the arguments of the driver's function.
pub(super) trait Declaration {
    /// The driver's function, with a numeric result code.
    type Function: Copy;
}

macro_rules! declarations {
    ($(($($argument:ident)*))*) => {
        $(impl<$($argument),*> Declaration for unsafe fn($($argument),*) -> CUresult {
            type Function = unsafe extern "C" fn($($argument),*) -> u32;
        })*
    };
}
declarations! { (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G H I J K) }

/// The function at this index, with the type of `_declared`. Panics if no driver was found.
///
/// # Safety
/// The declaration is that of this function in NVIDIA's `cuda.h`, except for the result's type.
pub(super) unsafe fn function<D: Declaration>(place: usize, _declared: D) -> D::Function {
    // SAFETY: the caller's promise.
    unsafe { of_type(place) }
}

/// # Safety
/// `F` is the type of the function at this index.
unsafe fn of_type<F: Copy>(place: usize) -> F {
    let address = Driver::opened().expect("a driver is found before it is called").address(place);
    assert_eq!(size_of::<F>(), size_of::<Address>(), "a pointer to a function");
    // SAFETY: both are pointers to functions; the caller guarantees the function's type.
    unsafe { std::mem::transmute_copy(&address) }
}

/// An error if the function did not succeed.
pub(super) fn check(function: &'static str, code: u32) -> Result<(), CallError> {
    if code == SUCCESS {
        return Ok(());
    }
    const TEXTS: [usize; 2] = [place_of("cuGetErrorName"), place_of("cuGetErrorString")];
    let [name, words] = TEXTS.map(|place| text_of(place, code));
    let detail = Driver::opened().and_then(|driver| driver.hooks().failure()).map(Into::into);
    Err(CallError { function, code, name, words, detail })
}

/// The text of a code by one of the driver's functions for it; `None` if the driver does not know the code.
fn text_of(place: usize, code: u32) -> Option<Box<str>> {
    let mut text = std::ptr::null();
    // SAFETY: both functions have this type, and the destination is on this stack.
    let found = unsafe { of_type::<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>(place)(code, &mut text) };
    if found != SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver succeeded, so this is a static zero-terminated text.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into())
}

#[cfg(test)]
mod tests {
    use crate::cuda::functions::FUNCTIONS;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Calling a function that was not looked up first would panic on a driver without it.
    #[test]
    fn every_called_function_is_looked_up_first() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
        let mut called = BTreeSet::from(["cuGetErrorName".to_owned(), "cuGetErrorString".to_owned()]);
        for entry in std::fs::read_dir(folder).expect("this folder") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|ending| ending != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            for call in text.split(concat!("call", "!(cu")).skip(1) {
                let end = call.find(['(', ' ']).expect("a call");
                called.insert(format!("cu{}", &call[..end]));
            }
        }
        let asked = FUNCTIONS.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(called, asked);
    }
}
