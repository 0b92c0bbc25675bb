//! For tests: libraries that stand in for a BLAS, on machines without one. Read next: `blas.rs`, the stand-in itself.

use std::path::Path;

// Compiled as part of this crate only to be linted with it.
#[cfg(test)]
mod blas;

/// A library whose products are right. It calls itself `OpenBLAS 0.0 stand-in`.
pub fn right() -> &'static Path {
    Path::new(env!("FAKE_BLAS_RIGHT"))
}

/// A library that forgets the last term of sums where both operands are transposed.
pub fn wrong() -> &'static Path {
    Path::new(env!("FAKE_BLAS_WRONG"))
}

/// A library that counts in 64-bit integers and says so in its functions' names.
pub fn wide() -> &'static Path {
    Path::new(env!("FAKE_BLAS_WIDE"))
}

/// A library without any product.
pub fn bare() -> &'static Path {
    Path::new(env!("FAKE_BLAS_BARE"))
}

/// A library that ends the process at the first product.
pub fn crashing() -> &'static Path {
    Path::new(env!("FAKE_BLAS_CRASHING"))
}
