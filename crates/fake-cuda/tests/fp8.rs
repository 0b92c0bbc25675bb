//! 8-bit floats in kernels: `cvt` and `mma` against plain arithmetic, and modules that do not have them.

mod support;

use plimsoll_fake_cuda::ptx::lanes::{e4m3_value, e5m2_value};
use plimsoll_fake_cuda::ptx::run::{Accumulation, Outcome};
use plimsoll_fake_cuda::ptx::{ParseErrorKind, parse};
use std::collections::BTreeSet;
use support::{Argument, Card, Number};

/// A format: its name and the numbers of its codes.
#[derive(Debug, Clone, Copy)]
struct Format {
    name: &'static str,
    value: fn(u8) -> f32,
    /// The first code of numbers from 1/8, and the first one from 16.
    usual: [u8; 2],
}

const FORMATS: [Format; 2] = [
    Format { name: "e4m3", value: e4m3_value, usual: [0x20, 0x58] },
    Format { name: "e5m2", value: e5m2_value, usual: [0x30, 0x4c] },
];

impl Format {
    /// The number in a code.
    fn value(self, code: u8) -> f64 {
        (self.value)(code).into()
    }

    /// The code of the nearest finite number; an even one, if two are equally near.
    fn nearest(self, x: f32) -> u8 {
        if x.is_nan() {
            return 0x7f;
        }
        // All numbers out of range are like this one.
        let size = f64::from(x).abs().min(1e6);
        let distance = |code: u8| (self.value(code) - size).abs();
        let codes = (0..0x80).filter(|code| self.value(*code).is_finite());
        let nearest = codes.min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2))));
        nearest.expect("finite codes") | u8::from(x.is_sign_negative()) << 7
    }

    /// All numbers, all means of neighbors, and the neighbors of these in single precision; numbers out of range.
    fn boundaries(self) -> Vec<f32> {
        let finite = (0..0x80).map(self.value).filter(|number| number.is_finite()).collect::<Vec<_>>();
        let means = finite.windows(2).map(|two| f32::midpoint(two[0], two[1]));
        let largest = finite[finite.len() - 1];
        let others = [1.06 * largest, 1.07 * largest, 1.13 * largest, 2.0 * largest, f32::MAX, f32::INFINITY, f32::NAN];
        let all = finite.iter().copied().chain(means).chain(others).chain([f32::from_bits(1), 1e-30]);
        let all = all.flat_map(|x| [x, x.next_up(), x.next_down()]).flat_map(|x| [x, -x]);
        all.collect()
    }
}

/// A kernel with these parameters, each an address, in %d1 and so on. %t is the thread's index in the grid.
fn kernel(level: &str, addresses: usize, body: &str) -> String {
    let parameters = (1..=addresses).map(|index| format!(".param .u64 a{index}")).collect::<Vec<_>>().join(", ");
    let load = |index| format!("ld.param.u64 %d{index}, [a{index}];\ncvta.to.global.u64 %d{index}, %d{index};\n");
    let loads = (1..=addresses).map(load).collect::<String>();
    format!(
        "{level}\n.address_size 64\n.visible .entry k({parameters})\n{{\n.reg .b16 %h<4>;\n.reg .b32 %r<32>, %t;\n\
         .reg .b64 %d<8>, %o;\n{loads}mov.u32 %r0, %ctaid.x;\nmov.u32 %t, %tid.x;\nmad.lo.u32 %t, %r0, 32, %t;\n\
         {body}\nret;\n}}\n"
    )
}

const ADA: &str = ".version 8.4\n.target sm_89";

