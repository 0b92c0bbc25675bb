//! The GPU memory that a PyTorch run needs: as text and as JSON.
//! Not here: the estimate itself (`plimsoll_eager`), the settings of trainers (`plimsoll_trainers`).

mod json;
mod text;
mod words;

pub use json::estimate_json;
pub use text::estimate_text;
pub use words::{changed_words, estimate_warnings};

use plimsoll_eager::{Estimate, Kind, Verdict};
use plimsoll_trainers::{Read, Run};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;

/// An estimate of a run, with the context that its views show.
pub struct EstimateReport<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The run's settings.
    pub run: &'a Run,
    /// The trainer's settings, if any were read.
    pub read: Option<&'a Read>,
    /// Files that could not be read; whole sentences.
    pub missing: &'a [String],
    /// The estimate.
    pub estimate: &'a Estimate,
    /// The card, if there is one.
    pub card: Option<EstimateCard<'a>>,
    /// The smallest card on the market with enough memory, and its memory.
    pub smallest: Option<(&'static str, Bytes)>,
    /// The nearest runs that fit, if this one does not or only may.
    pub ways: Vec<EstimateWay<'a>>,
}

/// A card, and whether the run fits it.
pub struct EstimateCard<'a> {
    /// Its name.
    pub name: &'a str,
    /// All of its memory.
    pub memory: Bytes,
    /// Memory that is kept free.
    pub margin: Bytes,
    /// Whether the run fits the rest.
    pub verdict: Verdict,
}

/// A run that fits.
pub struct EstimateWay<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its estimate.
    pub estimate: &'a Estimate,
    /// Whether it trains LoRA adapters in place of the weights.
    pub trains_less: bool,
}

/// A part of what is allocated at the peak.
struct Part {
    /// Its purpose.
    name: String,
    bytes: Bytes,
    /// The number of storages; `None` if the part is not made of storages.
    storages: Option<u64>,
}

/// The parts that add up to the allocated bytes: storages by purpose, the largest first, then the bytes of their blocks
/// beyond the requests, since the allocator does not split off a small remainder.
fn parts(estimate: &Estimate) -> Vec<Part> {
    let mut kinds: BTreeMap<Kind, (u64, u64)> = BTreeMap::new();
    for share in &estimate.breakdown {
        let (bytes, count) = kinds.entry(share.kind).or_default();
        *bytes += share.bytes.0;
        *count += share.count;
    }
    let mut kinds = kinds.into_iter().collect::<Vec<_>>();
    kinds.sort_by_key(|(kind, (bytes, _))| (std::cmp::Reverse(*bytes), *kind));
    let asked = Bytes(kinds.iter().map(|(_, (bytes, _))| bytes).sum());
    let part = |(kind, (bytes, count)): (Kind, (u64, u64))| Part {
        name: kind.to_string(),
        bytes: Bytes(bytes),
        storages: Some(count),
    };
    let rests = estimate.likely.allocated.saturating_sub(asked);
    let rests =
        (rests > Bytes::ZERO).then(|| Part { name: "rests of blocks".to_owned(), bytes: rests, storages: None });
    kinds.into_iter().map(part).chain(rests).collect()
}
