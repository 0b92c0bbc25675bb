//! Products with weights in codes, to the bit those of the ops with the decoded weights: `Linear`, `ExpertLinear` and their
//! gradients of x. For the kernels of all devices.

use plimsoll_exec::CodedMatrix;
use plimsoll_exec::cases::{Case, Noise, PRECISIONS, encode, in_precision};
use plimsoll_exec::reference::Value;
use plimsoll_graph::ops::{
    ExpertLinear, ExpertLinearInputGrad, Linear, LinearInputGrad, QuantizedExpertLinear,
    QuantizedExpertLinearInputGrad, QuantizedLinear, QuantizedLinearInputGrad, WeightLayout,
};
use plimsoll_graph::{DType, Example, Fill, Op, Scalars, TensorType, WeightCodes};

/// Rows, terms and columns. Large enough for tiles on the processor; rows that fill vectors, and rows that do not.
const EXTENTS: [[usize; 3]; 3] = [[40, 128, 96], [33, 70, 45], [70, 390, 200]];

/// Products of experts.
pub struct OfExperts {
    pub experts: usize,
    /// Rows, terms and columns. Nf4 has two numbers in a byte, so columns are even.
    pub extents: [[usize; 3]; 2],
    /// Whether each expert has as many rows; otherwise some have none.
    pub even: bool,
}

/// A product with codes, and the same with decoded weights of this shape.
struct Pair {
    quantized: Op,
    plain: Op,
    weight: Vec<usize>,
    /// Channels of the first operand, and those of the bias if there is one.
    channels: usize,
    bias: Option<usize>,
}

pub fn check_codes(of_experts: &OfExperts, results: impl Fn(&Case) -> Vec<Vec<u8>>) {
    for codes in WeightCodes::ALL {
        let matrices = EXTENTS
            .into_iter()
            .flat_map(|[rows, from, to]| of_matrix(codes, [from, to]).into_iter().map(move |pair| (rows, pair)));
        let experts = of_experts.extents.into_iter().flat_map(|[rows, from, to]| {
            pairs_of_experts(codes, of_experts.experts, [from, to]).into_iter().map(move |pair| (rows, pair))
        });
        for (rows, pair) in matrices.chain(experts) {
            let example = example(&pair, codes, rows);
            for dtype in PRECISIONS {
                let mut case = Case::new(&in_precision(&example, dtype).expect("takes all"), &mut Noise::new(3));
                if let ([experts, _, _], true) = (&pair.weight[..], of_experts.even) {
                    let bounds = (0..=*experts).map(|expert| (rows / experts * expert) as i32).collect();
                    case.inputs[2 + codes.scale_count()] = Value::Int(bounds);
                }
                let decoded = with_decoded(&case, &pair, codes);
                let what = format!("{:?} {dtype:?} {rows} {:?}", case.example.op, pair.weight);
                assert!(results(&case) == results(&decoded), "{what}");
            }
        }
    }
}

fn of_matrix(codes: WeightCodes, [from, to]: [usize; 2]) -> Vec<Pair> {
    let layout = WeightLayout::OutIn;
    let forward = |bias| Pair {
        quantized: QuantizedLinear { codes, bias }.into(),
        plain: Linear { layout, bias }.into(),
        weight: vec![to, from],
        channels: from,
        bias: bias.then_some(to),
    };
    let backward = Pair {
        quantized: QuantizedLinearInputGrad { codes }.into(),
        plain: LinearInputGrad { layout }.into(),
        weight: vec![to, from],
        channels: to,
        bias: None,
    };
    vec![forward(true), forward(false), backward]
}

fn pairs_of_experts(codes: WeightCodes, experts: usize, [from, to]: [usize; 2]) -> Vec<Pair> {
    let pairs = [WeightLayout::InOut, WeightLayout::OutIn].into_iter().flat_map(|layout| {
        let weight = match layout {
            WeightLayout::InOut => vec![experts, from, to],
            WeightLayout::OutIn => vec![experts, to, from],
        };
        let bias = layout == WeightLayout::InOut;
        let forward = Pair {
            quantized: QuantizedExpertLinear { codes, layout, bias }.into(),
            plain: ExpertLinear { layout, bias }.into(),
            weight: weight.clone(),
            channels: from,
            bias: bias.then_some(to),
        };
        let backward = Pair {
            quantized: QuantizedExpertLinearInputGrad { codes, layout }.into(),
            plain: ExpertLinearInputGrad { layout }.into(),
            weight,
            channels: to,
            bias: None,
        };
        [forward, backward]
    });
    pairs.collect()
}

fn example(pair: &Pair, codes: WeightCodes, rows: usize) -> Example {
    let stored = codes.codes(&TensorType::f32(&pair.weight)).expect("whole bytes");
    let mut inputs = vec![(TensorType::f32(&[1, rows, pair.channels]), Fill::Uniform), (stored, Fill::Uniform)];
    inputs.extend(codes.scales(&pair.weight).into_iter().map(|(_, ty)| (ty, Fill::Positive)));
    let experts = &pair.weight[..pair.weight.len() - 2];
    inputs.extend(experts.iter().map(|experts| (TensorType::i32(&[experts + 1]), Fill::Bounds(rows as i32))));
    let bias = pair.bias.map(|channels| TensorType::f32(&[experts, &[channels]].concat()));
    inputs.extend(bias.map(|ty| (ty, Fill::Uniform)));
    Example { op: pair.quantized.clone(), inputs, state: Fill::Uniform, scalars: Scalars::default() }
}

/// The same case with decoded weights.
fn with_decoded(case: &Case, pair: &Pair, codes: WeightCodes) -> Case {
    let tensors = 1..2 + codes.scale_count();
    let bytes = tensors.clone().map(|index| case.input_bytes(index)).collect::<Vec<_>>();
    let [rows, columns] = [2, 1].map(|from_last| pair.weight[pair.weight.len() - from_last]);
    let experts = pair.weight.iter().product::<usize>() / (rows * columns);
    let mut weights = vec![0.0; experts * rows * columns];
    for (expert, weights) in weights.chunks_exact_mut(rows * columns).enumerate() {
        let own = bytes.iter().map(|bytes| &bytes[bytes.len() / experts * expert..][..bytes.len() / experts]);
        let own = own.collect::<Vec<_>>();
        let matrix = CodedMatrix::new(codes, columns, own[0], &own[1..]);
        weights.chunks_exact_mut(columns).enumerate().for_each(|(row, weights)| matrix.decode(row, 0, weights));
    }
    let mut decoded = case.clone();
    let x = case.example.inputs[0].0.clone();
    decoded.example.op = pair.plain.clone();
    decoded.example.inputs.splice(tensors.clone(), [(x.with_shape(&pair.weight), Fill::Uniform)]);
    decoded.inputs.splice(tensors, [Value::Float(rounded(x.dtype, &weights))]);
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
