//! A BLAS with one function, `cblas_sgemm`, whose name and arguments follow the reference implementation's `cblas.h`,
//! in simple loops. `build.rs` compiles each variant as a library.

#[cfg(not(any(wide, bare)))]
use std::ffi::{c_char, c_int};

/// `CblasTrans`.
#[cfg(not(any(wide, bare)))]
const TRANSPOSED: c_int = 112;

/// c = alpha · op(a) op(b) + beta · c, by rows.
///
/// # Safety
/// As in BLAS: `a`, `b` and `c` have the elements that the extents and strides reach.
#[cfg(not(any(wide, bare)))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cblas_sgemm(
    _order: c_int,
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
) {
    if cfg!(crashing) {
        std::process::abort();
    }
    let place = |op: c_int, row: c_int, column: c_int, stride: c_int| {
        let (row, column) = if op == TRANSPOSED { (column, row) } else { (row, column) };
        row as usize * stride as usize + column as usize
    };
    let terms = if cfg!(wrong) && a_op == TRANSPOSED && b_op == TRANSPOSED { inner - 1 } else { inner };
    for row in 0..rows {
        for column in 0..columns {
            let mut sum = 0.0;
            for k in 0..terms {
                // SAFETY: the caller promises that the operands have these elements.
                sum += unsafe { *a.add(place(a_op, row, k, a_stride)) * *b.add(place(b_op, k, column, b_stride)) };
            }
            // SAFETY: the caller promises that the result has this element.
            let into = unsafe { &mut *c.add(place(0, row, column, c_stride)) };
            *into = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *into };
        }
    }
}

/// OpenBLAS's description of its build.
#[cfg(not(any(wide, bare)))]
#[unsafe(no_mangle)]
pub extern "C" fn openblas_get_config() -> *const c_char {
    c"OpenBLAS 0.0 stand-in".as_ptr()
}

/// The name of the product in builds with 64-bit integers. Never called.
#[cfg(wide)]
#[unsafe(no_mangle)]
pub extern "C" fn cblas_sgemm64_() {}
