//! What is known of NVIDIA's cards without having one: memory, bandwidth, arithmetic, the bus. Figures are peaks off
//! paper, for planning on another machine; if the card is in this machine, its driver and a benchmark know better. The
//! figures and where each comes from are in `data/cards.csv`; how a name is read is in `cards/name.rs`, and what programs reach of
//! the figures in `cards/rates.rs`.

mod name;
mod rates;

use name::Name;
use plimsoll_units::{Bytes, spelling};
use std::sync::LazyLock;

const TABLE: &str = include_str!("../data/cards.csv");

static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let rows = TABLE.lines().skip(1);
    rows.map(|row| read(row).unwrap_or_else(|| panic!("malformed row of cards.csv: {row}"))).collect()
});

/// One card, by its figures on paper. Rates are peaks at the boost clock, dense (without structured sparsity), in
/// 10^12 operations a second; a multiplication and an addition are two.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// As people say it: `RTX 3060 12GB`. Names the memory where cards differ in nothing else that is named.
    pub name: &'static str,
    /// All of its memory, what the driver keeps for itself included.
    pub memory: Bytes,
    /// Whether `memory` is what the driver reports (with error correction as the card is shipped), or what the card
    /// is sold with. A driver may report some percent less than that.
    pub memory_is_reported: bool,
    /// Between the card and its memory, in 10^9 bytes a second.
    pub bandwidth_gb_per_s: f64,
    /// Products of matrices in 8-bit floating point summed in single precision, with the rate halved like `fp16_tflops`. `None`
    /// below compute capability 8.9.
    pub fp8_tflops: Option<f64>,
    /// Products of half-precision matrices summed in single precision: the rate of the tensor cores, which GeForce
    /// from Turing on and a few others (A10G, L40) halve for such sums. Cards without tensor cores (Pascal, GTX 16)
    /// widen their operands and so have the rate of single precision; where they are faster in half precision, they
    /// sum in it too.
    pub fp16_tflops: f64,
    /// The same with operands in bfloat16. `None` below compute capability 8.0.
    pub bf16_tflops: Option<f64>,
    /// Products of single-precision matrices rounded to TF32. `None` below compute capability 8.0.
    pub tf32_tflops: Option<f64>,
    /// Single precision outside the tensor cores.
    pub fp32_tflops: f64,
    /// Generation of the PCI Express bus that the card was made for; the slot may be older.
    pub pcie_generation: u8,
    /// Lanes of that bus that the card uses.
    pub pcie_lanes: u8,
    /// Board power in watts; of laptop parts the most that a maker may set, without what is borrowed from the CPU.
    pub power_w: u32,
    /// CUDA's compute capability, major and minor.
    pub compute_capability: (u8, u8),
    /// Multiprocessors. Where the source doesn't say: TechPowerUp GPU database, also for the cache.
    pub multiprocessors: usize,
    /// Second-level cache, in MiB.
    pub l2_mib: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

impl Card {
    /// What the bus carries one way, in 10^9 bytes a second, its packets' headers included.
    pub fn pcie_gb_per_s(&self) -> f64 {
        pcie_gb_per_s(self.pcie_generation, self.pcie_lanes)
    }
}

/// What a PCI Express link of this generation and number of lanes carries one way, in 10^9 bytes a second, its packets' headers
/// included.
pub(crate) fn pcie_gb_per_s(generation: u8, lanes: u8) -> f64 {
    // Of a lane, of each generation from the first on.
    const LANE_GB_PER_S: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];
    LANE_GB_PER_S[usize::from(generation).clamp(1, 6) - 1] * f64::from(lanes)
}

/// A text that names no card in the table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown GPU `{asked}`; {}", hint(.suggestions))]
pub struct UnknownCard {
    /// What was asked for.
    pub asked: String,
    /// Up to three names that `card` knows and that are spelled most like the one asked for.
    pub suggestions: Vec<String>,
}

/// All cards, in the order of the table: by family, the commonest first where a short name means several.
pub fn cards() -> &'static [Card] {
    &CARDS
}

