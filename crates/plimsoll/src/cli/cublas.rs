//! The flag of NVIDIA's library of matrix products, and which library a card's products are left to.

use super::Failure;
use crate::streams::talk;
use clap::Args;
use plimsoll_exec::cuda::{CUBLAS_LIBRARY, CublasLt, CublasLtError, CudaDevice, Driver, OLDEST_CUBLAS_LT, cublas_lt};
use plimsoll_graph::Products;
use std::path::{Path, PathBuf, absolute};
use std::str::FromStr;

/// `--cublas`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cublas {
    /// The newest that can be used; the built-in kernels if there is none.
    Auto,
    /// The built-in kernels.
    Off,
    /// This one.
    Library(PathBuf),
}

/// How a library's algorithms are chosen.
#[derive(Debug, Clone, Args)]
pub(super) struct TuneArgs {
    /// Time the algorithms that cuBLASLt has for each product, and take the fastest; else those are that it recommends. Takes
    /// some seconds before the first step
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set)]
    pub(super) autotune: bool,
}

impl FromStr for Cublas {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        Ok(match text {
            "auto" | "true" => Self::Auto,
            // Some readers of YAML take `off` for a truth value.
            "off" | "false" => Self::Off,
            "" => return Err("`auto`, `off` or the path of a library"),
            // A file that is here is meant before one of that name among the loader's.
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

    /// Leaves the products of a card that was just opened to the library that was asked for, and says which, or why to
    /// none. Errors: the one that was named can't be used.
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

    /// What multiplies in plans for a card that is not open: a library that is there is taken to be of use.
    /// Errors: the one that was named can't be opened.
    pub(super) fn of_absent_card(&self) -> Result<Products, Failure> {
        match self {
            Self::Off => Ok(Products::Kernels),
            Self::Auto if cublas_lt().is_empty() => Ok(Products::Kernels),
            Self::Auto => Ok(Products::CublasLt),
            Self::Library(path) => CublasLt::open(path).map(|_| Products::CublasLt).map_err(refused),
        }
    }
}

/// What multiplies on a card that is open.
pub(super) fn products_of(card: &CudaDevice) -> Products {
    if card.library().is_some() { Products::CublasLt } else { Products::Kernels }
}

/// Takes the first library that can be used on the card.
pub(super) fn give_first(card: &mut CudaDevice) {
    // A real library looks for a real driver, so with a stand-in it must be named.
    if Driver::find().is_ok_and(Driver::is_stand_in) && std::env::var_os(CUBLAS_LIBRARY).is_none() {
        return;
    }
    for path in cublas_lt() {
        match CublasLt::open(&path).and_then(|library| card.use_library(library)) {
            Ok(()) => return,
            Err(error) => talk(format_args!("{} is skipped: {error}", path.display())),
        }
    }
}

fn refused(error: CublasLtError) -> Failure {
    let is_library = matches!(error, CublasLtError::TooOld { .. } | CublasLtError::Failed { .. });
    let failure = if is_library { Failure::device(error.to_string()) } else { Failure::bad_flag(error.to_string()) };
    let (major, minor) = OLDEST_CUBLAS_LT;
    failure.hint(format!(
        "`--cublas` takes the path of a libcublasLt of version {major}.{minor} or newer; `--cublas off` uses the \
         built-in kernels"
    ))
}
