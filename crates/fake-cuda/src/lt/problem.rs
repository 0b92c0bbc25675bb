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

impl Problem {
    pub(super) fn new(description: Description, layouts: [Layout; 4]) -> Result<Self, Status> {
        let [a, b, c, d] = layouts;
        let of = |layout: Layout, transposed| {
            if transposed { [layout.columns, layout.rows] } else { [layout.rows, layout.columns] }
        };
        let ([rows, inner], [same, columns]) = (of(a, description.transposed[0]), of(b, description.transposed[1]));
        let fit = inner == same && [d.rows, d.columns] == [rows, columns] && c == d;
        if !fit {
            return Err(INVALID_VALUE);
        }
        // cuBLASLt's table of types for `CUBLAS_COMPUTE_32F` and its TF32 variant.
        let types = a.number == b.number && [a.number, Number::F32].contains(&d.number);
        let is_single = [a, d].iter().all(|layout| layout.number == Number::F32);
        if !types || (description.tf32 && !is_single) {
            return Err(NOT_SUPPORTED);
        }
        Ok(Self { description, layouts })
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
