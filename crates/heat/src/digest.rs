//! Reduces notes to what people want to read: the first of a kind at once, then the tenth, the hundredth, and so on,
//! until that kind was absent for four hours. A sensor that fails every ten minutes gives a few messages instead of
//! hundreds.
//! Not here: the notes themselves. Read next: `note.rs`.

use crate::note::{Note, NoteKind};
use plimsoll_units::Seconds;
use std::mem::{Discriminant, discriminant};

/// An episode ends after this long without a note of its kind, s.
const EPISODE_S: f64 = 4.0 * 3600.0;

/// Ratio between the counts of two reported notes.
const TIMES: u32 = 10;

/// A note to report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reported {
    /// The note.
    pub note: Note,
    /// How many notes of its kind this episode has, including this one; 1 for the first.
    pub times: u32,
    /// Time since the first of them.
    pub over: Seconds,
}

/// Counts the notes of each kind and card.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    episodes: Vec<Episode>,
}

#[derive(Debug, Clone, Copy)]
struct Episode {
    card: usize,
    kind: Discriminant<NoteKind>,
    began_s: f64,
    last_s: f64,
    times: u32,
    /// The count at which the episode is reported next.
    next: u32,
}

impl Digest {
    /// Adds a note at this time of a clock that does not jump. `None` if the note should not be reported. A note that
    /// the run must stop is always reported.
    pub fn take(&mut self, time: Seconds, note: Note) -> Option<Reported> {
        let (card, kind, now_s) = (note.card, discriminant(&note.what), time.0);
        self.episodes.retain(|episode| now_s - episode.last_s < EPISODE_S);
        let known = self.episodes.iter_mut().find(|episode| (episode.card, episode.kind) == (card, kind));
        let Some(episode) = known else {
            self.episodes.push(Episode { card, kind, began_s: now_s, last_s: now_s, times: 1, next: TIMES });
            return Some(Reported { note, times: 1, over: Seconds(0.0) });
        };
        episode.last_s = now_s;
        episode.times = episode.times.saturating_add(1);
        if episode.times < episode.next && !matches!(note.what, NoteKind::Stops(_)) {
            return None;
        }
        episode.next = episode.times.saturating_mul(TIMES);
        Some(Reported { note, times: episode.times, over: Seconds((now_s - episode.began_s).max(0.0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Sensor;

    fn lost(card: usize) -> Note {
        Note { card, what: NoteKind::SensorLost { sensor: Sensor::Core, last_c: 60.0 } }
    }

    #[test]
    fn a_sensor_that_fails_every_ten_minutes_is_reported_a_few_times_a_day() {
        let mut digest = Digest::default();
        let mut reported = vec![];
        for minute in (0..24 * 60).step_by(10) {
            let time = Seconds(f64::from(minute) * 60.0);
            reported.extend(digest.take(time, lost(0)));
            let back = Note { card: 0, what: NoteKind::SensorBack { sensor: Sensor::Core, celsius: 60.0 } };
            reported.extend(digest.take(time, back));
        }
        let times = reported.iter().map(|entry| entry.times).collect::<Vec<_>>();
        assert_eq!(times, [1, 1, 10, 10, 100, 100]);
        assert_eq!(reported[2].over, Seconds(5400.0));
    }

    #[test]
    fn a_note_is_reported_again_after_hours_of_silence_and_for_another_card() {
        let mut digest = Digest::default();
        let mut times = |time, card| digest.take(Seconds(time), lost(card)).map(|entry| entry.times);
        assert_eq!((times(0.0, 0), times(1.0, 0), times(2.0, 1)), (Some(1), None, Some(1)));
        assert_eq!(times(14_000.0, 0), None);
        assert_eq!(times(14_000.0 + EPISODE_S, 0), Some(1));
    }
}
