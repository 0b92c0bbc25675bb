//! Tests of the interpreter: some of the committed PTX against simple arithmetic in double precision, for every
//! precision, target and order of warps, exact and blurred. `exec/tests/cuda_kernels.rs` tests the kernels.

mod support;

use Argument::{Address, Long};
use plimsoll_fake_cuda::ptx::run::{Accumulation, Order};
use plimsoll_fake_cuda::trace::Counters;
use support::{Argument, By, Card, NUMBERS, Number, ORDERS, Product, kernels, worst};

const TARGETS: [u32; 2] = [75, 80];

/// Runs a case in four orders, exact and blurred. All orders must give the same bits.
fn in_all_orders(mut case: impl FnMut(&mut Card) -> Vec<u8>) {
    for blur in [0, 1, 2] {
        let results = ORDERS.map(|order| case(&mut Card::with(order, blur)));
        assert!(results.iter().all(|result| *result == results[0]), "the order of warps changes bits");
    }
}

/// Threads for vectors of 16 bytes each.
fn blocks(elements: usize, number: Number) -> u32 {
    let size = if number == Number::F32 { 4 } else { 8 };
    elements.div_ceil(size * 256) as u32
}

#[test]
fn add_is_the_rounded_sum() {
    for target in TARGETS {
        let module = kernels(target, "add");
        for (number, elements) in NUMBERS.into_iter().flat_map(|number| [(number, 5000), (number, 1), (number, 17)]) {
            let (a, b) = (number.random(elements, 1), number.random(elements, 2));
            let expected = a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>();
            in_all_orders(|card| {
                let (pa, pb) = (card.put(&number.bytes(&a)), card.put(&number.bytes(&b)));
                let arguments = [Address(pa), Address(pb), Address(pa), Long(elements as u64)];
                let shape = (blocks(elements, number), 256, 0);
                card.launch(&module, &format!("add_{}", number.name()), shape, &arguments).unwrap();
                let got = card.get(pa, number.bytes(&a).len());
                assert_eq!(got, number.bytes(&expected), "{number:?} {elements}");
                got
            });
        }
    }
}

/// If two bf16 numbers are equally near, returns the one farther from zero.
fn to_bf16(x: f64) -> [u8; 2] {
    let rounded = ((x as f32).to_bits() + 0x8000) >> 16;
    (rounded as u16).to_le_bytes()
}

