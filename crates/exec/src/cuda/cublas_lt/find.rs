//! Finds cuBLASLt on this machine. Nothing is opened here.

use plimsoll_files::library_problem;
use std::cmp::Reverse;
use std::env;
use std::path::{Path, PathBuf};

/// The environment variable with the library to use instead of the found ones.
pub const CUBLAS_LIBRARY: &str = "PLIMSOLL_CUBLAS";

/// Names of the library.
const NAMES: &[&str] = if cfg!(windows) {
    &["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"]
} else {
    &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"]
};

/// Folders of a toolkit, and of the wheels that Python packages load it from.
const TOOLKIT: &[&str] = if cfg!(windows) { &["bin", "bin/x64"] } else { &["lib64", "lib"] };
const WHEELS: &[&str] = if cfg!(windows) {
    &["nvidia/cu13/bin/x86_64", "nvidia/cu13/bin", "nvidia/cublas/bin", "torch/lib"]
} else {
    &["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"]
};

/// Default folders of toolkits.
const TOOLKITS: &str = if cfg!(windows) { "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA" } else { "/usr/local" };

/// All libraries, newest first by their names: in the folders of the loader, of toolkits, of the active Python
/// environment, and of the one of the first `python3` in `PATH`.
pub fn cublas_lt() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(CUBLAS_LIBRARY).filter(|name| !name.is_empty()) {
        return Some(PathBuf::from(named)).filter(|path| path.is_file()).into_iter().collect();
    }
    let mut found = Vec::<PathBuf>::new();
    for folder in folders() {
        for path in NAMES.iter().map(|name| folder.join(name)).filter(|path| path.is_file()) {
            // A folder may have several names.
            let path = path.canonicalize().unwrap_or(path);
            if !found.contains(&path) && library_problem(path.as_os_str()).is_none() {
                found.push(path);
            }
        }
    }
    found.sort_by_key(|path| Reverse(version(path)));
    found
}

/// The numbers in a file's name, from its version on: 13, 1, 0, 3 of `libcublasLt.so.13.1.0.3`.
fn version(path: &Path) -> Vec<u32> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let numbers = name.rsplit_once("64_").or_else(|| name.split_once(".so.")).map_or("", |(_, numbers)| numbers);
    numbers.split('.').map_while(|number| number.parse().ok()).collect()
}

fn folders() -> Vec<PathBuf> {
    let loader = if cfg!(windows) { "PATH" } else { "LD_LIBRARY_PATH" };
    let mut folders = env::var_os(loader).map_or_else(Vec::new, |paths| env::split_paths(&paths).collect());
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    folders.extend(usual.map(PathBuf::from));
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    for toolkit in named.chain(toolkits(Path::new(TOOLKITS))) {
        folders.extend(TOOLKIT.iter().map(|folder| toolkit.join(folder)));
        folders.extend(folders_in(&toolkit.join("targets")).into_iter().map(|target| target.join("lib")));
    }
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    for environment in active.chain(env::var_os("PATH").and_then(|paths| environment_of(env::split_paths(&paths)))) {
        folders.push(environment.join(if cfg!(windows) { "Library/bin" } else { "lib" }));
        folders.extend(site_packages(&environment).iter().flat_map(|site| WHEELS.iter().map(|w| site.join(w))));
    }
    folders
}

/// `cuda-13.0`, or under Windows `v13.0`.
fn toolkits(folder: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(if cfg!(windows) { "v" } else { "cuda" }))
    };
    folders_in(folder).into_iter().filter(is_one).collect()
}

/// The environment of the first `python3` in these folders.
fn environment_of(folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let names = if cfg!(windows) { ["python.exe", "python3.exe"] } else { ["python3", "python"] };
    let mut found = folders.flat_map(|folder| names.map(|name| folder.join(name)));
    let python = found.find(|path| path.is_file())?;
    // The one of a virtual environment is a link to another Python, and the environment has its own packages.
    let above = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_owned);
    let is_virtual = |environment: &PathBuf| environment.join("pyvenv.cfg").is_file();
    if cfg!(windows) {
        let sibling = python.parent()?.to_owned();
        return above(&python).filter(is_virtual).or(Some(sibling));
    }
    above(&python).filter(is_virtual).or_else(|| above(&python.canonicalize().ok()?))
}

/// The folders of packages of a Python environment.
fn site_packages(environment: &Path) -> Vec<PathBuf> {
    let of_versions = folders_in(&environment.join("lib")).into_iter();
    let of_versions = of_versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    of_versions.chain([environment.join("Lib/site-packages")]).filter(|path| path.is_dir()).collect()
}

/// The folders in a folder, sorted by name; empty if it can't be read.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut folders = entries.filter(|path| path.is_dir()).collect::<Vec<_>>();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_come_first() {
        let names = ["libcublasLt.so.12", "libcublasLt.so.13", "cublasLt64_13.dll", "libcublasLt.so.13.1.0.3", "x"];
        let versions = names.map(|name| version(Path::new(name)));
        assert_eq!(versions, [vec![12], vec![13], vec![13], vec![13, 1, 0, 3], vec![]]);
    }

    /// Creates a Python environment as `python3 -m venv` does, and finds its libraries by its `python3`.
    #[test]
    #[cfg(unix)]
    fn an_environment_is_found_by_its_python() {
        let root = std::env::temp_dir().join(format!("environment-{}", std::process::id()));
        let wheel = root.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib");
        for folder in [root.join("usr/bin"), root.join("venv/bin"), wheel.clone()] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        std::fs::write(root.join("usr/bin/python3.12"), "").expect("a file");
        std::fs::write(root.join("venv/pyvenv.cfg"), "home = /usr/bin").expect("a file");
        std::os::unix::fs::symlink(root.join("usr/bin/python3.12"), root.join("venv/bin/python3")).expect("a link");
        let environment = environment_of([root.join("nothing"), root.join("venv/bin")].into_iter());
        assert_eq!(environment, Some(root.join("venv")));
        let sites = site_packages(&environment.expect("just compared"));
        assert!(sites.iter().any(|site| WHEELS.iter().any(|folder| site.join(folder) == wheel)), "{sites:?}");
        // Another name of the same Python, outside the environment, has its own packages.
        std::os::unix::fs::symlink(root.join("usr/bin/python3.12"), root.join("usr/bin/python3")).expect("a link");
        let system = environment_of([root.join("usr/bin")].into_iter()).expect("a Python");
        assert_eq!(system, root.join("usr").canonicalize().expect("a folder"));
        std::fs::remove_dir_all(root).expect("was made");
    }
}
