//! Finds the fastest of several algorithms on the card.

use super::product::ReadyProduct;
use crate::cuda::context::Context;
use crate::cuda::error::CudaError;
use crate::cuda::streams::{Event, Stream};
use std::sync::Arc;

/// Runs per measurement, and number of measurements: the shortest counts, since other processes may use the card.
const RUNS: u32 = 5;
const ROUNDS: usize = 3;

/// Times products on a stream.
pub(in crate::cuda) struct Timer<'a> {
    stream: &'a Stream,
    begin: Event,
    end: Event,
}

impl<'a> Timer<'a> {
    /// Times products on this stream. Errors: the driver's.
    pub(in crate::cuda) fn new(context: &Arc<Context>, stream: &'a Stream) -> Result<Self, CudaError> {
        Ok(Self { stream, begin: Event::timed(context)?, end: Event::timed(context)? })
    }

    /// The fastest of these, the first one if several are equally fast, and those that the library can't run. Errors: one fails
    /// for another reason.
    ///
    /// # Safety
    /// Their addresses are in memory that exists until the stream is done.
    pub(in crate::cuda) unsafe fn fastest(
        &self,
        candidates: Vec<ReadyProduct>,
    ) -> Result<(Option<ReadyProduct>, Vec<ReadyProduct>), CudaError> {
        let mut failed = Vec::new();
        let mut best = None::<(f32, ReadyProduct)>;
        for candidate in candidates {
            // SAFETY: the caller's promise.
            let time = match unsafe { self.time(&candidate) } {
                Err(CudaError::CublasLt(error)) if error.is_of_algorithm() => {
                    failed.push(candidate);
                    continue;
                }
                timed => timed?,
            };
            if best.as_ref().is_none_or(|(shortest, _)| time < *shortest) {
                best = Some((time, candidate));
            }
        }
        Ok((best.map(|(_, fastest)| fastest), failed))
    }

    /// Milliseconds of several runs, after one that loads the kernel.
    ///
    /// # Safety
    /// As for [`fastest`](Self::fastest).
    unsafe fn time(&self, product: &ReadyProduct) -> Result<f32, CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.stream.multiply(product) }?;
        let mut shortest = f32::INFINITY;
        for _ in 0..ROUNDS {
            self.stream.record(&self.begin)?;
            for _ in 0..RUNS {
                // SAFETY: the caller's promise.
                unsafe { self.stream.multiply(product) }?;
            }
            self.stream.record(&self.end)?;
            self.end.synchronize()?;
            shortest = shortest.min(self.end.since(&self.begin)?);
        }
        Ok(shortest)
    }
}
