//! A BLAS found at run time: OpenBLAS, MKL, BLIS, or another library with `cblas_sgemm`. It is opened and tested, and
//! then computes large products instead of the `gemm` crate. Which products, and how they are split: `product.rs`.
//!
//! The library is limited to one thread. Workers split a product and call the library in parallel, so that its own
//! threads do not compete with them for the same cores. No plan includes the memory that it allocates.
//!
//! A library is chosen once, before the first product. A child process tries it first, since a broken library may crash
//! its caller. With a BLAS, results are equal to the bit only for the same number of threads.

use super::gemm::product_built_in;
use super::matrix::{Matrix, MatrixMut};
use libloading::Library;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// `cblas_sgemm` with 32-bit integers. Source: the reference implementation's `cblas.h`.
type Sgemm = unsafe extern "C" fn(
    order: c_int,
    a_op: c_int,
    b_op: c_int,
    rows: c_int,
    columns: c_int,
    inner: c_int,
    alpha: f32,
    a: *const f32,
    a_stride: c_int,
    b: *const f32,
    b_stride: c_int,
    beta: f32,
    c: *mut f32,
    c_stride: c_int,
);

/// Sets a number of threads, passed by value: OpenBLAS and MKL take an `int`, BLIS an integer as wide as a pointer.
/// Calls pass the wider one; a callee that expects the narrower reads its lower half.
type SetThreads = unsafe extern "C" fn(isize);

const ROW_MAJOR: c_int = 101;
const AS_IT_IS: c_int = 111;
const TRANSPOSED: c_int = 112;

/// The prefix of OpenBLAS's names in its Python package, `scipy-openblas32`, which allows several copies in a process.
const PREFIXES: [&str; 2] = ["", "scipy_"];

/// Threads that test a library in parallel.
const TRIALS: usize = 4;

/// The library that this process multiplies with, once it is chosen.
static CHOSEN: OnceLock<Option<Blas>> = OnceLock::new();

/// An open library that passed its test.
#[derive(Debug)]
pub struct Blas {
    library: BlasLibrary,
    functions: Functions,
    /// Keeps the library loaded.
    _opened: Library,
}

/// A description of a library for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlasLibrary {
    /// Name and version.
    pub name: String,
    /// Path, or the name that the system's loader resolves.
    pub file: PathBuf,
}

impl fmt::Display for BlasLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.file.display())
    }
}

/// Why a library is not used.
#[derive(Debug, thiserror::Error)]
pub enum BlasError {
    /// The system's loader refuses it.
    #[error("{} can't be loaded: {reason}", path.display())]
    NotLoaded {
        /// The library.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// It is not a BLAS, or has no C interface.
    #[error("{} has no function `cblas_sgemm`", path.display())]
    NoProducts {
        /// The library.
        path: PathBuf,
    },
    /// Built for 64-bit integers.
    #[error("{} uses 64-bit integers (ILP64); use a build with 32-bit ones (LP64)", path.display())]
    WideIntegers {
        /// The library.
        path: PathBuf,
    },
    /// It computes wrong products.
    #[error("{} is broken: its product of {rows} x {inner} and {inner} x {columns} elements is wrong", path.display())]
    WrongProduct {
        /// The library.
        path: PathBuf,
        /// Rows of the product.
        rows: usize,
        /// Columns of the product.
        columns: usize,
        /// Terms of each sum.
        inner: usize,
    },
}

/// Makes this library compute large products in this process. Panics after the first product, or if another library was
/// chosen already.
pub fn use_blas(blas: Blas) {
    assert!(CHOSEN.set(Some(blas)).is_ok(), "a library must be chosen once, and before the first product");
}

/// The library that this process multiplies with; `None` if the built-in kernels compute all products.
pub fn blas_in_use() -> Option<&'static BlasLibrary> {
    CHOSEN.get()?.as_ref().map(Blas::library)
}

/// The library to multiply with. The first call makes the choice final, so that the rounding of products does not
/// change within a run.
pub(super) fn chosen() -> Option<&'static Blas> {
    CHOSEN.get_or_init(|| None).as_ref()
}

