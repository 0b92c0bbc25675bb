//! The algorithm of each product, chosen once for each shape: the one that a resumed run used, or the library's
//! recommendation, or the fastest of several timed ones if requested.
//!
//! An algorithm computes the same bits each time: algorithms whose parts add to the result in place, in an undefined
//! order, are excluded. So a run's bits depend on the shapes of its products, the library's version and the card.

use super::choices::{Choice, ProductChoices};
use super::description::Description;
use super::handle::{Handle, Owned, check};
use super::library::{AlgorithmBits, CublasLtError, HeuristicResult, NOT_SUPPORTED, SUCCESS};
use super::product::ReadyProduct;
use super::shape::ProductShape;
use crate::cuda::product::Product;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `cublasLtMatmulPreferenceAttributes_t`
const WORKSPACE_BYTES: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
/// Attribute of the first factor; those of the second, of the addend and of the result follow.
const ALIGNMENT: c_int = 5;

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: parts are added from the workspace in single precision. The scheme with
/// the output's type would round each part of a result in half precision. Algorithms without parts are always allowed.
const FROM_WORKSPACE: u32 = 2;

/// Number of algorithms requested from the library.
const CANDIDATES: usize = 8;

/// The algorithms of a plan's products.
#[derive(Debug)]
pub(in crate::cuda) struct Algorithms {
    handle: Arc<Handle>,
    tf32: bool,
    workspace_bytes: u64,
    /// The choices of the resumed run.
    kept: BTreeMap<ProductShape, Option<AlgorithmBits>>,
    /// The algorithms of each shape, the chosen one first; empty if the library has none.
    known: BTreeMap<ProductShape, Vec<AlgorithmBits>>,
    /// The shapes of which an algorithm failed.
    failed: BTreeSet<ProductShape>,
    notes: Vec<String>,
}

impl Algorithms {
    /// Without products; algorithms may use `workspace_bytes`. Kept choices are used if they are from the same library
    /// and card.
    pub(in crate::cuda) fn new(
        handle: &Arc<Handle>,
        tf32: bool,
        workspace_bytes: u64,
        kept: Option<&ProductChoices>,
    ) -> Self {
        let here = choices_on(handle, vec![]);
        let (kept, notes) = match kept.map(|kept| (kept, kept.differs_from(&here))) {
            Some((_, Some(difference))) => (BTreeMap::new(), vec![difference]),
            Some((kept, None)) => (kept.by_shape(), vec![]),
            None => (BTreeMap::new(), vec![]),
        };
        Self {
            handle: handle.clone(),
            tf32,
            workspace_bytes,
            kept,
            known: BTreeMap::new(),
            failed: BTreeSet::new(),
            notes,
        }
    }

    /// Chooses an algorithm for this product's shape, unless there is one already. Returns whether there is one.
    /// Errors: the library fails.
    pub(in crate::cuda) fn choose(&mut self, product: &Product) -> Result<bool, CublasLtError> {
        let Some(shape) = ProductShape::of(product, self.tf32) else { return Ok(false) };
        if let Some(known) = self.known.get(&shape) {
            return Ok(!known.is_empty());
        }
        let algorithms = match self.kept.get(&shape).copied() {
            Some(None) => vec![],
            Some(Some(kept)) if self.is_usable(&shape, &kept)? => vec![kept],
            Some(Some(_)) => {
                self.notes.push(format!("cuBLASLt refuses the algorithm that the run had for {shape}: chosen again"));
                self.recommended(&shape)?
            }
            None => self.recommended(&shape)?,
        };
        let has_one = !algorithms.is_empty();
        self.known.insert(shape, algorithms);
        Ok(has_one)
    }

    /// A product for its stream, which works in this workspace; `None` if the library has no algorithm for it.
    /// Errors: the library fails.
    pub(in crate::cuda) fn ready(
        &self,
        product: &Product,
        workspace: u64,
    ) -> Result<Option<ReadyProduct>, CublasLtError> {
        let Some(shape) = ProductShape::of(product, self.tf32) else { return Ok(None) };
        let Some(&algorithm) = self.known.get(&shape).and_then(|known| known.first()) else { return Ok(None) };
        ReadyProduct::new(&self.handle, shape, product, algorithm, (workspace, self.workspace_bytes)).map(Some)
    }

    /// The product with each of its algorithms, the chosen one first. Errors: the library fails.
    pub(in crate::cuda) fn candidates(&self, product: &ReadyProduct) -> Result<Vec<ReadyProduct>, CublasLtError> {
        let known = self.known.get(product.shape()).into_iter().flatten();
        known.map(|algorithm| product.computed_by(*algorithm)).collect()
    }

