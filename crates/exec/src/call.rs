//! The arguments of a CPU kernel: slices of the arena, types, scratch and the run's scalars.

use plimsoll_graph::{Io, Scalars};

/// An operand of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// Floats.
    F32(&'a [f32]),
    /// Integers.
    I32(&'a [i32]),
    /// Anything else, such as half precision and codes; the types tell which.
    Raw(&'a [u8]),
    /// The operand shares the memory of an output (one of the op's `reuse` pairs): the output slice contains the
    /// operand's values when the kernel starts.
    InOutput,
}

/// A result of a kernel.
#[derive(Debug)]
pub enum Output<'a> {
    /// Floats.
    F32(&'a mut [f32]),
    /// Anything else, such as half precision and codes; the types tell which.
    Raw(&'a mut [u8]),
}

/// One execution of an op. Inputs and outputs come in the op's order; outputs never overlap anything else.
#[derive(Debug)]
pub struct Call<'a> {
    /// Operands.
    pub inputs: Vec<Input<'a>>,
    /// Results; the ones that the op updates contain the old values.
    pub outputs: Vec<Output<'a>>,
    /// Working memory of exactly the size that the op declared, rounded down to whole floats; contents undefined.
    pub scratch: &'a mut [f32],
    /// Types of operands and results.
    pub io: Io<'a>,
    /// The run's scalars.
    pub scalars: &'a Scalars,
    /// Number of workers that the scratch is sized for; kernels must not run more at a time.
    pub threads: usize,
}

impl<'a> Call<'a> {
    /// Operand `index` as floats. Panics if it is something else: the graph's types exclude that.
    pub fn f32(&self, index: usize) -> &'a [f32] {
        match self.inputs[index] {
            Input::F32(slice) => slice,
            other => panic!("operand {index} is {other:?}, floats are needed"),
        }
    }

    /// Operand `index` as floats, or `None` if it shares the memory of an output.
    pub fn f32_unless_in_output(&self, index: usize) -> Option<&'a [f32]> {
        match self.inputs[index] {
            Input::InOutput => None,
            _ => Some(self.f32(index)),
        }
    }

    /// Operand `index` as integers. Panics if it is something else: the graph's types exclude that.
    pub fn i32(&self, index: usize) -> &'a [i32] {
        match self.inputs[index] {
            Input::I32(slice) => slice,
            other => panic!("operand {index} is {other:?}, integers are needed"),
        }
    }

    /// Operand `index` as bytes, whatever its type. Panics if it shares the memory of an output.
    pub fn bytes(&self, index: usize) -> &'a [u8] {
        match self.inputs[index] {
            Input::F32(values) => bytemuck::cast_slice(values),
            Input::I32(values) => bytemuck::cast_slice(values),
            Input::Raw(bytes) => bytes,
            Input::InOutput => panic!("operand {index} shares the memory of an output"),
        }
    }

    /// Operand `index` as bytes, or `None` if it shares the memory of an output.
    pub fn bytes_unless_in_output(&self, index: usize) -> Option<&'a [u8]> {
        match self.inputs[index] {
            Input::InOutput => None,
            _ => Some(self.bytes(index)),
        }
    }

    /// All outputs, which must be floats. Panics if one is something else: the graph's types exclude that.
    pub fn take_f32_outputs(&mut self) -> impl Iterator<Item = &'a mut [f32]> + use<'a> {
        std::mem::take(&mut self.outputs).into_iter().enumerate().map(|(index, output)| match output {
            Output::F32(values) => values,
            Output::Raw(_) => panic!("output {index} is not of floats"),
        })
    }

    /// All outputs as an array of floats. Panics if there are not `N`.
    pub fn take_outputs<const N: usize>(&mut self) -> [&'a mut [f32]; N] {
        let found = self.outputs.len();
        let outputs = self.take_f32_outputs().collect::<Vec<_>>();
        outputs.try_into().unwrap_or_else(|_| panic!("an op with {found} outputs, not {N}"))
    }

    /// All outputs as bytes, whatever their types.
    pub fn take_byte_outputs(&mut self) -> impl Iterator<Item = &'a mut [u8]> + use<'a> {
        std::mem::take(&mut self.outputs).into_iter().map(|output| match output {
            Output::F32(values) => bytemuck::cast_slice_mut(values),
            Output::Raw(bytes) => bytes,
        })
    }

    /// The scratch memory. A second call returns nothing.
    pub fn take_scratch(&mut self) -> &'a mut [f32] {
        std::mem::take(&mut self.scratch)
    }
}
