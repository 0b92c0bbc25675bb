//! Reconstructs the initial state of a recording by going backward from its end.
//!
//! Blocks and segments follow from the events. Two properties do not, and are inferred:
//! - the size of a block that existed before the recording and was freed during it: its rounded size, plus the rest up
//!   to its neighbor if that is too small for a free block. If a free block follows, it starts where the first
//!   allocation from it is placed. If there is none, the rounded size is assumed until the simulation uses a free block
//!   that PyTorch did not use ([`Start::corrected`]);
//! - the start of an expandable segment: the lowest address at which it had memory.

use super::agreement::{Agreement, Difference};
use crate::allocator::{Part, SMALL, StartRange};
use crate::snapshot::{Action, AllocatorSettings, BlockState, CardRecord, PoolId, StackId, TraceEvent};
use std::collections::BTreeMap;

/// The state before the first event.
#[derive(Debug, Default, Clone)]
pub struct Start {
    /// Mapped ranges, by address.
    pub ranges: Vec<StartRange>,
    /// Blocks in use, by address.
    pub blocks: Vec<StartBlock>,
    /// Ranges of pools other than the default.
    pub private: PrivateRanges,
    /// Number of events and blocks that contradict each other: other threads ran while the snapshot was taken, or it is
    /// damaged.
    pub contradictions: usize,
}

/// A block in use at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartBlock {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The largest size that the recording allows.
    pub most: u64,
    /// Size requested by the program.
    pub requested: u64,
    /// Its stream.
    pub stream: u64,
    /// The stack of its allocation, if the end of the recording has it.
    pub stack: StackId,
    /// Its pool.
    pub pool: PoolId,
}

/// The segments that belong to pools of CUDA graphs or to `MemPool`s at the end, and the event since which they do;
/// before it, other segments may have been at the same addresses.
#[derive(Debug, Default, Clone)]
pub struct PrivateRanges(Vec<PrivateRange>);

#[derive(Debug, Clone, Copy)]
struct PrivateRange {
    from: u64,
    until: u64,
    /// The first event at which it exists.
    since: usize,
    pool: PoolId,
}

impl PrivateRanges {
    fn of(record: &CardRecord) -> Self {
        let private = record.segments.iter().filter(|segment| segment.pool != (0, 0));
        let private = private.map(|segment| {
            let (from, until) = (segment.address, segment.address + segment.bytes);
            let ends = |event: &TraceEvent| {
                let is_release = matches!(event.action, Action::SegmentFree | Action::SegmentUnmap);
                is_release && event.address < until && from < event.address + event.bytes
            };
            let since = record.events.iter().rposition(ends).map_or(0, |index| index + 1);
            PrivateRange { from, until, since, pool: segment.pool }
        });
        Self(private.collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pool of an address at an event.
    pub fn pool(&self, address: u64, event: usize) -> PoolId {
        let holds = |range: &&PrivateRange| range.from <= address && address < range.until && range.since <= event;
        self.0.iter().find(holds).map_or((0, 0), |range| range.pool)
    }
}

impl Start {
    /// Another state that the recording allows, after a simulation that placed a block elsewhere than PyTorch: the block
    /// before it is larger, so that no free block is there. `None` if its size is known.
    pub fn corrected(&self, agreement: &Agreement) -> Option<Self> {
        let simulated = agreement.first.iter().find_map(|difference| match difference {
            Difference::Address { simulated, .. } => Some(*simulated),
            Difference::Segments { .. } => None,
        })?;
        let is_before = |block: &StartBlock| block.address + block.bytes == simulated && block.most > block.bytes;
        let index = self.blocks.iter().position(is_before)?;
        let mut corrected = self.clone();
        let block = &mut corrected.blocks[index];
        block.bytes = block.most;
        let mut parts = corrected.ranges.iter_mut().flat_map(|range| &mut range.used);
        parts.find(|part| part.address == block.address)?.bytes = block.most;
        Some(corrected)
    }
}

/// A mapped range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    bytes: u64,
    kind: SegmentKind,
    /// Whether it is part of an expandable segment; there is one such segment per kind at a time.
    expandable: bool,
}

/// The properties that memory in one segment shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SegmentKind {
    stream: u64,
    small: bool,
    pool: PoolId,
}

