//! Products of matrices by NVIDIA's cuBLASLt, if it is on the machine. `find.rs` finds it, `library.rs` opens it and
//! looks up its functions, and `handle.rs` is the library on a card. `shape.rs` defines which products share an
//! algorithm, `algorithms.rs` chooses algorithms, `tuning.rs` times them, and `choices.rs` is the part of them that a
//! run stores. `product.rs` is a product ready for its stream.
//!
//! The library's matrices are column-major, those of the plan row-major: it receives them as transposed ones, with the
//! factors swapped: resultᵀ = rightᵀ · leftᵀ.
//!
//! A plan made without access to the library is the same as with it: nodes with products have a workspace after their
//! scratch. Everything that a product needs is created when the plan is loaded, with one run of each product, so that
//! the library has loaded its kernels before a step is captured or timed. Algorithms that add parts in place are
//! excluded, since they change bits. The chosen algorithms are stored in the run's folder (`products.json`); the
//! library checks stored ones before use. Products with extents that are not multiples of a vector are split in two for
//! it.

mod algorithms;
mod choices;
mod description;
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