#[test]
fn conversions_are_to_the_nearest_number() {
    for format in FORMATS {
        let body = format!(
            "mul.wide.u32 %o, %t, 8;\nadd.s64 %d1, %d1, %o;\nld.global.v2.f32 {{%r1, %r2}}, [%d1];\n\
             cvt.rn.satfinite.{}x2.f32 %h1, %r1, %r2;\n\
             mul.wide.u32 %o, %t, 2;\nadd.s64 %d2, %d2, %o;\nst.global.u16 [%d2], %h1;",
            format.name
        );
        let module = parse(&kernel(ADA, 2, &body)).unwrap_or_else(|error| panic!("{error}"));
        // Each number is once the first and once the second operand, with an unrelated one.
        let numbers = format.boundaries();
        let other = |index: usize| numbers[(7 * index + 3) % numbers.len()];
        let pairs = numbers.iter().enumerate().flat_map(|(index, x)| [[*x, other(index)], [other(index), *x]]);
        let mut pairs = pairs.collect::<Vec<_>>();
        pairs.resize(pairs.len().next_multiple_of(32), [0.0; 2]);
        let mut card = Card::default();
        let from = card.put(&pairs.as_flattened().iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
        let to = card.room(2 * pairs.len());
        let arguments = [Argument::Address(from), Argument::Address(to)];
        card.launch(&module, "k", (pairs.len() as u32 / 32, 32, 0), &arguments).unwrap();
        let codes = card.get(to, 2 * pairs.len());
        for (pair, codes) in pairs.iter().zip(codes.chunks_exact(2)) {
            // The first operand is in the upper byte.
            let expected = [format.nearest(pair[1]), format.nearest(pair[0])];
            assert_eq!(codes, expected, "{} {pair:?}", format.name);
        }
    }
}

const ROWS: usize = 16;
const COLUMNS: usize = 8;
const INNER: usize = 32;

/// Factors of a product: codes of a by rows, of b by columns, and the addend.
#[derive(Debug, Clone)]
struct Factors {
    a: [[u8; INNER]; ROWS],
    b: [[u8; INNER]; COLUMNS],
    c: [[f32; COLUMNS]; ROWS],
}

impl Factors {
    /// Codes of usual numbers of either sign, whose sums are exact in double precision, and not in single precision with
    /// the addend.
    fn random(formats: [Format; 2], seed: u64) -> Self {
        let numbers = Number::F32.random(2 * (ROWS + COLUMNS) * INNER + ROWS * COLUMNS, seed);
        let mut numbers = numbers.into_iter();
        let mut next = || numbers.next().expect("enough");
        let mut code = |format: &Format| {
            let [low, high] = format.usual.map(f64::from);
            let code = (low + (next() + 2.0) / 4.0 * (high - low)) as u8;
            if next() < 0.0 { code } else { code | 0x80 }
        };
        let a = std::array::from_fn(|_| std::array::from_fn(|_| code(&formats[0])));
        let b = std::array::from_fn(|_| std::array::from_fn(|_| code(&formats[1])));
        let c = std::array::from_fn(|_| std::array::from_fn(|_| next() as f32));
        Self { a, b, c }
    }

    /// The product in double precision.
    fn product(&self, formats: [Format; 2]) -> [[f64; COLUMNS]; ROWS] {
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let terms = self.a[row].iter().zip(self.b[column]);
                let terms = terms.map(|(a, b)| formats[0].value(*a) * formats[1].value(b));
                terms.sum::<f64>() + f64::from(self.c[row][column])
            })
        })
    }

    /// The product by `mma`. Fragments as in the ISA: a register has four numbers of a row of a or of a column of b.
    fn multiplied(&self, formats: [Format; 2], card: &mut Card) -> ([[f32; COLUMNS]; ROWS], Outcome) {
        let body = format!(
            "mul.wide.u32 %o, %t, 16;\nadd.s64 %d1, %d1, %o;\nadd.s64 %d3, %d3, %o;\nadd.s64 %d4, %d4, %o;\n\
             mul.wide.u32 %o, %t, 8;\nadd.s64 %d2, %d2, %o;\nld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d1];\n\
             ld.global.v2.u32 {{%r5, %r6}}, [%d2];\nld.global.v4.u32 {{%r7, %r8, %r9, %r10}}, [%d3];\n\
             mma.sync.aligned.m16n8k32.row.col.f32.{}.{}.f32 {{%r11, %r12, %r13, %r14}}, {{%r1, %r2, %r3, %r4}}, \
             {{%r5, %r6}}, {{%r7, %r8, %r9, %r10}};\nst.global.v4.u32 [%d4], {{%r11, %r12, %r13, %r14}};",
            formats[0].name, formats[1].name
        );
        let module = parse(&kernel(ADA, 4, &body)).unwrap_or_else(|error| panic!("{error}"));
        let lanes = || (0..32).map(|lane| (lane / 4, lane % 4));
        let of_a = |(group, thread): (usize, usize)| {
            [(0, 0), (8, 0), (0, 16), (8, 16)].map(|(row, k)| &self.a[group + row][k + 4 * thread..][..4])
        };
        let of_b = |(group, thread): (usize, usize)| [0, 16].map(|k| &self.b[group][k + 4 * thread..][..4]);
        let of_c = |(group, thread): (usize, usize)| {
            [(0, 0), (0, 1), (8, 0), (8, 1)].map(|(row, k)| [group + row, 2 * thread + k])
        };
        let a = card.put(&lanes().flat_map(of_a).flatten().copied().collect::<Vec<_>>());
        let b = card.put(&lanes().flat_map(of_b).flatten().copied().collect::<Vec<_>>());
        let c = lanes().flat_map(of_c).flat_map(|[row, column]| self.c[row][column].to_le_bytes());
        let c = card.put(&c.collect::<Vec<_>>());
        let d = card.room(4 * ROWS * COLUMNS);
        let outcome = card.launch(&module, "k", (1, 32, 0), &[a, b, c, d].map(Argument::Address)).unwrap();
        let mut result = [[0.0; COLUMNS]; ROWS];
        let bytes = card.get(d, 4 * ROWS * COLUMNS);
        for ([row, column], bytes) in lanes().flat_map(of_c).zip(bytes.chunks_exact(4)) {
            result[row][column] = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        (result, outcome)
    }
}

