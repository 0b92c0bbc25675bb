//! D = alpha · op(A) · op(B) + beta · C plus a bias per row: column-major, simple loops, in single precision. Scales of A and
//! B are factors of alpha.

use super::algorithm::{Algorithm, Bits};
use super::description::{Description, Layout};
use super::number::Number;
use super::problem::{Factors, Problem};
use super::{INVALID_VALUE, Status};
use crate::ptx::lanes::half::tf32_bits;
use crate::shadow::{Memory, Rights};
use crate::streams::Failure;
use std::sync::atomic::{AtomicU64, Ordering};

/// `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_LAUNCH_FAILED`
const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;

/// A product enqueued on a stream.
#[derive(Debug, Clone)]
pub struct Product {
    problem: Problem,
    factors: Factors,
    /// Addresses of A, B, C and D.
    addresses: [u64; 4],
    algorithm: Algorithm,
    workspace: u64,
}

impl Product {
    /// Errors: the algorithm is for another problem; a pointer is null or less aligned than described; the workspace is
    /// too small.
    pub(super) fn new(
        problem: Problem,
        factors: Factors,
        addresses: [u64; 4],
        algorithm: Bits,
        (workspace, workspace_bytes): (u64, u64),
    ) -> Result<Self, Status> {
        let algorithm = Algorithm::of(&algorithm, &problem).ok_or(INVALID_VALUE)?;
        let is_aligned = |(&address, alignment): (&u64, u64)| address != 0 && address.is_multiple_of(alignment);
        let numbers = problem.layouts.map(|layout| layout.number.bytes());
        let alignments = algorithm.alignments.map(u64::from);
        let are_aligned =
            addresses.iter().zip(alignments).all(is_aligned) && addresses.iter().zip(numbers).all(is_aligned);
        let has_workspace = algorithm.workspace_bytes <= workspace_bytes
            && (algorithm.workspace_bytes == 0 || is_aligned((&workspace, 16)));
        let has_bias = !problem.description.has_bias || problem.description.bias != 0;
        let has_scales = problem.description.scales.iter().all(|address| address.is_multiple_of(4));
        let is_in_place = addresses[2] == addresses[3];
        if !are_aligned || !has_workspace || !has_bias || !has_scales || !is_in_place {
            return Err(INVALID_VALUE);
        }
        Ok(Self { problem, factors, addresses, algorithm, workspace })
    }

    /// Simulated duration, in operations.
    pub fn time(&self) -> u64 {
        self.algorithm.time()
    }

    /// The algorithm's number.
    pub(super) fn algorithm(&self) -> u64 {
        self.algorithm.number
    }

    /// Computes the product. Returns the bytes accessed. Errors: an access is not allowed, or reads unwritten bytes.
    pub fn run(&self, memory: &mut Memory, rights: &Rights) -> Result<Vec<(u64, u64, bool)>, Failure> {
        let mut access = Access { memory, rights, touched: Vec::new() };
        let [alpha, beta] = match self.factors {
            Factors::Given(factors) => factors,
            Factors::OnCard([alpha, beta]) => {
                [access.numbers(alpha, Number::F32, 1)?[0], access.numbers(beta, Number::F32, 1)?[0]]
            }
        };
        let [a, b, c, d] = self.problem.layouts;
        let Description { transposed, tf32, has_bias, bias, scales, .. } = self.problem.description;
        let mut scale = alpha;
        for address in scales.into_iter().filter(|address| *address != 0) {
            scale *= access.numbers(address, Number::F32, 1)?[0];
        }
        let rounded = |x: f32| if tf32 { f32::from_bits(tf32_bits(x)) } else { x };
        let read = |access: &mut Access, place: usize, layout: Layout| access.matrix(self.addresses[place], layout);
        let first = read(&mut access, 0, a)?.into_iter().map(rounded).collect::<Vec<_>>();
        let second = read(&mut access, 1, b)?.into_iter().map(rounded).collect::<Vec<_>>();
        // A factor multiplied by zero is not read.
        let before = if beta == 0.0 { vec![] } else { read(&mut access, 2, c)? };
        let of_bias = self.problem.bias_number();
        let biases = if has_bias { access.numbers(bias, of_bias, d.rows)? } else { vec![] };
        let at = |values: &[f32], layout: Layout, is_transposed: bool, [row, column]: [u64; 2]| {
            let [row, column] = if is_transposed { [column, row] } else { [row, column] };
            values[(column * layout.rows + row) as usize]
        };
        let [rows, columns, inner] = self.problem.extents();
        // An H100's cuBLASLt did this with five columns of bf16.
        let rounds_before_bias = has_bias && !(d.rows * d.number.bytes()).is_multiple_of(16);
        let mut result = Vec::with_capacity((rows * columns) as usize);
        for column in 0..columns {
            for row in 0..rows {
                let term = |k| at(&first, a, transposed[0], [row, k]) * at(&second, b, transposed[1], [k, column]);
                let mut value = scale * self.algorithm.sum(inner, term);
                if let Some(before) = before.get((column * rows + row) as usize) {
                    value += beta * before;
                }
                if rounds_before_bias {
                    value = d.number.values(&d.number.encode(&[value]))[0];
                }
                result.push(value + biases.get(row as usize).copied().unwrap_or(0.0));
            }
        }
        let workspace = vec![0xA5; self.algorithm.workspace_bytes as usize];
        access.write(self.workspace, &workspace)?;
        for (column, values) in result.chunks_exact(rows as usize).enumerate() {
            let to = self.addresses[3] + column as u64 * d.stride * d.number.bytes();
            access.write(to, &d.number.encode(values))?;
        }
        Ok(access.touched)
    }
}

