//! Bugs that `scripts/kernels.py` planted in kernels: each is reported by kind and at its source line.

mod support;

use Argument::{Address, Float, Int};
use plimsoll_fake_cuda::ptx::run::{Fault, FaultKind, Order, Outcome};
use plimsoll_fake_cuda::shadow::{Outside, Problem};
use support::{Argument, Card, Number, ORDERS, Product, module, text};

/// Runs a planted LayerNorm on 3 rows of 328 columns.
fn layer_norm(bug: &str, order: Order) -> Result<Outcome, Box<Fault>> {
    let (mut card, number, columns) = (Card::with(order, 0), Number::Bf16, 328);
    let bytes = number.bytes(&number.random(3 * columns, 1));
    let weight = number.bytes(&number.random(columns, 2));
    let pointers =
        [card.put(&bytes), card.put(&weight), card.put(&weight), card.room(bytes.len()), card.room(12), card.room(12)];
    let arguments = [&pointers.map(Address)[..], &[Int(columns as i32), Float(1e-5)]].concat();
    let module = module(&format!("tests/planted/layer_norm_{bug}.ptx"));
    card.launch(&module, "layer_norm_bf16", (3, 96, 0), &arguments)
}

/// Runs a planted product of 64 by 64 by 96.
fn product(bug: &str, order: Order) -> Result<Outcome, Box<Fault>> {
    let mut card = Card::with(order, 0);
    let product = Product::new(&mut card, [64, 64, 96], "nt");
    product.start(&mut card, &module(&format!("tests/planted/product_{bug}.ptx")), 64)
}

/// A line of a kernel's source as compiled.
fn source_line(source: &str) -> String {
    let (file, line) = source.rsplit_once(':').expect("file:line");
    let text = text(&format!("../exec/kernels/{file}"));
    let line = line.parse::<usize>().expect("a line");
    text.lines().nth(line - 1).unwrap_or_else(|| panic!("{source}")).trim().to_owned()
}

/// Checks that in every order of warps the fault has this kind and is at a line that contains one of these texts.
fn found(run: fn(&str, Order) -> Result<Outcome, Box<Fault>>, bug: &str, is: fn(&FaultKind) -> bool, words: &[&str]) {
    for order in ORDERS {
        let fault = run(bug, order).expect_err(bug);
        assert!(is(&fault.kind), "{bug}, {order:?}: {fault}");
        let line = source_line(&fault.source);
        assert!(words.iter().any(|words| line.contains(words)), "{bug}, {order:?}: {fault}\n{line}");
    }
}

#[test]
fn a_missing_barrier_is_a_race() {
    let is = |kind: &FaultKind| matches!(kind, FaultKind::Memory(Problem::Race { .. }));
    found(layer_norm, "no_barrier", is, &["part[threadIdx.x / WARP] = x", "sum += part[warp]"]);
    let is = |kind: &FaultKind| {
        matches!(kind, FaultKind::Memory(Problem::Race { .. } | Problem::InFlight | Problem::Unwritten))
    };
    found(product, "no_barrier", is, &["asm volatile(", "\"r\"(address)"]);
}

#[test]
fn a_missing_wait_reads_bytes_in_flight() {
    let is = |kind: &FaultKind| matches!(kind, FaultKind::Memory(Problem::InFlight));
    found(product, "no_wait", is, &["ldmatrix", "\"r\"(address)"]);
}

#[test]
fn a_misaligned_vector_is_found() {
    let is = |kind: &FaultKind| matches!(kind, FaultKind::Misaligned { bytes: 16, .. });
    found(layer_norm, "misaligned", is, &["reinterpret_cast<const Loaded *>(from)"]);
}

#[test]
fn an_access_out_of_bounds_is_found() {
    let is = |kind: &FaultKind| matches!(kind, FaultKind::Bounds(Outside::Past { .. }));
    found(
        layer_norm,
        "out_of_bounds",
        is,
        &["reinterpret_cast<const Loaded *>(from)", "reinterpret_cast<Loaded *>(to)"],
    );
}

#[test]
fn a_shuffle_in_divergent_code_is_found() {
    let is = |kind: &FaultKind| matches!(kind, FaultKind::Divergent { .. });
    found(layer_norm, "divergent", is, &["__shfl_xor_sync"]);
}

#[test]
fn unpadded_tiles_cause_only_bank_conflicts() {
    let (taken, fewest) = product("bank_conflicts", Order::Forward).expect("runs").counters.total(true);
    assert!(taken >= 2 * fewest, "{taken} {fewest}");
}
