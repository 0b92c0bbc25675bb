//! Weights in `Bf16` with their remainders, to the bit, on the hardest numbers to represent: for the kernels of all
//! devices.

use half::bf16;
use plimsoll_exec::cases::{Case, Noise, encode};
use plimsoll_exec::reference::Value;
use plimsoll_exec::{joined, remainders, rounded_weight};
use plimsoll_graph::ops::{Cast, MovingAverage, ParameterUpdate, StateFormat, WeightFormat};
use plimsoll_graph::optimizers::Rule;
use plimsoll_graph::{DType, Example, Fill, Op, Scalars, TensorType};

/// Around many upper halves: exact numbers and their neighbors, ties and their neighbors, including subnormal numbers,
/// the largest one, infinity and NaN. Without minus zero, which an update that adds zero turns into zero.
fn hard_numbers() -> Vec<f32> {
    let lows = [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF];
    let ends = [0x0000, 0x0001, 0x007F, 0x0080, 0x3F7F, 0x3F80, 0x7F7E, 0x7F7F, 0x7F80, 0x7FFF];
    let highs = (0..0x8000).step_by(97).chain(ends).flat_map(|high| [high, high | 0x8000]);
    let bits = highs.flat_map(|high| lows.map(|low| high << 16 | low));
    bits.filter(|&bits| bits != 0x8000_0000).map(f32::from_bits).collect()
}

/// Panics unless the kernels that `run` runs preserve the numbers: an update at a rate of zero, an average that copies
/// its weight, and a cast, which must round as the update does.
pub fn check_parts(run: impl Fn(&Case) -> Vec<Vec<u8>>) {
    let numbers = hard_numbers();
    let bytes = encode(DType::F32, &numbers);
    let weights = numbers.iter().map(|&x| rounded_weight(x).to_f32()).collect::<Vec<_>>();
    let lacks = remainders(&bytes, DType::F32);
    let lacks = lacks.as_chunks().0.iter().map(|&two| f32::from(i16::from_le_bytes(two))).collect::<Vec<_>>();
    let [shape, factor] = [numbers.len(), 1].map(|elements| TensorType::f32(&[elements]));
    for rule in Rule::all() {
        for state in [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8] {
            let weight = WeightFormat::Bf16AndRemainder;
            let op = ParameterUpdate { rule, weight_decay: 0.1, rate: 1.0, weight, state, site: 3 };
            let mut case = case_of(op, &[&shape, &factor]);
            (case.state[0], case.state[1]) = (weights.clone(), lacks.clone());
            let results = run(&case);
            assert_eq!(results[0], encode(DType::Bf16, &weights), "weights of {:?}", case.example.op);
            assert_same(&joined(&results[0], &results[1]), &numbers, &case.example.op);
        }
    }
    let [half, remainder] = [DType::Bf16, DType::I16].map(|dtype| shape.with_dtype(dtype));
    let mut average = case_of(MovingAverage { decay: 0.0 }, &[&half, &factor, &remainder]);
    (average.inputs[0], average.inputs[2]) = (Value::Float(weights.clone()), Value::Float(lacks));
    average.state[0].fill(0.0);
    assert_same(&run(&average)[0], &numbers, &average.example.op);
    let mut cast = case_of(Cast { to: DType::Bf16 }, &[&shape]);
    cast.inputs = vec![Value::Float(numbers)];
    let found = run(&cast).remove(0);
    let found = found.as_chunks().0.iter().map(|&two| bf16::from_le_bytes(two));
    for (found, (expected, bits)) in found.zip(weights.iter().zip(bytes.as_chunks().0)) {
        assert_eq!(found.to_bits(), bf16::from_f32(*expected).to_bits(), "cast of {:#x}", u32::from_le_bytes(*bits));
    }
}

/// A case of an op that takes operands of these types, at a learning rate of zero.
fn case_of(op: impl Into<Op>, types: &[&TensorType]) -> Case {
    let inputs = types.iter().map(|&ty| (ty.clone(), Fill::Positive)).collect();
    let example = Example { op: op.into(), inputs, state: Fill::Positive, scalars: Scalars::default() };
    Case::new(&example, &mut Noise::new(5))
}

fn assert_same(found: &[u8], numbers: &[f32], op: &Op) {
    for (found, number) in found.as_chunks().0.iter().zip(numbers) {
        let found = f32::from_le_bytes(*found);
        let is_same = found.to_bits() == number.to_bits() || found.is_nan() && number.is_nan();
        assert!(is_same, "{:#x}, not {:#x}: {op:?}", found.to_bits(), number.to_bits());
    }
}
