//! The committed PTX against plain arithmetic in double precision, in every precision, target and order of warps, with
//! approximate instructions exact and blurred.

mod support;

use Argument::{Address, Float, Int, Long};
use fake_cuda::ptx::run::{Accumulation, Order};
use fake_cuda::trace::Counters;
use support::{Argument, Card, NUMBERS, Number, ORDERS, kernels, worst};

const TARGETS: [u32; 2] = [75, 80];

/// Runs a case in four orders, exact and blurred. Results must have the same bits in all orders.
fn in_all_orders(mut case: impl FnMut(&mut Card) -> Vec<u8>) {
    for blur in [0, 1, 2] {
        let results = ORDERS.map(|order| case(&mut Card::with(order, blur)));
        assert!(results.iter().all(|result| *result == results[0]), "the order of warps changes bits");
    }
}

/// Threads that take a vector of 16 bytes each.
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

#[test]
fn cast_rounds_to_nearest() {
    for target in TARGETS {
        let module = kernels(target, "cast");
        for from in NUMBERS {
            for to in NUMBERS.into_iter().filter(|to| *to != from) {
                let x = from.random(1003, 3);
                in_all_orders(|card| {
                    let (px, py) = (card.put(&from.bytes(&x)), card.room(to.bytes(&x).len()));
                    let kernel = format!("cast_{}_{}", from.name(), to.name());
                    card.launch(&module, &kernel, (1, 256, 0), &[Address(px), Address(py), Long(1003)]).unwrap();
                    let got = card.get(py, to.bytes(&x).len());
                    assert_eq!(got, to.bytes(&x), "{kernel}");
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
fn gelu_and_its_gradient_are_what_finite_differences_say() {
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

/// Rows, columns, whether there is a bias and a residual, and threads.
const NORMS: [(usize, usize, bool, u32); 4] =
    [(3, 328, true, 96), (2, 67, false, 64), (5, 8, true, 32), (1, 1384, true, 128)];

#[test]
fn layer_norm_and_its_gradient_are_plain_arithmetic() {
    for target in TARGETS {
        let module = kernels(target, "layer_norm");
        for (number, (rows, columns, bias, threads)) in
            NUMBERS.into_iter().flat_map(|number| NORMS.map(|norm| (number, norm)))
        {
            let norm = Norm::new(number, rows, columns, bias);
            in_all_orders(|card| norm.check(card, &module, threads));
        }
    }
}

struct Norm {
    number: Number,
    rows: usize,
    columns: usize,
    bias: bool,
    x: Vec<f64>,
    dy: Vec<f64>,
    weight: Vec<f64>,
    shift: Vec<f64>,
    mean: Vec<f64>,
    rstd: Vec<f64>,
}

impl Norm {
    fn new(number: Number, rows: usize, columns: usize, bias: bool) -> Self {
        let x = number.random(rows * columns, 6);
        let statistics = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / columns as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / columns as f64;
            (mean, 1.0 / (variance + 1e-5).sqrt())
        };
        let (mean, rstd) = x.chunks(columns).map(statistics).unzip();
        Self {
            number,
            rows,
            columns,
            bias,
            dy: number.random(rows * columns, 7),
            weight: number.random(columns, 8),
            shift: number.random(columns, 9),
            x,
            mean,
            rstd,
        }
    }

    fn normed(&self, row: usize, column: usize) -> f64 {
        (self.x[row * self.columns + column] - self.mean[row]) * self.rstd[row]
    }

    fn y(&self) -> Vec<f64> {
        let at = |i: usize| {
            let (row, column) = (i / self.columns, i % self.columns);
            self.normed(row, column) * self.weight[column] + if self.bias { self.shift[column] } else { 0.0 }
        };
        (0..self.x.len()).map(at).collect()
    }

    /// dx with a residual of dy itself, dweight, dbias.
    fn gradients(&self) -> [Vec<f64>; 3] {
        let (mut dx, mut dweight, mut dbias) = (vec![], vec![0.0; self.columns], vec![0.0; self.columns]);
        for row in 0..self.rows {
            let dy = |k: usize| self.dy[row * self.columns + k];
            let mean = |f: &dyn Fn(usize) -> f64| (0..self.columns).map(f).sum::<f64>() / self.columns as f64;
            let slopes = mean(&|k| dy(k) * self.weight[k]);
            let products = mean(&|k| dy(k) * self.weight[k] * self.normed(row, k));
            for k in 0..self.columns {
                let d = (dy(k) * self.weight[k] - slopes - self.normed(row, k) * products) * self.rstd[row];
                dx.push(d + if self.bias { dy(k) } else { 0.0 });
                dweight[k] += dy(k) * self.normed(row, k);
                dbias[k] += dy(k);
            }
        }
        [dx, dweight, dbias]
    }

    fn check(&self, card: &mut Card, module: &fake_cuda::ptx::Module, threads: u32) -> Vec<u8> {
        let Self { number, rows, columns, .. } = *self;
        let name = number.name();
        let [px, pdy, pw, pb] = [&self.x, &self.dy, &self.weight, &self.shift].map(|t| card.put(&number.bytes(t)));
        let (bytes, sums) = (number.bytes(&self.x).len(), 4 * columns);
        let [py, pdx] = [bytes; 2].map(|bytes| card.room(bytes));
        let [pmean, prstd] = [rows * 4; 2].map(|bytes| card.room(bytes));
        let grid = 2;
        let [partial, dweight] = [grid * 2 * sums, sums].map(|bytes| card.room(bytes));
        let ones = Number::F32.bytes(&vec![1.0; columns]);
        let dbias = card.put(&ones);
        let forward = [
            Address(px),
            Address(pw),
            Address(if self.bias { pb } else { 0 }),
            Address(py),
            Address(pmean),
            Address(prstd),
            Int(columns as i32),
            Float(1e-5),
        ];
        card.launch(module, &format!("layer_norm_{name}"), (rows as u32, threads, 0), &forward).unwrap();
        let backward = [
            Address(pdy),
            Address(px),
            Address(pw),
            Address(pmean),
            Address(prstd),
            Address(if self.bias { pdy } else { 0 }),
            Address(pdx),
            Address(partial),
            Int(rows as i32),
            Int(columns as i32),
        ];
        let shape = (grid as u32, threads, 2 * sums as u32);
        card.launch(module, &format!("layer_norm_grad_{name}"), shape, &backward).unwrap();
        let sum = |weights: u64, biases: u64, accumulate: i32| {
            [
                Address(partial),
                Address(weights),
                Address(biases),
                Int(grid as i32),
                Int(columns as i32),
                Int(accumulate),
            ]
        };
        let shape = (columns.div_ceil(256) as u32, 256, 0);
        card.launch(module, "layer_norm_grad_sum", shape, &sum(dweight, 0, 0)).unwrap();
        card.launch(module, "layer_norm_grad_sum", shape, &sum(dweight, dbias, 1)).unwrap();

        let y = card.get(py, bytes);
        let allowed = 2.0 * number.half_unit() + 5e-6;
        assert!(worst(&number.values(&y), &self.y()) < allowed, "{number:?} {rows} {columns}");
        let [expected_dx, expected_dweight, expected_dbias] = self.gradients();
        let dx = card.get(pdx, bytes);
        assert!(worst(&number.values(&dx), &expected_dx) < allowed, "{number:?} {rows} {columns}");
        let (dweight, dbias) = (card.get(dweight, sums), card.get(dbias, sums));
        // The first launch set dweight, the second added to it and to the ones of dbias.
        let twice = expected_dweight.iter().map(|x| 2.0 * x).collect::<Vec<_>>();
        let more = expected_dbias.iter().map(|x| 1.0 + x).collect::<Vec<_>>();
        assert!(worst(&Number::F32.values(&dweight), &twice) < 2e-5);
        assert!(worst(&Number::F32.values(&dbias), &more) < 2e-5);
        [y, dx, dweight, dbias].concat()
    }
}

#[test]
fn adamw_updates_weights_and_moments() {
    for target in TARGETS {
        let module = kernels(target, "adamw");
        let (elements, f32s) = (1021, Number::F32);
        let [gradient, weight, m, v] = [10, 11, 12, 13].map(|seed| f32s.random(elements, seed));
        let v = v.iter().map(|v| v.abs()).collect::<Vec<_>>();
        let (beta1, beta2, eps, decay, rate, factor) = (0.9f32, 0.95f32, 1e-8f32, 0.1f32, 0.5f32, 0.25f32);
        let step = [3e-3f32, 1.0 - beta1.powi(3), 1.0 - beta2.powi(3)];
        let mut expected = [vec![], vec![], vec![]];
        for i in 0..elements {
            let [beta1, beta2, eps, decay, rate, factor] = [beta1, beta2, eps, decay, rate, factor].map(f64::from);
            let [learning_rate, correction1, correction2] = step.map(f64::from);
            let (g, speed) = (gradient[i] * factor, rate * learning_rate);
            let first = beta1 * m[i] + (1.0 - beta1) * g;
            let second = beta2 * v[i] + (1.0 - beta2) * g * g;
            let size = (first / correction1) / ((second / correction2).sqrt() + eps);
            expected[0].push(weight[i] * (1.0 - speed * decay) - speed * size);
            expected[1].push(first);
            expected[2].push(second);
        }
        for (factor, changes) in [(factor, true), (f32::NAN, false)] {
            in_all_orders(|card| {
                let [pg, pw, pm, pv] = [&gradient, &weight, &m, &v].map(|t| card.put(&f32s.bytes(t)));
                let pf = card.put(&factor.to_le_bytes());
                let ps = card.put(&step.map(f32::to_le_bytes).concat());
                let pointers = [pg, pf, ps, pw, pm, pv].map(Address);
                let rest = [Long(elements as u64), Float(beta1), Float(beta2), Float(eps), Float(decay), Float(rate)];
                let arguments = [&pointers[..], &rest[..]].concat();
                card.launch(&module, "adamw_f32", (1, 256, 0), &arguments).unwrap();
                let got = [pw, pm, pv].map(|at| card.get(at, 4 * elements));
                let before = [&weight, &m, &v];
                for ((got, expected), before) in got.iter().zip(&expected).zip(before) {
                    let error = worst(&f32s.values(got), if changes { expected } else { before });
                    assert!(error <= if changes { 2e-6 } else { 0.0 }, "{error}");
                }
                got.concat()
            });
        }
    }
}

/// c = a b' of these extents, in bfloat16, by the tensor-core kernel: the result's bytes and what it cost.
fn product(card: &mut Card, module: &fake_cuda::ptx::Module, [m, n, k]: [usize; 3]) -> (Vec<u8>, Counters) {
    let (a, b) = (Number::Bf16.random(m * k, 14), Number::Bf16.random(n * k, 15));
    let (pa, pb) = (card.put(&Number::Bf16.bytes(&a)), card.put(&Number::Bf16.bytes(&b)));
    let pc = card.room(4 * m * n);
    let extents = [m, n, k].map(|extent| Int(extent as i32));
    let arguments = [&[Address(pa), Address(pb), Address(pc)][..], &extents[..]].concat();
    let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
    let outcome = card.launch_on(module, "product_bf16", grid, 128, &arguments).unwrap();
    let got = card.get(pc, 4 * m * n);
    let dot = |i: usize| (0..k).map(|q| a[i / n * k + q] * b[i % n * k + q]).sum::<f64>();
    let expected = (0..m * n).map(dot).collect::<Vec<_>>();
    let error = worst(&Number::F32.values(&got), &expected);
    assert!(error < 1e-5, "{m} {n} {k}: {error}");
    (got, outcome.counters)
}

#[test]
fn the_product_is_the_product_at_every_shape() {
    let module = kernels(80, "product");
    for extents in [[64, 64, 32], [1, 1, 8], [65, 63, 40], [100, 72, 104], [130, 8, 96]] {
        in_all_orders(|card| product(card, &module, extents).0);
    }
}

#[test]
fn truncating_accumulation_stays_within_the_tolerance() {
    let module = kernels(80, "product");
    let mut card = Card::default();
    let nearest = product(&mut card, &module, [64, 64, 256]).0;
    card.settings.accumulation = Accumulation::Truncating;
    assert_ne!(product(&mut card, &module, [64, 64, 256]).0, nearest, "it rounds otherwise");
}

#[test]
fn kernels_move_no_sector_too_many_and_meet_no_bank_conflict() {
    let mut card = Card::with(Order::Forward, 0);
    let counters = product(&mut card, &kernels(80, "product"), [128, 64, 96]).1;
    let (taken, fewest) = counters.total(true);
    assert_eq!(taken, fewest, "shared memory");
    assert_eq!(counters.matrix_flops, 2 * 128 * 64 * 96);
    assert_eq!(counters.matrix_instructions, counters.matrix_flops / (2 * 16 * 8 * 16));
    assert_eq!(counters.distinct_read_bytes, 2 * (128 + 64) * 96);
    assert_eq!(counters.distinct_written_bytes, 4 * 128 * 64);

    let (module, number, elements) = (kernels(80, "add"), Number::Bf16, 4096);
    let x = card.put(&number.bytes(&number.random(elements, 1)));
    let arguments = [Address(x), Address(x), Address(x), Long(elements as u64)];
    let outcome = card.launch(&module, "add_bf16", (2, 256, 0), &arguments).unwrap();
    let (taken, fewest) = outcome.counters.total(false);
    assert_eq!((taken, fewest), (3 * 8192 / 32, 3 * 8192 / 32));
    assert_eq!((outcome.counters.read_bytes, outcome.counters.written_bytes), (2 * 8192, 8192));
}
