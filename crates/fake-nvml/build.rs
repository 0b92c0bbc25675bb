//! Compiles each stand-in into a shared library and passes its path to `lib.rs`. A test cannot ask cargo for the path
//! of a `cdylib` that it depends on, but a build script knows its output.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    for (source, variable) in [("nvml", "FAKE_NVML"), ("bare", "BARE_NVML")] {
        let library = compile(source);
        println!("cargo::rerun-if-changed=src");
        println!("cargo::rustc-env={variable}={}", library.display());
    }
}

/// Compiles `src/{source}.rs` into a shared library.
fn compile(source: &str) -> PathBuf {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let file = format!("{}{source}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let library = PathBuf::from(variable("OUT_DIR")).join(file);
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "-Copt-level=2", "--crate-type=cdylib", "--target"]).arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    // Leak the library: a script's time must continue when the library is closed and opened again.
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        rustc.arg("-C").arg("link-arg=-Wl,-z,nodelete");
    }
    let status = rustc.arg("-o").arg(&library).arg(format!("src/{source}.rs")).status().expect("rustc runs");
    assert!(status.success(), "rustc could not compile src/{source}.rs: {status}");
    library
}