/// The card that a text names: `3060`, `RTX 3060 12GB`, `rtx3060ti`, `4090 laptop`, `a100 sxm 80gb`, or what the
/// driver prints, `NVIDIA A100-SXM4-80GB`.
///
/// Case, spacing, brand and line (`NVIDIA`, `GeForce`, `RTX`) do not matter. All else that is said must hold of the
/// card, and what sets it apart (`Ti`, `Super`, `Laptop`) must be said; `mobile` and `Max-Q` mean laptop. Form factor
/// (`SXM`, `PCIe`), `Ada` and `Blackwell` may be left out, and so may the memory: of the cards that are left, the one
/// with the least unsaid is meant, of several the first in the table.
///
/// Errors: `UnknownCard` if no card fits, with names that nearly do.
pub fn card(text: &str) -> Result<&'static Card, UnknownCard> {
    meant(text, |_| 0)
}

/// The card of a name that the driver gave to several, such as `NVIDIA GeForce RTX 3060`: the one whose memory is
/// nearest to what the driver reports.
///
/// Errors: `UnknownCard` like [`card`].
pub fn card_with_memory(text: &str, reported: Bytes) -> Result<&'static Card, UnknownCard> {
    meant(text, |card| card.memory.0.abs_diff(reported.0))
}

/// The card of a name that the driver gave, or if the table has none, the card most similar to it in compute capability and
/// memory; and whether it is the named one.
pub fn card_like(name: &str, memory: Bytes, compute_capability: (u8, u8)) -> (&'static Card, bool) {
    if let Ok(named) = card_with_memory(name, memory) {
        return (named, true);
    }
    let far = |card: &&Card| {
        let ((major, minor), (other, other_minor)) = (compute_capability, card.compute_capability);
        (major.abs_diff(other), minor.abs_diff(other_minor), card.memory.0.abs_diff(memory.0))
    };
    (cards().iter().min_by_key(far).expect("a table of cards"), false)
}

/// The card whose architecture and speed are assumed where only the memory of a card is known. One card for all sizes:
/// otherwise more memory could mean a slower card.
pub fn assumed_card() -> &'static Card {
    card("RTX 3060 12GB").expect("it is in the table")
}

/// Whether a card with this memory may be meant: the smallest that computes in bfloat16 has no more.
pub fn is_memory_of_card(memory: Bytes) -> bool {
    cards().iter().any(|card| card.bf16_tflops.is_some() && card.memory <= memory)
}

/// The card that represents all cards with this much memory: the slowest that computes in bfloat16 among those with as much or
/// the next larger memory; a desktop GeForce if there is one. `None` for less memory than the smallest card has or more than
/// the largest.
pub fn card_of_memory(memory: Bytes) -> Option<&'static Card> {
    let slower = |a: &&Card, b: &&Card| a.fp16_tflops.total_cmp(&b.fp16_tflops);
    let of = |is_one: fn(&str) -> bool| {
        let all = || cards().iter().filter(|card| card.bf16_tflops.is_some() && is_one(card.name));
        // A driver reports some percent less than is sold.
        let enough = |card: &&Card| card.memory.as_f64() >= 0.97 * memory.as_f64();
        let least = all().map(|card| card.memory).min().filter(|least| *least <= memory)?;
        let next = all().filter(enough).map(|card| card.memory).min()?.max(least);
        all().filter(|card| card.memory.0.abs_diff(next.0) * 50 <= next.0).min_by(slower)
    };
    let is_of_desktop = |name: &str| {
        let number = name.strip_prefix("RTX ").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        number.is_some_and(|number| !number.contains("Laptop"))
    };
    of(is_of_desktop).or_else(|| of(|_| true))
}

/// The card that a text names, with the least unsaid; of several, the one that is the least apart.
fn meant(text: &str, apart: impl Fn(&Card) -> u64) -> Result<&'static Card, UnknownCard> {
    let asked = Name::read(text);
    let fitting = cards().iter().filter(|card| asked.fits_memory(card.memory));
    let counted = fitting.filter_map(|card| Some(((asked.words_unsaid(&Name::read(card.name))?, apart(card)), card)));
    let meant = counted.min_by_key(|(distance, _)| *distance).map(|(_, card)| card);
    meant.ok_or_else(|| UnknownCard { asked: text.to_owned(), suggestions: near(&asked) })
}

