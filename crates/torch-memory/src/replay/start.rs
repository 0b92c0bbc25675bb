//! The state at the start of a recording, by going backwards from its end.
//!
//! Blocks and segments follow from the events by themselves. Two things do not, and are inferred:
//! - the size of a block that was there before and did not outlive the recording: what it was rounded to, and the rest up
//!   to its neighbor if that is too little to be a free block of its own. With a free block behind it, that one begins
//!   where the first allocation is put that is cut off it; if there is none, the file does not say where;
//! - where an expandable segment begins: at the lowest address that it had memory at.

use crate::allocator::{Part, SMALL, StartRange};
use crate::snapshot::{Action, BlockState, CardRecord, Event, PoolId, Settings, StackId};
use std::collections::BTreeMap;

/// What there was before the first event.
#[derive(Debug, Default)]
pub struct Start {
    /// Ranges with memory, by address.
    pub ranges: Vec<StartRange>,
    /// Blocks in use, in the order of their addresses.
    pub blocks: Vec<StartBlock>,
    /// What belongs to other pools than the default.
    pub private: PrivateRanges,
    /// Events and blocks that contradict each other: other threads went on while the snapshot was made, or it is damaged.
    pub contradictions: usize,
}

/// A block in use at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartBlock {
    /// Where it lies.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What was asked for.
    pub requested: u64,
    /// Its stream.
    pub stream: u64,
    /// Who asked for it, if the recording's end says so.
    pub stack: StackId,
    /// The pool that it lies in.
    pub pool: PoolId,
}

/// The segments that belong to pools of CUDA graphs or to `MemPool`s at the end, with since when: before, other segments may
/// have been there.
#[derive(Debug, Default, Clone)]
pub struct PrivateRanges(Vec<PrivateRange>);

#[derive(Debug, Clone, Copy)]
struct PrivateRange {
    from: u64,
    until: u64,
    /// The first event at which it is there.
    since: usize,
    pool: PoolId,
}

impl PrivateRanges {
    fn of(record: &CardRecord) -> Self {
        let private = record.segments.iter().filter(|segment| segment.pool != (0, 0));
        let private = private.map(|segment| {
            let (from, until) = (segment.address, segment.address + segment.bytes);
            let ends = |event: &Event| {
                let is_release = matches!(event.action, Action::SegmentFree | Action::SegmentUnmap);
                is_release && event.address < until && from < event.address + event.bytes
            };
            let since = record.events.iter().rposition(ends).map_or(0, |index| index + 1);
            PrivateRange { from, until, since, pool: segment.pool }
        });
        Self(private.collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pool that an address is of at an event.
    pub fn pool(&self, address: u64, event: usize) -> PoolId {
        let holds = |range: &&PrivateRange| range.from <= address && address < range.until && range.since <= event;
        self.0.iter().find(holds).map_or((0, 0), |range| range.pool)
    }
}

/// A range with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    bytes: u64,
    kind: Kind,
    /// Whether it is a part of an expandable segment, of which there is one for each kind at a time.
    expandable: bool,
}

/// What may share a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    stream: u64,
    small: bool,
    pool: PoolId,
}

/// A block in use; its size where it is known.
#[derive(Debug, Clone, Copy)]
struct Used {
    bytes: Option<u64>,
    /// The first block that was put behind it while it was there.
    behind: Option<u64>,
    requested: u64,
    stack: StackId,
}

/// Rebuilds the state before the first event of a card.
pub fn start(record: &CardRecord, settings: &Settings) -> Start {
    let private = PrivateRanges::of(record);
    let kinds = Kinds::of(record, &private, settings.large_segment_bytes);
    let mut backwards = Backwards { ranges: BTreeMap::new(), used: BTreeMap::new(), contradictions: 0 };
    for segment in &record.segments {
        let kind = Kind { stream: segment.stream, small: segment.small, pool: segment.pool };
        let range = Range { bytes: segment.bytes, kind, expandable: segment.expandable };
        backwards.ranges.insert(segment.address, range);
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            let used = Used { bytes: Some(block.bytes), behind: None, requested: block.requested, stack: block.stack };
            backwards.used.insert(block.address, used);
        }
    }
    for event in record.events.iter().rev() {
        backwards.undo(event, &kinds);
    }
    let first = backwards.first_addresses(record, &kinds);
    backwards.finish(settings, &first, private)
}

struct Backwards {
    /// By address; they do not overlap.
    ranges: BTreeMap<u64, Range>,
    used: BTreeMap<u64, Used>,
    contradictions: usize,
}

