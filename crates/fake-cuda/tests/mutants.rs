//! Mutants of the committed PTX: the share that survives measures the checks and the tests' tolerances.
//! Run with `cargo test -p plimsoll-fake-cuda --test mutants -- --ignored --nocapture`.

mod support;

use Argument::{Address, Float, Int};
use plimsoll_fake_cuda::ptx::{Module, parse};
use std::collections::BTreeMap;
use support::{Argument, Card, Number, Product, text, worst};

/// Result of testing a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Refused,
    Fault,
    WrongNumbers,
    OtherBits,
    SameBits,
}

/// The kernel of products that is mutated.
const PRODUCT: &str = "product_nt_bf16_64";

/// Result of a case: bytes and their error; `None` if it faulted.
type Run = Option<(Vec<u8>, f64)>;

fn layer_norm(module: &Module, rows: usize, columns: usize, threads: u32) -> Run {
    let (mut card, number) = (Card::default(), Number::Bf16);
    card.settings.steps = 1_000_000;
    let [x, weight, bias] =
        [(rows * columns, 1), (columns, 2), (columns, 3)].map(|(count, seed)| number.random(count, seed));
    let [px, pw, pb] = [&x, &weight, &bias].map(|values| card.put(&number.bytes(values)));
    let (py, statistics) = (card.room(2 * x.len()), [4 * rows; 2].map(|bytes| card.room(bytes)));
    let pointers = [px, pw, pb, py, statistics[0], statistics[1]].map(Address);
    let arguments = [&pointers[..], &[Int(columns as i32), Float(1e-5)]].concat();
    card.launch(module, "layer_norm_bf16", (rows as u32, threads, 0), &arguments).ok()?;
    let mut expected = Vec::new();
    for row in x.chunks(columns) {
        let mean = row.iter().sum::<f64>() / columns as f64;
        let rstd = 1.0 / (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64 + 1e-5).sqrt();
        expected.extend(row.iter().zip(&weight).zip(&bias).map(|((x, w), b)| (x - mean) * rstd * w + b));
    }
    let (bytes, written) = card.memory.read(py, 2 * x.len() as u64).ok()?;
    written.iter().all(|written| *written).then(|| (bytes.clone(), worst(&number.values(&bytes), &expected)))
}

fn product(module: &Module, extents: [usize; 3]) -> Run {
    let mut card = Card::default();
    card.settings.steps = 1_000_000;
    let product = Product::new(&mut card, extents, "nt");
    product.start(&mut card, module, 64).ok()?;
    let (bytes, written) = card.memory.read(product.result, 4 * product.expected.len() as u64).ok()?;
    written
        .iter()
        .all(|written| *written)
        .then(|| (bytes.clone(), worst(&Number::F32.values(&bytes), &product.expected)))
}

/// The cases of a kernel, with the largest error that its test allows.
fn cases(kernel: &str, module: &Module) -> Vec<(Run, f64)> {
    if kernel == PRODUCT {
        return [[64, 64, 96], [65, 72, 40], [57, 61, 8], [26, 30, 8], [9, 9, 8], [40, 18, 8], [49, 36, 8], [10, 1, 8]]
            .map(|extents| (product(module, extents), 1e-5))
            .into();
    }
    // Fewer vectors than threads, more than threads, and rows that are not whole vectors.
    [(3, 328, 96), (2, 1384, 128), (2, 67, 64)]
        .map(|(rows, columns, threads)| (layer_norm(module, rows, columns, threads), 2.0 * Number::Bf16.half_unit()))
        .into()
}

