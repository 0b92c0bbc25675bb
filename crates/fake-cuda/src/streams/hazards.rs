//! The last accesses of every byte by operations. Two operations that access the same byte, one of them writing, must
//! be ordered by streams, events or the host.

use super::clock::{Clock, Lane};
use std::collections::BTreeMap;

/// An operation that accessed bytes: its lane and number.
type Toucher = (Lane, u64);

/// Two unordered operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The earlier one's lane and number.
    pub other: (Lane, u64),
    /// Whether the earlier one wrote.
    pub wrote: bool,
    /// The first shared byte.
    pub start: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Segment {
    end: u64,
    writer: Option<Toucher>,
    /// The last reader of each lane since that write.
    readers: Vec<Toucher>,
}

/// Bytes of device and host, in segments with equal accesses.
#[derive(Debug, Default)]
pub struct Hazards {
    segments: BTreeMap<u64, Segment>,
}

impl Hazards {
    /// Records that operation `by` with clock `clock` accesses bytes. Errors: it is not ordered with an earlier
    /// operation.
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

    /// The parts of these bytes that were last written by an operation of this lane.
    pub fn written_by(&self, lane: Lane, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let before = self.segments.range(..start).next_back().filter(|(_, segment)| segment.end > start);
        let touched = before.into_iter().chain(self.segments.range(start..end));
        let by_it = touched.filter(|(_, segment)| segment.writer.is_some_and(|writer| writer.0 == lane));
        by_it.map(|(from, segment)| (start.max(*from), end.min(segment.end))).collect()
    }

    /// Drops the accesses of freed bytes.
    pub fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let gone = self.segments.range(start..end).map(|(start, _)| *start).collect::<Vec<_>>();
        gone.iter().for_each(|start| {
            self.segments.remove(start);
        });
    }

    /// Splits the segment that contains `at`.
    fn split(&mut self, at: u64) {
        let Some((_, segment)) = self.segments.range_mut(..at).next_back().filter(|(_, segment)| segment.end > at)
        else {
            return;
        };
        let rest = segment.clone();
        segment.end = at;
        self.segments.insert(at, rest);
    }

    /// Adds segments for bytes without accesses.
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

    /// Merges equal neighbors, so that the map does not grow with each launch.
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
    fn only_an_unordered_write_conflicts() {
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
    fn the_last_writer_is_known() {
        let mut hazards = Hazards::default();
        hazards.touch((0, 100), true, (1, 1), &clock(&[])).unwrap();
        hazards.touch((40, 60), true, (2, 1), &clock(&[(1, 1)])).unwrap();
        assert_eq!(hazards.written_by(1, (30, 200)), [(30, 40), (60, 100)]);
        assert_eq!(hazards.written_by(2, (0, 100)), [(40, 60)]);
        assert_eq!(hazards.written_by(3, (0, 100)), []);
    }

    #[test]
    fn equal_neighbors_are_merged() {
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
