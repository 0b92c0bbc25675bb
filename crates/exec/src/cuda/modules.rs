//! The kernels' PTX, which `scripts/kernels.py` makes and the driver compiles for its card.

/// Names of the modules and their PTX, for compute capability 7.5, where it has them, and for 8.0.
macro_rules! modules {
    ($($name:literal),*; from 8.0: $($newer:literal),* $(,)?) => {
        const MODULES: &[(&str, [Option<&str>; 2])] = &[
            $((
                $name,
                [
                    Some(include_str!(concat!("../../kernels/ptx/sm_75/", $name, ".ptx"))),
                    Some(include_str!(concat!("../../kernels/ptx/sm_80/", $name, ".ptx"))),
                ],
            ),)*
            $(($newer, [None, Some(include_str!(concat!("../../kernels/ptx/sm_80/", $newer, ".ptx")))])),*
        ];
    };
}

modules!(
    "add",
    "attention",
    "attention_grad",
    "attention_grad_sums",
    "attention_tensor",
    "attention_tensor_grad",
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
    "product",
    "relu",
    "rms_norm",
    "rotary",
    "row_sums",
    "scale",
    "take_row",
    "transfer";
    from 8.0: "product_tf32"
);

/// The PTX of a module for a card of this compute capability: the newest that it understands. None if there is no such
/// module, or none for a card as old as that.
pub fn ptx(module: &str, compute_capability: (u8, u8)) -> Option<&'static str> {
    let targets = MODULES.iter().find(|(name, _)| *name == module)?.1;
    match compute_capability {
        (8.., _) => targets[1],
        (7, 5..) => targets[0],
        _ => None,
    }
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