/// Names of the cards that are spelled most like what was asked for.
fn near(asked: &Name) -> Vec<String> {
    let known = cards().iter().map(|card| (Name::read(card.name).essence(), card.name.to_owned()));
    spelling::nearest_of(&asked.essence(), known)
}

fn hint(suggestions: &[String]) -> String {
    if suggestions.is_empty() {
        return "give its name as `nvidia-smi --list-gpus` prints it".to_owned();
    }
    let quoted: Vec<_> = suggestions.iter().map(|name| format!("`{name}`")).collect();
    format!("did you mean {}?", quoted.join(", "))
}

/// A row of the table; `None` if it is malformed.
fn read(row: &'static str) -> Option<Card> {
    let columns: Vec<_> = row.split(',').collect();
    let [of_card, figures, of_board] = [0..4, 4..9, 9..16].map(|range| columns.get(range));
    let [name, memory, memory_is, bandwidth] = of_card?.try_into().ok()?;
    let [fp8, fp16, bf16, tf32, fp32] = figures?.try_into().ok()?;
    let [generation, lanes, power, capability, multiprocessors, l2, source] = of_board?.try_into().ok()?;
    let (major, minor) = capability.split_once('.')?;
    Some(Card {
        name,
        memory: Bytes::mib(memory.parse().ok()?),
        memory_is_reported: match memory_is {
            "reported" => true,
            "nominal" => false,
            _ => return None,
        },
        bandwidth_gb_per_s: bandwidth.parse().ok()?,
        fp8_tflops: optional(fp8)?,
        fp16_tflops: fp16.parse().ok()?,
        bf16_tflops: optional(bf16)?,
        tf32_tflops: optional(tf32)?,
        fp32_tflops: fp32.parse().ok()?,
        pcie_generation: generation.parse().ok()?,
        pcie_lanes: lanes.parse().ok()?,
        power_w: power.parse().ok()?,
        compute_capability: (major.parse().ok()?, minor.parse().ok()?),
        multiprocessors: multiprocessors.parse().ok()?,
        l2_mib: l2.parse().ok()?,
        source,
    })
}

