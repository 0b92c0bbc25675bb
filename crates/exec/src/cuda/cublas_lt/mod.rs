//! Products of matrices by NVIDIA's cuBLASLt, where it lies on the machine: `find.rs` looks for it, `library.rs` opens it
//! and asks for its functions, `handle.rs` is the library on a card, `shape.rs` what products have in common that one
//! algorithm computes, `algorithms.rs` chooses these, `tuning.rs` by time, `choices.rs` is what a run keeps of
//! them, and `product.rs` is a product that is ready for its stream.
//!
//! The library takes matrices by columns, ours lie by rows: what it is given as its matrices are ours transposed, so the
//! factors change places, resultᵀ = rightᵀ · leftᵀ.

mod algorithms;
mod choices;
mod find;
mod handle;
mod library;
mod product;
mod shape;
mod tuning;

pub(super) use algorithms::Algorithms;
pub use choices::ProductChoices;
pub use find::{CUBLAS_LIBRARY, cublas_lt};
pub(super) use handle::Handle;
pub use library::{CublasLt, CublasLtError, OLDEST_CUBLAS_LT};
pub(super) use product::ReadyProduct;
pub(super) use tuning::Timer;
