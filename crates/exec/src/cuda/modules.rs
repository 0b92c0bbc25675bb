//! The kernels' PTX, which `scripts/kernels.py` generates, `build.rs` compresses, and the driver compiles for its card.

use flate2::read::DeflateDecoder;
use std::io::Read;

/// Names of the modules and their PTX, for compute capability 7.5, if it has them, and for 8.0. Names of modules in
/// half precision include their type: a file has kernels for f16 for 7.5, and for bf16 for 8.0, from which `in_f16`
/// derives those for f16.
macro_rules! modules {
    ($($name:literal),*; from 8.0: $($newer:literal),*; in halves: $($half:literal),* $(,)?) => {
        const MODULES: &[(&str, [Option<&[u8]>; 2])] = &[
            $((
                $name,
                [
                    Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_75/", $name, ".deflate"))),
                    Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $name, ".deflate"))),
                ],
            ),)*
            $(($newer, [None, Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $newer, ".deflate")))]),)*
            $(
                (
                    concat!($half, "_f16"),
                    [Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_75/", $half, ".deflate"))), None],
                ),
                (
                    concat!($half, "_bf16"),
                    [None, Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $half, ".deflate")))],
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
pub fn ptx(module: &str, compute_capability: (u8, u8)) -> Option<String> {
    let target = match compute_capability {
        (8.., _) => 1,
        (7, 5..) => 0,
        _ => return None,
    };
    let of = |module: &str| Some(decompressed(MODULES.iter().find(|(name, _)| *name == module)?.1[target]?));
    let of_other = || of(&format!("{}_bf16", module.strip_suffix("_f16")?));
    of(module).or_else(|| of_other().map(|text| in_f16(&text)))
}

fn decompressed(deflated: &[u8]) -> String {
    let mut text = String::new();
    DeflateDecoder::new(deflated).read_to_string(&mut text).expect("the build script compressed text");
    text
}

/// The PTX with these kernels only: the driver compiles each kernel of a module, used or not. Names that it lacks are ignored.
pub(super) fn with_kernels(ptx: &str, is_used: impl Fn(&str) -> bool) -> String {
    const BEGIN: &str = ".visible .entry ";
    let mut parts = ptx.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for kernel in parts.filter(|kernel| is_used(kernel.split('(').next().unwrap_or_default())) {
        text.push_str(BEGIN);
        text.push_str(kernel);
    }
    text
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
    fn kernels_are_small_in_the_executable_and_not_too_long_for_a_driver() {
        let of = |target: usize| MODULES.iter().filter_map(move |(_, targets)| targets[target]);
        let included = of(0).chain(of(1)).map(<[u8]>::len).sum::<usize>();
        assert!(included < 1_500_000, "{included} bytes of compressed PTX");
        for target in [0, 1] {
            let bytes = of(target).map(|module| decompressed(module).len()).sum::<usize>();
            assert!(bytes < 4_000_000, "{bytes} bytes of PTX for target {target}");
        }
    }

    /// Each module with one of its kernels at a time: all of these together are the module.
    #[test]
    fn a_module_can_have_some_of_its_kernels() {
        let names = |text: &str| {
            let entries = text.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
            entries.map(|entry| entry.trim_end_matches('(').to_owned()).collect::<Vec<_>>()
        };
        for module in MODULES.iter().flat_map(|(_, targets)| targets.iter().flatten()) {
            let text = decompressed(module);
            let (header, kernels) = (with_kernels(&text, |_| false), names(&text));
            assert!(!kernels.is_empty() && names(&header).is_empty());
            let mut all = header.clone();
            for kernel in &kernels {
                let one = with_kernels(&text, |name| name == kernel);
                assert_eq!(names(&one), [&**kernel]);
                all.push_str(one.strip_prefix(&header).expect("the same header"));
            }
            assert!(all == text);
        }
    }
}
