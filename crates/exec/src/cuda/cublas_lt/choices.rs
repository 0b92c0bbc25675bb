//! What a run keeps of how its products are computed, so that it computes the same bits when it is resumed.

use super::handle::Handle;
use super::library::AlgorithmBits;
use super::shape::ProductShape;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The algorithms of a run's products, by their shapes: of use to the same version of the library on the same kind of card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProductChoices {
    /// `13.1.0`
    cublas_lt: String,
    /// The product.
    card: String,
    products: Vec<Choice>,
}

/// A shape's algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Choice {
    shape: ProductShape,
    /// None where the library has none, so that a kernel of ours computes it.
    algorithm: Option<AlgorithmBits>,
}

impl Choice {
    pub(super) fn new(shape: ProductShape, algorithm: Option<AlgorithmBits>) -> Self {
        Self { shape, algorithm }
    }
}

impl ProductChoices {
    /// These, of a library on a card.
    pub(super) fn of(handle: &Handle, products: impl IntoIterator<Item = Choice>) -> Self {
        let (major, minor, patch) = handle.library().version();
        Self {
            cublas_lt: format!("{major}.{minor}.{patch}"),
            card: handle.context().card().name.clone(),
            products: products.into_iter().collect(),
        }
    }

    /// Why they are of no use here, if they are not.
    pub(super) fn differs_from(&self, here: &Self) -> Option<String> {
        let is_same = (&self.cublas_lt, &self.card) == (&here.cublas_lt, &here.card);
        (!is_same).then(|| {
            format!(
                "the run's products were computed by cuBLASLt {} on {}: their algorithms are chosen again, by {} on {}, and \
                 may round differently",
                self.cublas_lt, self.card, here.cublas_lt, here.card
            )
        })
    }

    pub(super) fn by_shape(&self) -> BTreeMap<ProductShape, Option<AlgorithmBits>> {
        self.products.iter().map(|choice| (choice.shape, choice.algorithm)).collect()
    }
}
