//! The cards that commands see.

use plimsoll_telemetry::{Gpu, gpus};

/// The cards that commands see, in their order; empty without a driver.
pub(super) fn visible_cards() -> Vec<Gpu> {
    let mut cards = gpus().map(|gpus| gpus.cards).unwrap_or_default();
    cards.retain(|card| card.cuda_index.is_some());
    cards.sort_by_key(|card| card.cuda_index);
    cards
}

pub(super) fn uuids(cards: &[Gpu]) -> Vec<String> {
    cards.iter().map(|card| card.uuid.clone()).collect()
}

/// The UUIDs of the cards that commands see.
pub(super) fn cards() -> Vec<String> {
    uuids(&visible_cards())
}
