//! Half precision on the processor, for correctness rather than speed: kernels compute in single precision, and what
//! they read or write in half precision is widened before and rounded after, in the working memory that the op
//! declares for it (`Op::working_bytes`).

use super::parallel::{self, CHUNK};
use crate::call::{Call, Input, Output};
use ::half::slice::HalfFloatSliceExt;
use ::half::{bf16, f16};
use plimsoll_graph::{Access, DType, Io, Op, Operand};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::borrow::Cow;

/// `from` in half precision, widened. Panics if the lengths differ, or `dtype` is not half precision.
pub(super) fn widen(dtype: DType, from: &[u8], into: &mut [f32]) {
    assert_eq!(from.len(), 2 * into.len(), "bytes of {} elements", into.len());
    let parts = from.par_chunks(2 * CHUNK).zip(into.par_chunks_mut(CHUNK));
    parallel::for_each(from.len(), parts, |(from, into)| match dtype {
        DType::F16 => bytemuck::cast_slice::<u8, f16>(from).convert_to_f32_slice(into),
        DType::Bf16 => bytemuck::cast_slice::<u8, bf16>(from).convert_to_f32_slice(into),
        other => panic!("{other:?} is not half precision"),
    });
}

/// `from` rounded to the nearest in half precision. Panics if the lengths differ, or `dtype` is not half precision.
pub(super) fn narrow(dtype: DType, from: &[f32], into: &mut [u8]) {
    assert_eq!(into.len(), 2 * from.len(), "bytes of {} elements", from.len());
    let parts = from.par_chunks(CHUNK).zip(into.par_chunks_mut(2 * CHUNK));
    parallel::for_each(2 * from.len(), parts, |(from, into)| match dtype {
        DType::F16 => bytemuck::cast_slice_mut::<u8, f16>(into).convert_from_f32_slice(from),
        DType::Bf16 => bytemuck::cast_slice_mut::<u8, bf16>(into).convert_from_f32_slice(from),
        other => panic!("{other:?} is not half precision"),
    });
}

/// Values in another precision; as they are if it is the same one. Halves of one kind pass through single precision to
/// become the other. Panics if either is not of floats.
pub fn converted(values: &[u8], from: DType, to: DType) -> Cow<'_, [u8]> {
    if from == to {
        return Cow::Borrowed(values);
    }
    // Value by value, since a file may lay them at any byte; and with a single copy, since a tensor may be large.
    let mut into = Vec::with_capacity(values.len() / from.size_bytes() as usize * to.size_bytes() as usize);
    for value in values.chunks_exact(from.size_bytes() as usize) {
        let single = match (from, value) {
            (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (DType::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (other, _) => panic!("{other:?} is not of floats"),
        };
        match to {
            DType::F32 => into.extend_from_slice(&single.to_le_bytes()),
            DType::F16 => into.extend_from_slice(&f16::from_f32(single).to_le_bytes()),
            DType::Bf16 => into.extend_from_slice(&bf16::from_f32(single).to_le_bytes()),
            other => panic!("{other:?} is not of floats"),
        }
    }
    Cow::Owned(into)
}

/// Runs `kernel` on widened operands and rounds its results.
pub(super) fn run_widened(op: &Op, mut call: Call, kernel: fn(&Op, Call)) {
    let widened = op.widened(&call.io).collect::<Vec<_>>();
    let single = |ty: &&plimsoll_graph::TensorType, at: Operand| {
        if widened.iter().any(|(w, _)| *w == at) { ty.with_dtype(DType::F32) } else { (*ty).clone() }
    };
    let input_types =
        call.io.inputs.iter().enumerate().map(|(i, ty)| single(ty, Operand::Input(i))).collect::<Vec<_>>();
    let output_types =
        call.io.outputs.iter().enumerate().map(|(i, ty)| single(ty, Operand::Output(i))).collect::<Vec<_>>();

    let mut scratch = call.take_scratch();
    let mut inputs = call.inputs.clone();
    let mut outputs = std::mem::take(&mut call.outputs).into_iter().map(Some).collect::<Vec<_>>();
    let mut rounded = Vec::new();
    for &(at, bytes) in &widened {
        let (room, rest) = std::mem::take(&mut scratch).split_at_mut(bytes.0 as usize / 4);
        scratch = rest;
        match at {
            Operand::Input(index) => {
                let ty = call.io.inputs[index];
                let room = &mut room[..ty.elements()];
                if let Input::Raw(bytes) = inputs[index] {
                    widen(ty.dtype, bytes, room);
                    inputs[index] = Input::F32(room);
                }
            }
            Operand::Output(index) => {
                let ty = call.io.outputs[index];
                let room = &mut room[..ty.elements()];
                let Some(Output::Raw(bytes)) = outputs[index].take() else { panic!("{ty:?} is handed out as bytes") };
                let lies_here = |i: usize| matches!(inputs.get(i), Some(Input::InOutput));
                let holds_operand = op.reuse().iter().any(|&(i, o)| o == index && lies_here(i));
                if op.access(index) == Access::ReadWrite || holds_operand {
                    widen(ty.dtype, bytes, room);
                }
                rounded.push((ty.dtype, room, bytes));
            }
        }
    }
    let mut rooms = rounded.iter_mut().map(|(_, room, _)| &mut **room);
    let outputs = outputs.into_iter().map(|output| match output {
        Some(output) => output,
        None => Output::F32(rooms.next().expect("room for each output that was taken")),
    });
    let outputs = outputs.collect();
    let io = Io { inputs: input_types.iter().collect(), outputs: output_types.iter().collect() };
    kernel(op, Call { inputs, outputs, scratch, io, scalars: call.scalars, threads: call.threads });
    for (dtype, room, bytes) in rounded {
        narrow(dtype, room, bytes);
    }
}
