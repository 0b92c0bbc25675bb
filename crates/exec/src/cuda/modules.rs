//! The kernels' PTX, which `scripts/kernels.py` generates and the driver compiles for its card.

use std::borrow::Cow;

/// Names of the modules and their PTX, for compute capability 7.5, if it has them, and for 8.0. Names of modules in
/// half precision include their type: a file has kernels for f16 for 7.5, and for bf16 for 8.0, from which `in_f16`
/// derives those for f16.
macro_rules! modules {
    ($($name:literal),*; from 8.0: $($newer:literal),*; in halves: $($half:literal),* $(,)?) => {
        const MODULES: &[(&str, [Option<&str>; 2])] = &[
            $((
                $name,
                [
                    Some(include_str!(concat!("../../kernels/ptx/sm_75/", $name, ".ptx"))),
                    Some(include_str!(concat!("../../kernels/ptx/sm_80/", $name, ".ptx"))),
                ],
            ),)*
            $(($newer, [None, Some(include_str!(concat!("../../kernels/ptx/sm_80/", $newer, ".ptx")))]),)*
            $(
                (
                    concat!($half, "_f16"),
                    [Some(include_str!(concat!("../../kernels/ptx/sm_75/", $half, ".ptx"))), None],
                ),
                (
                    concat!($half, "_bf16"),
                    [None, Some(include_str!(concat!("../../kernels/ptx/sm_80/", $half, ".ptx")))],
                ),
            )*
        ];
    };
}

modules!(
    "add",
    "attention",
    "attention_grad",
    "attention_grad_sums",
    "cached_attention",
    "cast",
    "clamped_swiglu",
    "column_scale",
    "contrastive_loss",
    "dispatch",
    "dropout",
    "embedding",
    "exact_gelu",
    "expert_linear",
    "gated",
    "gelu",
    "grad_norm",
    "head_log_probs",
    "head_loss",
    "layer_norm",
    "linear",
    "low_rank_norm",
    "moving_average",
    "paired_head_loss",
    "parameter_update",
    "pool",
    "positions",
    "preference_loss",
    "quantized_linear",
    "relu",
    "rms_norm",
    "rotary",
    "route",
    "router_loss",
    "row_sums",
    "scale",
    "soft_cap",
    "take_row",
    "transfer",
    "uniform_noise";
    from 8.0: "expert_product_tf32", "product_tf32";
    in halves:
    "expert_product",
    "product",
    "attention_tensor_64",
    "attention_tensor_256",
    "attention_tensor_grad_64",
    "attention_tensor_grad_256",
);

/// The PTX of a module for a card of this compute capability: the newest that it supports. `None` if there is no such
/// module, or none for such an old card.
pub fn ptx(module: &str, compute_capability: (u8, u8)) -> Option<Cow<'static, str>> {
    let target = match compute_capability {
        (8.., _) => 1,
        (7, 5..) => 0,
        _ => return None,
    };
    let of = |module: &str| MODULES.iter().find(|(name, _)| *name == module)?.1[target];
    let of_other = || of(&format!("{}_bf16", module.strip_suffix("_f16")?));
    of(module).map(Cow::Borrowed).or_else(|| of_other().map(|text| Cow::Owned(in_f16(text))))
}

/// Derives the PTX of kernels for f16 from that for bf16. They differ only in the type's name, which
/// `scripts/kernels.py` checks.
pub fn in_f16(ptx: &str) -> String {
    ptx.replace("bf16", "f16")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size that every build includes, and the most that a driver reads.
    #[test]
    fn kernels_of_a_target_are_less_than_four_megabytes() {
        for target in [0, 1] {
            let bytes = MODULES.iter().filter_map(|(_, targets)| targets[target]).map(str::len).sum::<usize>();
            assert!(bytes < 4_000_000, "{bytes} bytes of PTX for target {target}");
        }
    }
}
