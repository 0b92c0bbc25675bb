//! Which algorithm each product has: chosen once for each shape, by what the library recommends.
//!
//! An algorithm computes the same bits each time: those are left out whose parts add to the result in place, in whatever
//! order they come. So a run's bits depend on the shapes of its products, the library's version and the card.

use super::handle::{Handle, Owned, check};
use super::library::{AlgorithmBits, CublasLtError, HeuristicResult, NOT_SUPPORTED, SUCCESS};
use super::product::ReadyProduct;
use super::shape::{Description, ProductShape};
use crate::cuda::ops::Product;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `cublasLtMatmulPreferenceAttributes_t`
const WORKSPACE_BYTES: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
/// Of the first factor; those of the second, of what is added to and of the result follow.
const ALIGNMENT: c_int = 5;

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE` and `CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE`: parts are added up from the
/// workspace. Algorithms without parts need not be named.
const FROM_WORKSPACE: u32 = 2 | 4;

/// How many the library is asked for: the first that it can run counts.
const CANDIDATES: usize = 8;

/// The algorithms of a plan's products.
#[derive(Debug)]
pub(in crate::cuda) struct Algorithms {
    handle: Arc<Handle>,
    tf32: bool,
    workspace_bytes: u64,
    /// None for shapes that the library has no algorithm for.
    chosen: HashMap<ProductShape, Option<AlgorithmBits>>,
}

impl Algorithms {
    /// No products yet; algorithms may use so much workspace.
    pub(in crate::cuda) fn new(handle: &Arc<Handle>, tf32: bool, workspace_bytes: u64) -> Self {
        Self { handle: handle.clone(), tf32, workspace_bytes, chosen: HashMap::new() }
    }

    /// Chooses an algorithm for products of this one's shape, if that was not done yet. Whether there is one.
    /// Errors: the library fails.
    pub(in crate::cuda) fn choose(&mut self, product: &Product) -> Result<bool, CublasLtError> {
        let Some(shape) = ProductShape::of(product, self.tf32) else { return Ok(false) };
        if let Some(known) = self.chosen.get(&shape) {
            return Ok(known.is_some());
        }
        let best = self.recommended(&shape)?;
        self.chosen.insert(shape, best);
        Ok(best.is_some())
    }

    /// A product for its stream, which works in this workspace; `None` if the library has no algorithm for it.
    /// Errors: the library fails.
    pub(in crate::cuda) fn ready(
        &self,
        product: &Product,
        workspace: u64,
    ) -> Result<Option<ReadyProduct>, CublasLtError> {
        let Some(shape) = ProductShape::of(product, self.tf32) else { return Ok(None) };
        let Some(algorithm) = self.chosen.get(&shape).copied().flatten() else { return Ok(None) };
        ReadyProduct::new(&self.handle, shape, product, algorithm, (workspace, self.workspace_bytes)).map(Some)
    }

    /// What a user should know: the products that the library has no algorithm for.
    pub(in crate::cuda) fn note(&self) -> Option<String> {
        let mut without = self.chosen.iter().filter(|(_, best)| best.is_none()).map(|(shape, _)| shape.to_string());
        let first = without.by_ref().min()?;
        let others = self.chosen.values().filter(|best| best.is_none()).count() - 1;
        let others = if others == 0 { String::new() } else { format!(" and {others} other shapes") };
        Some(format!("cuBLASLt has no algorithm for products of {first}{others}: the built-in kernels compute them"))
    }

    /// The library's first choice that it can run in the workspace.
    fn recommended(&self, shape: &ProductShape) -> Result<Option<AlgorithmBits>, CublasLtError> {
        let functions = &self.handle.library().functions;
        let Description { product, left, right, result } = Description::new(&self.handle, shape, 0)?;
        let preference = self.preference(shape)?;
        let mut found = [HeuristicResult::default(); CANDIDATES];
        let mut count = 0;
        self.handle.context().count_request();
        // SAFETY: all of the library's objects exist, and there are as many places as are asked for.
        let status = unsafe {
            (functions.heuristic)(
                self.handle.at(),
                product.at(),
                right.at(),
                left.at(),
                result.at(),
                result.at(),
                preference.at(),
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        if status == NOT_SUPPORTED {
            return Ok(None);
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let can_run = |result: &&HeuristicResult| {
            result.state == SUCCESS && result.workspace_bytes as u64 <= self.workspace_bytes
        };
        let found = found.iter().take(usize::try_from(count).unwrap_or(0)).find(can_run);
        Ok(found.map(|result| result.algorithm))
    }

    /// What the library is to choose from.
    fn preference(&self, shape: &ProductShape) -> Result<Owned, CublasLtError> {
        let functions = &self.handle.library().functions;
        // SAFETY: the place is on the caller's stack.
        let create = |to| unsafe { (functions.create_preference)(to) };
        let preference = Owned::new("cublasLtMatmulPreferenceCreate", functions.destroy_preference, create)?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference exists, and the value has so many bytes.
            let status = unsafe { (functions.prefer)(preference.at(), attribute, value, bytes) };
            check("cublasLtMatmulPreferenceSetAttribute", status)
        };
        let (workspace, schemes) = (self.workspace_bytes, FROM_WORKSPACE);
        set(WORKSPACE_BYTES, (&raw const workspace).cast(), size_of::<u64>())?;
        set(REDUCTION_SCHEMES, (&raw const schemes).cast(), size_of::<u32>())?;
        for (attribute, alignment) in (ALIGNMENT..).zip(shape.alignments()) {
            set(attribute, (&raw const alignment).cast(), size_of::<u32>())?;
        }
        Ok(preference)
    }
}