/// An empty cell is `Some(None)`, a malformed one `None`.
fn optional(cell: &str) -> Option<Option<f64>> {
    if cell.is_empty() { Some(None) } else { cell.parse().ok().map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const HEADER: &str = "name,memory_mib,memory_is,bandwidth_gb_per_s,fp8_tflops,fp16_tflops,bf16_tflops,tf32_tflops,\
                          fp32_tflops,pcie_generation,pcie_lanes,power_w,compute_capability,multiprocessors,l2_mib,source";

    #[test]
    fn every_row_is_read_and_none_twice() {
        assert_eq!(TABLE.lines().next(), Some(HEADER));
        let names: BTreeSet<_> = cards().iter().map(|card| card.name).collect();
        assert_eq!(names.len(), TABLE.lines().count() - 1);
        assert!(names.len() >= 60, "{} GPUs", names.len());
    }

    #[test]
    fn a_memory_stands_for_the_slowest_card_that_is_sold_with_it() {
        let of = |gib: f64| card_of_memory(Bytes((gib * 1024.0) as u64 * (1 << 20))).map(|card| card.name);
        for (gib, name) in [
            (4.0, Some("RTX 3050 Laptop")),
            (8.0, Some("RTX 3050 8GB")),
            (11.0, Some("RTX 3060 12GB")),
            (12.0, Some("RTX 3060 12GB")),
            (24.0, Some("RTX 3090")),
            (80.0, Some("A100 SXM4 80GB")),
            (3.9, None),
            (500.0, None),
        ] {
            assert_eq!(of(gib), name, "{gib} GiB");
        }
    }

    #[test]
    fn figures_are_possible() {
        for card in cards() {
            let has_tensor_cores = card.compute_capability >= (7, 0) && !card.name.starts_with("GTX");
            let is_ampere = card.compute_capability >= (8, 0);
            assert!((Bytes::gib(2)..=Bytes::gib(200)).contains(&card.memory), "{card:?}");
            assert!((50.0..=10_000.0).contains(&card.bandwidth_gb_per_s), "{card:?}");
            assert!((1.0..=200.0).contains(&card.fp32_tflops), "{card:?}");
            assert!(card.fp16_tflops <= 5000.0, "{card:?}");
            assert_eq!(card.fp16_tflops > card.fp32_tflops, has_tensor_cores, "{card:?}");
            assert!(has_tensor_cores || card.fp16_tflops == card.fp32_tflops, "{card:?}");
            assert_eq!(card.bf16_tflops, is_ampere.then_some(card.fp16_tflops), "{card:?}");
            assert_eq!(card.tf32_tflops.is_some(), is_ampere, "{card:?}");
            if let Some(tf32) = card.tf32_tflops {
                assert!(tf32 >= card.fp32_tflops && (1.9..2.1).contains(&(card.fp16_tflops / tf32)), "{card:?}");
            }
            assert_eq!(card.fp8_tflops.is_some(), card.compute_capability >= (8, 9), "{card:?}");
            assert!(card.fp8_tflops.is_none_or(|fp8| (1.9..2.1).contains(&(fp8 / card.fp16_tflops))), "{card:?}");
            // Cores of a multiprocessor; the rate is at the boost clock.
            let has_few = [(6, 0), (7, 0), (7, 5), (8, 0)].contains(&card.compute_capability);
            let cores = if has_few { 64.0 } else { 128.0 };
            let boost_ghz = 1e3 * card.fp32_tflops / (2.0 * cores * card.multiprocessors as f64);
            assert!((1.19..2.7).contains(&boost_ghz), "{boost_ghz} GHz: {card:?}");
            // From Ada on, caches are ten times as large.
            let is_of_large_caches = card.compute_capability >= (8, 9) && card.compute_capability.0 != 9;
            let l2_mib = if is_of_large_caches { 0.5..1.4 } else { 0.04..0.5 };
            assert!(l2_mib.contains(&(card.l2_mib / card.multiprocessors as f64)), "{card:?}");
            assert!((3..=5).contains(&card.pcie_generation) && [8, 16].contains(&card.pcie_lanes), "{card:?}");
            assert!((50..=1000).contains(&card.power_w), "{card:?}");
            assert!(card.source.len() > 10, "{card:?}");
        }
    }

    #[test]
    fn a_card_is_found_by_its_own_name() {
        for known in cards() {
            assert_eq!(card(known.name).map(|found| found.name), Ok(known.name));
        }
    }

    #[test]
    fn cards_are_found_as_people_name_them() {
        for (text, name) in [
            ("3060", "RTX 3060 12GB"),
            ("RTX 3060 12GB", "RTX 3060 12GB"),
            ("rtx 3060 8 gb", "RTX 3060 8GB"),
            ("rtx3060ti", "RTX 3060 Ti"),
            ("geforcertx3060", "RTX 3060 12GB"),
            ("4070tisuper", "RTX 4070 Ti Super"),
            ("4060 ti", "RTX 4060 Ti 8GB"),
            ("4060ti-16g", "RTX 4060 Ti 16GB"),
            ("4060 ti 16", "RTX 4060 Ti 16GB"),
            ("1060", "GTX 1060 6GB"),
            ("4090 laptop", "RTX 4090 Laptop"),
            ("RTX 4090 Mobile", "RTX 4090 Laptop"),
            ("rtx 3080 max-q", "RTX 3080 Laptop 8GB"),
            ("3080 laptop 16gb", "RTX 3080 Laptop 16GB"),
            ("titan", "TITAN RTX"),
            ("titan xp", "TITAN Xp"),
            ("A100", "A100 SXM4 80GB"),
            ("A100-80GB", "A100 SXM4 80GB"),
            ("a100 sxm 80gb", "A100 SXM4 80GB"),
            ("a100 40", "A100 SXM4 40GB"),
            ("a100 pcie", "A100 PCIe 80GB"),
            ("v100", "V100 SXM2 16GB"),
            ("v100 sxm2 32", "V100 SXM2 32GB"),
            ("h100", "H100 SXM5 80GB"),
            ("t4 16gb", "T4"),
            ("a10", "A10"),
            ("a10g", "A10G"),
            ("a40 48gb", "A40"),
            ("l40s", "L40S"),
            ("rtxa6000", "RTX A6000"),
            ("rtx 6000", "RTX 6000 Ada"),
            ("rtx pro 6000", "RTX PRO 6000 Blackwell"),
            ("b200 192gb", "B200"),
        ] {
            assert_eq!(card(text).map(|found| found.name), Ok(name), "{text}");
        }
    }

    #[test]
    fn cards_are_found_as_the_driver_names_them() {
        for (text, name) in [
            ("NVIDIA GeForce RTX 3060", "RTX 3060 12GB"),
            ("NVIDIA GeForce GTX 1060 3GB", "GTX 1060 3GB"),
            ("NVIDIA GeForce RTX 4070 Laptop GPU", "RTX 4070 Laptop"),
            ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D"),
            ("NVIDIA TITAN V", "TITAN V"),
            ("NVIDIA RTX A2000 12GB", "RTX A2000 12GB"),
            ("NVIDIA RTX 4000 SFF Ada Generation", "RTX 4000 SFF Ada"),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
            ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 Blackwell Max-Q"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"),
            ("Quadro RTX 6000", "Quadro RTX 6000"),
            ("Tesla T4", "T4"),
            ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
            ("Tesla V100S-PCIE-32GB", "V100S PCIe 32GB"),
            ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
            ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
            ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
            ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB"),
            ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
            ("NVIDIA H100 NVL", "H100 NVL"),
            ("NVIDIA H200", "H200"),
        ] {
            assert_eq!(card(text).map(|found| found.name), Ok(name), "{text}");
        }
    }

    #[test]
    fn memory_tells_cards_of_one_name_apart() {
        for (text, mib, name) in [
            ("NVIDIA GeForce RTX 3060", 12_288, "RTX 3060 12GB"),
            ("NVIDIA GeForce RTX 3060", 8_192, "RTX 3060 8GB"),
            ("NVIDIA GeForce RTX 3060", 8_043, "RTX 3060 8GB"),
            ("NVIDIA GeForce RTX 4060 Ti", 16_380, "RTX 4060 Ti 16GB"),
            ("NVIDIA GeForce RTX 4060 Ti", 8_188, "RTX 4060 Ti 8GB"),
            ("NVIDIA GeForce RTX 3080", 10_240, "RTX 3080 10GB"),
            ("NVIDIA GeForce RTX 3080", 12_288, "RTX 3080 12GB"),
            ("NVIDIA GeForce RTX 4090", 49_140, "RTX 4090"),
        ] {
            let found = card_with_memory(text, Bytes::mib(mib));
            assert_eq!(found.map(|found| found.name), Ok(name), "{text} with {mib} MiB");
        }
    }

    #[test]
    fn a_laptop_part_is_never_meant_unless_it_is_said() {
        for laptop in cards().iter().filter(|card| card.name.contains("Laptop")) {
            let found = card(&laptop.name.replace(" Laptop", ""));
            assert!(found.is_err() || found.is_ok_and(|card| !card.name.contains("Laptop")), "{laptop:?}");
        }
    }

    #[test]
    fn a_miss_suggests_what_is_near() {
        for (text, suggestions) in [
            ("RTX 3060 16GB", &["RTX 3060 12GB", "RTX 3060 8GB"][..]),
            ("3080 super", &["RTX 2080 Super", "RTX 4080 Super"]),
            ("A101", &["A10", "A10G", "A100 SXM4 80GB"]),
            ("radeon rx 7900 xtx", &[]),
            ("nvidia", &[]),
            ("laptop", &[]),
            ("", &[]),
        ] {
            let missed = card(text).unwrap_err();
            assert_eq!(missed.suggestions, suggestions, "{text}");
            assert_eq!(missed.asked, text);
        }
    }

    #[test]
    fn a_miss_says_what_to_do() {
        let message = |text| card(text).unwrap_err().to_string();
        assert_eq!(message("3080 super"), "unknown GPU `3080 super`; did you mean `RTX 2080 Super`, `RTX 4080 Super`?");
        assert_eq!(message("arc"), "unknown GPU `arc`; give its name as `nvidia-smi --list-gpus` prints it");
    }

    proptest! {
        #[test]
        fn lookups_never_panic(text in ".{0,40}") {
            let _ = card(&text);
        }

        #[test]
        fn nor_do_lookups_of_what_looks_like_a_card(
            text in "((nvidia|rtx|a|sxm|hbm|max-q|ti|laptop|gb|g|[0-9]{1,24}|é)[ -]?){0,12}"
        ) {
            let _ = card(&text);
        }
    }
}
