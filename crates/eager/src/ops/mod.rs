//! Aten's ops: what each allocates and saves, and its backward pass. One file per group.
//! Not here: which ops a module calls (`modules/`).
//!
//! Source: PyTorch's `derivatives.yaml`, `FunctionsManual.cpp` and `native/`; compared with recorded steps by
//! `golden.rs`. Internal allocations of CUDA's kernels are `Runtime::scratch`.

mod attention;
mod cast;
mod contrast;
mod cut_cross_entropy;
mod dropout;
mod embedding;
mod four_bit;
mod grouped;
pub(crate) mod liger;
mod loss;
mod matmul;
mod norm;
mod pointwise;
mod reduce;
mod rows;
mod softmax;
mod view;

pub(crate) use attention::{Sdpa, scaled_dot_product_attention};
pub(crate) use cast::{autocast_to, cast_values};
pub(crate) use cut_cross_entropy::cut_cross_entropy;
pub(crate) use embedding::embedding;
pub(crate) use four_bit::{Packed, matmul_4bit};
pub(crate) use grouped::{GroupedProduct, grouped_mm};
pub(crate) use loss::{cross_entropy, pad_labels};
pub(crate) use matmul::{addmm, baddbmm};
pub(crate) use norm::layer_norm;
pub(crate) use pointwise::broadcast;
pub(crate) use reduce::sum_to;
pub(crate) use rows::{index, index_pairs, max_last, sort, topk};
pub(crate) use view::cat;
