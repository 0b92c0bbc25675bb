//! bitsandbytes' AdamW: moments in 8 bits by blocks or in 32 bits, on the card or in paged memory of the host.
//! Source: `bitsandbytes/optim/optimizer.py`, and `Trainer.create_optimizer` of transformers, which keeps embeddings in
//! 32 bits.

use super::{Stepper, state};
use crate::runtime::{DType, Rt, Tensor};

/// Parameters with fewer elements have moments in single precision.
const SMALLEST: u64 = 4096;
/// Elements that share a scale.
const BLOCK: u64 = 256;
/// Moments with fewer elements are not paged.
const SMALLEST_PAGED: u64 = 100_000;

/// AdamW with two moments per parameter.
pub(super) struct AdamW {
    bits: u8,
    paged: bool,
    state: Vec<Tensor>,
    is_made: bool,
    /// Whether the tables of 8-bit numbers exist; the first moment that needs them creates them.
    has_tables: bool,
}

impl AdamW {
    pub fn new(bits: u8, paged: bool) -> Self {
        Self { bits, paged, state: vec![], is_made: false, has_tables: false }
    }

    fn make(&mut self, rt: &Rt, parameter: &Tensor) {
        let (elements, shape) = (parameter.elements(), parameter.shape());
        let is_small = elements < SMALLEST || parameter.is_table();
        let dtype = if self.bits == 32 || is_small { DType::F32 } else { DType::U8 };
        if dtype == DType::U8 && !std::mem::replace(&mut self.has_tables, true) {
            self.state.extend(["qmap1", "qmap2"].map(|name| state(rt, &[256], DType::F32, name)));
        }
        if !(self.paged && elements >= SMALLEST_PAGED) {
            self.state.extend(["exp_avg", "exp_avg_sq"].map(|name| state(rt, shape, dtype, name)));
        }
        if dtype == DType::U8 {
            let scales = [elements.div_ceil(BLOCK)];
            self.state.extend(["absmax1", "absmax2"].map(|name| state(rt, &scales, DType::F32, name)));
        }
    }
}

impl Stepper for AdamW {
    fn step(&mut self, rt: &Rt, parameters: &[Tensor]) {
        if std::mem::replace(&mut self.is_made, true) {
            return;
        }
        parameters.iter().for_each(|parameter| self.make(rt, parameter));
    }
}
