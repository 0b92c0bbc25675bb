//! Replays all events from the initial state.

use super::agreement::{Agreement, equal_events};
use super::driver::RecordedDriver;
use super::start::{PrivateRanges, Start, start};
use crate::allocator::{Allocator, BlockId, DriverEvent, DriverEventKind, Request, StartRange};
use crate::snapshot::{Action, AllocatorSettings, BlockState, CardRecord, PoolId, StackId, TraceEvent};
use rustc_hash::FxHashMap;

/// A card's recording, replayed.
#[derive(Debug)]
pub struct Replay {
    /// The state before the first event.
    pub start: Start,
    /// The agreement of simulation and recording.
    pub agreement: Agreement,
    /// Memory before the first event and after each event.
    pub memory: Vec<Moment>,
    /// Every allocation: those of the initial state first, then in event order.
    pub lives: Vec<Lifetime>,
    /// Out-of-memory events: the event, and the card's free bytes.
    pub out_of_memory: Vec<(usize, u64)>,
}

/// Memory at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Reserved from the driver.
    pub reserved: u64,
    /// In blocks in use.
    pub in_use: u64,
    /// Requested by the program for those blocks.
    pub requested: u64,
}

/// The lifetime of an allocation, in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// The event that allocated it; `None` if before the first event.
    pub from: Option<usize>,
    /// The event that freed it; `None` if it exists at the end.
    pub to: Option<usize>,
    /// The event at which the program freed it, if it did.
    pub given_back: Option<usize>,
    /// Its recorded address.
    pub address: u64,
    /// The size of its block.
    pub bytes: u64,
    /// Size requested by the program.
    pub requested: u64,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolId,
    /// The stack of its allocation.
    pub stack: StackId,
}

impl Lifetime {
    /// The first moment at which it exists, and the first at which it no longer does, out of `moments`.
    pub fn moments(&self, moments: usize) -> (usize, usize) {
        (self.from.map_or(0, |from| from + 1), self.to.map_or(moments, |to| to + 1))
    }

    /// Whether it exists at a moment, as a number of events.
    pub fn is_there(&self, moment: usize) -> bool {
        self.from.is_none_or(|from| from < moment) && self.to.is_none_or(|to| moment <= to)
    }
}

/// Most corrections of the initial state; each takes a replay.
const CORRECTIONS: usize = 16;

/// Replays a card's recording with its recorded settings.
pub fn replay(record: &CardRecord, settings: &AllocatorSettings) -> Replay {
    let (mut replay, taken) = replay_inferred(record, settings);
    for _ in 0..CORRECTIONS {
        let Some(start) = replay.start.corrected(&replay.agreement) else { break };
        let corrected = replay_from(record, settings, start, taken.as_ref());
        if corrected.agreement.addresses.equal <= replay.agreement.addresses.equal {
            break;
        }
        replay = corrected;
    }
    replay
}

/// Replays from the initial state that the recording shows. Also returns the segment that was allocated just before it for the
/// first event's request.
fn replay_inferred(record: &CardRecord, settings: &AllocatorSettings) -> (Replay, Option<StartRange>) {
    let mut from_start = replay_from(record, settings, start(record, settings), None);
    // The oldest stored event may be the allocation for which a segment was allocated just before.
    let differs_at_once = from_start.agreement.first.iter().any(|difference| difference.event() == 0);
    if let (true, Some(first)) = (differs_at_once, record.events.first()) {
        let start = &mut from_start.start;
        let is_taken =
            |range: &StartRange| range.address == first.address && range.space.is_none() && range.used.is_empty();
        if let Some(taken) = start.ranges.iter().position(is_taken).map(|index| start.ranges.remove(index)) {
            return (replay_from(record, settings, std::mem::take(start), Some(&taken)), Some(taken));
        }
    }
    (from_start, None)
}

