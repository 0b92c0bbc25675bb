//! What differs between versions of PyTorch and transformers, as far as it affects memory.
//! Not here: which versions are known (`plimsoll_trainers`).
//!
//! | since | change | source |
//! | --- | --- | --- |
//! | PyTorch 2.5 | PyTorch's kernels accept fewer key heads than query heads, and transformers uses it without a mask | `use_gqa_in_sdpa` |
//! | PyTorch 2.6 | transformers looks for several documents in a sample if it receives no mask | `create_causal_mask` |
//! | PyTorch 2.9 | `grouped_mm` runs on cards of compute capability 8.0 and later, not only on 9.x | `_can_use_grouped_mm` |
//! | transformers 5.0 | a layer's experts are one tensor, and `grouped_mm` computes them; before, each is a module in a loop | `integrations/moe.py` |
//! | transformers 5.0 | it builds no mask if it finds only one document | `find_packed_sequence_indices` |
//! | transformers 5.2 | GPT-2 has no buffers with a causal mask of its longest samples | `GPT2Attention` |
//! | transformers 5.15 | T5 can use PyTorch's attention kernels | `_supports_sdpa` |

use plimsoll_trainers::{Libraries, Run, Version};

const fn version(major: u16, minor: u16) -> Version {
    Version { major, minor }
}

/// Whether attention kernels receive keys and values with fewer heads than queries.
pub(crate) fn groups_heads(libraries: &Libraries) -> bool {
    libraries.torch >= version(2, 5)
}

/// Whether the model builds a mask with which PyTorch's kernels separate documents, even if each sample is one document:
/// a mask that the loop passes is checked instead.
pub(crate) fn masks_documents(run: &Run) -> bool {
    let Libraries { torch, transformers } = run.libraries;
    run.custom_loop.omits_mask && torch >= version(2, 6) && transformers < version(5, 0)
}

/// Whether each block of GPT-2 has a mask of its longest samples.
pub(crate) fn has_mask_buffers(libraries: &Libraries) -> bool {
    libraries.transformers < version(5, 2)
}

/// Whether transformers accepts PyTorch's attention kernels for T5.
pub(crate) fn has_t5_kernels(libraries: &Libraries) -> bool {
    libraries.transformers >= version(5, 15)
}

/// Whether the experts of a layer are one tensor, whose products `grouped_mm` computes, and not a module each.
pub(crate) fn stacks_experts(libraries: &Libraries) -> bool {
    libraries.transformers >= version(5, 0)
}

/// Whether PyTorch's `grouped_mm` runs on a card of this compute capability.
pub(crate) fn has_grouped_products(libraries: &Libraries, compute_capability: (u8, u8)) -> bool {
    match libraries.torch >= version(2, 9) {
        true => compute_capability >= (8, 0),
        false => libraries.torch >= version(2, 8) && compute_capability.0 == 9,
    }
}
