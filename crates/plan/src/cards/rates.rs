//! What programs reach of a card's figures on paper, as a first guess that `plimsoll calibrate` on the card replaces.
//! Shares of the tensor cores' rate are in `data/rates.csv`, by architecture and by what multiplies, each with its source;
//! the other shares are below. Not here: what a node takes at these rates (`cost.rs`).

use super::{Card, pcie_gb_per_s};
use crate::cost::Rates;
use plimsoll_graph::Products;
use std::sync::LazyLock;

const TABLE: &str = include_str!("../../data/rates.csv");

static SHARES: LazyLock<Vec<Share>> = LazyLock::new(|| {
    let rows = TABLE.lines().skip(1);
    rows.map(|row| read(row).unwrap_or_else(|| panic!("malformed row of rates.csv: {row}"))).collect()
});

/// In single precision outside of tensor cores, where cuBLAS reaches 0.6 of an RTX A6000 and tiles like ours two thirds of
/// that. Source: Boehm 2022, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance".
const SINGLE: f64 = 0.4;
/// Of the bandwidths of memory and bus.
const COPIES: f64 = 0.8;
/// Two channels of DDR4-3200, in 10^9 bytes a second: what is assumed of the host's memory.
const HOST_GB_PER_S: f64 = 51.2;

/// What computes on tensor cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum User {
    /// Plimsoll's own kernels of products.
    Kernels,
    /// The library.
    CublasLt,
    /// Plimsoll's own kernels of attention and its gradient.
    Attention,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Share {
    compute_capability: (u8, u8),
    /// Whether tensor cores sum in single precision at half of the rate that they have otherwise.
    halves_sums: bool,
    by: User,
    /// Of the card's rate on paper, in waves that fill the card.
    share: f64,
}

impl Card {
    /// Whether the tensor cores' rate is halved for sums in single precision, as NVIDIA does on most cards for games: the rates
    /// of the table are the halved ones. Of a multiprocessor's tensor cores, 256 multiply and add in half precision in each
    /// cycle if they are halved, and at least 512 otherwise.
    fn halves_sums(&self) -> bool {
        let cores = if self.compute_capability < (8, 6) { 64.0 } else { 128.0 };
        self.fp16_tflops / self.fp32_tflops * cores < 400.0
    }

    /// Whether the instruction with which Plimsoll's own kernels multiply numbers of 8 bits converts them to half precision:
    /// `ptxas` 12.9 assembles `mma.m16n8k32` to `QMMA` for 8.9 and 12.0, and to `HMMA` for 9.0 and 10.0.
    fn converts_fp8(&self) -> bool {
        matches!(self.compute_capability.0, 9 | 10)
    }

    /// The share of the tensor cores' rate on paper that large products reach, or attention. `None` if they are not used: there
    /// are none, or none of the kernels' types.
    fn share(&self, by: User) -> Option<f64> {
        let is_of = |row: &&Share| row.compute_capability == self.compute_capability && row.by == by;
        let row = SHARES.iter().filter(is_of).find(|row| row.halves_sums == self.halves_sums());
        row.map(|row| row.share).filter(|_| self.fp16_tflops > self.fp32_tflops)
    }
}

impl Rates {
    /// Of a card whose products are computed by Plimsoll's own kernels, off its figures on paper.
    pub fn of_card(card: &Card) -> Self {
        Self::of_products(card, Products::Kernels, false)
    }

    /// The same of a card whose link to the host has this generation and number of lanes.
    #[must_use]
    pub fn over_link(self, generation: u8, lanes: u8) -> Self {
        Self { transfer_bytes_per_s: COPIES * pcie_gb_per_s(generation, lanes) * 1e9, ..self }
    }

    /// The same with products by a library, and with those in single precision rounded to TF32, if the card can.
    pub fn of_products(card: &Card, products: Products, tf32: bool) -> Self {
        let user = match products {
            Products::Kernels => User::Kernels,
            Products::CublasLt => User::CublasLt,
        };
        let single = SINGLE * card.fp32_tflops * 1e12;
        let share = card.share(user);
        let tensor = |tflops: Option<f64>| share.zip(tflops).map_or(single, |(share, peak)| share * peak * 1e12);
        let converts = products == Products::Kernels && card.converts_fp8();
        // Without tensor cores, no library is faster than the kernels.
        let relative = |by: User| card.share(by).zip(share).map_or(1.0, |(own, share)| own / share);
        Self {
            flops_per_s: single,
            product_flops_per_s: if tf32 { tensor(card.tf32_tflops) } else { single },
            f16_flops_per_s: tensor(Some(card.fp16_tflops)),
            bf16_flops_per_s: tensor(card.bf16_tflops),
            fp8_flops_per_s: tensor(if converts { card.bf16_tflops } else { card.fp8_tflops.or(card.bf16_tflops) }),
            without_library: relative(User::Kernels),
            attention: relative(User::Attention),
            multiprocessors: card.multiprocessors,
            bytes_per_s: COPIES * card.bandwidth_gb_per_s * 1e9,
            transfer_bytes_per_s: COPIES * card.pcie_gb_per_s() * 1e9,
            overlaps_transfers: true,
            // An optimizer that waits for nothing else reaches that part of their rate.
            host_bytes_per_s: COPIES * HOST_GB_PER_S * 1e9,
            node_s: 5e-6,
        }
    }
}

