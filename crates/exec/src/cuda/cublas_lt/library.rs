//! The open library with the functions that this crate calls. Types and numbers are from `cublasLt.h`, `cublas_api.h`
//! and `library_types.h`, which are the same from version 11 to version 13.

use libloading::Library;
use plimsoll_files::library_problem;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};

/// The oldest supported version: the first whose descriptions of products specify how sums are computed.
pub const OLDEST_CUBLAS_LT: (u32, u32) = (11, 0);

/// `cublasStatus_t`
pub(super) type Status = u32;

/// `CUBLAS_STATUS_SUCCESS` and other statuses of these names.
pub(super) const SUCCESS: Status = 0;
const ALLOC_FAILED: Status = 3;
const INVALID_VALUE: Status = 7;
const ARCH_MISMATCH: Status = 8;
const INTERNAL_ERROR: Status = 14;
pub(super) const NOT_SUPPORTED: Status = 15;

/// Any of the library's objects: handle, description, layout, preference.
pub(super) type Object = *mut c_void;

/// `cublasLtMatmulAlgo_t`: opaque, copied bit by bit.
pub(super) type AlgorithmBits = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeuristicResult {
    pub(super) algorithm: AlgorithmBits,
    pub(super) workspace_bytes: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

/// Why a library can't be used, or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CublasLtError {
    /// The file does not exist.
    #[error("{} does not exist", path.display())]
    NotThere {
        /// The library.
        path: PathBuf,
    },
    /// The system's loader refuses it.
    #[error("{reason}")]
    NotLoaded {
        /// The loader's message, with the path.
        reason: String,
    },
    /// It is another library, or a very old one.
    #[error("{} is not cuBLASLt: it has no {function}", path.display())]
    Lacks {
        /// The library.
        path: PathBuf,
        /// The missing function.
        function: &'static str,
    },
    /// It lacks functions that this crate calls.
    #[error("{} is too old: it is version {}.{}, {}.{} is needed", path.display(), version.0, version.1, needed.0, needed.1)]
    TooOld {
        /// The library.
        path: PathBuf,
        /// Its version, major and minor.
        version: (u32, u32),
        /// The oldest supported version.
        needed: (u32, u32),
    },
    /// It is older than the card, for which it has no kernels.
    #[error("{} is too old for compute capability {}.{}: it is version {}.{}, {}.{} is needed", path.display(), card.0, card.1, version.0, version.1, needed.0, needed.1)]
    TooOldForCard {
        /// The library.
        path: PathBuf,
        /// Its version, major and minor.
        version: (u32, u32),
        /// The oldest version with kernels for the card.
        needed: (u32, u32),
        /// The card's compute capability, major and minor.
        card: (u8, u8),
    },
    /// A function failed.
    #[error("cuBLASLt failed: {function} gives {}{}", words(*status), of.as_ref().map_or(String::new(), |of| format!(", for the product {of}")))]
    Failed {
        /// The function.
        function: &'static str,
        /// `cublasStatus_t`.
        status: u32,
        /// The product, if the call was for one.
        of: Option<String>,
    },
}

impl CublasLtError {
    /// Whether there was too little memory.
    pub(in crate::cuda) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Failed { status: ALLOC_FAILED, .. })
    }

    /// Whether a product can't be computed by its algorithm on this card, though the library offers it.
    pub(super) fn is_of_algorithm(&self) -> bool {
        matches!(self, Self::Failed { status: INVALID_VALUE | ARCH_MISMATCH | INTERNAL_ERROR | NOT_SUPPORTED, .. })
    }
}

/// The name of a status.
fn words(status: Status) -> String {
    let name = match status {
        1 => "NOT_INITIALIZED",
        ALLOC_FAILED => "ALLOC_FAILED",
        INVALID_VALUE => "INVALID_VALUE",
        ARCH_MISMATCH => "ARCH_MISMATCH",
        11 => "MAPPING_ERROR",
        13 => "EXECUTION_FAILED",
        INTERNAL_ERROR => "INTERNAL_ERROR",
        NOT_SUPPORTED => "NOT_SUPPORTED",
        16 => "LICENSE_ERROR",
        other => return format!("status {other}"),
    };
    format!("CUBLAS_STATUS_{name}")
}

macro_rules! functions {
    ($($field:ident: $name:ident($($ty:ty),*) -> $result:ty;)*) => {
        /// The library's functions.
        #[derive(Debug, Clone, Copy)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($ty),*) -> $result),*
        }

        impl Functions {
            /// The functions of a library, which must stay loaded while they are called. Errors: the name of a missing
            /// one.
            fn of(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: functions of these names have had these types since version 11; they are not called here.
                    $($field: *unsafe {
                        library.get::<unsafe extern "C" fn($($ty),*) -> $result>(stringify!($name).as_bytes())
                    }.map_err(|_| stringify!($name))?),*
                })
            }
        }
    };
}