/// Replays from an initial state. `taken` is the segment that was allocated just before for the first event's request.
fn replay_from(record: &CardRecord, settings: &AllocatorSettings, start: Start, taken: Option<&StartRange>) -> Replay {
    let (allocator, blocks) = Allocator::restore(settings.clone(), &start.ranges);
    let lives = start.ranges.iter().flat_map(|range| &range.used).zip(blocks);
    let agreement = Agreement { contradictions: start.contradictions, ..Agreement::default() };
    let mut forward = Forward {
        settings,
        allocator,
        driver: RecordedDriver::new(),
        by_address: FxHashMap::default(),
        blocks: vec![],
        replay: Replay { agreement, memory: vec![], lives: vec![], out_of_memory: vec![], start: Start::default() },
        private: start.private.clone(),
    };
    let known = FxHashMap::from_iter(start.blocks.iter().map(|block| (block.address, block)));
    for (part, id) in lives {
        let block = known[&part.address];
        let life = Lifetime {
            from: None,
            to: None,
            given_back: None,
            address: part.address,
            bytes: part.bytes,
            requested: part.requested,
            stream: block.stream,
            pool: block.pool,
            stack: block.stack,
        };
        forward.begin(life, id);
    }
    forward.note_memory();
    if let Some(&StartRange { address, bytes, stream, .. }) = taken {
        forward.driver.granted.push_back(DriverEvent { kind: DriverEventKind::Take, address, bytes, stream });
    }
    forward.run(&record.events);
    forward.compare_end(record);
    Replay { start, ..forward.replay }
}

struct Forward<'a> {
    settings: &'a AllocatorSettings,
    allocator: Allocator,
    driver: RecordedDriver,
    /// The lifetime at each recorded address.
    by_address: FxHashMap<u64, usize>,
    /// The simulated block of each lifetime.
    blocks: Vec<BlockId>,
    replay: Replay,
    private: PrivateRanges,
}

