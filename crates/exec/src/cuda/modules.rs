//! The kernels' PTX, which `scripts/kernels.py` generates, `build.rs` compresses, and the driver compiles for its card.

use flate2::read::DeflateDecoder;
use std::io::Read;

/// Names of the modules and their PTX, for compute capability 7.5, 8.0 and 8.9, where it has them. Names of modules in
/// half precision include their type: a file has kernels for f16 for 7.5, and for bf16 for 8.0, from which `in_f16`
/// derives those for f16.
macro_rules! modules {
    ($($name:literal),*; from 8.0: $($newer:literal),*; from 8.9: $($newest:literal),*;
        in halves: $($half:literal),* $(,)?) => {
        const MODULES: &[(&str, [Option<&[u8]>; 3])] = &[
            $((
                $name,
                [
                    Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_75/", $name, ".deflate"))),
                    Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $name, ".deflate"))),
                    None,
                ],
            ),)*
            $((
                $newer,
                [None, Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $newer, ".deflate"))), None],
            ),)*
            $((
                $newest,
                [None, None, Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_89/", $newest, ".deflate")))],
            ),)*
            $(
                (
                    concat!($half, "_f16"),
                    [Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_75/", $half, ".deflate"))), None, None],
                ),
                (
                    concat!($half, "_bf16"),
                    [None, Some(include_bytes!(concat!(env!("OUT_DIR"), "/sm_80/", $half, ".deflate"))), None],
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
    "keep_gradient",
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
    from 8.9: "fp8", "fp8_product";
    in halves:
    "expert_product",
    "product",
    "attention_tensor_64",
    "attention_tensor_256",
    "attention_tensor_grad_64",
    "attention_tensor_grad_256",
);

/// Modules whose kernels need so much shared memory that 100 KiB, the multiprocessors' of compute capability 8.6, 8.9 and 12.x, are
/// enough for two blocks only, while their registers are limited for more blocks on the other cards.
const OF_TWO_BLOCKS: [&str; 3] = ["attention_tensor_256", "attention_tensor_grad_64", "attention_tensor_grad_256"];

/// The PTX of a module for a card of this compute capability: the newest that it supports. `None` if there is no such
/// module, or none for such an old card.
pub fn ptx(module: &str, compute_capability: (u8, u8)) -> Option<String> {
    let of = |module: &str| {
        let (_, [of_75, of_80, of_89]) = MODULES.iter().find(|(name, _)| *name == module)?;
        let newest = match compute_capability {
            (8, 9..) | (9.., _) => of_89.or(*of_80),
            (8, _) => *of_80,
            (7, 5..) => *of_75,
            _ => None,
        };
        newest.map(decompressed)
    };
    let of_other = || of(&format!("{}_bf16", module.strip_suffix("_f16")?));
    let text = of(module).or_else(|| of_other().map(|text| in_f16(&text)))?;
    let is_of_two = OF_TWO_BLOCKS.contains(&module.trim_end_matches("_bf16").trim_end_matches("_f16"));
    let has_little = matches!(compute_capability, (8, 6 | 9) | (12, _));
    Some(if is_of_two && has_little { for_two_blocks(&text) } else { text })
}

/// The PTX with the registers of two blocks on a multiprocessor: some assemblers would spill those that more blocks leave.
fn for_two_blocks(ptx: &str) -> String {
    ptx.replace(".minnctapersm 3", ".minnctapersm 2").replace(".minnctapersm 4", ".minnctapersm 2")
}

fn decompressed(deflated: &[u8]) -> String {
    let mut text = String::new();
    DeflateDecoder::new(deflated).read_to_string(&mut text).expect("the build script compressed text");
    text
}

/// The end of the name of a kernel that computes a part of its grid.
pub(super) const PART_OF_GRID: &str = "_part_of_grid";

/// The PTX with these kernels only: the driver compiles each kernel of a module, used or not. Names that it lacks are ignored.
/// With [`PART_OF_GRID`] after its name, a kernel computes a part of its grid.
pub(super) fn with_kernels(ptx: &str, is_used: impl Fn(&str) -> bool) -> String {
    const BEGIN: &str = ".visible .entry ";
    let mut parts = ptx.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for kernel in parts {
        let name = kernel.split('(').next().unwrap_or_default();
        if is_used(name) {
            text.push_str(BEGIN);
            text.push_str(kernel);
        }
        if is_used(&format!("{name}{PART_OF_GRID}")) {
            text.push_str(BEGIN);
            text.push_str(&of_part(kernel));
        }
    }
    text
}

/// A kernel's PTX as that of one for a part of its grid. Its last parameter is six numbers: the part's first block, and the
/// extents of the whole grid, which replace those of the launch.
fn of_part(kernel: &str) -> String {
    let mut text = String::with_capacity(kernel.len() + 256);
    for line in kernel.split_inclusive('\n') {
        let read = |special: &str| {
            let (register, axis) = line.strip_prefix("mov.u32 ")?.strip_suffix(";\n")?.split_once(special)?;
            Some((register, ["x", "y", "z"].iter().position(|name| *name == axis)? * 4))
        };
        if let Some((register, offset)) = read(",%ctaid.") {
            let first = format!("ld.param.u32 first_block,[part+{offset}];\n");
            text.push_str(&format!("{line}{first}add.s32 {register},{register},first_block;\n"));
        } else if let Some((register, offset)) = read(",%nctaid.") {
            text.push_str(&format!("ld.param.u32 {register},[part+{}];\n", 12 + offset));
        } else {
            text.push_str(line);
        }
    }
    let text = text.replacen('(', &format!("{PART_OF_GRID}("), 1);
    let text = text.replacen("\n)\n", ",\n.param .align 4 .b8 part[24]\n)\n", 1);
    text.replacen("\n{\n", "\n{\n.reg .b32 first_block;\n", 1)
}

/// Derives the PTX of kernels for f16 from that for bf16. They differ only in the type's name, which
/// `scripts/kernels.py` checks.
pub fn in_f16(ptx: &str) -> String {
    ptx.replace("bf16", "f16")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Figures of each kernel by `scripts/assemble.py`, for each card and several releases of the assembler.
    const FIGURES: &str = include_str!("../../../../bench/results/kernels.csv");

    /// The spills of some releases, in bytes stored and loaded, by kernel and card: with fewer blocks on a multiprocessor there
    /// would be none, but those of attention are slower then on an H100 (`bench/results/2026-11-22-h100-attention.md`), and
    /// the others are for single precision without TF32, for sampling, and for products in 8 bits on Hopper, where they are a
    /// substitute for the library's.
    const SPILLS: [(&str, &str, &str, u32); 18] = [
        ("attention_tensor_256", "sm_90", "13.5", 72),
        ("attention_tensor_64", "sm_120", "12.9", 20),
        ("attention_tensor_64", "sm_90", "13.5", 48),
        ("attention_tensor_grad_queries_64", "sm_80", "11.8", 8),
        ("attention_tensor_grad_queries_64", "sm_90", "11.8", 8),
        ("attention_tensor_grad_queries_64", "sm_90", "13.5", 296),
        ("cached_attention_256_general", "sm_80", "11.8", 8),
        ("cached_attention_256_general", "sm_80", "12.9", 8),
        ("cached_attention_256_general", "sm_80", "13.5", 8),
        ("cached_attention_64_general", "sm_80", "12.9", 32),
        ("cached_attention_64_general", "sm_80", "13.5", 24),
        ("product_nt_128", "sm_90", "11.8", 16),
        ("product_nt_e4m3_e4m3_128", "sm_90", "12.9", 72),
        ("product_nt_e4m3_e4m3_128", "sm_90", "13.5", 72),
        ("product_nt_e4m3_e5m2_128", "sm_90", "12.9", 72),
        ("product_nt_e4m3_e5m2_128", "sm_90", "13.5", 72),
        ("product_nt_e5m2_e4m3_128", "sm_90", "12.9", 72),
        ("product_nt_e5m2_e4m3_128", "sm_90", "13.5", 72),
    ];

    fn figures() -> impl Iterator<Item = Vec<&'static str>> {
        FIGURES.lines().skip(1).map(|row| row.split(',').collect())
    }

    #[test]
    fn no_kernel_spills_except_those_that_are_listed() {
        let mut found = BTreeSet::new();
        for row in figures() {
            let [kernel, card, releases, _, _, spills, ..] = row[..] else { panic!("{row:?}") };
            let kernel = kernel.trim_end_matches("_bf16").trim_end_matches("_f16");
            let spills = spills.parse::<u32>().expect("bytes");
            let of_releases = releases.split(' ').map(|release| (kernel, card, release, spills));
            found.extend(of_releases.filter(|_| spills > 0));
        }
        assert_eq!(found, BTreeSet::from(SPILLS), "spills by kernel, card and release");
    }

    /// Each release has figures of all kernels that a card gets, once.
    #[test]
    fn figures_are_those_of_all_kernels() {
        for (card, capability) in [(75, (7, 5)), (80, (8, 0)), (86, (8, 6)), (89, (8, 9)), (90, (9, 0)), (120, (12, 0))]
        {
            let both = |name: &&str| [(*name).to_owned(), name.replace("_bf16", "_f16")];
            let modules = MODULES.iter().map(|(name, _)| name).flat_map(both).collect::<BTreeSet<_>>();
            let kernels_of = |is_for: &dyn Fn(&str) -> bool| {
                let texts = modules.iter().filter(|module| is_for(module)).filter_map(|module| ptx(module, capability));
                texts.flat_map(|text| names(&text)).collect::<BTreeSet<_>>()
            };
            // The oldest release does not know the PTX of products in 8 bits.
            let [all, of_oldest] = [kernels_of(&|_| true), kernels_of(&|module| !module.starts_with("fp8"))];
            let mut by_release = BTreeMap::<_, Vec<_>>::new();
            for row in figures().filter(|row| row[1] == format!("sm_{card}")) {
                row[2].split(' ').for_each(|release| by_release.entry(release).or_default().push(row[0].to_owned()));
            }
            assert!(by_release.len() >= 2, "{card}");
            for (release, mut listed) in by_release {
                listed.sort_unstable();
                let kernels = if release == "11.8" { &of_oldest } else { &all };
                assert!(listed.iter().eq(kernels), "{release}, {card}: the table lacks a kernel, or has others");
            }
        }
    }

    /// Cards whose multiprocessors have little shared memory get registers of two blocks.
    #[test]
    fn registers_are_limited_for_the_blocks_that_fit() {
        let blocks = |module, capability| {
            let text = ptx(module, capability).expect("a module");
            text.lines().filter_map(|line| line.strip_prefix(".minnctapersm ")).map(str::to_owned).collect::<Vec<_>>()
        };
        for module in ["attention_tensor_grad_64_bf16", "attention_tensor_grad_64_f16"] {
            assert_eq!(
                [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)].map(|of| blocks(module, of)),
                ["3", "2", "2", "3", "2"].map(|n| vec![n])
            );
        }
        assert_eq!([(9, 0), (12, 0)].map(|of| blocks("attention_tensor_64_bf16", of)), [["4"], ["4"]]);
    }

    fn names(text: &str) -> Vec<String> {
        let entries = text.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
        entries.map(|entry| entry.trim_end_matches('(').to_owned()).collect()
    }

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

    /// Each kernel for a part of its grid reads the blocks' numbers by way of its parameter only.
    #[test]
    fn every_kernel_has_one_for_a_part_of_its_grid() {
        let mut reading = 0;
        for module in MODULES.iter().flat_map(|(_, targets)| targets.iter().flatten()) {
            let text = decompressed(module);
            for kernel in names(&text) {
                let part = with_kernels(&text, |name| name == format!("{kernel}{PART_OF_GRID}"));
                assert_eq!(names(&part), [format!("{kernel}{PART_OF_GRID}")]);
                let count = |of: &str| part.matches(of).count();
                assert_eq!([count("part["), count(".reg .b32 first_block;"), count("%nctaid")], [1, 1, 0], "{kernel}");
                assert_eq!(count("%ctaid"), count("ld.param.u32 first_block"), "{kernel}");
                // Kernels of one block don't.
                reading += usize::from(count("%ctaid") > 0);
            }
        }
        assert!(reading > 300, "{reading}");
    }

    /// Each module with one of its kernels at a time: all of these together are the module.
    #[test]
    fn a_module_can_have_some_of_its_kernels() {
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
