//! Names the library as the driver's is named, so that who loads it by path first finds it again by that name.

fn main() {
    let system = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if system == "linux" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
