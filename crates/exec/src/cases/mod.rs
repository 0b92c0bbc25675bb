//! Test cases of ops: an example with its operands filled, the reference's results, and the comparison of a kernel's
//! results with them. Used by tests of kernels and by the self-test of a user's card.

mod noise;
mod tolerance;

pub use noise::{Noise, fill_value};
pub use tolerance::allowed;

use crate::reference::{RefCall, Value, run, whole};
use half::{bf16, f16};
use plimsoll_graph::{DType, DeviceKind, Example, Io, TensorType};

/// Values of an example's operands, and the initial values of its outputs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The op, its operands' types, the run's scalars.
    pub example: Example,
    /// Types of the results.
    pub outputs: Vec<TensorType>,
    /// The operands' contents.
    pub inputs: Vec<Value<f32>>,
    /// Initial values of the results that the op updates.
    pub state: Vec<Vec<f32>>,
    /// Whether products in single precision round their operands to TF32.
    pub tf32: bool,
}

/// How results compare with the reference's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Elements that were compared.
    pub elements: usize,
    /// The largest error relative to the allowed error: correct up to 1.
    pub worst: f64,
    /// The element with that error, if it is above the allowed error.
    pub wrong: Option<Wrong>,
}

/// An element that is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wrong {
    /// The result, counted from 0.
    pub output: usize,
    /// Its element, counted from 0, the last axis fastest.
    pub element: usize,
    /// The kernel's value.
    pub found: f32,
    /// The reference's value.
    pub expected: f64,
    /// The allowed difference.
    pub allowed: f64,
}

impl Case {
    /// Fills an example with noise. Panics if it is not well-typed.
    pub fn new(example: &Example, noise: &mut Noise) -> Self {
        let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        let outputs = example.op.infer(&types).expect("examples are well-typed");
        let inputs = example.inputs.iter().map(|(ty, fill)| fill_value(ty, *fill, noise)).collect();
        let state = outputs.iter().map(|ty| as_floats(fill_value(ty, example.state, noise))).collect();
        Self { example: example.clone(), outputs, inputs, state, tf32: false }
    }

    /// The same case with products in TF32, on operands that TF32 represents exactly, so that only intermediate results
    /// are rounded.
    #[must_use]
    pub fn in_tf32(mut self) -> Self {
        for (value, (ty, _)) in self.inputs.iter_mut().zip(&self.example.inputs) {
            if let (Value::Float(values), DType::F32) = (value, ty.dtype) {
                values.iter_mut().for_each(|value| *value = rounded_to_tf32(*value));
            }
        }
        self.tf32 = true;
        self
    }

    /// Types of operands and results.
    pub fn io(&self) -> Io<'_> {
        Io { inputs: self.example.inputs.iter().map(|(ty, _)| ty).collect(), outputs: self.outputs.iter().collect() }
    }

    /// The bytes of operand `index` in its type's format.
    pub fn input_bytes(&self, index: usize) -> Vec<u8> {
        match &self.inputs[index] {
            Value::Float(values) => encode(self.example.inputs[index].0.dtype, values),
            Value::Int(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    /// The initial bytes of result `index`.
    pub fn state_bytes(&self, index: usize) -> Vec<u8> {
        encode(self.outputs[index].dtype, &self.state[index])
    }

    /// The reference's results, in double precision on the single-precision operands.
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

    /// Compares a kernel's results on a device of this kind, as bytes of their types, with those of the
    /// [`reference`](Self::reference).
    pub fn compare(&self, on: DeviceKind, found: &[Vec<u8>], expected: &[Vec<f64>]) -> Verdict {
        let decoded = found.iter().zip(&self.outputs).map(|(bytes, ty)| decode(ty.dtype, bytes)).collect::<Vec<_>>();
        self.compare_values(on, &decoded, expected)
    }

    /// The same for values. A weight and its remainder are compared as one number: two nearly equal numbers may be
    /// rounded to different weights, whose parts differ a lot. Panics if the number of results differs from the
    /// reference's.
    pub fn compare_values(&self, on: DeviceKind, found: &[Vec<f32>], expected: &[Vec<f64>]) -> Verdict {
        assert_eq!(found.len(), expected.len(), "results of {:?}", self.example.op);
        let mut verdict = Verdict::default();
        let (found, expected) = (self.with_whole_weights(found), self.with_whole_weights(expected));
        for (output, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "elements of result {output} of {:?}", self.example.op);
            let largest = expected.iter().filter(|x| x.is_finite()).fold(0.0f64, |most, x| most.max(x.abs()));
            for (element, (&found, &expected)) in found.iter().zip(expected).enumerate() {
                let allowed = allowed(on, self, output, expected, largest);
                verdict.judge(Wrong { output, element, found: found as f32, expected, allowed });
            }
        }
        verdict
    }

    /// The results with each weight joined with its remainder; the remainders are empty.
    fn with_whole_weights<T: Copy + Into<f64>>(&self, results: &[Vec<T>]) -> Vec<Vec<f64>> {
        let values = results.iter().map(|values| values.iter().map(|&value| value.into()).collect::<Vec<_>>());
        let mut values = values.collect::<Vec<_>>();
        if let Some((weight, remainder)) = self.parts_of_weight() {
            let lacks = std::mem::take(&mut values[remainder]);
            values[weight].iter_mut().zip(&lacks).for_each(|(weight, &lacks)| *weight = whole(*weight, lacks));
        }
        values
    }

    /// Indices of the weight and of its remainder, if the op has both.
    fn parts_of_weight(&self) -> Option<(usize, usize)> {
        let update = self.example.op.update()?;
        Some((update.weight, update.remainder?))
    }

    /// The precision that a result is compared in.
    fn compared_in(&self, output: usize) -> DType {
        let is_whole = self.parts_of_weight().is_some_and(|(weight, _)| weight == output);
        if is_whole { DType::F32 } else { self.outputs[output].dtype }
    }
}

impl Verdict {
    fn judge(&mut self, at: Wrong) {
        let part = at.part_of_allowed();
        self.elements += 1;
        if part > self.worst {
            self.worst = part;
            self.wrong = (part > 1.0).then_some(at);
        }
    }

    /// Merges two verdicts: keeps the worse error.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let elements = self.elements + other.elements;
        let worse = if other.worst > self.worst { other } else { self };
        Self { elements, ..worse }
    }
}

