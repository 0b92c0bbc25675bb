//! Conversion to another precision.

use super::{Example, Home, Io, Operation, operands};
use crate::{DType, GraphError, TensorType};
use serde::{Deserialize, Serialize};

/// y = x, rounded to the nearest value of `to`. Ties are rounded to the even value in `F16`, and away from zero in
/// `Bf16`. With the latter, the difference to a rounded weight is a signed number of 16 bits (`WeightFormat`), so a
/// weight is the same whether its optimizer stores this difference or full single precision.
/// x: floats of any shape -> y the same shape. Scratch: none. Errors: `ShapeMismatch` if x does not have floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cast {
    /// `F32`, `F16` or `Bf16`.
    pub to: DType,
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x] = operands("cast", inputs)?;
        if [x.dtype, self.to].iter().any(|dtype| matches!(dtype, DType::I32 | DType::I16 | DType::U8)) {
            let problem = format!("{:?} can't be converted to {:?}", x.dtype, self.to);
            return Err(GraphError::ShapeMismatch { op: "cast", problem });
        }
        Ok(vec![x.with_dtype(self.to)])
    }

    fn flops(&self, _io: &Io) -> u64 {
        0
    }

    fn home(&self) -> Home {
        Home::Operands
    }

    fn examples() -> Vec<Example> {
        let case = |from, to, shape: &[usize]| Example::uniform(Self { to }, &[shape]).of_type(0, from);
        vec![
            case(DType::F32, DType::F16, &[3, 5]),
            case(DType::F32, DType::Bf16, &[70_001]),
            case(DType::F16, DType::F32, &[33]),
            case(DType::Bf16, DType::F32, &[9, 8]),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Io, Target};
    use plimsoll_units::Bytes;

    /// Scratch would be another copy of each weight while it is rounded.
    #[test]
    fn a_cast_needs_no_working_memory() {
        let (single, half) = (TensorType::f32(&[4, 300]), TensorType::f32(&[4, 300]).with_dtype(DType::Bf16));
        for (from, to) in [(&single, &half), (&half, &single)] {
            let io = Io::new([from], [to]);
            let op = crate::Op::from(Cast { to: to.dtype });
            assert_eq!(op.working_bytes(&io, &Target::Cpu { threads: 2 }), Bytes::ZERO, "{from:?} to {to:?}");
        }
    }
}