/// All pairs of formats.
fn pairs() -> impl Iterator<Item = [Format; 2]> {
    FORMATS.into_iter().flat_map(|left| FORMATS.map(|right| [left, right]))
}

#[test]
fn a_product_is_the_rounded_sum_of_all_places() {
    for formats in pairs() {
        let all = [1, 2, 3, 4, 5].map(|seed| Factors::random(formats, seed));
        // No two places have the same numbers in all products, so that none can be taken for another.
        let places = |of: fn(&Factors) -> &[[u8; INNER]]| {
            let at = |place: usize| all.each_ref().map(|factors| of(factors)[place / INNER][place % INNER]);
            (0..of(&all[0]).len() * INNER).map(at).collect::<BTreeSet<_>>().len()
        };
        assert_eq!([places(|factors| &factors.a), places(|factors| &factors.b)], [ROWS * INNER, COLUMNS * INNER]);
        for factors in all {
            let exact = factors.product(formats);
            let mut card = Card::default();
            let (nearest, outcome) = factors.multiplied(formats, &mut card);
            assert_eq!(nearest, exact.map(|row| row.map(|x| x as f32)), "{formats:?}");
            let counted = (outcome.counters.matrix_instructions, outcome.counters.matrix_flops);
            assert_eq!(counted, (1, 2 * 16 * 8 * 32));
            card.settings.accumulation = Accumulation::Truncating;
            let (truncated, _) = factors.multiplied(formats, &mut card);
            // Single precision stores 29 bits less than double precision.
            let cut = |x: f64| f64::from_bits(x.to_bits() >> 29 << 29) as f32;
            assert_eq!(truncated, exact.map(|row| row.map(cut)), "{formats:?}");
            assert_ne!(truncated, nearest, "{formats:?}: some sums must be inexact");
        }
    }
}