impl Wrong {
    /// The error relative to the allowed error; infinite if only one of the values is finite.
    fn part_of_allowed(&self) -> f64 {
        let found = f64::from(self.found);
        if found == self.expected || (found.is_nan() && self.expected.is_nan()) {
            return 0.0;
        }
        let off = (found - self.expected).abs();
        if off.is_finite() { off / self.allowed } else { f64::INFINITY }
    }
}

/// The nearest TF32 number, which stores 10 fraction bits; ties round away from zero. Source: PTX ISA, `cvt.rna`.
pub fn rounded_to_tf32(value: f32) -> f32 {
    const DROPPED: u32 = 13;
    match value.is_finite() {
        true => f32::from_bits((value.to_bits() + (1 << (DROPPED - 1))) >> DROPPED << DROPPED),
        false => value,
    }
}

/// The contents of a result, whose integers are compared as floats.
fn as_floats(value: Value<f32>) -> Vec<f32> {
    match value {
        Value::Float(values) => values,
        Value::Int(values) => values.into_iter().map(|value| value as f32).collect(),
    }
}

/// Floats, codes and integers as bytes in memory.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bytes = |&value: &f32| match dtype {
        DType::F32 => value.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        DType::I16 => (value as i16).to_le_bytes().to_vec(),
        DType::U8 => vec![value as u8],
        DType::I32 => (value as i32).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// Bytes in memory as floats.
fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let value = |bytes: &[u8]| match (dtype, bytes) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::I32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]) as f32,
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (DType::I16, &[a, b]) => f32::from(i16::from_le_bytes([a, b])),
        (DType::U8, &[code]) => f32::from(code),
        other => panic!("{other:?}"),
    };
    bytes.chunks_exact(dtype.size_bytes() as usize).map(value).collect()
}

/// Ops that are tested in single precision only, whatever the run's precision.
pub const SINGLE: [&str; 10] = [
    "Cast",
    "ContrastiveLoss",
    "ContrastiveLossGrad",
    "GradClip",
    "GradNorm",
    "KeepGradient",
    "ParameterUpdate",
    "PreferenceLoss",
    "PreferenceLossGrad",
    "RouterLoss",
];

/// The precisions that a run can have.
pub const PRECISIONS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// An example in one of the [`PRECISIONS`]; `None` if the op does not support it.
pub fn in_precision(example: &Example, dtype: DType) -> Option<Example> {
    match dtype {
        DType::F32 => Some(example.clone()),
        _ if SINGLE.contains(&example.op.variant()) => None,
        half => in_half(example, half),
    }
}

/// The example with as many operands in half precision as the op supports; `None` if it supports none.
pub fn in_half(example: &Example, dtype: DType) -> Option<Example> {
    let floats = (0..example.inputs.len()).filter(|&i| example.inputs[i].0.dtype == DType::F32).collect::<Vec<_>>();
    let mut choices = (1..1u32 << floats.len().min(8)).collect::<Vec<_>>();
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

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::Op;

    #[test]
    fn tf32_keeps_eleven_bits_and_rounds_halves_away_from_zero() {
        let unit = 2f32.powi(-10);
        for (value, expected) in [
            (1.0 + 0.5 * unit, 1.0 + unit),
            (-1.0 - 0.5 * unit, -1.0 - unit),
            (1.0 + 0.499 * unit, 1.0),
            (2.0 - 0.25 * unit, 2.0),
            (0.0, 0.0),
            (f32::INFINITY, f32::INFINITY),
        ] {
            assert_eq!(rounded_to_tf32(value), expected, "{value}");
        }
    }

    #[test]
    fn the_worst_element_is_named_and_nan_is_wrong() {
        let example = Op::all_examples().into_iter().find(|example| example.op.variant() == "Add").expect("examples");
        let case = Case::new(&example, &mut Noise::new(1));
        let expected = case.reference();
        let right = expected[0].iter().map(|&x| x as f32).collect::<Vec<_>>();
        let verdict = |found: &[f32]| case.compare(DeviceKind::Cpu, &[encode(DType::F32, found)], &expected);
        assert!(verdict(&right).worst < 0.1 && verdict(&right).wrong.is_none());
        let mut wrong = right.clone();
        (wrong[1], wrong[3]) = (wrong[1] + 0.001, wrong[3] - 0.1);
        let named = verdict(&wrong).wrong.expect("two are wrong");
        assert_eq!((named.output, named.element, named.found), (0, 3, wrong[3]));
        for value in [f32::NAN, f32::INFINITY] {
            wrong[0] = value;
            assert_eq!((verdict(&wrong).worst, verdict(&wrong).wrong.map(|at| at.element)), (f64::INFINITY, Some(0)));
        }
        let both = verdict(&right).and(verdict(&wrong));
        assert_eq!((both.elements, both.worst), (2 * right.len(), f64::INFINITY));
    }
}