/// A row of the table; `None` if it is malformed.
fn read(row: &str) -> Option<Share> {
    let columns = row.split(',').collect::<Vec<_>>();
    let [capability, sums, by, share, source] = columns.try_into().ok()?;
    let (major, minor) = capability.split_once('.')?;
    let halves_sums = match sums {
        "half" => true,
        "full" => false,
        _ => return None,
    };
    let by = match by {
        "kernels" => User::Kernels,
        "cublas_lt" => User::CublasLt,
        "attention" => User::Attention,
        _ => return None,
    };
    let share = share.parse().ok()?;
    let compute_capability = (major.parse().ok()?, minor.parse().ok()?);
    (!source.is_empty()).then_some(Share { compute_capability, halves_sums, by, share })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cards::{card, cards};

    #[test]
    fn every_card_with_tensor_cores_has_its_shares_and_every_share_a_card() {
        for card in cards().iter().filter(|card| card.fp16_tflops > card.fp32_tflops) {
            assert!(card.share(User::CublasLt).is_some(), "{card:?}");
            // Their kernels are for compute capability 7.5 and newer.
            let has_kernels = card.compute_capability >= (7, 5);
            assert_eq!(
                [User::Kernels, User::Attention].map(|by| card.share(by).is_some()),
                [has_kernels; 2],
                "{card:?}"
            );
        }
        for (index, row) in SHARES.iter().enumerate() {
            let is_of = |card: &&Card| {
                card.compute_capability == row.compute_capability && card.halves_sums() == row.halves_sums
            };
            assert!(cards().iter().any(|card| is_of(&card)), "no card: {row:?}");
            let is_same = |other: &&Share| Share { share: row.share, ..**other } == *row;
            assert_eq!(SHARES.iter().filter(is_same).count(), 1, "row {index} twice: {row:?}");
            assert!((0.1..0.95).contains(&row.share), "{row:?}");
        }
    }

    #[test]
    fn cards_for_games_halve_their_sums() {
        for (name, halves) in [("4090", true), ("5060 ti", true), ("2080 ti", true), ("a10g", true), ("l40", true)]
            .into_iter()
            .chain(["l40s", "a6000", "6000 ada", "t4", "a100", "h100", "pro 6000 blackwell"].map(|name| (name, false)))
        {
            assert_eq!(card(name).expect("a known card").halves_sums(), halves, "{name}");
        }
    }

    #[test]
    fn a_link_of_fewer_lanes_is_slower_and_that_of_the_data_sheet_is_the_same() {
        let rates = Rates::of_card(card("3060").expect("a known card"));
        assert_eq!(rates.over_link(4, 16), rates);
        let narrow = rates.over_link(3, 8);
        assert!((narrow.transfer_bytes_per_s / (0.8 * 7.88e9) - 1.0).abs() < 1e-9, "{narrow:?}");
        assert_eq!(Rates { transfer_bytes_per_s: rates.transfer_bytes_per_s, ..narrow }, rates);
    }

    /// What has no library, and attention, take as long whether products have a library or not.
    #[test]
    fn a_library_changes_only_what_it_computes() {
        let card = card("h100").expect("a known card");
        let [own, library] = [Products::Kernels, Products::CublasLt].map(|by| Rates::of_products(card, by, false));
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        assert!(near(library.bf16_flops_per_s, 0.7 * 989.4e12) && near(own.bf16_flops_per_s, 0.38 * 989.4e12));
        assert!(near(library.bf16_flops_per_s * library.without_library, own.bf16_flops_per_s));
        assert!(near(library.bf16_flops_per_s * library.attention, own.bf16_flops_per_s * own.attention));
        assert_eq!(own.without_library, 1.0);
    }
}
