//! Peak memory of each card during a run, from samples.
//! Not here: taking samples (`plimsoll`), and memory over time (`plimsoll_telemetry::History`).

use plimsoll_registry::CardPeak;
use plimsoll_telemetry::Sample;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Peaks, shared between the sampling thread and the supervisor.
#[derive(Debug, Clone, Default)]
pub struct CardPeaks(Arc<Mutex<BTreeMap<String, CardPeak>>>);

impl CardPeaks {
    /// Adds the peaks that an earlier supervisor recorded.
    pub(crate) fn resume(&self, peaks: &[CardPeak]) {
        peaks.iter().for_each(|peak| self.raise(peak.clone()));
    }

    /// Adds a sample of the cards with these UUIDs.
    pub fn observe(&self, sample: &Sample, uuids: &[String]) {
        for card in sample.cards.iter().filter(|card| uuids.contains(&card.uuid)) {
            let Some(peak) = card.used else { continue };
            self.raise(CardPeak { uuid: card.uuid.clone(), name: card.name.clone(), peak, total: card.total });
        }
    }

    fn raise(&self, seen: CardPeak) {
        let mut peaks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match peaks.get_mut(&seen.uuid) {
            Some(known) => known.peak = known.peak.max(seen.peak),
            None => drop(peaks.insert(seen.uuid.clone(), seen)),
        }
    }

    /// The peaks so far, by UUID.
    pub fn list(&self) -> Vec<CardPeak> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_telemetry::CardSample;
    use plimsoll_units::Bytes;

    #[test]
    fn the_largest_sample_of_all_supervisors_is_the_peak() {
        let peaks = CardPeaks::default();
        let sample = |mib| {
            let card = |uuid: &str| CardSample {
                uuid: uuid.to_owned(),
                name: "RTX 3060".to_owned(),
                used: mib,
                total: Some(Bytes::mib(12288)),
                ..CardSample::default()
            };
            Sample { cards: vec![card("GPU-a"), card("GPU-other")], ..Sample::default() }
        };
        let own = ["GPU-a".to_owned()];
        for mib in [Some(Bytes::mib(3)), Some(Bytes::mib(9)), None, Some(Bytes::mib(5))] {
            peaks.observe(&sample(mib), &own);
        }
        let found = peaks.list();
        assert_eq!(
            found.iter().map(|card| (card.uuid.as_str(), card.peak)).collect::<Vec<_>>(),
            [("GPU-a", Bytes::mib(9))]
        );
        let next = CardPeaks::default();
        next.resume(&found);
        next.observe(&sample(Some(Bytes::mib(4))), &own);
        assert_eq!(next.list(), found);
    }
}
