//! The reference kernels: the definition of each op, as simple as possible and generic over the float type, so that
//! finite differences can be computed in double precision. They use vectors, not an arena.
//!
//! Nothing here is fast, and the fast kernels that are compared with it share no code with it.

mod add;
mod attention;
mod await_transfer;
mod by_rows;
mod cached_attention;
mod cast;
mod clamped_swiglu;
mod column_scale;
mod contrastive_loss;
mod dispatch;
mod dropout;
mod embedding;
mod exact_gelu;
mod expert_linear;
mod fp8_linear;
mod gated;
mod gelu;
mod grad_clip;
mod grad_norm;
mod head;
mod head_log_probs;
mod head_loss;
mod keep_gradient;
mod layer_norm;
mod linear;
mod low_rank_norm;
mod moving_average;
mod paired_head_loss;
mod parameter_update;
mod pool;
mod positions;
mod preference_loss;
mod quantized_linear;
mod real;
mod relu;
mod remainder;
mod rms_norm;
mod rotary;
mod route;
mod router_loss;
mod scale;
mod soft_cap;
mod take_row;
mod transfer;
mod uniform_noise;

pub use real::Real;
pub(crate) use remainder::whole;

use plimsoll_graph::{DType, Graph, Io, Op, Program, Scalars, TensorId, match_op};
use std::collections::HashMap;

/// The contents of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<F> {
    /// Floats.
    Float(Vec<F>),
    /// Integers.
    Int(Vec<i32>),
}

impl<F> Value<F> {
    /// The floats. Panics if the tensor holds integers: the graph's types exclude that.
    pub fn floats(&self) -> &[F] {
        match self {
            Self::Float(values) => values,
            Self::Int(_) => panic!("integers where floats are needed"),
        }
    }

    /// The integers. Panics if the tensor holds floats: the graph's types exclude that.
    pub fn ints(&self) -> &[i32] {
        match self {
            Self::Int(values) => values,
            Self::Float(_) => panic!("floats where integers are needed"),
        }
    }
}

/// The arguments of a reference kernel.
#[derive(Debug)]
pub struct RefCall<'a, F> {
    /// Operands in the op's order.
    pub inputs: Vec<&'a Value<F>>,
    /// Types of operands and results.
    pub io: Io<'a>,
    /// The run's scalars.
    pub scalars: &'a Scalars,
}

impl<'a, F> RefCall<'a, F> {
    fn f(&self, index: usize) -> &'a [F] {
        self.inputs[index].floats()
    }

    fn i(&self, index: usize) -> &'a [i32] {
        self.inputs[index].ints()
    }
}

/// The definition of an op's results. Implemented for the op's struct in the file that is named after it.
trait Reference {
    /// Computes the results in `outputs`, which contain the previous values: overwritten, or updated in place. Integers
    /// are written as floats.
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]);
}

/// Runs an op. `outputs` contain the previous values, which the op overwrites or updates.
pub fn run<F: Real>(op: &Op, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    match_op!(op, op => Reference::compute(op, call, outputs));
}

/// Runs a program on `values`, which must contain inputs and persistent tensors; results are added to it.
pub fn interpret<F: Real>(
    graph: &Graph,
    program: &Program,
    values: &mut HashMap<TensorId, Value<F>>,
    scalars: &Scalars,
) {
    for node in &program.nodes {
        let mut outputs = node
            .outputs
            .iter()
            .map(|id| match values.remove(id) {
                Some(Value::Float(present)) => present,
                _ => vec![F::from_f64(f64::NAN); graph[*id].ty.elements()],
            })
            .collect::<Vec<_>>();
        let call = RefCall {
            inputs: node.inputs.iter().map(|id| &values[id]).collect(),
            io: graph.io(&node.inputs, &node.outputs),
            scalars,
        };
        run(&node.op, &call, &mut outputs);
        values.extend(node.outputs.iter().zip(outputs).map(|(&id, found)| (id, value_of(graph[id].ty.dtype, found))));
    }
}

/// A result as a later op takes it.
fn value_of<F: Real>(dtype: DType, found: Vec<F>) -> Value<F> {
    match dtype {
        DType::I32 => Value::Int(found.into_iter().map(|x| x.to_f64() as i32).collect()),
        _ => Value::Float(found),
    }
}

/// A value of this type, filled by `fill`, which gets the element's index.
pub fn filled<F: Real>(ty: &plimsoll_graph::TensorType, mut fill: impl FnMut(usize) -> f64) -> Value<F> {
    match ty.dtype {
        DType::F32 | DType::F16 | DType::Bf16 | DType::I16 | DType::U8 => {
            Value::Float((0..ty.elements()).map(|i| F::from_f64(fill(i))).collect())
        }
        DType::I32 => Value::Int((0..ty.elements()).map(|i| fill(i) as i32).collect()),
    }
}

/// Zeroes an accumulator unless the op adds to it.
fn start<F: Real>(accumulate: bool, target: &mut [F]) {
    if !accumulate {
        target.fill(F::ZERO);
    }
}
