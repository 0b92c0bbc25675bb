//! Compiles each variant of the stand-in into a shared library and passes its path to `lib.rs`. A test cannot ask cargo
//! for the path of a `cdylib` that it depends on, but a build script knows its output.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/blas.rs");
    for variant in ["right", "wrong", "wide", "bare", "crashing"] {
        println!("cargo::rustc-check-cfg=cfg({variant})");
        println!("cargo::rustc-env=FAKE_BLAS_{}={}", variant.to_uppercase(), compile(variant).display());
    }
}

/// Compiles a variant into a shared library.
fn compile(variant: &str) -> PathBuf {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let file = format!("{}{variant}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let library = PathBuf::from(variable("OUT_DIR")).join(file);
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "-O", "--cfg", variant, "--target"]).arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let status = rustc.arg("-o").arg(&library).arg("src/blas.rs").status().expect("rustc runs");
    assert!(status.success(), "rustc could not compile the variant {variant}: {status}");
    library
}