/// A matrix as BLAS takes it: contiguous rows, `stride` apart, or the transpose of that.
pub(super) struct Operand {
    pub(super) start: *const f32,
    pub(super) is_transposed: bool,
    pub(super) stride: c_int,
}

impl Operand {
    /// `None` if the matrix has too many elements for BLAS, or overlapping rows.
    pub(super) fn of(matrix: Matrix) -> Option<Self> {
        // A single row or column has both strides 1, and is long in one direction only.
        let is_transposed = matrix.column_stride != 1 || matrix.row_stride < matrix.columns;
        let (near, far, length) = if is_transposed {
            (matrix.row_stride, matrix.column_stride, matrix.rows)
        } else {
            (matrix.column_stride, matrix.row_stride, matrix.columns)
        };
        let stride = c_int::try_from(far).ok().filter(|_| near == 1 && far >= length)?;
        Some(Self { start: matrix.data.as_ptr(), is_transposed, stride })
    }
}

impl Blas {
    /// Opens and tests a library by its path, or by a name that the system's loader resolves. A library runs code of
    /// its own when it is opened, and a broken one may crash the process. Errors: it can't be loaded, has no products
    /// for 32-bit integers, or computes wrong ones.
    pub fn open(path: &Path) -> Result<Self, BlasError> {
        let not_loaded =
            |error: libloading::Error| BlasError::NotLoaded { path: path.to_owned(), reason: reason(&error) };
        // SAFETY: the code that a library runs when it is opened can't be checked; the user or the system named the
        // library.
        let library = unsafe { Library::new(path) }.map_err(not_loaded)?;
        keep_mkl_narrow_and_sequential(&library);
        let functions = Functions::of(&library, path)?;
        let name = name(&library).unwrap_or_else(|| "BLAS".to_owned());
        let blas = Self { library: BlasLibrary { name, file: path.to_owned() }, functions, _opened: library };
        blas.try_out(path)?;
        Ok(blas)
    }

    /// The library's description.
    pub fn library(&self) -> &BlasLibrary {
        &self.library
    }

    /// into = scale · a b + kept · into, where `into` has contiguous rows, `stride` apart. Thread-safe.
    ///
    /// # Safety
    /// No extent is zero, no stride is less than the length of its rows, and the operands contain all elements
    /// that extents and strides reach; no other code reads or writes the elements of `into` meanwhile.
    pub(super) unsafe fn product(
        &self,
        [rows, columns, inner]: [c_int; 3],
        scale: f32,
        a: &Operand,
        b: &Operand,
        kept: f32,
        (into, stride): (*mut f32, c_int),
    ) {
        self.functions.stay_on_one_thread();
        let op = |operand: &Operand| if operand.is_transposed { TRANSPOSED } else { AS_IT_IS };
        let sgemm = self.functions.sgemm;
        // SAFETY: `Functions::of` found the function under its name and refused builds with other integers; the caller
        // guarantees the arguments.
        unsafe {
            sgemm(
                ROW_MAJOR,
                op(a),
                op(b),
                rows,
                columns,
                inner,
                scale,
                a.start,
                a.stride,
                b.start,
                b.stride,
                kept,
                into,
                stride,
            );
        }
    }

