//! Compiles each stand-in, some files without dependencies, into a shared library, and tells `lib.rs` where it lies.
//! A test cannot ask cargo for the path of a `cdylib` that it depends on; a build script knows what it made.

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

/// The shared library made of `src/{source}.rs`.
fn compile(source: &str) -> PathBuf {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let file = format!("{}{source}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let library = PathBuf::from(variable("OUT_DIR")).join(file);
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "-Copt-level=2", "--crate-type=cdylib", "--target"]).arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    // A script's time passes on where the library is closed and opened again.
    if variable("CARGO_CFG_TARGET_OS") == "linux" {
        rustc.arg("-C").arg("link-arg=-Wl,-z,nodelete");
    }
    let status = rustc.arg("-o").arg(&library).arg(format!("src/{source}.rs")).status().expect("rustc runs");
    assert!(status.success(), "rustc could not compile src/{source}.rs: {status}");
    library
}
