//! Products with weights in codes, to the bit those of `Linear` and `LinearInputGrad` with the decoded weights. For the
//! kernels of all devices.

use plimsoll_exec::CodedMatrix;
use plimsoll_exec::cases::{Case, Noise, PRECISIONS, encode, in_precision};
use plimsoll_exec::reference::Value;
use plimsoll_graph::ops::{Linear, LinearInputGrad, QuantizedLinear, QuantizedLinearInputGrad, WeightLayout};
use plimsoll_graph::{DType, Example, Fill, Op, Scalars, TensorType, WeightCodes};

/// Large enough for tiles on the processor; rows that fill vectors, and rows that do not.
const EXTENTS: [[usize; 3]; 3] = [[40, 128, 96], [33, 70, 45], [70, 390, 200]];

pub fn check_codes(results: impl Fn(&Case) -> Vec<Vec<u8>>) {
    let layout = WeightLayout::OutIn;
    for codes in WeightCodes::ALL {
        for [rows, from, to] in EXTENTS {
            let pairs: [(Op, Op, usize, bool); 3] = [
                (QuantizedLinear { codes, bias: true }.into(), Linear { layout, bias: true }.into(), from, true),
                (QuantizedLinear { codes, bias: false }.into(), Linear { layout, bias: false }.into(), from, false),
                (QuantizedLinearInputGrad { codes }.into(), LinearInputGrad { layout }.into(), to, false),
            ];
            for (quantized, plain, channels, bias) in pairs {
                let example = example(quantized, codes, [rows, channels], [to, from], bias);
                for dtype in PRECISIONS {
                    let case = Case::new(&in_precision(&example, dtype).expect("takes all"), &mut Noise::new(3));
                    let decoded = with_decoded(&case, &plain, codes, [to, from]);
                    let what = format!("{:?} {dtype:?} {rows} {from} {to}", case.example.op);
                    assert!(results(&case) == results(&decoded), "{what}");
                }
            }
        }
    }
}

fn example(op: Op, codes: WeightCodes, [rows, channels]: [usize; 2], weight: [usize; 2], bias: bool) -> Example {
    let stored = codes.codes(&TensorType::f32(&weight)).expect("whole bytes");
    let mut inputs = vec![(TensorType::f32(&[1, rows, channels]), Fill::Uniform), (stored, Fill::Uniform)];
    inputs.extend(codes.scales(weight).into_iter().map(|(_, ty)| (ty, Fill::Positive)));
    inputs.extend(bias.then(|| (TensorType::f32(&weight[..1]), Fill::Uniform)));
    Example { op, inputs, state: Fill::Uniform, scalars: Scalars::default() }
}

/// The same case with decoded weights.
fn with_decoded(case: &Case, plain: &Op, codes: WeightCodes, [to, from]: [usize; 2]) -> Case {
    let scales = codes.scales([to, from]).len();
    let bytes = (1..2 + scales).map(|index| case.input_bytes(index)).collect::<Vec<_>>();
    let scales_bytes = bytes[1..].iter().map(Vec::as_slice).collect::<Vec<_>>();
    let matrix = CodedMatrix::new(codes, from, &bytes[0], &scales_bytes);
    let mut weights = vec![0.0; to * from];
    for (row, weights) in weights.chunks_exact_mut(from).enumerate() {
        matrix.decode(row, 0, weights);
    }
    let mut decoded = case.clone();
    let x = case.example.inputs[0].0.clone();
    decoded.example.op = plain.clone();
    decoded.example.inputs.splice(1..2 + scales, [(x.with_shape(&[to, from]), Fill::Uniform)]);
    decoded.inputs.splice(1..2 + scales, [Value::Float(rounded(x.dtype, &weights))]);
    decoded
}

fn rounded(dtype: DType, weights: &[f32]) -> Vec<f32> {
    let stored = encode(dtype, weights);
    match dtype {
        DType::F16 => stored.as_chunks().0.iter().map(|&bytes| half::f16::from_le_bytes(bytes).to_f32()).collect(),
        DType::Bf16 => stored.as_chunks().0.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect(),
        _ => weights.to_vec(),
    }
}
