//! Launches that end in the time that the system gives a kernel. On a card that drives a display, and on all cards that Windows
//! manages, a kernel that runs for about two seconds is ended, and the process loses the card. So the grids of launches that are
//! predicted to take long are cut into parts, which are launched one after the other, with the same results to the bit; and
//! long products of a library are cut into products of some of their rows or columns.

use super::card::Card;
use super::launch::{Launch, Operands, Part};
use super::modules::PART_OF_GRID;
use super::product::Product;
use plimsoll_graph::{Op, Products, Target};
use plimsoll_plan::{Machine, Rates, card_like};
use std::collections::HashMap;

/// Predicted seconds of a launch above which it is cut. Predictions are off by less than the factor of four that is left: of a
/// causal attention, some parts take twice as long as the mean.
const MOST_S: f64 = 0.5;

/// The limit of a card, and its speed.
#[derive(Debug)]
pub(super) struct LaunchLimit {
    machine: Machine,
}

impl LaunchLimit {
    /// Of a card of this speed.
    pub(super) fn of(machine: Machine) -> Self {
        Self { machine }
    }

    /// Of a card of the speed on its data sheet, or on that of a similar card; `None` if no system ends its kernels.
    pub(super) fn of_card(card: &Card) -> Option<Self> {
        let (paper, _) = card_like(&card.name, card.memory, card.compute_capability);
        card.limits_kernels.then(|| Self::of(Machine::of_rates(Rates::of_card(paper))))
    }

    /// The parts of an op on these operands, each launch of which is within the limit, if a block is.
    pub(super) fn cut(&self, parts: Vec<Part>, op: &Op, operands: &Operands) -> Vec<Part> {
        let target = Target::Cuda { compute_capability: operands.compute_capability, products: Products::default() };
        let seconds = self.machine.op(op, &operands.io, &target).0;
        if seconds <= MOST_S {
            return parts;
        }
        let shares = Shares::of(&parts);
        // A router may send all rows to the experts of one launch.
        let is_uneven = matches!(op, Op::QuantizedExpertLinear(_) | Op::QuantizedExpertLinearInputGrad(_));
        let cut = |part: Part| match part {
            Part::Kernel(launch) => {
                let share = if is_uneven { 1.0 } else { shares.of_launch(&launch) };
                let count = count_of(seconds * share);
                in_parts(launch, count).into_iter().map(Part::Kernel).collect::<Vec<_>>()
            }
            Part::Product { pieces, kernels } => {
                let product = |(product, _): &(Product, Vec<Launch>)| *product;
                let count = |piece: &Product| count_of(seconds * shares.of_product(piece));
                let whole = pieces.iter().map(product).map(|piece| seconds * shares.of_product(&piece)).sum();
                let cut_pieces = pieces.iter().map(product).flat_map(|piece| piece.split(count(&piece)));
                vec![Part::Product {
                    pieces: cut_pieces.map(|piece| (piece, piece.launches(operands))).collect(),
                    kernels: kernels.into_iter().flat_map(|launch| in_parts(launch, count_of(whole))).collect(),
                }]
            }
        };
        parts.into_iter().flat_map(cut).collect()
    }
}

/// Launches that take this many seconds in all.
fn count_of(seconds: f64) -> u64 {
    (seconds / MOST_S).ceil().max(1.0) as u64
}

/// Upper bounds of the share of an op's time that its parts have.
struct Shares {
    /// Blocks of all launches of a kernel, any of which may take the most time.
    blocks: HashMap<String, u64>,
    /// Multiplications of all products.
    multiplications: f64,
}

impl Shares {
    fn of(parts: &[Part]) -> Self {
        let mut shares = Self { blocks: HashMap::new(), multiplications: 0.0 };
        for part in parts {
            match part {
                Part::Kernel(launch) => {
                    *shares.blocks.entry(launch.entry.to_string()).or_default() += blocks(launch.grid)
                }
                Part::Product { pieces, .. } => {
                    shares.multiplications += pieces.iter().map(|(piece, _)| multiplications(piece)).sum::<f64>();
                }
            }
        }
        shares
    }

    fn of_launch(&self, launch: &Launch) -> f64 {
        blocks(launch.grid) as f64 / self.blocks[&*launch.entry].max(1) as f64
    }

    fn of_product(&self, product: &Product) -> f64 {
        multiplications(product) / self.multiplications.max(1.0)
    }
}

fn blocks(grid: [u32; 3]) -> u64 {
    grid.iter().map(|&extent| u64::from(extent)).product()
}

