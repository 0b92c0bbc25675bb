//! The kernels' PTX, which `scripts/kernels.py` makes and the driver compiles for its card.

use std::borrow::Cow;

/// Names of the modules and their PTX, for compute capability 7.5, where it has them, and for 8.0. Modules of kernels in
/// half precision are named by their type: a file has kernels for f16 for 7.5, and for bf16 for 8.0, of which `in_f16`
/// makes the others.
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
    "dropout",
    "embedding",
    "gated",
    "gelu",
    "grad_norm",
    "head_loss",
    "layer_norm",
    "linear",
    "moving_average",
    "paired_head_loss",
    "parameter_update",
    "positions",
    "relu",
    "rms_norm",
    "rotary",
    "row_sums",
    "scale",
    "soft_cap",
    "take_row",
    "transfer";
    from 8.0: "product_tf32";
    in halves:
    "product",
    "attention_tensor_64",
    "attention_tensor_256",
    "attention_tensor_grad_64",
    "attention_tensor_grad_256",
);

/// The PTX of a module for a card of this compute capability: the newest that it understands. None if there is no such
/// module, or none for a card as old as that.
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

/// The PTX of kernels for f16 of that for bf16, from which theirs differs in the type's name alone: `scripts/kernels.py`
/// sees to that.
pub fn in_f16(ptx: &str) -> String {
    ptx.replace("bf16", "f16")
}

/// The names of all modules.
pub fn module_names() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a driver reads at the most, and what every build carries.
    #[test]
    fn kernels_of_a_target_are_less_than_two_megabytes() {
        for target in [0, 1] {
            let bytes = MODULES.iter().filter_map(|(_, targets)| targets[target]).map(str::len).sum::<usize>();
            assert!(bytes < 2_000_000, "{bytes} bytes of PTX for target {target}");
        }
    }
}
