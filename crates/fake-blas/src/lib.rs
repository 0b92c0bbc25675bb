//! For tests: libraries that stand in for a BLAS on machines without one. Read next: `blas.rs`, the stand-in itself.

use std::path::Path;

// Compiled into this crate only for lints.
#[cfg(test)]
mod blas;

/// A correct library, which calls itself `OpenBLAS 0.0 stand-in`.
pub fn right() -> &'static Path {
    Path::new(env!("FAKE_BLAS_RIGHT"))
}

/// A library that omits the last term of sums if both operands are transposed.
pub fn wrong() -> &'static Path {
    Path::new(env!("FAKE_BLAS_WRONG"))
}

/// A library with 64-bit integers and the function names of such builds.
pub fn wide() -> &'static Path {
    Path::new(env!("FAKE_BLAS_WIDE"))
}

/// A library without a product.
pub fn bare() -> &'static Path {
    Path::new(env!("FAKE_BLAS_BARE"))
}

/// A library that ends the process in its first product.
pub fn crashing() -> &'static Path {
    Path::new(env!("FAKE_BLAS_CRASHING"))
}