    /// Computes products of each kind on several threads in parallel. Errors: a result is wrong.
    fn try_out(&self, path: &Path) -> Result<(), BlasError> {
        let trial = || [[1, 1, 1], [7, 5, 3], [33, 65, 17], [96, 130, 70]].into_iter().find(|&e| !self.is_right(e));
        let failed = thread::scope(|scope| {
            // If the system starts no thread, test on this one.
            let trials = [(); TRIALS].map(|()| thread::Builder::new().spawn_scoped(scope, trial));
            let result = |started: std::io::Result<thread::ScopedJoinHandle<'_, _>>| match started {
                Ok(started) => started.join().expect("a trial does not panic"),
                Err(_) => trial(),
            };
            trials.into_iter().find_map(result)
        });
        match failed {
            Some([rows, columns, inner]) => {
                Err(BlasError::WrongProduct { path: path.to_owned(), rows, columns, inner })
            }
            None => Ok(()),
        }
    }

    /// Whether products of these extents are right in every arrangement: with operands transposed or not, with gaps
    /// between rows or not, overwriting or adding. All sums are exact in single precision, whatever their order.
    fn is_right(&self, [rows, columns, inner]: [usize; 3]) -> bool {
        let gaps = [0, 3];
        gaps.into_iter().all(|gap| {
            let (a, b) = (eighths((rows + gap) * (inner + gap), 37), eighths((inner + gap) * (columns + gap), 59));
            [false, true].into_iter().all(|a_is_transposed| {
                [false, true].into_iter().all(|b_is_transposed| {
                    let a = view(&a, rows, inner, gap, a_is_transposed);
                    let b = view(&b, inner, columns, gap, b_is_transposed);
                    [false, true].into_iter().all(|accumulate| {
                        // The result may contain anything before it is overwritten.
                        let before = if accumulate { 0.25 } else { f32::NAN };
                        let [mut found, mut expected] = [(); 2].map(|()| vec![before; rows * (columns + gap)]);
                        let into = |data| MatrixMut::strided(data, rows, columns, columns + gap);
                        product_by_library(self, &mut into(&mut found), accumulate, 0.5, a, b);
                        product_built_in(&mut into(&mut expected), accumulate, 0.5, a, b, 1);
                        found.iter().zip(&expected).all(|(f, e)| f.to_bits() == e.to_bits())
                    })
                })
            })
        })
    }
}

/// into = scale · a b, added to the previous values if `accumulate`, by one call of a library on the caller's thread.
/// Panics if an extent is zero, or if BLAS does not support the operands' strides.
pub(super) fn product_by_library(
    blas: &Blas,
    into: &mut MatrixMut,
    accumulate: bool,
    scale: f32,
    a: Matrix,
    b: Matrix,
) {
    let extents = [into.rows, into.columns, a.columns];
    assert_eq!((a.rows, b.rows, b.columns), (into.rows, a.columns, into.columns), "extents of a product");
    assert!(extents.iter().all(|&extent| extent > 0), "an empty product of {extents:?}");
    let narrow = |count: usize| c_int::try_from(count).expect("extents and strides of 32 bits");
    let [a, b] = [a, b].map(|operand| Operand::of(operand).expect("an operand whose strides BLAS supports"));
    let (kept, result) = (if accumulate { 1.0 } else { 0.0 }, (into.start, narrow(into.stride)));
    // SAFETY: the views' constructors checked that every element which these extents and strides reach is in its slice,
    // `MatrixMut`'s and `operand` that rows don't overlap, and the assertions that the extents agree and none is zero;
    // `into` has exclusive access to its elements.
    unsafe { blas.product(extents.map(narrow), scale, &a, &b, kept, result) };
}

/// Multiples of an eighth from -8 to 8.
fn eighths(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| (i * step % 129) as f32 / 8.0 - 8.0).collect()
}

/// A view of `data` with contiguous rows, or contiguous columns, and a gap after each.
pub(super) fn view(data: &[f32], rows: usize, columns: usize, gap: usize, is_transposed: bool) -> Matrix<'_> {
    if is_transposed {
        Matrix::strided(data, columns, rows, rows + gap).transposed()
    } else {
        Matrix::strided(data, rows, columns, columns + gap)
    }
}

/// The functions called for every product.
struct Functions {
    sgemm: Sgemm,
    set_threads: Option<SetThreads>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").field("sets_threads", &self.set_threads.is_some()).finish_non_exhaustive()
    }
}

impl Functions {
    fn of(library: &Library, path: &Path) -> Result<Self, BlasError> {
        let wide = ["cblas_sgemm64_", "cblas_sgemm_64"];
        // SAFETY: libraries have a function of this type under this name, except for the width of integers, which is
        // checked.
        let sgemm = unsafe { function::<Sgemm>(library, &["cblas_sgemm"]) };
        let Some(sgemm) = sgemm else {
            // SAFETY: the function is not called.
            let is_wide = unsafe { function::<unsafe extern "C" fn()>(library, &wide) }.is_some();
            let path = path.to_owned();
            return Err(if is_wide { BlasError::WideIntegers { path } } else { BlasError::NoProducts { path } });
        };
        if takes_wide_integers(library) {
            return Err(BlasError::WideIntegers { path: path.to_owned() });
        }
        let setters = ["openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"];
        // SAFETY: under these names, libraries have functions of this type (see there).
        let set_threads = unsafe { function::<SetThreads>(library, &setters) };
        Ok(Self { sgemm, set_threads })
    }