#[test]
fn cast_rounds_to_nearest() {
    for target in TARGETS {
        let module = kernels(target, "cast");
        for from in NUMBERS {
            for to in NUMBERS.into_iter().filter(|to| *to != from) {
                let x = from.values(&from.bytes(&from.random(1003, 3)));
                let expected = match to {
                    Number::Bf16 => x.iter().copied().flat_map(to_bf16).collect(),
                    _ => to.bytes(&x),
                };
                in_all_orders(|card| {
                    let (px, py) = (card.put(&from.bytes(&x)), card.room(expected.len()));
                    let kernel = format!("cast_{}_{}", from.name(), to.name());
                    card.launch(&module, &kernel, (1, 256, 0), &[Address(px), Address(py), Long(1003)]).unwrap();
                    let got = card.get(py, expected.len());
                    assert_eq!(got, expected, "{kernel}");
                    got
                });
            }
        }
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
}

#[test]
fn gelus_gradient_matches_finite_differences() {
    for target in TARGETS {
        let module = kernels(target, "gelu");
        for number in NUMBERS {
            let elements = 2051;
            let x = number.random(elements, 4).iter().map(|x| 3.0 * x).collect::<Vec<_>>();
            let x = number.values(&number.bytes(&x));
            let dy = number.random(elements, 5);
            let forward = x.iter().map(|x| gelu(*x)).collect::<Vec<_>>();
            let slope = |x: f64| (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
            let backward = x.iter().zip(&dy).map(|(x, dy)| dy * slope(*x)).collect::<Vec<_>>();
            let allowed = 2.0 * number.half_unit() + 1e-6;
            in_all_orders(|card| {
                let (px, pdy) = (card.put(&number.bytes(&x)), card.put(&number.bytes(&dy)));
                let py = card.room(number.bytes(&x).len());
                let (shape, count) = ((blocks(elements, number), 256, 0), Long(elements as u64));
                let name = number.name();
                card.launch(&module, &format!("gelu_{name}"), shape, &[Address(px), Address(py), count]).unwrap();
                let arguments = [Address(pdy), Address(px), Address(pdy), count];
                card.launch(&module, &format!("gelu_grad_{name}"), shape, &arguments).unwrap();
                let bytes = number.bytes(&x).len();
                let (y, dx) = (card.get(py, bytes), card.get(pdy, bytes));
                assert!(worst(&number.values(&y), &forward) < allowed, "{number:?}");
                assert!(worst(&number.values(&dx), &backward) < allowed + 1e-6, "{number:?}");
                [y, dx].concat()
            });
        }
    }
}

/// A product by one of our kernels: bytes of the result, and counters.
fn product(
    card: &mut Card,
    (by, factors): (By, &'static str),
    extents: [usize; 3],
    tile: usize,
) -> (Vec<u8>, Counters) {
    let product = Product::of(card, by, extents, factors);
    let outcome = product.start(card, &kernels(80, by.file()), tile).unwrap();
    let got = card.get(product.result, 4 * product.expected.len());
    let error = worst(&Number::F32.values(&got), &product.expected);
    assert!(error < 1e-5, "{by:?} {factors} {extents:?} {tile}: {error}");
    (got, outcome.counters)
}

/// Kinds of products: with and without tensor cores, for all layouts of the factors.
const PRODUCTS: [(By, &str); 9] = [
    (By::Bf16, "nn"),
    (By::Bf16, "nt"),
    (By::Bf16, "tn"),
    (By::Tf32, "nn"),
    (By::Tf32, "nt"),
    (By::Tf32, "tn"),
    (By::Single, "nn"),
    (By::Single, "nt"),
    (By::Single, "tn"),
];

#[test]
fn products_are_correct_for_every_shape() {
    let cases = [([64, 64, 32], 64), ([1, 1, 8], 64), ([65, 63, 37], 64), ([104, 72, 104], 128), ([136, 8, 96], 128)];
    for (extents, tile) in cases {
        for factors in PRODUCTS {
            in_all_orders(|card| product(card, factors, extents, tile).0);
        }
    }
}

/// The order of summation does not depend on the tiles.
#[test]
fn a_product_has_the_same_bits_for_both_tile_sizes() {
    for factors in PRODUCTS {
        // Include rows and columns that are not whole vectors, if numbers are not contiguous along them.
        let extents = match factors.1 {
            "nt" => [130, 71, 104],
            "nn" => [131, 72, 104],
            _ => [136, 72, 101],
        };
        let small = product(&mut Card::default(), factors, extents, 64).0;
        assert!(small == product(&mut Card::default(), factors, extents, 128).0, "{factors:?}");
    }
}

/// More rows of tiles than a group has, and the last group is not full.
#[test]
fn every_tile_of_a_product_is_computed_once() {
    product(&mut Card::default(), (By::Bf16, "nn"), [64 * 9 + 1, 130, 16], 64);
}

#[test]
fn truncating_accumulation_stays_within_the_tolerance() {
    let mut card = Card::default();
    // Each instruction truncates, and an instruction with TF32 adds half the numbers.
    for (by, inners) in [(By::Bf16, 256), (By::Tf32, 64)] {
        card.settings.accumulation = Accumulation::Nearest;
        let nearest = product(&mut card, (by, "nt"), [64, 64, inners], 64).0;
        card.settings.accumulation = Accumulation::Truncating;
        assert_ne!(product(&mut card, (by, "nt"), [64, 64, inners], 64).0, nearest, "truncation changes bits");
    }
}

/// Barriers of a product of 256 by 128 by 96 without tensor cores: one per stretch of each tile, and one before.
fn expected_barriers(tile: usize) -> u64 {
    let (tiles, stretch) = if tile == 64 { (8, 16) } else { (2, 8) };
    tiles * (96 / stretch + 1)
}

#[test]
fn kernels_use_the_minimum_of_sectors_and_have_no_bank_conflicts() {
    let mut card = Card::with(Order::Forward, 0);
    for (factors, tile) in PRODUCTS.into_iter().flat_map(|factors| [(factors, 64), (factors, 128)]) {
        let counters = product(&mut card, factors, [256, 128, 96], tile).1;
        let conflicts = counters.sites.values().filter(|site| site.shared && site.taken > site.fewest);
        assert_eq!(conflicts.map(|site| &site.source).collect::<Vec<_>>(), [""; 0], "{factors:?} {tile}");
        let (taken, fewest) = counters.total(false);
        assert_eq!(taken, fewest, "{factors:?} {tile}: sectors");
        // Numbers per instruction along the inner extent, and bytes of each.
        let (inner, bytes) = match factors.0 {
            By::Bf16 => (16, 2),
            By::Tf32 => (8, 4),
            By::Single => (0, 4),
        };
        let flops = 2 * 256 * 128 * 96;
        if factors.0 == By::Single {
            assert_eq!((counters.matrix_instructions, counters.barriers), (0, expected_barriers(tile)));
            assert!((flops..flops + flops / 32).contains(&counters.flops), "{factors:?} {tile}: {}", counters.flops);
        } else {
            assert_eq!(counters.matrix_flops, flops);
            assert_eq!(counters.matrix_instructions, flops / (2 * 16 * 8 * inner));
        }
        assert_eq!(counters.distinct_read_bytes, bytes * (256 + 128) * 96);
        assert_eq!(counters.distinct_written_bytes, 4 * 256 * 128);
    }

    let (module, number, elements) = (kernels(80, "add"), Number::Bf16, 4096);
    let x = card.put(&number.bytes(&number.random(elements, 1)));
    let arguments = [Address(x), Address(x), Address(x), Long(elements as u64)];
    let outcome = card.launch(&module, "add_bf16", (2, 256, 0), &arguments).unwrap();
    let (taken, fewest) = outcome.counters.total(false);
    assert_eq!((taken, fewest), (3 * 8192 / 32, 3 * 8192 / 32));
    assert_eq!((outcome.counters.read_bytes, outcome.counters.written_bytes), (2 * 8192, 8192));
}
