//! Snapshots of programs on the simulated allocator: PyTorch would have recorded the same.
//! Not here: reading them (`snapshot/`).

mod write;

pub use write::write;

use crate::allocator::{Allocator, BlockId, Card, DriverEvent, DriverEventKind, OutOfMemory, Request};
use crate::snapshot::{
    Action, AllocatorSettings, BlockState, CardRecord, Frame, Snapshot, StackId, Stacks, TraceEvent,
};
use rustc_hash::FxHashMap;

/// Runs a program on an allocator and records its events.
#[derive(Debug)]
pub struct Recorder {
    allocator: Allocator,
    card: Card,
    settings: AllocatorSettings,
    stacks: Stacks,
    events: Vec<TraceEvent>,
    /// Blocks in use: their stack, and whether the program freed them.
    blocks: FxHashMap<BlockId, InUse>,
    time_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct InUse {
    request: Request,
    stack: StackId,
    given_back: bool,
}

impl Recorder {
    /// A recorder for a program on a card with `capacity` bytes. With `allowed`, it reserves at most this many.
    pub fn new(settings: AllocatorSettings, capacity: u64, allowed: Option<u64>) -> Self {
        Self {
            allocator: Allocator::new(settings.clone(), allowed),
            card: Card::new(capacity),
            settings,
            stacks: Stacks::default(),
            events: vec![],
            blocks: FxHashMap::default(),
            time_us: 1_700_000_000_000_000,
        }
    }

    /// Adds a call stack: function, file and line, innermost first.
    pub fn stack(&mut self, frames: &[(&str, &str, u32)]) -> StackId {
        let frames = frames.iter().map(|(name, file, line)| {
            self.stacks.frame(Frame { name: (*name).to_owned(), file: (*file).to_owned(), line: *line })
        });
        let frames = frames.collect();
        self.stacks.stack(frames)
    }

    /// Allocates a block.
    /// Errors: `OutOfMemory`, which is recorded.
    pub fn allocate(&mut self, request: Request, stack: StackId) -> Result<BlockId, OutOfMemory> {
        let block = self.allocator.allocate(request, &mut self.card);
        self.driver_events(stack);
        let Request { bytes, stream, .. } = request;
        match block {
            Ok(block) => {
                self.blocks.insert(block, InUse { request, stack, given_back: false });
                self.event(Action::Alloc, self.allocator.address(block), bytes, stream, stack);
            }
            Err(OutOfMemory) => {
                let rounded = self.settings.rounded(bytes);
                self.event(Action::OutOfMemory, self.card.free(), rounded, stream, stack);
            }
        }
        block
    }

    /// The program frees a block; other streams may still use it.
    pub fn give_back(&mut self, block: BlockId) {
        let in_use = self.blocks.get_mut(&block).expect("a freed block was in use");
        in_use.given_back = true;
        let InUse { request, stack, .. } = *in_use;
        self.event(Action::FreeRequested, self.allocator.address(block), request.bytes, request.stream, stack);
    }

    /// All streams have finished using a freed block.
    pub fn complete(&mut self, block: BlockId) {
        let InUse { request, stack, .. } = self.blocks.remove(&block).expect("a completed block was in use");
        self.event(Action::FreeCompleted, self.allocator.address(block), request.bytes, request.stream, stack);
        self.allocator.free(block);
    }

    /// The program frees a block that no other stream uses.
    pub fn free(&mut self, block: BlockId) {
        self.give_back(block);
        self.complete(block);
    }

    /// `torch.cuda.empty_cache()`.
    pub fn empty_cache(&mut self, stack: StackId) {
        self.allocator.release_cached(&mut self.card);
        self.driver_events(stack);
    }

    /// A snapshot of the current state, with the last `ring` events.
    pub fn snapshot(&self, ring: usize) -> Snapshot {
        let state = |block| match self.blocks.get(&block) {
            None => (BlockState::Inactive, StackId(0)),
            Some(InUse { given_back: true, stack, .. }) => (BlockState::PendingFree, *stack),
            Some(InUse { stack, .. }) => (BlockState::Allocated, *stack),
        };
        let events = self.events[self.events.len().saturating_sub(ring)..].to_vec();
        Snapshot {
            cards: vec![CardRecord { card: 0, segments: self.allocator.segments(state), events }],
            conf: self.settings.conf(),
            settings: self.settings.clone(),
            settings_recorded: true,
            stacks: self.stacks.clone(),
            annotations: vec![],
            unknown: vec![],
        }
    }

    fn driver_events(&mut self, stack: StackId) {
        for DriverEvent { kind, address, bytes, stream } in self.allocator.take_driver_events() {
            let action = match kind {
                DriverEventKind::Take => Action::SegmentAlloc,
                DriverEventKind::GiveBack => Action::SegmentFree,
                DriverEventKind::Map => Action::SegmentMap,
                DriverEventKind::Unmap => Action::SegmentUnmap,
            };
            self.event(action, address, bytes, stream, stack);
        }
    }

    fn event(&mut self, action: Action, address: u64, bytes: u64, stream: u64, stack: StackId) {
        self.time_us += 10;
        self.events.push(TraceEvent { action, address, bytes, stream, time_us: self.time_us, stack });
    }
}
