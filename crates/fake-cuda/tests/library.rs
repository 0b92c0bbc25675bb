//! The shared library as a program finds it: by path, and with a missing function.

use libloading::Library;
use std::ffi::{c_int, c_uint};

type Init = unsafe extern "C" fn(c_uint) -> u32;

/// Whether a library has a function.
fn has(library: &Library, function: &str) -> bool {
    // SAFETY: the symbol is only looked up.
    unsafe { library.get::<Init>(function.as_bytes()) }.is_ok()
}

#[test]
fn the_library_is_next_to_the_tests_and_works() {
    // SAFETY: loading the stand-in runs no code.
    let library = unsafe { Library::new(plimsoll_fake_cuda::library()) }.expect("loads");
    let mut version: c_int = 0;
    // SAFETY: the function has this type, and the pointer is to a local variable.
    let code = unsafe {
        let function = library.get::<unsafe extern "C" fn(*mut c_int) -> u32>(b"cuDriverGetVersion").expect("is there");
        function(&mut version)
    };
    assert_eq!((code, version), (0, 12_080));
    assert!(has(&library, "cuLaunchKernel") && has(&library, "fake_cuda_allow"));
}

#[test]
fn a_function_can_be_missing() {
    let path = std::env::temp_dir().join(format!("fake-cuda-without-{}.so", std::process::id()));
    plimsoll_fake_cuda::library_without("cuGraphLaunch", &path).expect("copies");
    // SAFETY: loading the stand-in runs no code.
    let library = unsafe { Library::new(&path) }.expect("loads");
    assert!(!has(&library, "cuGraphLaunch"));
    assert!(has(&library, "cuGraphUpload") && has(&library, "cuInit"));
    drop(library);
    std::fs::remove_file(&path).expect("is there");
}
