//! Three algorithms that round differently, so that the bits of a result show which one ran:
//!
//! | number | sums | workspace | reduction |
//! | --- | --- | --- | --- |
//! | 1 | two parts, added in an order that changes with each run | none | in place |
//! | 2 | two parts | both parts | from the workspace |
//! | 3 | in order | none | none |

use super::description::{Description, Preference};
use super::problem::Problem;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};

/// `cublasLtMatmulAlgo_t`: opaque.
pub(super) type Bits = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Heuristic {
    algorithm: Bits,
    workspace_bytes: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// Marks bits as an algorithm of this library.
const SIGN: u64 = 0x706c_696d_736f_6c6c;

/// Minimum number of terms for which a sum is split into parts.
const MIN_SPLIT_TERMS: u64 = 16;

/// An algorithm for a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm {
    /// Its number.
    pub(super) number: u64,
    /// Workspace that it needs.
    pub(super) workspace_bytes: u64,
    /// Alignments that it needs of A, B, C and D, in bytes.
    pub(super) alignments: [u32; 4],
}

/// Algorithms for a problem, the library's favorite first.
pub(super) fn candidates(problem: &Problem, preference: &Preference) -> Vec<Heuristic> {
    let [rows, columns, inner] = problem.extents();
    let parts = 2 * 4 * rows * columns;
    let mut all = [(1, 0, 1), (2, parts, 2), (3, 0, 0)];
    if inner < MIN_SPLIT_TERMS {
        all.swap(1, 2);
    }
    let is_aligned = preference.alignments.into_iter().all(|alignment| problem.has_algorithms_at(alignment));
    let fitting = all.into_iter().filter(|(_, workspace_bytes, reduction)| {
        is_aligned && *workspace_bytes <= preference.workspace_bytes && reduction & preference.reductions == *reduction
    });
    let algorithm =
        |(number, workspace_bytes, _)| Algorithm { number, workspace_bytes, alignments: preference.alignments };
    fitting.map(|kind| Heuristic::new(algorithm(kind), problem)).collect()
}

impl Heuristic {
    fn new(algorithm: Algorithm, problem: &Problem) -> Self {
        Self {
            algorithm: algorithm.bits(problem),
            workspace_bytes: algorithm.workspace_bytes as usize,
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        }
    }

    /// The heuristic's result for an algorithm, if it belongs to this problem.
    pub(super) fn of(bits: &Bits, problem: &Problem) -> Option<Self> {
        Some(Self::new(Algorithm::of(bits, problem)?, problem))
    }
}

impl Algorithm {
    /// Simulated duration. The first algorithm that the heuristic returns is not the fastest.
    pub(super) fn time(self) -> u64 {
        if self.number == 2 { 3 } else { 1 }
    }

    fn bits(self, problem: &Problem) -> Bits {
        let [a, b, c, d] = self.alignments.map(u64::from);
        [SIGN, self.number, self.workspace_bytes, a | b << 32, c | d << 32, fingerprint(problem), 0, 0]
    }

    /// The algorithm with these bits, if they were returned for this problem.
    pub(super) fn of(bits: &Bits, problem: &Problem) -> Option<Self> {
        let [sign, number, workspace_bytes, first, last, of, ..] = *bits;
        let alignments = [first as u32, (first >> 32) as u32, last as u32, (last >> 32) as u32];
        let is_ours = sign == SIGN && (1..=3).contains(&number) && of == fingerprint(problem);
        is_ours.then_some(Self { number, workspace_bytes, alignments })
    }
}

/// Hash of the properties of a problem that an algorithm depends on.
fn fingerprint(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    let description = Description { bias: 0, scales: [0; 2], ..problem.description };
    (description, problem.layouts).hash(&mut hasher);
    hasher.finish()
}
