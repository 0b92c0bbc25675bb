//! A product without its addresses, and its factors.

use super::description::{Description, Layout};
use super::number::Number;
use super::{INVALID_VALUE, NOT_SUPPORTED, Status};

/// A product without its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Problem {
    pub(super) description: Description,
    /// Layouts of A, B, C and D.
    pub(super) layouts: [Layout; 4],
}

/// Alpha and beta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Factors {
    /// Values.
    Given([f32; 2]),
    /// Addresses on the card, read when the product runs.
    OnCard([u64; 2]),
}

/// Alignment of the columns of matrices of 8-bit floats and of their results.
const VECTOR_BYTES: u64 = 16;

impl Problem {
    /// Errors: shapes that don't match; scales that only 8-bit floats have; types, transpositions, extents or strides that
    /// the library has no algorithm for.
    pub(super) fn new(description: Description, layouts: [Layout; 4], capability: (i32, i32)) -> Result<Self, Status> {
        let [a, b, c, d] = layouts;
        let of = |layout: Layout, transposed| {
            if transposed { [layout.columns, layout.rows] } else { [layout.rows, layout.columns] }
        };
        let ([rows, inner], [same, columns]) = (of(a, description.transposed[0]), of(b, description.transposed[1]));
        let fit = inner == same && [d.rows, d.columns] == [rows, columns] && c == d;
        if !fit {
            return Err(INVALID_VALUE);
        }
        let problem = Self { description, layouts };
        if problem.is_of_bytes() {
            let is_supported = capability >= (8, 9) && problem.has_algorithms_for_bytes();
            return if is_supported { Ok(problem) } else { Err(NOT_SUPPORTED) };
        }
        if description.scales != [0; 2] {
            return Err(INVALID_VALUE);
        }
        // cuBLASLt's table of types for `CUBLAS_COMPUTE_32F` and its TF32 variant.
        let types = a.number == b.number && [a.number, Number::F32].contains(&d.number);
        let is_single = [a, d].iter().all(|layout| layout.number == Number::F32);
        if !types || (description.tf32 && !is_single) {
            return Err(NOT_SUPPORTED);
        }
        Ok(problem)
    }

    /// Whether a factor has 8-bit floats.
    fn is_of_bytes(&self) -> bool {
        self.layouts[..2].iter().any(|layout| layout.number.bytes() == 1)
    }

    /// Whether the library has algorithms for these 8-bit floats.
    /// Source: cuBLAS's documentation of `cublasLtMatmul`, and its "Tensor Core Usage" for the alignments.
    fn has_algorithms_for_bytes(&self) -> bool {
        let Self { description, layouts: [a, b, c, d] } = self;
        let types = match (a.number, b.number) {
            (Number::E4m3, Number::E4m3 | Number::E5m2) | (Number::E5m2, Number::E4m3) => d.number.bytes() > 1,
            _ => false,
        };
        let [rows, _, inner] = self.extents();
        let in_vectors = |number: Number, elements: u64| elements.is_multiple_of(VECTOR_BYTES / number.bytes());
        types
            && !description.tf32
            && description.transposed == [true, false]
            && in_vectors(a.number, inner)
            && in_vectors(d.number, rows)
            && [a, b, c, d].into_iter().all(|layout| in_vectors(layout.number, layout.stride))
    }

    /// Whether the library has algorithms for addresses with this alignment.
    pub(super) fn has_algorithms_at(&self, alignment: u32) -> bool {
        !self.is_of_bytes() || u64::from(alignment).is_multiple_of(VECTOR_BYTES)
    }

    /// Type of the bias: the result's, except of 8-bit floats with a result in single precision.
    pub(super) fn bias_number(&self) -> Number {
        let result = self.layouts[3].number;
        if self.is_of_bytes() && result == Number::F32 { Number::Bf16 } else { result }
    }

    /// Rows, columns, and inner extent.
    pub(super) fn extents(&self) -> [u64; 3] {
        let [a, _, _, d] = self.layouts;
        [d.rows, d.columns, if self.description.transposed[0] { a.rows } else { a.columns }]
    }

    /// Reads alpha and beta.
    ///
    /// # Safety
    /// They point to numbers on the host or, if so described, are addresses on the card.
    pub(super) unsafe fn factors(&self, alpha: *const f32, beta: *const f32) -> Factors {
        if self.description.factors_on_card {
            return Factors::OnCard([alpha.addr() as u64, beta.addr() as u64]);
        }
        // SAFETY: the caller's promise.
        unsafe { Factors::Given([*alpha, *beta]) }
    }
}
