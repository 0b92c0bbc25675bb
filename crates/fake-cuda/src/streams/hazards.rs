//! Who touched which bytes last, over all operations; two that touch the same bytes, one of them writing, must be
//! ordered by streams, events or the host.

use super::clock::{Clock, Lane};
use std::collections::BTreeMap;

/// An operation that touched bytes: its lane and its number there.
type Toucher = (Lane, u64);

/// Two operations that are not ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The earlier one's lane and number.
    pub other: (Lane, u64),
    /// Whether the earlier one wrote.
    pub wrote: bool,
    /// The first byte in common.
    pub start: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Segment {
    end: u64,
    writer: Option<Toucher>,
    /// The last reader of each lane since then.
    readers: Vec<Toucher>,
}

/// Bytes of device and host, in segments that were touched alike.
#[derive(Debug, Default)]
pub struct Hazards {
    segments: BTreeMap<u64, Segment>,
}

impl Hazards {
    /// Operation `by`, which knows `clock`, touches bytes. Errors: one before it that it does not know of.
    pub fn touch(
        &mut self,
        (start, end): (u64, u64),
        write: bool,
        by: (Lane, u64),
        clock: &Clock,
    ) -> Result<(), Conflict> {
        if start >= end {
            return Ok(());
        }
        self.split(start);
        self.split(end);
        self.fill(start, end);
        for (start, segment) in self.segments.range_mut(start..end) {
            let unknown = |other: &&Toucher| !clock.knows(other.0, other.1);
            if let Some(other) = segment.writer.iter().find(unknown) {
                return Err(Conflict { other: *other, wrote: true, start: *start });
            }
            if !write {
                segment.readers.retain(|reader| reader.0 != by.0);
                segment.readers.push(by);
                continue;
            }
            if let Some(other) = segment.readers.iter().find(unknown) {
                return Err(Conflict { other: *other, wrote: false, start: *start });
            }
            segment.writer = Some(by);
            segment.readers.clear();
        }
        self.merge(start, end);
        Ok(())
    }

    /// The parts of these bytes that an operation of this lane wrote last.
    pub fn written_by(&self, lane: Lane, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let before = self.segments.range(..start).next_back().filter(|(_, segment)| segment.end > start);
        let touched = before.into_iter().chain(self.segments.range(start..end));
        let by_it = touched.filter(|(_, segment)| segment.writer.is_some_and(|writer| writer.0 == lane));
        by_it.map(|(from, segment)| (start.max(*from), end.min(segment.end))).collect()
    }

    /// Forgets what was touched of bytes that are given back.
    pub fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let gone = self.segments.range(start..end).map(|(start, _)| *start).collect::<Vec<_>>();
        gone.iter().for_each(|start| {
            self.segments.remove(start);
        });
    }

    /// Makes a segment end at `at`, if one runs across it.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back().filter(|(_, segment)| segment.end > at)
        else {
            return;
        };
        let rest = segment.clone();
        segment.end = at;
        self.segments.insert(at, rest);
    }

    /// Makes segments where nothing was touched yet.
    fn fill(&mut self, start: u64, end: u64) {
        let mut gaps = Vec::new();
        let mut at = start;
        for (from, segment) in self.segments.range(start..end) {
            if *from > at {
                gaps.push((at, *from));
            }
            at = segment.end;
        }
        if at < end {
            gaps.push((at, end));
        }
        for (from, end) in gaps {
            self.segments.insert(from, Segment { end, ..Segment::default() });
        }
    }

    /// Joins neighbors that are alike, so that the map does not grow with every launch.
    fn merge(&mut self, start: u64, end: u64) {
        let first = self.segments.range(..start).next_back().map_or(start, |(first, _)| *first);
        let keys = self.segments.range(first..=end).map(|(start, _)| *start).collect::<Vec<_>>();
        let mut kept = keys[0];
        for &key in &keys[1..] {
            let (left, right) = (&self.segments[&kept], &self.segments[&key]);
            let alike = left.end == key && left.writer == right.writer && left.readers == right.readers;
            if !alike {
                kept = key;
                continue;
            }
            let end = right.end;
            self.segments.remove(&key);
            if let Some(left) = self.segments.get_mut(&kept) {
                left.end = end;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(known: &[(Lane, u64)]) -> Clock {
        let mut clock = Clock::default();
        known.iter().for_each(|(lane, tick)| clock.learn(*lane, *tick));
        clock
    }

    #[test]
    fn only_a_write_that_is_not_ordered_conflicts() {
        let mut hazards = Hazards::default();
        hazards.touch((0, 100), true, (1, 1), &clock(&[])).unwrap();
        let conflict = hazards.touch((50, 60), false, (2, 1), &clock(&[])).unwrap_err();
        assert_eq!(conflict, Conflict { other: (1, 1), wrote: true, start: 50 });
        hazards.touch((50, 60), false, (2, 2), &clock(&[(1, 1)])).unwrap();
        hazards.touch((55, 70), false, (3, 1), &clock(&[(1, 1)])).unwrap();
        let conflict = hazards.touch((0, 100), true, (1, 2), &clock(&[(1, 1), (2, 2)])).unwrap_err();
        assert_eq!(conflict, Conflict { other: (3, 1), wrote: false, start: 55 });
        hazards.touch((0, 100), true, (1, 3), &clock(&[(1, 2), (2, 2), (3, 1)])).unwrap();
    }

    #[test]
    fn who_wrote_bytes_last_is_known() {
        let mut hazards = Hazards::default();
        hazards.touch((0, 100), true, (1, 1), &clock(&[])).unwrap();
        hazards.touch((40, 60), true, (2, 1), &clock(&[(1, 1)])).unwrap();
        assert_eq!(hazards.written_by(1, (30, 200)), [(30, 40), (60, 100)]);
        assert_eq!(hazards.written_by(2, (0, 100)), [(40, 60)]);
        assert_eq!(hazards.written_by(3, (0, 100)), []);
    }

    #[test]
    fn neighbors_that_are_alike_are_one() {
        let mut hazards = Hazards::default();
        for tick in 1..50 {
            hazards.touch((tick, tick + 1), true, (1, 1), &clock(&[(1, 1)])).unwrap();
        }
        assert_eq!(hazards.segments.len(), 1);
        hazards.forget(10, 20);
        assert_eq!(hazards.segments.len(), 2);
        hazards.touch((10, 20), true, (9, 1), &clock(&[])).unwrap();
    }
}