impl Forward<'_> {
    fn run(&mut self, events: &[TraceEvent]) {
        let mut index = 0;
        while let Some(event) = events.get(index) {
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => self.driver.granted.extend(driver_event(event)),
                Action::SegmentFree | Action::SegmentUnmap => {
                    // Several segments may be freed at once.
                    let count = events[index..].iter().take_while(|event| is_release(event)).count();
                    self.refuse(index, &events[index..]);
                    self.release(index, &events[index..index + count], &events[index + count..]);
                    for _ in 1..count {
                        self.note_memory();
                    }
                    index += count - 1;
                }
                Action::Alloc => self.allocate(index, event),
                Action::FreeRequested => match self.by_address.get(&event.address) {
                    Some(life) => self.replay.lives[*life].given_back = Some(index),
                    None => self.replay.agreement.contradictions += 1,
                },
                Action::FreeCompleted => self.free(index, event),
                Action::OutOfMemory => {
                    self.replay.out_of_memory.push((index, event.address));
                    self.refuse(index, &events[index..]);
                }
                Action::Snapshot | Action::Other => {}
            }
            self.note_memory();
            index += 1;
        }
        self.settle(events.len(), vec![]);
    }

    /// Compares the sizes of the blocks at the end.
    fn compare_end(&mut self, record: &CardRecord) {
        let blocks = record.segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state != BlockState::Inactive) {
            let life = self.by_address.get(&block.address).map(|life| &self.replay.lives[*life]);
            self.replay.agreement.blocks_at_end.events += 1;
            self.replay.agreement.blocks_at_end.equal +=
                usize::from(life.is_some_and(|life| life.bytes == block.bytes));
        }
    }

    fn allocate(&mut self, index: usize, event: &TraceEvent) {
        let recorded = self.driver.granted.iter().copied().collect::<Vec<_>>();
        let request = self.request(index, event);
        let block = self.allocator.allocate(request, &mut self.driver).expect("a driver that grants everything");
        self.settle(index, recorded);
        self.replay.agreement.address(index, event.address, self.allocator.address(block));
        let life = Lifetime {
            from: Some(index),
            to: None,
            given_back: None,
            address: event.address,
            bytes: self.allocator.bytes(block),
            requested: event.bytes,
            stream: event.stream,
            pool: request.pool,
            stack: event.stack,
        };
        self.begin(life, block);
    }

    fn request(&self, index: usize, event: &TraceEvent) -> Request {
        // The program selects the pool, which only the address reveals.
        let pool = self.private.pool(event.address, index);
        Request { bytes: event.bytes, stream: event.stream, pool }
    }

    fn begin(&mut self, life: Lifetime, block: BlockId) {
        self.replay.lives.push(life);
        self.blocks.push(block);
        if self.by_address.insert(life.address, self.blocks.len() - 1).is_some() {
            self.replay.agreement.contradictions += 1;
        }
    }

    fn free(&mut self, index: usize, event: &TraceEvent) {
        match self.by_address.remove(&event.address) {
            Some(life) => {
                self.replay.lives[life].to = Some(index);
                self.allocator.free(self.blocks[life]);
            }
            None => self.replay.agreement.contradictions += 1,
        }
    }

    /// The driver granted a part of a request's memory and refused the rest.
    fn refuse(&mut self, index: usize, rest: &[TraceEvent]) {
        let recorded = self.driver.granted.iter().copied().collect::<Vec<_>>();
        if let (false, Some(request)) = (recorded.is_empty(), self.next_request(index, rest)) {
            self.driver.refuses = true;
            self.allocator.attempt(request, &mut self.driver);
            self.driver.refuses = false;
        }
        self.settle(index, recorded);
    }

    /// The first request at or after an event.
    fn next_request(&self, index: usize, rest: &[TraceEvent]) -> Option<Request> {
        let is_request = |event: &TraceEvent| matches!(event.action, Action::Alloc | Action::OutOfMemory);
        let after = rest.iter().position(is_request)?;
        Some(self.request(index + after, &rest[after]))
    }

    /// Memory was returned to the driver: the program emptied the cache, a request was refused, or the threshold was
    /// exceeded. The recording determines which; the allocator determines what it returns.
    fn release(&mut self, index: usize, recorded: &[TraceEvent], rest: &[TraceEvent]) {
        let recorded = recorded.iter().filter_map(driver_event).collect::<Vec<_>>();
        let request = self.next_request(index + recorded.len(), rest);
        let mut best: Option<(usize, Allocator)> = None;
        for reason in self.reasons() {
            let mut allocator = self.allocator.clone();
            let driver = &mut self.driver;
            if let (Reason::Oversize | Reason::OversizeThenAll, Some(request)) = (reason, request) {
                allocator.release_oversize_for(request, driver);
            }
            if let Reason::Garbage | Reason::GarbageThenAll = reason {
                let bytes =
                    if let Reason::Garbage = reason { recorded.iter().map(|event| event.bytes).sum() } else { 1 };
                allocator.collect(bytes, driver);
            }
            if let Reason::All | Reason::OversizeThenAll | Reason::GarbageThenAll = reason {
                allocator.release_cached(driver);
            }
            let simulated = allocator.driver_events();
            let wrong = simulated.len().max(recorded.len()) - equal_events(&recorded, simulated);
            if best.as_ref().is_none_or(|(least, _)| wrong < *least) {
                best = Some((wrong, allocator));
            }
            if wrong == 0 {
                break;
            }
        }
        self.allocator = best.expect("the cache can always be emptied").1;
        self.settle(index, recorded);
    }

    /// Reasons for returning memory under the settings.
    fn reasons(&self) -> Vec<Reason> {
        let mut reasons = vec![Reason::All];
        if self.settings.max_split_bytes.is_some() {
            reasons.extend([Reason::Oversize, Reason::OversizeThenAll]);
        }
        if self.settings.garbage_collection_threshold > 0.0 {
            reasons.extend([Reason::Garbage, Reason::GarbageThenAll]);
        }
        reasons
    }

    /// Compares the recorded driver calls with the simulated ones.
    fn settle(&mut self, index: usize, mut recorded: Vec<DriverEvent>) {
        if recorded.is_empty() {
            recorded.extend(self.driver.granted.iter());
        }
        self.driver.granted.clear();
        let simulated = self.allocator.take_driver_events();
        self.replay.agreement.segments(index, &recorded, &simulated);
    }

    fn note_memory(&mut self) {
        let Self { allocator, replay, .. } = self;
        let (reserved, in_use, requested) = (allocator.reserved(), allocator.in_use(), allocator.requested());
        replay.memory.push(Moment { reserved, in_use, requested });
    }
}

/// Why memory is returned to the driver.
#[derive(Debug, Clone, Copy)]
enum Reason {
    /// The program emptied the cache.
    All,
    /// A large request was refused, and large blocks are not split.
    Oversize,
    /// Like `Oversize`, but this was not enough.
    OversizeThenAll,
    /// The reserved memory exceeds the threshold.
    Garbage,
    /// Like `Garbage`, but this was not enough for a request.
    GarbageThenAll,
}

fn is_release(event: &TraceEvent) -> bool {
    matches!(event.action, Action::SegmentFree | Action::SegmentUnmap)
}

fn driver_event(event: &TraceEvent) -> Option<DriverEvent> {
    let kind = match event.action {
        Action::SegmentAlloc => DriverEventKind::Take,
        Action::SegmentFree => DriverEventKind::GiveBack,
        Action::SegmentMap => DriverEventKind::Map,
        Action::SegmentUnmap => DriverEventKind::Unmap,
        _ => return None,
    };
    Some(DriverEvent { kind, address: event.address, bytes: event.bytes, stream: event.stream })
}
