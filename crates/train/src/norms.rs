//! The norms of frozen weights, which adapters with magnitudes need. They are computed once, from the weights as they are
//! stored.

use crate::{Engine, TrainError};
use plimsoll_exec::{CodedMatrix, converted};
use plimsoll_graph::ops::WeightLayout;
use plimsoll_graph::{DType, OutputNorms, Parameter};
use rayon::prelude::*;

impl Engine {
    /// Computes the norms of all weights that need them. Call when the weights are there. Errors: the device fails.
    pub(crate) fn fill_norms(&mut self) -> Result<(), TrainError> {
        for parameter in self.parameters().to_vec() {
            let Some(OutputNorms { tensor, layout }) = parameter.norms else { continue };
            let norms = self.norms(&parameter, layout)?;
            self.write(tensor, bytemuck::cast_slice(&norms))?;
        }
        Ok(())
    }

    /// The norm of each output's weights.
    fn norms(&self, parameter: &Parameter, layout: WeightLayout) -> Result<Vec<f32>, TrainError> {
        let stored = &self.plan()[parameter.tensor].ty;
        let shape = parameter.shape(stored);
        let (rows, columns) = (shape[0], shape[1]);
        let bytes = self.view(parameter.tensor)?;
        let Some(coded) = &parameter.coded else {
            let of_row = columns * stored.dtype.size_bytes() as usize;
            return Ok(norms_of(layout, [rows, columns], |row, values| {
                let single = converted(&bytes[row * of_row..][..of_row], stored.dtype, DType::F32);
                let single = single.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value));
                values.iter_mut().zip(single).for_each(|(value, single)| *value = single);
            }));
        };
        let scales = coded.scales.iter().map(|&scale| {
            let bytes = self.view(scale)?;
            // Words, so that scales in single precision are aligned.
            let mut words = vec![0_u32; bytes.len().div_ceil(size_of::<u32>())];
            bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
            Ok((words, bytes.len()))
        });
        let scales = scales.collect::<Result<Vec<_>, TrainError>>()?;
        let scales = scales.iter().map(|(words, bytes)| &bytemuck::cast_slice(words)[..*bytes]).collect::<Vec<_>>();
        let matrix = CodedMatrix::new(coded.format, columns, &bytes, &scales);
        Ok(norms_of(layout, [rows, columns], |row, values| matrix.decode(row, 0, values)))
    }
}

/// The norms of the outputs of a matrix whose rows `read` sets, in double precision.
fn norms_of(layout: WeightLayout, [rows, columns]: [usize; 2], read: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    match layout {
        WeightLayout::OutIn => {
            let norm = |values: &mut Vec<f32>, row| {
                read(row, values);
                values.iter().map(square).sum::<f64>().sqrt() as f32
            };
            (0..rows).into_par_iter().map_init(|| vec![0.0; columns], norm).collect()
        }
        WeightLayout::InOut => {
            let (mut values, mut sums) = (vec![0.0; columns], vec![0.0; columns]);
            for row in 0..rows {
                read(row, &mut values);
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += square(value));
            }
            sums.into_iter().map(|sum| sum.sqrt() as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_those_of_outputs_in_either_layout() {
        let matrix = [[3.0, 4.0], [0.0, 5.0], [4.0, 0.0]];
        let read = |row: usize, values: &mut [f32]| values.copy_from_slice(&matrix[row]);
        assert_eq!(norms_of(WeightLayout::OutIn, [3, 2], read), [5.0, 5.0, 4.0]);
        assert_eq!(norms_of(WeightLayout::InOut, [3, 2], read), [5.0, 41_f32.sqrt()]);
    }
}
