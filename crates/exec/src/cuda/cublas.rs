//! Where cuBLASLt lies on this machine. It is only looked for: nothing is opened here.

use std::env;
use std::path::{Path, PathBuf};

/// Names of the library, the newest first.
const NAMES: &[&str] = if cfg!(windows) {
    &["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"]
} else {
    &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"]
};

/// Folders of the wheels that Python packages take it from.
const WHEELS: &[&str] = &["nvidia/cu13/lib", "nvidia/cublas/lib", "nvidia/cublas/bin"];

/// All that there are: in the folders of the loader, of a toolkit, and of the Python environment that is active.
pub fn cublas_lt() -> Vec<PathBuf> {
    let mut found = Vec::<PathBuf>::new();
    for folder in folders() {
        let here = NAMES.iter().map(|name| folder.join(name)).filter(|path| path.is_file());
        for path in here.collect::<Vec<_>>() {
            // One folder may be reached by several names.
            let path = path.canonicalize().unwrap_or(path);
            if !found.contains(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn folders() -> Vec<PathBuf> {
    let loader = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };
    let mut folders = env::var_os(loader).map_or_else(Vec::new, |paths| env::split_paths(&paths).collect());
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/cuda/lib64"];
    folders.extend(usual.map(PathBuf::from));
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        let toolkit = env::var_os(variable).map(PathBuf::from);
        folders.extend(toolkit.iter().flat_map(|toolkit| [toolkit.join("lib64"), toolkit.join("bin")]));
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(environment) = env::var_os(variable).map(PathBuf::from) {
            folders.push(environment.join("lib"));
            folders.extend(site_packages(&environment).iter().flat_map(|site| WHEELS.iter().map(|w| site.join(w))));
        }
    }
    folders
}

/// The folders of packages of a Python environment.
fn site_packages(environment: &Path) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    let of_versions = versions.map(|entry| entry.path().join("site-packages"));
    of_versions.chain([environment.join("Lib/site-packages")]).filter(|path| path.is_dir()).collect()
}
