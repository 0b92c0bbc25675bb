//! The algorithms that a run stores, so that it computes the same bits when it is resumed.

use super::library::AlgorithmBits;
use super::shape::ProductShape;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The algorithms of a run's products by shape: valid for the same version of the library on the same kind of card.
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
    /// `None` if the library has none, so that a built-in kernel computes it.
    algorithm: Option<AlgorithmBits>,
}

impl Choice {
    pub(super) fn new(shape: ProductShape, algorithm: Option<AlgorithmBits>) -> Self {
        Self { shape, algorithm }
    }
}

impl ProductChoices {
    /// The choices of this version of the library on a card with this name.
    pub(super) fn new(version: (u32, u32, u32), card: &str, products: Vec<Choice>) -> Self {
        let (major, minor, patch) = version;
        Self { cublas_lt: format!("{major}.{minor}.{patch}"), card: card.to_owned(), products }
    }

    /// Why they can't be used here; `None` if they can.
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