    /// Chooses this product's algorithm for all products of its shape.
    pub(in crate::cuda) fn prefer(&mut self, product: &ReadyProduct) {
        self.known.insert(*product.shape(), vec![product.algorithm()]);
    }

    /// Excludes this product's algorithm, which the library offered and can't run. Its shape then has the next one, if there is
    /// one.
    pub(in crate::cuda) fn exclude(&mut self, product: &ReadyProduct) {
        self.failed.insert(*product.shape());
        if let Some(known) = self.known.get_mut(product.shape()) {
            known.retain(|algorithm| *algorithm != product.algorithm());
        }
    }

    /// The choices, including the kept ones of other shapes.
    pub(in crate::cuda) fn choices(&self) -> ProductChoices {
        let mut all = self.kept.clone();
        all.extend(self.known.iter().map(|(shape, known)| (*shape, known.first().copied())));
        let all = all.into_iter().map(|(shape, algorithm)| Choice::new(shape, algorithm));
        choices_on(&self.handle, all.collect())
    }

    /// Notes for the user: new choices for refused algorithms, algorithms that failed, and products without an algorithm.
    pub(in crate::cuda) fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let (without, with) = self.known.iter().partition::<Vec<_>, _>(|(_, known)| known.is_empty());
        let replaced = with.into_iter().filter(|(shape, _)| self.failed.contains(shape)).collect::<Vec<_>>();
        for (shapes, problem, solution) in [
            (replaced, "can't run the algorithm that it recommends", "another algorithm computes them"),
            (without, "has no algorithm", "the built-in kernels compute them"),
        ] {
            let others =
                if shapes.len() < 2 { String::new() } else { format!(" and {} other shapes", shapes.len() - 1) };
            let note = |(first, _): &(&ProductShape, _)| {
                format!("cuBLASLt {problem} for products of {first}{others}: {solution}")
            };
            notes.extend(shapes.first().map(note));
        }
        notes
    }

    /// The algorithms that the library can run in the workspace, its recommendation first.
    fn recommended(&self, shape: &ProductShape) -> Result<Vec<AlgorithmBits>, CublasLtError> {
        let functions = &self.handle.library().functions;
        let Description { product, left, right, result } = Description::new(&self.handle, shape, 0, [0; 2])?;
        let preference = self.preference(shape)?;
        let mut found = [HeuristicResult::default(); CANDIDATES];
        let mut count = 0;
        self.handle.context().count_request();
        // SAFETY: all of the library's objects exist, and the array has the requested number of elements.
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
            return Ok(vec![]);
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = found.iter().take(usize::try_from(count).unwrap_or(0)).filter(|result| self.can_run(result));
        Ok(found.map(|result| result.algorithm).collect())
    }

    /// Whether the library accepts an algorithm for a shape: its bits came from a file. Errors: the library fails.
    fn is_usable(&self, shape: &ProductShape, algorithm: &AlgorithmBits) -> Result<bool, CublasLtError> {
        let Description { product, left, right, result } = Description::new(&self.handle, shape, 0, [0; 2])?;
        let mut found = HeuristicResult::default();
        // SAFETY: all of the library's objects exist; the destination is on this stack.
        let status = unsafe {
            (self.handle.library().functions.check)(
                self.handle.at(),
                product.at(),
                right.at(),
                left.at(),
                result.at(),
                result.at(),
                algorithm,
                &mut found,
            )
        };
        Ok(status == SUCCESS && self.can_run(&found))
    }

    fn can_run(&self, result: &HeuristicResult) -> bool {
        result.state == SUCCESS && result.workspace_bytes as u64 <= self.workspace_bytes
    }

    /// The preferences for the library's choice.
    fn preference(&self, shape: &ProductShape) -> Result<Owned, CublasLtError> {
        let functions = &self.handle.library().functions;
        // SAFETY: the destination is on the caller's stack.
        let create = |to| unsafe { (functions.create_preference)(to) };
        let preference = Owned::new("cublasLtMatmulPreferenceCreate", functions.destroy_preference, create)?;
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: the preference exists, and the value has the given number of bytes.
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

/// Choices of the handle's library on its card.
fn choices_on(handle: &Handle, products: Vec<Choice>) -> ProductChoices {
    ProductChoices::new(handle.library().version(), &handle.context().card().name, products)
}