/// Mutants of a line: a description, and the changed line.
fn mutants(line: &str) -> Vec<(&'static str, String)> {
    let statement = line.trim();
    let opcode = statement.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or("");
    let is = |prefix: &str| opcode.starts_with(prefix);
    let mut all = Vec::new();
    let swap = |pairs: &[(&str, &str)]| {
        pairs.iter().find(|(from, _)| statement.contains(from)).map(|(from, to)| statement.replacen(from, to, 1))
    };
    if is("bar.sync") || is("cp.async.wait") || is("cp.async.commit") || is("st.") || is("cp.async.cg") {
        all.push(("removed", String::new()));
    }
    if (is("ld.") && !is("ld.param")) || is("st.") || is("ldmatrix") {
        let (place, rest) = statement.split_once(']').expect("an address");
        let (base, offset) =
            place.rsplit_once('+').map_or((place, 0), |(base, offset)| (base, offset.parse().unwrap_or(0)));
        all.push(("address + 4", format!("{base}+{}]{rest}", offset + 4)));
    }
    if is("shfl") {
        let distances = [(", 16,", ", 8,"), (", 8,", ", 4,"), (", 4,", ", 2,"), (", 2,", ", 1,"), (", 1,", ", 2,")];
        all.extend(swap(&distances).map(|line| ("shuffle distance", line)));
    }
    if is("setp.") {
        let pairs = [
            (".lt.", ".le."),
            (".le.", ".lt."),
            (".gt.", ".ge."),
            (".ge.", ".gt."),
            (".ne.", ".eq."),
            (".eq.", ".ne."),
        ];
        all.extend(swap(&pairs).map(|line| ("comparison", line)));
    }
    if is("add.f32") || is("fma.rn") || is("sub.f32") {
        all.extend(
            swap(&[("add.f32", "sub.f32"), ("sub.f32", "add.f32"), ("fma.rn.f32", "fma.rn.ftz.f32")])
                .map(|line| ("float", line)),
        );
    }
    let whole = is("add.s") || is("shl.b32") || is("and.b32") || is("mad.lo") || is("shr");
    if let Some((head, last)) = statement.trim_end_matches(';').rsplit_once(", ").filter(|_| whole) {
        all.extend(last.parse::<i64>().ok().map(|last| ("constant + 1", format!("{head}, {};", last + 1))));
    }
    all
}

#[test]
#[ignore = "takes a minute"]
fn mutants_of_the_kernels_are_found() {
    let mut tally: BTreeMap<(&str, Fate), u32> = BTreeMap::new();
    for (file, kernel) in [("layer_norm", "layer_norm_bf16"), ("product", PRODUCT)] {
        let text = text(&format!("../exec/kernels/ptx/sm_80/{file}.ptx"));
        let start = text.find(&format!(".entry {kernel}(")).expect("the kernel");
        let end = start + text[start..].find("\n}").expect("its end");
        let (head, body) = (&text[..text.find(".visible").expect("an entry")], &text[start..end + 2]);
        let healthy = cases(kernel, &parse(&format!("{head}{body}")).expect("parses"));
        let lines = body.lines().collect::<Vec<_>>();
        for (number, line) in lines.iter().enumerate() {
            for (what, changed) in mutants(line) {
                let mut lines = lines.clone();
                lines[number] = &changed;
                let fate = judge(kernel, &format!("{head}{}", lines.join("\n")), &healthy);
                *tally.entry((what, fate)).or_default() += 1;
                if fate > Fate::WrongNumbers {
                    println!("{kernel}, {what}, {fate:?}: {}", line.trim());
                }
            }
        }
    }
    println!("{tally:#?}");
    let count =
        |is: fn(Fate) -> bool| tally.iter().filter(|((_, fate), _)| is(*fate)).map(|(_, count)| count).sum::<u32>();
    let (all, living) = (count(|_| true), count(|fate| fate > Fate::WrongNumbers));
    println!("{living} of {all} survive");
    assert!(all > 300 && living * 5 < all, "{living} of {all} mutants survive");
}

fn judge(kernel: &str, text: &str, healthy: &[(Run, f64)]) -> Fate {
    let Ok(module) = parse(text) else { return Fate::Refused };
    let runs = cases(kernel, &module);
    if runs.iter().any(|(run, _)| run.is_none()) {
        return Fate::Fault;
    }
    let wrong = runs.iter().any(|(run, allowed)| run.as_ref().is_some_and(|(_, error)| error > allowed));
    let same = runs
        .iter()
        .zip(healthy)
        .all(|((run, _), (healthy, _))| run.as_ref().map(|r| &r.0) == healthy.as_ref().map(|h| &h.0));
    match (wrong, same) {
        (true, _) => Fate::WrongNumbers,
        (false, false) => Fate::OtherBits,
        (false, true) => Fate::SameBits,
    }
}

/// Measures the interpreter: lane-instructions per second of a product.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let module = support::kernels(80, "product");
    let mut card = Card::default();
    let product = Product::new(&mut card, [256; 3], "nt");
    let start = thread_seconds();
    let outcome = product.start(&mut card, &module, 64).unwrap();
    let seconds = thread_seconds() - start;
    let lanes = outcome.counters.lane_instructions;
    println!("{:.1} million lane-instructions a second ({lanes} in {seconds:.3} s)", lanes as f64 / seconds / 1e6);
    assert!(lanes as f64 / seconds > 20e6);
}

/// CPU time of this thread, which other load does not change. Linux only.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has schedstat");
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse::<f64>().ok());
    nanoseconds.expect("nanoseconds") * 1e-9
}