#[test]
fn infinity_and_nan_stay_in_their_row_or_column() {
    // The first code of each format that is not finite.
    for (formats, [a, b]) in pairs().zip([[0x7f, 0x7f], [0x7f, 0x7c], [0x7c, 0x7f], [0x7c, 0x7c]]) {
        let mut factors = Factors::random(formats, 6);
        (factors.a[11][29], factors.b[6][3]) = (a, b);
        let (result, _) = factors.multiplied(formats, &mut Card::default());
        for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column))) {
            let is_finite = row != 11 && column != 6;
            assert_eq!(result[row][column].is_finite(), is_finite, "{formats:?} {row} {column}");
        }
        // Infinity in e5m2 only.
        assert_eq!(result[11][0].is_nan(), a == 0x7f, "{formats:?}");
        assert_eq!(result[0][6].is_nan(), b == 0x7f, "{formats:?}");
    }
}

const CONVERT: &str = "cvt.rn.satfinite.e5m2x2.f32 %h1, %r1, %r2;";
const MULTIPLY: &str = "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, \
                        {%r1, %r2}, {%r1, %r2, %r3, %r4};";

/// Version and target of a module, a statement, and the version that it needs if it is refused, as by NVIDIA's assembler.
const LEVELS: [(&str, &str, &str, Option<u32>); 11] = [
    ("8.4", "sm_80", CONVERT, Some(81)),
    ("8.4", "sm_86", CONVERT, Some(81)),
    ("8.0", "sm_89", CONVERT, Some(81)),
    ("8.1", "sm_89", CONVERT, None),
    ("7.8", "sm_90", CONVERT, None),
    ("7.7", "sm_90", CONVERT, Some(78)),
    ("8.4", "sm_80", MULTIPLY, Some(84)),
    ("8.4", "sm_86", MULTIPLY, Some(84)),
    ("8.3", "sm_90", MULTIPLY, Some(84)),
    ("8.4", "sm_89", MULTIPLY, None),
    ("8.7", "sm_120", MULTIPLY, None),
];

#[test]
fn modules_of_lower_levels_do_not_have_them() {
    for (version, target, statement, needed) in LEVELS {
        let text = kernel(&format!(".version {version}\n.target {target}"), 0, statement);
        let refused = parse(&text).err().map(|error| error.kind);
        let name = statement.trim_end_matches(';').to_owned();
        let expected = needed.map(|version| ParseErrorKind::Newer { statement: name, version, target: 89 });
        assert_eq!(refused, expected, "{version} {target} {statement}");
    }
    let error = parse(&kernel(".version 8.4\n.target sm_86", 0, CONVERT)).expect_err("an older target");
    let expected = "`cvt.rn.satfinite.e5m2x2.f32 %h1, %r1, %r2` needs .version 8.1 and .target sm_89";
    assert!(error.to_string().ends_with(expected), "{error}");
}

/// Statements that are refused: not PTX, or not known to the interpreter.
const REFUSED: [&str; 12] = [
    "cvt.rn.e4m3x2.f32 %h1, %r1, %r2;",
    "cvt.satfinite.e4m3x2.f32 %h1, %r1, %r2;",
    "cvt.rn.satfinite.relu.e4m3x2.f32 %h1, %r1, %r2;",
    "cvt.rn.satfinite.f32.e4m3x2 %h1, %r1, %r2;",
    "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1;",
    "cvt.rn.satfinite.e4m3x2.f16x2 %h1, %r1;",
    "cvt.rn.f16x2.e4m3x2 %r1, %h1;",
    "ld.global.e4m3x2 %h1, [%d1];",
    "add.e4m3x2 %h1, %h2, %h3;",
    "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.bf16.f32 {%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1,%r1,%r1};",
    "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32 {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1}, {%r1,%r1,%r1,%r1};",
    "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16 {%r1,%r1}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1};",
];

#[test]
fn other_statements_with_them_are_refused_by_name() {
    for statement in REFUSED {
        let error = parse(&kernel(ADA, 0, statement)).expect_err(statement);
        let expected = ParseErrorKind::Unsupported(statement.trim_end_matches(';').to_owned());
        assert_eq!(error.kind, expected, "{statement}");
    }
    let error = parse(&kernel(ADA, 0, ".reg .e4m3x2 %q;")).expect_err("no type of a register");
    assert_eq!(error.kind, ParseErrorKind::Unsupported(".reg .e4m3x2".to_owned()));
}
