//! The flag for cuBLASLt, NVIDIA's library of matrix products, and the choice of the library for a GPU.

use super::Failure;
use crate::streams::talk;
use clap::Args;
use plimsoll_exec::cuda::{CUBLAS_LIBRARY, CublasLt, CublasLtError, CudaDevice, Driver, OLDEST_CUBLAS_LT, cublas_lt};
use plimsoll_graph::Products;
use std::cmp::Reverse;
use std::path::{Path, PathBuf, absolute};
use std::str::FromStr;

/// `--cublas`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cublas {
    /// The newest usable library; the built-in kernels if there is none.
    Auto,
    /// The built-in kernels.
    Off,
    /// This library.
    Library(PathBuf),
}

/// How a library's algorithms are chosen.
#[derive(Debug, Clone, Args)]
pub(super) struct TuneArgs {
    /// Time cuBLASLt's algorithms for each product and use the fastest, instead of the recommended one. Takes some seconds
    /// before the first step
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) autotune: bool,
}

impl FromStr for Cublas {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        Ok(match text {
            "auto" | "true" => Self::Auto,
            // Some YAML readers parse an unquoted `off` as a boolean.
            "off" | "false" => Self::Off,
            "" => return Err("`auto`, `off` or the path of a library"),
            // A file in the current folder takes precedence over a library of that name in the loader's path.
            path if Path::new(path).is_file() => Self::Library(absolute(path).unwrap_or_else(|_| path.into())),
            path => Self::Library(path.into()),
        })
    }
}

impl Cublas {
    /// The flag as a setting.
    pub(super) fn setting(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::Library(path) => path.canonicalize().unwrap_or_else(|_| path.clone()).to_string_lossy().into_owned(),
        }
    }

    /// Selects the requested library for a GPU that was just opened, and prints which, or why none is used. Errors: the
    /// named library can't be used.
    pub(super) fn give_to(&self, card: &mut CudaDevice) -> Result<(), Failure> {
        match self {
            Self::Off => Ok(()),
            Self::Library(path) => CublasLt::open(path).and_then(|library| card.use_library(library)).map_err(refused),
            Self::Auto => {
                give_first(card);
                Ok(())
            }
        }?;
        if let Some(library) = card.library() {
            let ((major, minor, patch), path) = (library.version(), library.path().display());
            talk(format_args!("matrix products use cuBLASLt {major}.{minor}.{patch} ({path})"));
        }
        Ok(())
    }

    /// The products in plans for a GPU that is not open, assuming that an installed library can be used.
    /// Errors: the named library can't be opened.
    pub(super) fn of_absent_card(&self) -> Result<Products, Failure> {
        match self {
            Self::Off => Ok(Products::Kernels),
            Self::Auto if cublas_lt().is_empty() => Ok(Products::Kernels),
            Self::Auto => Ok(Products::CublasLt),
            Self::Library(path) => CublasLt::open(path).map(|_| Products::CublasLt).map_err(refused),
        }
    }
}

/// The products of an open GPU.
pub(super) fn products_of(card: &CudaDevice) -> Products {
    if card.library().is_some() { Products::CublasLt } else { Products::Kernels }
}

/// Selects the newest library that works on the GPU. One that the environment names is used even if it is older than the GPU.
pub(super) fn give_first(card: &mut CudaDevice) {
    // A real library needs the real driver, so with a stand-in driver the library must be named.
    let is_named = std::env::var_os(CUBLAS_LIBRARY).is_some_and(|name| !name.is_empty());
    if Driver::find().is_ok_and(Driver::is_stand_in) && !is_named {
        return;
    }
    let skipped = |path: &Path, error| talk(format_args!("skipping {}: {error}", path.display()));
    let mut libraries = Vec::new();
    for path in cublas_lt() {
        match CublasLt::open(&path) {
            Ok(library) => libraries.push(library),
            Err(error) => skipped(&path, error),
        }
    }
    // Names of files seldom have the minor version.
    libraries.sort_by_key(|library| Reverse(library.version()));
    for library in libraries {
        let is_for_card = if is_named { Ok(()) } else { library.has_kernels_for(card.card().compute_capability) };
        match is_for_card.and_then(|()| card.use_library(library)) {
            Ok(()) => return,
            Err(error) => skipped(library.path(), error),
        }
    }
}

fn refused(error: CublasLtError) -> Failure {
    let is_library = matches!(error, CublasLtError::TooOld { .. } | CublasLtError::Failed { .. });
    let failure = if is_library { Failure::device(error.to_string()) } else { Failure::bad_flag(error.to_string()) };
    let (major, minor) = OLDEST_CUBLAS_LT;
    failure.hint(format!(
        "`--cublas` takes the path of libcublasLt {major}.{minor} or newer; `--cublas off` uses the \
         built-in kernels"
    ))
}