impl Backwards {
    fn undo(&mut self, event: &Event, kinds: &Kinds) {
        let Event { action, address, bytes, stream, .. } = *event;
        let agrees = match action {
            Action::Alloc => {
                let was_used = self.used.remove(&address).is_some();
                let segment = self.ranges.range(..=address).next_back().map_or(address, |(begin, _)| *begin);
                // A block of another segment says nothing of where this one ends.
                if let Some((_, before)) = self.used.range_mut(segment..address).next_back() {
                    before.behind = Some(address);
                }
                was_used
            }
            Action::FreeCompleted => {
                let used = Used { bytes: None, behind: None, requested: bytes, stack: event.stack };
                self.used.insert(address, used).is_none()
            }
            Action::SegmentAlloc => self.ranges.remove(&address).is_some_and(|range| range.bytes == bytes),
            Action::SegmentFree => {
                let kind = Kind { stream, small: bytes <= 2 * SMALL, pool: (0, 0) };
                self.add(address, Range { bytes, kind, expandable: false })
            }
            Action::SegmentMap => self.cut(address, bytes),
            Action::SegmentUnmap => {
                let kind = kinds.of_released(stream, address, bytes);
                self.add(address, Range { bytes, kind, expandable: true })
            }
            Action::FreeRequested | Action::Snapshot | Action::OutOfMemory | Action::Other => true,
        };
        self.contradictions += usize::from(!agrees);
    }

    /// Adds a range; one of an expandable segment is joined to those that it touches. False if it overlaps another.
    fn add(&mut self, address: u64, range: Range) -> bool {
        let end = address + range.bytes;
        if self.ranges.range(..end).next_back().is_some_and(|(other, known)| other + known.bytes > address) {
            return false;
        }
        let (mut address, mut range) = (address, range);
        if range.expandable {
            if let Some((other, known)) = self.ranges.range(..address).next_back().map(|(a, r)| (*a, *r))
                && other + known.bytes == address
                && (known.kind, known.expandable) == (range.kind, true)
            {
                (address, range.bytes) = (other, range.bytes + known.bytes);
            }
            let behind = self.ranges.get(&end).copied();
            if let Some(known) = behind.filter(|known| (known.kind, known.expandable) == (range.kind, true)) {
                self.ranges.remove(&end);
                range.bytes += known.bytes;
            }
        }
        self.ranges.insert(address, range);
        true
    }

    /// Takes a part out of the range of an expandable segment that has it. False if none has.
    fn cut(&mut self, address: u64, bytes: u64) -> bool {
        let Some((begin, range)) = self.ranges.range(..=address).next_back().map(|(a, r)| (*a, *r)) else {
            return false;
        };
        let (end, cut_end) = (begin + range.bytes, address + bytes);
        if !range.expandable || cut_end > end {
            return false;
        }
        self.ranges.remove(&begin);
        if begin < address {
            self.ranges.insert(begin, Range { bytes: address - begin, ..range });
        }
        if cut_end < end {
            self.ranges.insert(cut_end, Range { bytes: end - cut_end, ..range });
        }
        true
    }

    /// Where the expandable segments that there are at the start begin: at the lowest address with memory until all of it
    /// went back. Those that come after begin with their first memory.
    fn first_addresses(&self, record: &CardRecord, kinds: &Kinds) -> BTreeMap<Kind, u64> {
        let mut first = BTreeMap::new();
        let mut mapped: BTreeMap<Kind, u64> = BTreeMap::new();
        for (address, range) in self.ranges.iter().filter(|(_, range)| range.expandable) {
            first.entry(range.kind).or_insert(*address);
            *mapped.entry(range.kind).or_default() += range.bytes;
        }
        for event in &record.events {
            let Event { action, address, bytes, stream, .. } = *event;
            if !matches!(action, Action::SegmentMap | Action::SegmentUnmap) {
                continue;
            }
            let kind = match action {
                Action::SegmentMap => kinds.of_map(stream, address),
                _ => kinds.of_released(stream, address, bytes),
            };
            let Some(mapped) = mapped.get_mut(&kind).filter(|mapped| **mapped > 0) else { continue };
            match action {
                Action::SegmentMap => {
                    *mapped += bytes;
                    first.entry(kind).and_modify(|first| *first = address.min(*first));
                }
                _ => *mapped = mapped.saturating_sub(bytes),
            }
        }
        first
    }

