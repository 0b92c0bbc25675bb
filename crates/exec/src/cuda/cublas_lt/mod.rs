//! Products of matrices by NVIDIA's cuBLASLt, if it is on the machine: `find.rs` finds it, `library.rs` opens it and
//! looks up its functions, `handle.rs` is the library on a card, `shape.rs` is what products with the same algorithm
//! have in common, `algorithms.rs` chooses algorithms, `tuning.rs` times them, `choices.rs` is what a run stores of
//! them, and `product.rs` is a product ready for its stream.
//!
//! The library's matrices are column-major, ours are row-major: it gets our matrices as transposed ones, so the factors
//! are swapped, resultᵀ = rightᵀ · leftᵀ.
//!
//! A plan for a card without the library at hand is the one that the card would get: nodes with products have a workspace
//! after their scratch. Everything that a product needs is made when the plan is loaded, with one run of each product, so
//! that the library has loaded its kernels before a step is captured or timed. Algorithms that add parts in place are never
//! used, since they change bits. The chosen algorithms are stored in the run's folder (`products.json`), from which the
//! library checks them before use. Products with extents that are not multiples of a vector are cut in two for it.

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