functions! {
    version: cublasLtGetVersion() -> usize;
    create: cublasLtCreate(*mut Object) -> Status;
    destroy: cublasLtDestroy(Object) -> Status;
    create_description: cublasLtMatmulDescCreate(*mut Object, c_int, c_int) -> Status;
    destroy_description: cublasLtMatmulDescDestroy(Object) -> Status;
    describe: cublasLtMatmulDescSetAttribute(Object, c_int, *const c_void, usize) -> Status;
    create_layout: cublasLtMatrixLayoutCreate(*mut Object, c_int, u64, u64, i64) -> Status;
    destroy_layout: cublasLtMatrixLayoutDestroy(Object) -> Status;
    create_preference: cublasLtMatmulPreferenceCreate(*mut Object) -> Status;
    destroy_preference: cublasLtMatmulPreferenceDestroy(Object) -> Status;
    prefer: cublasLtMatmulPreferenceSetAttribute(Object, c_int, *const c_void, usize) -> Status;
    heuristic: cublasLtMatmulAlgoGetHeuristic(
        Object, Object, Object, Object, Object, Object, Object, c_int, *mut HeuristicResult, *mut c_int
    ) -> Status;
    check: cublasLtMatmulAlgoCheck(
        Object, Object, Object, Object, Object, Object, *const AlgorithmBits, *mut HeuristicResult
    ) -> Status;
    multiply: cublasLtMatmul(
        Object, Object, *const c_void, u64, Object, u64, Object, *const c_void, u64, Object, u64, Object,
        *const AlgorithmBits, u64, usize, *mut c_void
    ) -> Status;
}

/// An open cuBLASLt. It stays loaded until the process ends: it contains CUDA's runtime, which does not support
/// unloading.
#[derive(Debug)]
pub struct CublasLt {
    path: PathBuf,
    version: (u32, u32, u32),
    pub(super) functions: Functions,
    /// Keeps the library loaded.
    _library: Library,
}

impl CublasLt {
    /// Opens the library by its path, or by a name that the system's loader resolves. Errors: it does not exist, is
    /// another library, or is too old.
    pub fn open(path: &Path) -> Result<&'static Self, CublasLtError> {
        if path.components().count() > 1 && !path.exists() {
            return Err(CublasLtError::NotThere { path: path.to_owned() });
        }
        if let Some(reason) = library_problem(path.as_os_str()) {
            return Err(CublasLtError::NotLoaded { reason });
        }
        // SAFETY: NVIDIA's library only initializes itself when it is opened; a user who names another one is
        // responsible for it.
        let library = unsafe { Library::new(path) }.map_err(|error| CublasLtError::NotLoaded {
            reason: format!("{} can't be loaded: {error}", path.display()),
        })?;
        let lacks = |function| CublasLtError::Lacks { path: path.to_owned(), function };
        let functions = Functions::of(&library).map_err(lacks)?;
        // SAFETY: the function takes no arguments and returns a number.
        let version = version_of(unsafe { (functions.version)() });
        let found = (version.0, version.1);
        if found < OLDEST_CUBLAS_LT {
            return Err(CublasLtError::TooOld { path: path.to_owned(), version: found, needed: OLDEST_CUBLAS_LT });
        }
        Ok(Box::leak(Box::new(Self { path: path.to_owned(), version, functions, _library: library })))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major, minor and patch.
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Checks that the library has kernels for a card of this compute capability. Errors: `TooOldForCard`.
    pub fn has_kernels_for(&self, card: (u8, u8)) -> Result<(), CublasLtError> {
        let (version, needed) = ((self.version.0, self.version.1), oldest_for(card));
        if version >= needed {
            return Ok(());
        }
        Err(CublasLtError::TooOldForCard { path: self.path.clone(), version, needed, card })
    }
}

/// The oldest version with kernels for a compute capability. Source: NVIDIA's release notes of the CUDA releases that
/// introduce each (11.1, 11.8, 12.8 and 12.9), and the versions of cuBLAS in these.
fn oldest_for(card: (u8, u8)) -> (u32, u32) {
    match card {
        (..=7, _) | (8, ..=5) => OLDEST_CUBLAS_LT,
        (8, ..=8) => (11, 3),
        (8, _) | (9, _) => (11, 11),
        (10, ..=2) | (12, 0) => (12, 8),
        (10..=12, _) => (12, 9),
        _ => (13, 0),
    }
}

/// 13.1.0 is encoded as 130100, and 11.6.5 as 11605.
fn version_of(number: usize) -> (u32, u32, u32) {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    let major = if number < 100_000 { 1_000 } else { 10_000 };
    (number / major, number % major / 100, number % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_decoded() {
        assert_eq!(version_of(11_605), (11, 6, 5));
        assert_eq!(version_of(120_503), (12, 5, 3));
        assert_eq!(version_of(130_100), (13, 1, 0));
    }

    #[test]
    fn newer_cards_need_newer_libraries() {
        let cards = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)];
        let needed = [(11, 0), (11, 0), (11, 3), (11, 11), (11, 11), (12, 8), (12, 8), (12, 9)];
        assert_eq!(cards.map(oldest_for), needed);
    }

    #[test]
    fn files_that_are_not_cublas_lt_are_refused() {
        let error = |path: &str| CublasLt::open(Path::new(path)).expect_err("no cuBLASLt");
        assert!(matches!(error("/nowhere/libcublasLt.so.13"), CublasLtError::NotThere { .. }));
        assert!(matches!(error("libnowhere.so.13"), CublasLtError::NotLoaded { .. }));
        let file = std::env::temp_dir().join(format!("no-cublas-{}", std::process::id()));
        std::fs::write(&file, "text").expect("a small file");
        assert!(matches!(error(&file.display().to_string()), CublasLtError::NotLoaded { .. }));
        std::fs::remove_file(file).expect("was written");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_library_is_not_cublas_lt() {
        let error = CublasLt::open(Path::new("libc.so.6")).expect_err("the C library");
        assert!(matches!(error, CublasLtError::Lacks { function: "cublasLtGetVersion", .. }), "{error}");
    }
}