    /// Some libraries have a number of threads for each calling thread, so each thread sets it once.
    fn stay_on_one_thread(&self) {
        static TELLING: Mutex<()> = Mutex::new(());
        thread_local! { static HAS_TOLD: Cell<bool> = const { Cell::new(false) } }
        if let Some(set_threads) = self.set_threads
            && !HAS_TOLD.replace(true)
        {
            let _alone = TELLING.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: `Functions::of` found the function under its name; the lock excludes concurrent calls.
            unsafe { set_threads(1) };
        }
    }
}

/// The first of these names that a library has, with any prefix.
///
/// # Safety
/// Functions of these names have the type `F`.
unsafe fn function<F: Copy>(library: &Library, names: &[&str]) -> Option<F> {
    let names = PREFIXES.iter().flat_map(|prefix| names.iter().map(move |name| format!("{prefix}{name}")));
    // SAFETY: the caller guarantees it.
    names.into_iter().find_map(|name| unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol))
}

/// MKL's single library takes the width of its integers and its threading layer from the environment unless they are
/// set first, and ends the process if it does not find the threading library. Does nothing for other libraries.
fn keep_mkl_narrow_and_sequential(library: &Library) {
    const LP64: c_int = 0;
    const SEQUENTIAL: c_int = 1;
    for (name, layer) in [("MKL_Set_Interface_Layer", LP64), ("MKL_Set_Threading_Layer", SEQUENTIAL)] {
        // SAFETY: MKL declares both as `int name(int)`, and they are called before anything else of it.
        unsafe {
            if let Some(set_layer) = function::<unsafe extern "C" fn(c_int) -> c_int>(library, &[name]) {
                set_layer(layer);
            }
        }
    }
}

/// Whether a library whose product has the usual name takes 64-bit integers nevertheless.
fn takes_wide_integers(library: &Library) -> bool {
    // SAFETY: BLIS declares it so, with integers as wide as pointers.
    let blis = unsafe {
        let width = function::<unsafe extern "C" fn() -> isize>(library, &["bli_info_get_blas_int_type_size"]);
        width.map(|width| width())
    };
    blis == Some(64) || name(library).is_some_and(|name| name.contains("USE64BITINT"))
}

/// A library's own description.
fn name(library: &Library) -> Option<String> {
    let texts = [("openblas_get_config", ""), ("bli_info_get_version_str", "BLIS ")];
    let told = texts.into_iter().find_map(|(function, maker)| Some(format!("{maker}{}", text(library, function)?)));
    told.or_else(|| mkl_version(library))
}

/// The text that a function without arguments returns.
fn text(library: &Library, name: &str) -> Option<String> {
    // SAFETY: OpenBLAS and BLIS declare these functions so, and return constant zero-terminated texts.
    let text = unsafe {
        let text = function::<unsafe extern "C" fn() -> *const c_char>(library, &[name])?();
        (!text.is_null()).then(|| CStr::from_ptr(text))?
    };
    Some(text.to_string_lossy().trim().to_owned())
}

/// MKL fills the buffer, with spaces after its version.
fn mkl_version(library: &Library) -> Option<String> {
    let mut text = [0u8; 256];
    // SAFETY: MKL declares it so, and writes at most the number of bytes passed.
    unsafe {
        let version = function::<unsafe extern "C" fn(*mut c_char, c_int)>(
            library,
            &["mkl_get_version_string", "MKL_Get_Version_String"],
        )?;
        version(text.as_mut_ptr().cast(), text.len() as c_int - 1);
    }
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(&text[..end]).trim().to_owned())
}

/// The loader's message instead of only the failure.
fn reason(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