/// A block in use; its size if known.
#[derive(Debug, Clone, Copy)]
struct Used {
    bytes: Option<u64>,
    /// The first block that was allocated after it during its lifetime.
    next: Option<u64>,
    requested: u64,
    stack: StackId,
}

/// Reconstructs the state before the first event of a card.
pub fn start(record: &CardRecord, settings: &AllocatorSettings) -> Start {
    let private = PrivateRanges::of(record);
    let kinds = SegmentKinds::of(record, &private, settings.large_segment_bytes);
    let mut backwards = Backwards { ranges: BTreeMap::new(), used: BTreeMap::new(), contradictions: 0 };
    for segment in &record.segments {
        let kind = SegmentKind { stream: segment.stream, small: segment.small, pool: segment.pool };
        let range = Range { bytes: segment.bytes, kind, expandable: segment.expandable };
        backwards.ranges.insert(segment.address, range);
        for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
            let used = Used { bytes: Some(block.bytes), next: None, requested: block.requested, stack: block.stack };
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
    /// By address, without overlaps.
    ranges: BTreeMap<u64, Range>,
    used: BTreeMap<u64, Used>,
    contradictions: usize,
}

impl Backwards {
    fn undo(&mut self, event: &TraceEvent, kinds: &SegmentKinds) {
        let TraceEvent { action, address, bytes, stream, .. } = *event;
        let agrees = match action {
            Action::Alloc => {
                let was_used = self.used.remove(&address).is_some();
                let segment = self.ranges.range(..=address).next_back().map_or(address, |(begin, _)| *begin);
                // A block of another segment does not show where this one ends.
                if let Some((_, before)) = self.used.range_mut(segment..address).next_back() {
                    before.next = Some(address);
                }
                was_used
            }
            Action::FreeCompleted => {
                let used = Used { bytes: None, next: None, requested: bytes, stack: event.stack };
                self.used.insert(address, used).is_none()
            }
            Action::SegmentAlloc => self.ranges.remove(&address).is_some_and(|range| range.bytes == bytes),
            Action::SegmentFree => {
                let kind = SegmentKind { stream, small: bytes <= 2 * SMALL, pool: (0, 0) };
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

    /// Adds a range; merges a range of an expandable segment with adjacent ones. False if it overlaps another.
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
            let next = self.ranges.get(&end).copied();
            if let Some(known) = next.filter(|known| (known.kind, known.expandable) == (range.kind, true)) {
                self.ranges.remove(&end);
                range.bytes += known.bytes;
            }
        }
        self.ranges.insert(address, range);
        true
    }

    /// Removes a part of a range of an expandable segment. False if no range contains it.
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

    /// First addresses of the expandable segments that exist at the start: the lowest mapped address until the segment
    /// was fully unmapped. Later segments start at their first memory.
    fn first_addresses(&self, record: &CardRecord, kinds: &SegmentKinds) -> BTreeMap<SegmentKind, u64> {
        let mut first = BTreeMap::new();
        let mut mapped: BTreeMap<SegmentKind, u64> = BTreeMap::new();
        for (address, range) in self.ranges.iter().filter(|(_, range)| range.expandable) {
            first.entry(range.kind).or_insert(*address);
            *mapped.entry(range.kind).or_default() += range.bytes;
        }
        for event in &record.events {
            let TraceEvent { action, address, bytes, stream, .. } = *event;
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

    fn finish(self, settings: &AllocatorSettings, first: &BTreeMap<SegmentKind, u64>, private: PrivateRanges) -> Start {
        let Self { ranges, used, mut contradictions } = self;
        let mut used = used.into_iter().peekable();
        let mut start = Start { ranges: vec![], blocks: vec![], private, contradictions: 0 };
        for (address, range) in ranges {
            let end = address + range.bytes;
            let mut parts: Vec<Part> = vec![];
            let Range { bytes, kind: SegmentKind { stream, small, pool }, expandable } = range;
            let space = expandable.then(|| (first[&range.kind], SPACE));
            while let Some((at, block)) = used.next_if(|(at, _)| *at < end) {
                let floor = parts.last().map_or(address, |part| part.address + part.bytes);
                let ceiling = used.peek().map_or(end, |(next, _)| (*next).min(end));
                let rounded = settings.rounded(block.requested);
                let size = |room: u64| {
                    let rest = room.saturating_sub(rounded);
                    if expandable || small || rounded >= room {
                        return [rounded; 2];
                    }
                    let all_of_it =
                        |rest| rest <= SMALL || settings.max_split_bytes.is_some_and(|limit| rounded >= limit);
                    let next = block.next.filter(|next| *next < ceiling).map(|next| next - at);
                    match next.filter(|bytes| *bytes >= rounded && all_of_it(bytes - rounded)) {
                        Some(bytes) => [bytes; 2],
                        None if all_of_it(rest) => [room; 2],
                        None => [rounded, rounded + SMALL],
                    }
                };
                let [bytes, most] = block.bytes.map_or_else(|| size(ceiling - at), |bytes| [bytes; 2]);
                if at < floor || at + bytes > ceiling {
                    contradictions += 1;
                    continue;
                }
                let requested = block.requested.min(bytes);
                parts.push(Part { address: at, bytes, requested });
                let stack = block.stack;
                start.blocks.push(StartBlock { address: at, bytes, most, requested, stream, stack, pool });
            }
            start.ranges.push(StartRange { address, bytes, stream, small, pool, space, used: parts });
        }
        // Blocks after all ranges.
        contradictions += used.count();
        start.contradictions = contradictions;
        // The parts of an expandable segment are consecutive, even if other ranges are between them.
        start.ranges.sort_by_key(|range| {
            let of_space = range.space.map(|space| (space.0, range.stream, range.small, range.pool));
            (of_space.unwrap_or((range.address, 0, false, (0, 0))), range.address)
        });
        start
    }
}

/// Size of the addresses of an expandable segment: more than any card's memory.
const SPACE: u64 = 1 << 42;

/// The kind of each address of an expandable segment: for each stream and first address, the kinds of all ranges seen.
struct SegmentKinds {
    seen: BTreeMap<(u64, u64), SegmentKind>,
    /// Memory of large ones is mapped in multiples of this.
    large_unit: u64,
}

/// Maximum distance of small ranges in one segment of a stream.
const NEAR: u64 = 4 << 30;

impl SegmentKinds {
    fn of(record: &CardRecord, private: &PrivateRanges, large_unit: u64) -> Self {
        let kept = record.segments.iter().filter(|segment| segment.expandable);
        let kept = kept.map(|segment| {
            let kind = SegmentKind { stream: segment.stream, small: segment.small, pool: segment.pool };
            ((segment.stream, segment.address), kind)
        });
        let mut seen = kept.collect::<BTreeMap<_, _>>();
        // A range is mapped for the allocation that follows, which determines its kind.
        let mut small = true;
        for (index, event) in record.events.iter().enumerate().rev() {
            match event.action {
                Action::Alloc | Action::OutOfMemory => small = event.bytes <= SMALL,
                Action::SegmentMap => {
                    let kind = SegmentKind { stream: event.stream, small, pool: private.pool(event.address, index) };
                    seen.insert((event.stream, event.address), kind);
                }
                _ => {}
            }
        }
        Self { seen, large_unit }
    }

    /// The kind of a range that was mapped.
    fn of_map(&self, stream: u64, address: u64) -> SegmentKind {
        let seen = self.seen.get(&(stream, address)).copied();
        seen.unwrap_or(SegmentKind { stream, small: false, pool: (0, 0) })
    }

    /// The kind of memory that was unmapped: that of the nearest range of the stream that it may extend. Only the
    /// default pool unmaps memory while its program runs.
    fn of_released(&self, stream: u64, address: u64, bytes: u64) -> SegmentKind {
        let may_be_large = bytes.is_multiple_of(self.large_unit);
        let fits = |(_, kind): &(&(u64, u64), &SegmentKind)| kind.pool == (0, 0) && (kind.small || may_be_large);
        let before = self.seen.range((stream, 0)..=(stream, address)).rfind(fits);
        let next = self.seen.range((stream, address)..=(stream, u64::MAX)).find(fits);
        let nearest = before.into_iter().chain(next).min_by_key(|((_, known), _)| known.abs_diff(address));
        match nearest {
            Some(((_, known), kind)) if !(kind.small && may_be_large && known.abs_diff(address) > NEAR) => *kind,
            _ => SegmentKind { stream, small: !may_be_large, pool: (0, 0) },
        }
    }
}
