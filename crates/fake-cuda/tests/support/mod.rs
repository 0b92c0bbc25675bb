//! Shared by tests of kernels: number formats, device memory, launches.
#![allow(dead_code, unused_imports, reason = "every test file compiles its own copy and uses a part of it")]

use plimsoll_fake_cuda::ptx::lanes::{bf16_bits, bf16_value, f16_bits, f16_value};
use plimsoll_fake_cuda::ptx::run::{Fault, Order, Outcome};
use plimsoll_fake_cuda::ptx::{Module, parse};
pub use plimsoll_fake_cuda::workbench::ORDERS;
use plimsoll_fake_cuda::workbench::{Shape, Workbench};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

/// A tensor's number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    F32,
    F16,
    Bf16,
}

pub const NUMBERS: [Number; 3] = [Number::F32, Number::F16, Number::Bf16];

impl Number {
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Half a unit in the last place of 1: the largest relative rounding error.
    pub fn half_unit(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(-24),
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
        }
    }

    pub fn bytes(self, values: &[f64]) -> Vec<u8> {
        let encode = |x: &f64| match self {
            Self::F32 => (*x as f32).to_le_bytes().to_vec(),
            Self::F16 => f16_bits(*x).to_le_bytes().to_vec(),
            Self::Bf16 => bf16_bits(*x).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(encode).collect()
    }

    pub fn values(self, bytes: &[u8]) -> Vec<f64> {
        let size = if self == Self::F32 { 4 } else { 2 };
        let decode = |b: &[u8]| match self {
            Self::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            Self::F16 => f16_value(u16::from_le_bytes([b[0], b[1]])).into(),
            Self::Bf16 => bf16_value(u16::from_le_bytes([b[0], b[1]])).into(),
        };
        bytes.chunks_exact(size).map(decode).collect()
    }

    /// `count` numbers between -2 and 2 that the format represents exactly.
    pub fn random(self, count: usize, seed: u64) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f64 / (1u64 << 22) as f64 - 2.0
        };
        let values = (0..count).map(|_| next()).collect::<Vec<_>>();
        self.values(&self.bytes(&values))
    }
}

/// The committed PTX of a target.
pub fn kernels(target: u32, file: &str) -> Module {
    module(&format!("../exec/kernels/ptx/sm_{target}/{file}.ptx"))
}