impl Algorithm {
    /// The sum of `count` terms, in the algorithm's order.
    fn sum(self, terms: u64, term: impl Fn(u64) -> f32) -> f32 {
        /// Number of parts added in place so far.
        static PARTS_ADDED: AtomicU64 = AtomicU64::new(0);
        let part = |range: std::ops::Range<u64>| range.fold(0.0, |sum: f32, k| sum + term(k));
        match self.number {
            1 => {
                let cut = PARTS_ADDED.fetch_add(1, Ordering::Relaxed) % terms.max(1);
                part(cut..terms) + part(0..cut)
            }
            2 => part(0..terms / 2) + part(terms / 2..terms),
            _ => part(0..terms),
        }
    }
}

/// Memory with the rights to access it, and a record of accesses.
struct Access<'a> {
    memory: &'a mut Memory,
    rights: &'a Rights,
    touched: Vec<(u64, u64, bool)>,
}

impl Access<'_> {
    fn check(&mut self, at: u64, bytes: u64, write: bool) -> Result<(), Failure> {
        self.touched.push((at, at + bytes, write));
        if self.rights.allows(at, bytes, write) {
            return Ok(());
        }
        let verb = if write { "written" } else { "read" };
        Err(failure(ILLEGAL_ADDRESS, format!("a product: {bytes} bytes at {at:#x} must not be {verb}")))
    }

    fn numbers(&mut self, at: u64, number: Number, count: u64) -> Result<Vec<f32>, Failure> {
        let bytes = count * number.bytes();
        self.check(at, bytes, false)?;
        let read = self.memory.read(at, bytes);
        let (data, written) =
            read.map_err(|outside| failure(ILLEGAL_ADDRESS, format!("a product: {at:#x} {outside}")))?;
        match written.iter().position(|written| !written) {
            Some(first) => {
                let at = at + first as u64;
                Err(failure(LAUNCH_FAILED, format!("a product reads unwritten bytes, from {at:#x}")))
            }
            None => Ok(number.values(&data)),
        }
    }

    /// The elements of a matrix, column by column, without the gaps between columns.
    fn matrix(&mut self, at: u64, layout: Layout) -> Result<Vec<f32>, Failure> {
        let Layout { number, rows, columns, stride } = layout;
        if stride == rows {
            return self.numbers(at, number, rows * columns);
        }
        let mut all = Vec::with_capacity((rows * columns) as usize);
        for column in 0..columns {
            all.extend(self.numbers(at + column * stride * number.bytes(), number, rows)?);
        }
        Ok(all)
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Failure> {
        if data.is_empty() {
            return Ok(());
        }
        self.check(at, data.len() as u64, true)?;
        let written = self.memory.write(at, data);
        written.map_err(|outside| failure(ILLEGAL_ADDRESS, format!("a product: {at:#x} {outside}")))
    }
}

fn failure(code: u32, message: String) -> Failure {
    Failure { code, message }
}
