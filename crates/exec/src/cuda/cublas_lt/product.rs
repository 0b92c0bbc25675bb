//! A product of the library, ready for its stream, with its description and algorithm. Capturing a step creates and
//! chooses nothing.

use super::description::Description;
use super::handle::{Handle, check};
use super::library::{AlgorithmBits, CublasLtError};
use super::shape::ProductShape;
use crate::cuda::launch::{ALPHA, ZERO_AND_ONE};
use crate::cuda::product::Product;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

/// A product with its addresses.
#[derive(Debug)]
pub(in crate::cuda) struct ReadyProduct {
    shape: ProductShape,
    description: Description,
    algorithm: AlgorithmBits,
    product: Product,
    /// Address and bytes.
    workspace: (u64, u64),
    handle: Arc<Handle>,
}

impl ReadyProduct {
    /// Describes a product of this shape. Errors: the library fails.
    pub(super) fn new(
        handle: &Arc<Handle>,
        shape: ProductShape,
        product: &Product,
        algorithm: AlgorithmBits,
        workspace: (u64, u64),
    ) -> Result<Self, CublasLtError> {
        let scales = product.codes.map_or([0; 2], |codes| codes.scales);
        let description = Description::new(handle, &shape, product.bias, scales)?;
        Ok(Self { shape, description, algorithm, product: *product, workspace, handle: handle.clone() })
    }

    /// Its addresses.
    pub(in crate::cuda) fn addresses(&self) -> [u64; 8] {
        let Product { left, right, result, bias, scaled_by, codes, .. } = self.product;
        let [of_left, of_right] = codes.map_or([0; 2], |codes| codes.scales);
        [left.address, right.address, result.address, bias, scaled_by, of_left, of_right, self.workspace.0]
    }

    /// The same product with another algorithm. Errors: the library fails.
    pub(super) fn computed_by(&self, algorithm: AlgorithmBits) -> Result<Self, CublasLtError> {
        Self::new(&self.handle, self.shape, &self.product, algorithm, self.workspace)
    }

    /// Its shape.
    pub(super) fn shape(&self) -> &ProductShape {
        &self.shape
    }

    /// Its algorithm.
    pub(super) fn algorithm(&self) -> AlgorithmBits {
        self.algorithm
    }

    /// Whether both have the same shape, and so the same algorithm.
    pub(in crate::cuda) fn is_alike(&self, other: &Self) -> bool {
        self.shape == other.shape
    }

    /// Whether its algorithm can run on this card, by enqueuing it on a stream. Errors: as of [`start`](Self::start), for other
    /// reasons.
    ///
    /// # Safety
    /// As for [`start`](Self::start).
    pub(in crate::cuda) unsafe fn can_run(&self, stream: CUstream) -> Result<bool, CublasLtError> {
        // SAFETY: the caller's promise.
        match unsafe { self.start(stream) } {
            Err(error) if error.is_of_algorithm() => Ok(false),
            started => started.map(|()| true),
        }
    }

    /// Enqueues it on a stream. Errors: the library's, with the product.
    ///
    /// # Safety
    /// The addresses are in memory that exists until the stream is done, with the product's types and extents.
    pub(in crate::cuda) unsafe fn start(&self, stream: CUstream) -> Result<(), CublasLtError> {
        let Product { left, right, result, scaled_by, .. } = self.product;
        let Description { product, left: left_layout, right: right_layout, result: result_layout } = &self.description;
        let (one, added) = (1.0f32, f32::from(u8::from(self.shape.accumulates)));
        let on_device = |offset: u64| std::ptr::without_provenance::<c_void>((scaled_by + offset) as usize);
        let (alpha, beta) = if self.shape.is_scaled {
            (on_device(ALPHA), on_device(ZERO_AND_ONE[usize::from(self.shape.accumulates)]))
        } else {
            ((&raw const one).cast(), (&raw const added).cast())
        };
        // SAFETY: the library's objects live as long as this; alpha and beta are read now, or on the card from the
        // run's scalars; the caller guarantees the memory at the addresses.
        let status = unsafe {
            (self.handle.library().functions.multiply)(
                self.handle.at(),
                product.at(),
                alpha,
                right.address,
                right_layout.at(),
                left.address,
                left_layout.at(),
                beta,
                result.address,
                result_layout.at(),
                result.address,
                result_layout.at(),
                &self.algorithm,
                self.workspace.0,
                self.workspace.1 as usize,
                stream.cast(),
            )
        };
        check("cublasLtMatmul", status).map_err(|error| match error {
            CublasLtError::Failed { function, status, .. } => {
                CublasLtError::Failed { function, status, of: Some(self.shape.to_string()) }
            }
            other => other,
        })
    }
}
