//! What a PyTorch run takes of a card: as text and as JSON.
//! Not here: the estimate itself (`plimsoll_eager`), what trainers are told (`plimsoll_trainers`).

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

/// What there is to say of a run.
pub struct EstimateReport<'a> {
    /// The model's name.
    pub model: &'a str,
    /// What was asked for.
    pub run: &'a Run,
    /// What a trainer was told, if anything was read.
    pub read: Option<&'a Read>,
    /// Files that could not be read; whole sentences.
    pub missing: &'a [String],
    /// What the run takes.
    pub estimate: &'a Estimate,
    /// The card, if there is one.
    pub card: Option<EstimateCard<'a>>,
    /// The smallest card that is sold with enough memory, and how much it has.
    pub smallest: Option<(&'static str, Bytes)>,
    /// The nearest runs that fit, if this one does not, or only may.
    pub ways: Vec<EstimateWay<'a>>,
}

/// A card, and whether the run fits it.
pub struct EstimateCard<'a> {
    /// Its name.
    pub name: &'a str,
    /// All of its memory.
    pub memory: Bytes,
    /// Kept free of it.
    pub margin: Bytes,
    /// Whether the run fits what is left.
    pub verdict: Verdict,
}

/// A run that fits.
pub struct EstimateWay<'a> {
    /// The run.
    pub run: &'a Run,
    /// What it takes.
    pub estimate: &'a Estimate,
    /// Whether it trains additions in place of the weights.
    pub trains_less: bool,
}

/// A part of what is allocated at the peak.
struct Part {
    /// What it is for.
    name: String,
    bytes: Bytes,
    /// How many storages it has; none where it is no storage's.
    storages: Option<u64>,
}

/// The parts that add up to what is allocated: storages by what they are for, the largest first, and what of their blocks is
/// beyond what was asked for, since the allocator does not split off a small rest.
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
