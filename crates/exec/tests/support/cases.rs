//! Cases of an op: operands filled, what the op means on them, and how far from that a result may lie.

use super::{Noise, fill_value};
use plimsoll_exec::reference::{RefCall, Value, run};
use plimsoll_graph::{DType, Example, Io, TensorType};

/// Values of an example's operands and what its outputs hold beforehand.
pub struct Filled {
    pub example: Example,
    pub outputs: Vec<TensorType>,
    pub inputs: Vec<Value<f32>>,
    pub state: Vec<Vec<f32>>,
}

impl Filled {
    pub fn new(example: &Example, noise: &mut Noise) -> Self {
        let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        let outputs = example.op.infer(&types).expect("examples are well-typed");
        let inputs = example.inputs.iter().map(|(ty, fill)| fill_value(ty, *fill, noise)).collect();
        let state = outputs.iter().map(|ty| fill_value::<f32>(ty, example.state, noise).floats().to_vec()).collect();
        Self { example: example.clone(), outputs, inputs, state }
    }

    pub fn io(&self) -> Io<'_> {
        Io { inputs: self.example.inputs.iter().map(|(ty, _)| ty).collect(), outputs: self.outputs.iter().collect() }
    }

    /// In double precision on the single-precision operands: what the op means.
    pub fn reference(&self) -> Vec<Vec<f64>> {
        let widen = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let inputs = self.inputs.iter().map(|value| match value {
            Value::Float(values) => Value::Float(widen(values)),
            Value::Int(values) => Value::Int(values.clone()),
        });
        let inputs = inputs.collect::<Vec<_>>();
        let mut outputs = self.state.iter().map(|s| widen(s)).collect::<Vec<_>>();
        let call = RefCall { inputs: inputs.iter().collect(), io: self.io(), scalars: &self.example.scalars };
        run(&self.example.op, &call, &mut outputs);
        outputs
    }
}

/// How far from the reference a result may lie, beyond what single precision is off by: one code, or the distance to
/// the next value of its precision, since the one may round up where the other rounds down, and some round at random.
pub fn rounding(dtype: DType, expected: f64) -> f64 {
    match dtype {
        DType::F32 | DType::I32 => 0.0,
        DType::F16 => 2f64.powi(-10) * expected.abs().max(2f64.powi(-14)),
        DType::Bf16 => 2f64.powi(-7) * expected.abs(),
        DType::U8 => 1.0,
    }
}

/// The same case with as many operands in half precision as the op takes; none if it takes none.
pub fn in_half(example: &Example, dtype: DType) -> Option<Example> {
    let floats = (0..example.inputs.len()).filter(|&i| example.inputs[i].0.dtype == DType::F32).collect::<Vec<_>>();
    let mut choices = (1..1u32 << floats.len().min(6)).collect::<Vec<_>>();
    choices.sort_by_key(|choice| std::cmp::Reverse(choice.count_ones()));
    choices.into_iter().find_map(|choice| {
        let mut example = example.clone();
        for (_, &index) in floats.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1) {
            example.inputs[index].0.dtype = dtype;
        }
        let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        example.op.infer(&types).is_ok().then_some(example)
    })
}