/// Parses a file next to this crate's Cargo.toml.
pub fn module(path: &str) -> Module {
    parse(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The text of a file next to this crate's Cargo.toml.
pub fn text(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A card with memory, whose kernels are launched by name.
#[derive(Default)]
pub struct Card(Workbench);

impl Deref for Card {
    type Target = Workbench;
    fn deref(&self) -> &Workbench {
        &self.0
    }
}

impl DerefMut for Card {
    fn deref_mut(&mut self) -> &mut Workbench {
        &mut self.0
    }
}

impl Card {
    pub fn with(order: Order, blur: u64) -> Self {
        Self(Workbench::with(order, blur))
    }

    /// Launches blocks along one axis: blocks, threads, dynamic shared memory.
    pub fn launch(
        &mut self,
        module: &Module,
        kernel: &str,
        (blocks, threads, shared_bytes): (u32, u32, u32),
        arguments: &[Argument],
    ) -> Result<Outcome, Box<Fault>> {
        self.run(module, kernel, &Shape { grid: [blocks, 1, 1], threads, shared_bytes }, arguments)
    }

    /// Launches blocks along all axes.
    pub fn launch_on(
        &mut self,
        module: &Module,
        kernel: &str,
        grid: [u32; 3],
        threads: u32,
        arguments: &[Argument],
    ) -> Result<Outcome, Box<Fault>> {
        self.run(module, kernel, &Shape { grid, threads, shared_bytes: 0 }, arguments)
    }

    fn run(
        &mut self,
        module: &Module,
        kernel: &str,
        shape: &Shape,
        arguments: &[Argument],
    ) -> Result<Outcome, Box<Fault>> {
        let kernel = module.kernel(kernel).unwrap_or_else(|| panic!("no kernel {kernel}"));
        self.start(module, kernel, shape, &parameters(kernel, arguments))
    }
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Argument {
    Address(u64),
    Long(u64),
    Int(i32),
    Float(f32),
}

/// The parameter block for some arguments.
pub fn parameters(kernel: &plimsoll_fake_cuda::ptx::Kernel, arguments: &[Argument]) -> Vec<u8> {
    assert_eq!(kernel.parameters.len(), arguments.len(), "{}", kernel.name);
    let mut block = vec![0; kernel.parameter_bytes as usize];
    for (parameter, argument) in kernel.parameters.iter().zip(arguments) {
        let bytes = match argument {
            Argument::Address(value) | Argument::Long(value) => value.to_le_bytes().to_vec(),
            Argument::Int(value) => value.to_le_bytes().to_vec(),
            Argument::Float(value) => value.to_le_bytes().to_vec(),
        };
        assert_eq!(bytes.len(), parameter.bytes as usize, "{} {}", kernel.name, parameter.name);
        block[parameter.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    block
}

/// The largest error, relative to the expected value or to 1 if that is smaller.
pub fn worst(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).fold(0.0, |worst: f64, (got, expected)| {
        let error = (got - expected).abs() / expected.abs().max(1.0);
        if error.is_nan() { f64::INFINITY } else { worst.max(error) }
    })
}

/// The unit that computes a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Tensor cores with bfloat16.
    Bf16,
    /// Tensor cores with single precision rounded to TF32.
    Tf32,
    /// CUDA cores with single precision.
    Single,
}

impl By {
    /// File name of its kernels.
    pub fn file(self) -> &'static str {
        match self {
            Self::Bf16 => "product",
            Self::Tf32 => "product_tf32",
            Self::Single => "linear",
        }
    }

    /// Format of its numbers.
    pub fn number(self) -> Number {
        if self == Self::Bf16 { Number::Bf16 } else { Number::F32 }
    }
}

/// A product c = a b by one of our kernels: the address of c, and its expected values.
pub struct Product {
    pub extents: [usize; 3],
    pub result: u64,
    pub expected: Vec<f64>,
    factors: &'static str,
    by: By,
    arguments: Vec<Argument>,
}

/// Rounds to the 11 significant bits of TF32, ties away from zero.
pub fn tf32(x: f64) -> f64 {
    let unit = 2f64.powi(x.abs().log2().floor() as i32 - 10);
    if x == 0.0 { x } else { (x / unit).round() * unit }
}

impl Product {
    /// Extents m, n, k: c is (m, n), in single precision; a is (m, k) and b is (k, n) if `factors` has an n for it, and
    /// transposed if it has a t.
    pub fn new(card: &mut Card, extents: [usize; 3], factors: &'static str) -> Self {
        Self::of(card, By::Bf16, extents, factors)
    }

    /// The same, computed by this unit.
    pub fn of(card: &mut Card, by: By, [m, n, k]: [usize; 3], factors: &'static str) -> Self {
        let number = by.number();
        let (a, b) = (number.random(m * k, 14), number.random(k * n, 15));
        let mut put = |matrix: &[f64], [rows, columns]: [usize; 2], transposed: bool| {
            let turned = (0..rows * columns).map(|i| matrix[i % rows * columns + i / rows]);
            let values = if transposed { turned.collect() } else { matrix.to_vec() };
            (card.put(&number.bytes(&values)), if transposed { rows } else { columns })
        };
        let (pa, stride_a) = put(&a, [m, k], factors.starts_with('t'));
        let (pb, stride_b) = put(&b, [k, n], factors.ends_with('t'));
        let result = card.room(4 * m * n);
        // No bias, no scalars for kernels with them; the result in single precision overwrites c.
        let (addresses, rest): (&[u64], usize) = match by {
            By::Bf16 => (&[pa, pb, result, 0], 2),
            By::Tf32 => (&[pa, pb, result, 0, 0], 1),
            By::Single => (&[pa, pb, result, 0, 0], 4),
        };
        let addresses = addresses.iter().map(|&address| Argument::Address(address)).collect::<Vec<_>>();
        // The inner extent is not split.
        let extents = [m, n, k, k].map(|extent| Argument::Int(extent as i32));
        let strides = [stride_a, stride_b, n].map(|stride| Argument::Long(stride as u64));
        let arguments = [&addresses[..], &extents, &strides, &vec![Argument::Int(0); rest]].concat();
        let [a, b] = [a, b].map(|matrix| match by {
            By::Tf32 => matrix.into_iter().map(tf32).collect(),
            _ => matrix,
        });
        let dot = |i: usize| (0..k).map(|q| a[i / n * k + q] * b[q * n + i % n]).sum::<f64>();
        Self { extents: [m, n, k], result, expected: (0..m * n).map(dot).collect(), factors, by, arguments }
    }

    /// The same with tiles of this extent.
    pub fn start(&self, card: &mut Card, module: &Module, tile: usize) -> Result<Outcome, Box<Fault>> {
        let [m, n, _] = self.extents;
        let [down, across] = [m, n].map(|extent| extent.div_ceil(tile) as u32);
        let factors = self.factors;
        let (kernel, grid, threads) = match self.by {
            By::Bf16 => (format!("product_{factors}_bf16_{tile}"), [down * across, 1, 1], 128),
            By::Tf32 => (format!("product_{factors}_tf32_{tile}"), [down * across, 1, 1], 128),
            By::Single => (format!("product_{factors}_{tile}"), [across, down, 1], 256),
        };
        card.launch_on(module, &kernel, grid, threads, &self.arguments)
    }
}