    fn finish(self, settings: &Settings, first: &BTreeMap<Kind, u64>, private: PrivateRanges) -> Start {
        let Self { ranges, used, mut contradictions } = self;
        let mut used = used.into_iter().peekable();
        let mut start = Start { ranges: vec![], blocks: vec![], private, contradictions: 0 };
        for (address, range) in ranges {
            let end = address + range.bytes;
            let mut parts: Vec<Part> = vec![];
            let Range { bytes, kind: Kind { stream, small, pool }, expandable } = range;
            let space = expandable.then(|| (first[&range.kind], SPACE));
            while let Some((at, block)) = used.next_if(|(at, _)| *at < end) {
                let floor = parts.last().map_or(address, |part| part.address + part.bytes);
                let ceiling = used.peek().map_or(end, |(next, _)| (*next).min(end));
                let rounded = settings.rounded(block.requested);
                let bytes = block.bytes.unwrap_or_else(|| {
                    let room = ceiling - at;
                    let rest = room.saturating_sub(rounded);
                    if expandable || small || rounded >= room {
                        return rounded;
                    }
                    let all_of_it =
                        |rest| rest <= SMALL || settings.max_split_bytes.is_some_and(|limit| rounded >= limit);
                    let behind = block.behind.filter(|behind| *behind < ceiling).map(|behind| behind - at);
                    match behind.filter(|bytes| *bytes >= rounded && all_of_it(bytes - rounded)) {
                        Some(bytes) => bytes,
                        None if all_of_it(rest) => room,
                        None => rounded,
                    }
                });
                if at < floor || at + bytes > ceiling {
                    contradictions += 1;
                    continue;
                }
                let requested = block.requested.min(bytes);
                parts.push(Part { address: at, bytes, requested });
                start.blocks.push(StartBlock { address: at, bytes, requested, stream, stack: block.stack, pool });
            }
            start.ranges.push(StartRange { address, bytes, stream, small, pool, space, used: parts });
        }
        // What lies behind all ranges.
        contradictions += used.count();
        start.contradictions = contradictions;
        // The parts of an expandable segment follow each other, whatever lies between them.
        start.ranges.sort_by_key(|range| {
            let of_space = range.space.map(|space| (space.0, range.stream, range.small, range.pool));
            (of_space.unwrap_or((range.address, 0, false, (0, 0))), range.address)
        });
        start
    }
}

/// Addresses of an expandable segment: more than any card has memory.
const SPACE: u64 = 1 << 42;

/// Of what kind each address of an expandable segment is: by stream and first address, the kind of every range seen.
struct Kinds {
    seen: BTreeMap<(u64, u64), Kind>,
    /// Memory of large ones comes and goes in multiples of it.
    large_unit: u64,
}

/// Small ones of a stream lie closer together.
const NEAR: u64 = 4 << 30;

impl Kinds {
    fn of(record: &CardRecord, private: &PrivateRanges, large_unit: u64) -> Self {
        let kept = record.segments.iter().filter(|segment| segment.expandable);
        let kept = kept.map(|segment| {
            let kind = Kind { stream: segment.stream, small: segment.small, pool: segment.pool };
            ((segment.stream, segment.address), kind)
        });
        let mut seen = kept.collect::<BTreeMap<_, _>>();
        // A range is backed with memory for the allocation that follows, which says of what kind it is.
        let mut small = true;
        for (index, event) in record.events.iter().enumerate().rev() {
            match event.action {
                Action::Alloc | Action::OutOfMemory => small = event.bytes <= SMALL,
                Action::SegmentMap => {
                    let kind = Kind { stream: event.stream, small, pool: private.pool(event.address, index) };
                    seen.insert((event.stream, event.address), kind);
                }
                _ => {}
            }
        }
        Self { seen, large_unit }
    }

    /// That of a range that was backed with memory.
    fn of_map(&self, stream: u64, address: u64) -> Kind {
        let seen = self.seen.get(&(stream, address)).copied();
        seen.unwrap_or(Kind { stream, small: false, pool: (0, 0) })
    }

    /// That of memory that went back: of the nearest range of the stream which it may continue. Only the default pool gives
    /// memory back while its program runs.
    fn of_released(&self, stream: u64, address: u64, bytes: u64) -> Kind {
        let may_be_large = bytes.is_multiple_of(self.large_unit);
        let fits = |(_, kind): &(&(u64, u64), &Kind)| kind.pool == (0, 0) && (kind.small || may_be_large);
        let before = self.seen.range((stream, 0)..=(stream, address)).rfind(fits);
        let behind = self.seen.range((stream, address)..=(stream, u64::MAX)).find(fits);
        let nearest = before.into_iter().chain(behind).min_by_key(|((_, known), _)| known.abs_diff(address));
        match nearest {
            Some(((_, known), kind)) if !(kind.small && may_be_large && known.abs_diff(address) > NEAR) => *kind,
            _ => Kind { stream, small: !may_be_large, pool: (0, 0) },
        }
    }
}