fn multiplications(product: &Product) -> f64 {
    product.extents.iter().map(|&extent| extent as f64).product()
}

/// A launch as launches of at most a `count`-th of its blocks each.
fn in_parts(launch: Launch, count: u64) -> Vec<Launch> {
    if count <= 1 {
        return vec![launch];
    }
    let of_part = |(first, grid): ([u32; 3], [u32; 3])| {
        let place = [first, launch.grid].concat().into_iter().map(|extent| extent as i32).collect::<Vec<_>>();
        Launch {
            entry: format!("{}{PART_OF_GRID}", launch.entry).into(),
            grid,
            arguments: launch.arguments.clone().ints(&place),
            ..launch
        }
    };
    slabs(launch.grid, blocks(launch.grid).div_ceil(count)).into_iter().map(of_part).collect()
}

/// First block and extents of parts of a grid with at most `most` blocks each, at least one. They are cut along the last axis,
/// then along the second, so that neighboring blocks stay together.
fn slabs(grid: [u32; 3], most: u64) -> Vec<([u32; 3], [u32; 3])> {
    let mut slabs = vec![([0; 3], grid)];
    for axis in [2, 1, 0] {
        let cut = |(first, extents): ([u32; 3], [u32; 3])| {
            let of_layer = blocks(extents) / u64::from(extents[axis].max(1));
            let each = (most / of_layer.max(1)).clamp(1, u64::from(extents[axis].max(1))) as u32;
            (0..extents[axis]).step_by(each as usize).map(move |at| {
                let (mut first, mut extents) = (first, extents);
                (first[axis], extents[axis]) = (at, each.min(extents[axis] - at));
                (first, extents)
            })
        };
        slabs = slabs.into_iter().flat_map(cut).collect();
    }
    slabs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::ComputeMode;
    use crate::cuda::launch::Scratch;
    use crate::cuda::ops::parts;
    use plimsoll_graph::ops::{Attention, Linear, QuantizedExpertLinear, WeightLayout};
    use plimsoll_graph::{DType, Io, TensorType, WeightCodes};
    use plimsoll_units::Bytes;
    use std::collections::BTreeSet;

    fn rtx_3060(limits_kernels: bool) -> Card {
        Card {
            index: 0,
            name: "NVIDIA GeForce RTX 3060".to_owned(),
            uuid: String::new(),
            compute_capability: (8, 6),
            memory: Bytes::gib(12),
            mode: ComputeMode::Shared,
            maps_memory: true,
            limits_kernels,
            handle: 0,
        }
    }

    /// The parts of an op on operands in bf16 of these shapes, before and after they are cut.
    fn cut(op: impl Into<Op>, shapes: &[&[usize]]) -> [Vec<Part>; 2] {
        let types = shapes.iter().map(|shape| TensorType { dtype: DType::Bf16, ..TensorType::f32(shape) });
        cut_of(op, &types.collect::<Vec<_>>())
    }

    /// The same on operands of these types.
    fn cut_of(op: impl Into<Op>, types: &[TensorType]) -> [Vec<Part>; 2] {
        let op = op.into();
        let inputs = types.iter().collect::<Vec<_>>();
        let results = op.infer(&inputs).expect("operands of the op");
        let operands = Operands {
            inputs: vec![1 << 40; inputs.len()],
            outputs: vec![1 << 41; results.len()],
            scratch: Scratch::default(),
            scalars: 1 << 42,
            io: Io { inputs, outputs: results.iter().collect() },
            compute_capability: (8, 6),
            tf32: false,
        };
        let limit = LaunchLimit::of_card(&rtx_3060(true)).expect("a limit");
        [parts(&op, &operands), limit.cut(parts(&op, &operands), &op, &operands)]
    }

    #[test]
    fn cards_without_a_limit_have_none() {
        assert!(LaunchLimit::of_card(&rtx_3060(false)).is_none());
    }

    /// Attention over 131,072 tokens takes 3.5 s on this card, over 4,096 a thousandth of that.
    #[test]
    fn long_attention_is_cut_and_short_is_not() {
        let attention = Attention {
            heads: 16,
            kv_heads: 16,
            packed: false,
            causal: true,
            window: None,
            scale: 0.125,
            cap: None,
            bias: None,
            has_sinks: false,
            segmented: false,
            dropout: None,
            rows: 64,
        };
        let of = |tokens| cut(attention, &[&[1, tokens, 16 * 64][..]; 3]);
        let [whole, same] = of(4096);
        assert_eq!(whole, same);
        let [whole, cut] = of(131_072);
        assert!(whole.len() == 1 && (6..=32).contains(&cut.len()), "{} launches", cut.len());
        let all = cut.into_iter().flat_map(Part::into_kernels).map(|launch| {
            assert_eq!(launch.entry, "attention_tensor_64_bf16_part_of_grid");
            blocks(launch.grid)
        });
        let [whole] = &whole[..] else { panic!("{whole:?}") };
        assert_eq!(
            all.sum::<u64>(),
            whole.clone().into_kernels().iter().map(|launch| blocks(launch.grid)).sum::<u64>()
        );
    }

    /// The products of some experts may be those of all rows.
    #[test]
    fn long_products_of_experts_in_codes_are_cut_for_any_routing() {
        let (codes, layout) = (WeightCodes::Int8, WeightLayout::OutIn);
        let of = |rows: usize| {
            let shapes: [&[usize]; 4] = [&[1, rows, 2880], &[32, 5760, 2880], &[32, 5760], &[33]];
            let mut types = shapes.map(TensorType::f32);
            for (ty, dtype) in types.iter_mut().zip([DType::Bf16, DType::U8, DType::F32, DType::I32]) {
                ty.dtype = dtype;
            }
            cut_of(QuantizedExpertLinear { codes, layout, bias: false }, &types)
        };
        let [whole, same] = of(4096);
        assert_eq!(whole, same);
        let [whole, cut] = of(2 << 20);
        assert_eq!(whole.len(), 2 * 32, "each expert's weights are decoded and multiplied");
        let launches = |parts: Vec<Part>| parts.into_iter().flat_map(Part::into_kernels).collect::<Vec<_>>();
        let (whole, cut) = (launches(whole), launches(cut));
        let largest = |launches: &[Launch]| {
            let products = launches.iter().filter(|launch| launch.entry.starts_with("experts_nt"));
            products.map(|launch| blocks(launch.grid)).max().expect("products")
        };
        // 70 Tflop take more than a second on this card.
        assert!(largest(&cut) * 3 <= largest(&whole), "{} of {} blocks", largest(&cut), largest(&whole));
    }

    /// A library's products are cut along their rows, or their columns.
    #[test]
    fn long_products_are_cut() {
        let linear = Linear { layout: WeightLayout::OutIn, bias: false };
        for (rows, columns, cut_axis) in [(131_072, 16_384, 0), (8192, 262_144, 1)] {
            let [_, cut] = cut(linear, &[&[rows, 8192], &[columns, 8192]]);
            let [Part::Product { pieces, kernels }] = &cut[..] else { panic!("{cut:?}") };
            assert!(pieces.len() > 2 && kernels.len() >= pieces.len(), "{} of {}", pieces.len(), kernels.len());
            let other = 1 - cut_axis;
            let mut end = 0;
            for (piece, _) in pieces {
                assert_eq!([piece.extents[other], piece.extents[2]], [[rows, columns][other], 8192]);
                let stride = if cut_axis == 0 { columns } else { 1 };
                assert_eq!(piece.result.address, (1 << 41) + 2 * (end * stride) as u64);
                end += piece.extents[cut_axis];
            }
            assert_eq!(end, [rows, columns][cut_axis]);
            let largest = pieces.iter().map(|(piece, _)| multiplications(piece)).fold(0.0, f64::max);
            assert!(2.0 * largest / 20e12 < 2.0 * MOST_S, "{largest} multiplications");
        }
    }

    #[test]
    fn slabs_are_the_grid_once_and_no_larger_than_asked() {
        for grid in [[1, 1, 1], [7, 1, 1], [5, 4, 3], [1, 9, 2], [3, 1, 8], [0, 1, 1]] {
            for most in 1..=blocks(grid).max(1) + 1 {
                let mut seen = BTreeSet::new();
                for (first, extents) in slabs(grid, most) {
                    assert!((1..=most).contains(&blocks(extents)), "{grid:?} by {most}: {extents:?}");
                    for z in 0..extents[2] {
                        for y in 0..extents[1] {
                            for x in 0..extents[0] {
                                assert!(seen.insert([first[0] + x, first[1] + y, first[2] + z]), "{grid:?} by {most}");
                            }
                        }
                    }
                }
                assert_eq!(seen.len() as u64, blocks(grid), "{grid:?} by {most}");
            }
        }
        // Heads of a group, tiles, groups: groups stay together as long as they can.
        assert_eq!(slabs([4, 10, 3], 40), [0, 1, 2].map(|z| ([0, 0, z], [4, 10, 1])));
        assert_eq!(slabs([4, 10, 1], 20), [0, 5].map(|y| ([0, y, 0], [4, 5, 1])));
    }
}
