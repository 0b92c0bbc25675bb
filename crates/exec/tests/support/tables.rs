//! The gradient of a table of embeddings, to the bit: the host adds to it if the optimizer is there, and the bits do
//! not depend on the place. For the kernels of all devices.

use plimsoll_exec::cases::{Case, Noise, PRECISIONS, encode, in_precision};
use plimsoll_exec::reference::Value;
use plimsoll_graph::ops::EmbeddingGrad;
use plimsoll_graph::{DType, Example, Fill, Scalars, TensorType};

/// Rows added in single precision, in their order: few different tokens, each repeated more often than a block
/// processes together.
pub fn check_tables(results: impl Fn(&Case) -> Vec<Vec<u8>>) {
    for accumulate in [false, true] {
        let rows = (TensorType::f32(&[2, 150, 67]), Fill::Uniform);
        let tokens = (TensorType::f32(&[2, 150]).with_dtype(DType::I32), Fill::Index(11));
        let example = Example {
            op: EmbeddingGrad { vocab_size: 11, accumulate }.into(),
            inputs: vec![rows, tokens],
            state: Fill::Uniform,
            scalars: Scalars::default(),
        };
        for dtype in PRECISIONS {
            let case = Case::new(&in_precision(&example, dtype).expect("takes all"), &mut Noise::new(7));
            let [Value::Float(rows), Value::Int(tokens)] = &case.inputs[..] else { panic!("rows and tokens") };
            let mut table = if accumulate { case.state[0].clone() } else { vec![0.0; 11 * 67] };
            for (row, &token) in rows.chunks_exact(67).zip(tokens) {
                let sums = &mut table[67 * token as usize..][..67];
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            assert!(results(&case) == [encode(DType::F32, &table)], "{dtype:?}, accumulate: {accumulate}");
        }
    }
}
