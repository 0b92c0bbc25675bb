//! Three algorithms, which round differently, so that it shows which one was taken:
//!
//! | number | sums | workspace | reduction |
//! | --- | --- | --- | --- |
//! | 1 | two parts, added in whatever order they come: another one each time | none | in place |
//! | 2 | two parts | both parts | from the workspace |
//! | 3 | one after the other | none | none |

use super::objects::Preference;
use super::product::Problem;
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

/// What tells these bits from any others.
const SIGN: u64 = 0x706c_696d_736f_6c6c;

/// Terms of a sum that two parts are worth it for.
const WORTH_PARTS: u64 = 16;

/// An algorithm for a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm {
    /// Its number.
    pub(super) number: u64,
    /// What it needs.
    pub(super) workspace_bytes: u64,
    /// Of A, B, C and D, in bytes.
    pub(super) alignments: [u32; 4],
}

/// Algorithms for a problem, the library's favorite first.
pub(super) fn candidates(problem: &Problem, preference: &Preference) -> Vec<Heuristic> {
    let [rows, columns, inner] = problem.extents();
    let parts = 2 * 4 * rows * columns;
    let mut all = [(1, 0, 1), (2, parts, 2), (3, 0, 0)];
    if inner < WORTH_PARTS {
        all.swap(1, 2);
    }
    let fitting = all.into_iter().filter(|(_, workspace_bytes, reduction)| {
        *workspace_bytes <= preference.workspace_bytes && reduction & preference.reductions == *reduction
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

    /// What there is to say of an algorithm, if it is this problem's.
    pub(super) fn of(bits: &Bits, problem: &Problem) -> Option<Self> {
        Some(Self::new(Algorithm::of(bits, problem)?, problem))
    }
}

impl Algorithm {
    /// How long it takes beside other operations: the library's favorite is not the fastest.
    pub(super) fn time(self) -> u64 {
        if self.number == 2 { 3 } else { 1 }
    }

    fn bits(self, problem: &Problem) -> Bits {
        let [a, b, c, d] = self.alignments.map(u64::from);
        [SIGN, self.number, self.workspace_bytes, a | b << 32, c | d << 32, fingerprint(problem), 0, 0]
    }

    /// The algorithm of these bits, if they were given for this problem.
    pub(super) fn of(bits: &Bits, problem: &Problem) -> Option<Self> {
        let [sign, number, workspace_bytes, first, last, of, ..] = *bits;
        let alignments = [first as u32, (first >> 32) as u32, last as u32, (last >> 32) as u32];
        let is_ours = sign == SIGN && (1..=3).contains(&number) && of == fingerprint(problem);
        is_ours.then_some(Self { number, workspace_bytes, alignments })
    }
}

/// All of a problem that an algorithm depends on.
fn fingerprint(problem: &Problem) -> u64 {
    let mut hasher = DefaultHasher::new();
    let description = super::objects::Description { bias: 0, ..problem.description };
    (description, problem.layouts).hash(&mut hasher);
    hasher.finish()
}
