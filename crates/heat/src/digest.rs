//! Notes as people want them: the first of a kind at once, then the tenth, the hundredth, until there was none for four hours. A
//! sensor that drops out each ten minutes is one story and not hundreds.
//! Not here: the notes themselves. Read next: `note.rs`.

use crate::note::{Note, What};
use plimsoll_units::Seconds;
use std::mem::{Discriminant, discriminant};

/// After so long without a note of its kind, a story is over, s.
const STORY_S: f64 = 4.0 * 3600.0;

/// Each time that is told is so many times the one before.
const TIMES: u32 = 10;

/// A note that is to be told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// The note.
    pub note: Note,
    /// How often its kind was noted in this story, this one included; 1 for the first.
    pub times: u32,
    /// Since the first of them.
    pub over: Seconds,
}

/// What was told of each kind of note of each card.
#[derive(Debug, Clone, Default)]
pub struct Digest {
    stories: Vec<Story>,
}

#[derive(Debug, Clone, Copy)]
struct Story {
    card: usize,
    kind: Discriminant<What>,
    began_s: f64,
    last_s: f64,
    times: u32,
    /// The next time that is told.
    next: u32,
}

impl Digest {
    /// A note at this time of a clock that does not jump; none if it is not to be told. That a run must stop is told in any case.
    pub fn take(&mut self, time: Seconds, note: Note) -> Option<Told> {
        let (card, kind, now_s) = (note.card, discriminant(&note.what), time.0);
        self.stories.retain(|story| now_s - story.last_s < STORY_S);
        let known = self.stories.iter_mut().find(|story| (story.card, story.kind) == (card, kind));
        let Some(story) = known else {
            self.stories.push(Story { card, kind, began_s: now_s, last_s: now_s, times: 1, next: TIMES });
            return Some(Told { note, times: 1, over: Seconds(0.0) });
        };
        story.last_s = now_s;
        story.times = story.times.saturating_add(1);
        if story.times < story.next && !matches!(note.what, What::Stops(_)) {
            return None;
        }
        story.next = story.times.saturating_mul(TIMES);
        Some(Told { note, times: story.times, over: Seconds((now_s - story.began_s).max(0.0)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reading::Sensor;

    fn lost(card: usize) -> Note {
        Note { card, what: What::SensorLost { sensor: Sensor::Core, last_c: 60.0 } }
    }

    #[test]
    fn a_sensor_that_drops_out_each_ten_minutes_is_a_few_notes_a_day() {
        let mut digest = Digest::default();
        let mut told = vec![];
        for minute in (0..24 * 60).step_by(10) {
            let time = Seconds(f64::from(minute) * 60.0);
            told.extend(digest.take(time, lost(0)));
            let back = Note { card: 0, what: What::SensorBack { sensor: Sensor::Core, celsius: 60.0 } };
            told.extend(digest.take(time, back));
        }
        let times = told.iter().map(|told| told.times).collect::<Vec<_>>();
        assert_eq!(times, [1, 1, 10, 10, 100, 100]);
        assert_eq!(told[2].over, Seconds(5400.0));
    }

    #[test]
    fn after_hours_of_quiet_and_of_another_card_it_is_told_again() {
        let mut digest = Digest::default();
        let mut times = |time, card| digest.take(Seconds(time), lost(card)).map(|told| told.times);
        assert_eq!((times(0.0, 0), times(1.0, 0), times(2.0, 1)), (Some(1), None, Some(1)));
        assert_eq!(times(14_000.0, 0), None);
        assert_eq!(times(14_000.0 + STORY_S, 0), Some(1));
    }
}
