//! Operations of streams: when they run, and what they know of each other.

use super::capture::Graph;
use super::clock::{Clock, Lane};
use super::hazards::Hazards;
use crate::shadow::{Mode, Rights};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The stream that waits for all blocking ones, and they for it.
pub const LEGACY: Lane = 0;

/// When operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// As soon as they are enqueued.
    Eager,
    /// When the host waits for them, or for what waits for them.
    Late,
}

/// What the device may touch from here on, as it announced through the hook.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Tells announcements apart.
    pub number: u64,
    /// What may be touched.
    pub rights: Rights,
}

/// Where a copy to the device takes its bytes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSource {
    /// Pageable memory: they were taken when the copy was enqueued.
    Staged(Vec<u8>),
    /// Pinned memory at this address: they are taken when the copy runs.
    Pinned(usize),
}

/// What a stream does. Addresses of the host are kept as numbers; whoever enqueues promises that they stay valid.
#[derive(Debug, Clone)]
pub enum Operation {
    /// A kernel: handle of the function, grid, block, dynamic shared memory, parameter block.
    Launch {
        /// Handle of the function.
        function: u64,
        /// Blocks.
        grid: [u32; 3],
        /// Threads.
        block: [u32; 3],
        /// Bytes.
        dynamic_shared: u32,
        /// The parameter block.
        parameters: Vec<u8>,
    },
    /// A product of matrices by cuBLASLt.
    Product(Box<crate::lt::Product>),
    /// A copy to the device.
    ToDevice {
        /// Device address.
        to: u64,
        /// The bytes.
        from: HostSource,
        /// How many.
        bytes: usize,
    },
    /// A copy to the host.
    ToHost {
        /// Host address.
        to: usize,
        /// Device address.
        from: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// A copy within the device.
    Within {
        /// Device address.
        to: u64,
        /// Device address.
        from: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// Bytes set to a repeated pattern.
    Fill {
        /// Device address.
        to: u64,
        /// 1, 2 or 4 bytes.
        pattern: Vec<u8>,
        /// How many patterns.
        count: usize,
    },
    /// A function of the host: its address and its argument.
    Callback {
        /// The function.
        function: usize,
        /// Its argument.
        argument: usize,
    },
    /// Nothing: the event of this handle, or with 0 the end of a graph.
    Marker(u64),
}

impl Operation {
    /// How much of what stands in for time it takes.
    fn time(&self) -> u64 {
        if let Self::Product(product) = self { product.time() } else { 1 }
    }

    /// What messages call it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Launch { .. } => "a kernel",
            Self::Product(_) => "a product",
            Self::ToDevice { .. } => "a copy to the device",
            Self::ToHost { .. } => "a copy to the host",
            Self::Within { .. } => "a copy within the device",
            Self::Fill { .. } => "a fill",
            Self::Callback { .. } => "a host function",
            Self::Marker(_) => "a marker",
        }
    }
}

/// An operation with what it may touch.
#[derive(Debug, Clone)]
pub struct Work {
    /// What to do.
    pub operation: Operation,
    /// What may be touched.
    pub announcement: Arc<Announcement>,
}

/// Why an operation failed: the driver's code, and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// `CUresult`.
    pub code: u32,
    /// What happened.
    pub message: String,
}

/// Who carries out operations. It gives the bytes that were touched: start, end, whether written.
pub trait Machine {
    /// Carries out an operation.
    fn run(&mut self, operation: &Operation, rights: &Rights) -> Result<Vec<(u64, u64, bool)>, Failure>;
    /// Makes bytes of the device unwritten.
    fn forget(&mut self, start: u64, end: u64);
}

#[derive(Debug, Default)]
struct Stream {
    clock: Clock,
    /// What its next operation waits for.
    waits: Vec<u64>,
    /// Whether it is ordered with the legacy stream.
    blocking: bool,
    /// Graph that it is captured into.
    capture: Option<u64>,
}

#[derive(Debug, Default, Clone)]
struct Event {
    clock: Clock,
    /// The operation that it waits for.
    operation: Option<u64>,
    /// Graph and nodes, if it was recorded in a capture.
    captured: Option<(u64, Vec<usize>)>,
    /// Whether it is for measuring.
    timed: bool,
    /// The place in the order in which operations ran, which stands in for time; `None` until it happened.
    time: Option<u64>,
}

#[derive(Debug)]
struct Pending {
    work: Work,
    lane: Lane,
    tick: u64,
    clock: Clock,
    after: Vec<u64>,
    /// Tells repeated launches of a graph apart.
    round: u64,
}

/// Streams, events and operations that have not run.
#[derive(Debug)]
pub struct Engine {
    execution: Execution,
    streams: HashMap<Lane, Stream>,
    events: HashMap<u64, Event>,
    /// Graphs, captured or being captured.
    pub graphs: HashMap<u64, Graph>,
    host: Clock,
    ticks: HashMap<Lane, u64>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    round: u64,
    /// Bytes touched so far.
    pub hazards: Hazards,
    /// What operations are called, for messages.
    names: HashMap<(Lane, u64), &'static str>,
    /// The announcement under which each lane ran last.
    last: HashMap<Lane, (u64, Arc<Announcement>)>,
    /// Operations run.
    done: u64,
}

impl Engine {
    /// Nothing done yet; the legacy stream exists.
    pub fn new(execution: Execution) -> Self {
        let legacy = Stream { blocking: true, ..Stream::default() };
        Self {
            execution,
            streams: HashMap::from([(LEGACY, legacy)]),
            events: HashMap::new(),
            graphs: HashMap::new(),
            host: Clock::default(),
            ticks: HashMap::new(),
            pending: BTreeMap::new(),
            next: 1,
            round: 0,
            hazards: Hazards::default(),
            names: HashMap::new(),
            last: HashMap::new(),
            done: 0,
        }
    }

    /// A new stream of this handle.
    pub fn create_stream(&mut self, lane: Lane, blocking: bool) {
        self.streams.insert(lane, Stream { blocking, ..Stream::default() });
    }

    /// Whether a stream exists.
    pub fn has_stream(&self, lane: Lane) -> bool {
        self.streams.contains_key(&lane)
    }

    /// Ends a stream; what it has still to do is done.
    pub fn destroy_stream(&mut self, lane: Lane, machine: &mut dyn Machine) -> Result<bool, Failure> {
        let Some(stream) = self.streams.remove(&lane) else { return Ok(false) };
        stream.waits.iter().try_for_each(|id| self.run_through(*id, machine))?;
        Ok(true)
    }

    /// The graph that a stream is captured into.
    pub fn capture_of(&self, lane: Lane) -> Option<u64> {
        self.streams.get(&lane).and_then(|stream| stream.capture)
    }

    /// Begins to capture a stream into a graph of this handle.
    pub fn begin_capture(&mut self, lane: Lane, graph: u64) {
        self.graphs.insert(graph, Graph::begin(lane));
        if let Some(stream) = self.streams.get_mut(&lane) {
            stream.capture = Some(graph);
        }
    }

    /// Ends the capture of all streams that took part.
    pub fn end_capture(&mut self, graph: u64) {
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(graph)) {
            stream.capture = None;
        }
        let captured = |event: &&mut Event| event.captured.as_ref().is_some_and(|(captured, _)| *captured == graph);
        for event in self.events.values_mut().filter(captured) {
            *event = Event { timed: event.timed, ..Event::default() };
        }
    }

    /// Enqueues work on a stream, which exists, or adds it to the graph that the stream is captured into.
    pub fn enqueue(&mut self, lane: Lane, work: Work, machine: &mut dyn Machine) -> Result<(), Failure> {
        if let Some(graph) = self.capture_of(lane) {
            if let Some(graph) = self.graphs.get_mut(&graph) {
                graph.push(lane, work);
            }
            return Ok(());
        }
        let (clock, after) = self.before(lane);
        let id = self.push(work, lane, clock, after, 0);
        self.settle(lane, &[id]);
        if self.execution == Execution::Eager { self.run_through(id, machine) } else { Ok(()) }
    }

    /// What the next operation of a stream knows and waits for.
    fn before(&self, lane: Lane) -> (Clock, Vec<u64>) {
        let mut clock = self.host.clone();
        let mut after = Vec::new();
        let own = self.streams.get(&lane).is_some_and(|stream| stream.blocking);
        for (other, stream) in &self.streams {
            let ordered = own && stream.blocking && (lane == LEGACY || *other == LEGACY);
            if *other == lane || ordered {
                clock.join(&stream.clock);
                after.extend(&stream.waits);
            }
        }
        (clock, after)
    }

    fn push(&mut self, work: Work, lane: Lane, mut clock: Clock, after: Vec<u64>, round: u64) -> u64 {
        let tick = self.ticks.entry(lane).or_default();
        *tick += 1;
        clock.learn(lane, *tick);
        let id = self.next;
        self.next += 1;
        self.names.insert((lane, *tick), work.operation.name());
        self.pending.insert(id, Pending { work, lane, tick: *tick, clock, after, round });
        id
    }

    /// A stream goes on behind these operations.
    fn settle(&mut self, lane: Lane, ids: &[u64]) {
        let clocks = ids.iter().filter_map(|id| self.pending.get(id)).map(|pending| pending.clock.clone());
        let clocks = clocks.collect::<Vec<_>>();
        if let Some(stream) = self.streams.get_mut(&lane) {
            clocks.iter().for_each(|clock| stream.clock.join(clock));
            stream.waits = ids.to_vec();
        }
    }

    /// Launches a graph on a stream.
    pub fn launch_graph(
        &mut self,
        lane: Lane,
        nodes: &[super::Node],
        machine: &mut dyn Machine,
    ) -> Result<(), Failure> {
        let (base, after) = self.before(lane);
        self.round += 1;
        let mut ids: Vec<u64> = Vec::new();
        for node in nodes {
            let mut clock = base.clone();
            let mut waits = after.clone();
            for earlier in &node.after {
                clock.join(&self.pending[&ids[*earlier]].clock);
                waits.push(ids[*earlier]);
            }
            // What was captured from a stream is not that stream when it is launched.
            ids.push(self.push(node.work.clone(), node.lane | 1 << 63, clock, waits, self.round));
        }
        let marker = Work { operation: Operation::Marker(0), announcement: Arc::default() };
        let mut clock = base;
        ids.iter().for_each(|id| clock.join(&self.pending[id].clock));
        // A graph may have no nodes: its end is behind what was before it all the same.
        let end = self.push(marker, lane, clock, [after, ids].concat(), 0);
        self.settle(lane, &[end]);
        if self.execution == Execution::Eager { self.run_through(end, machine) } else { Ok(()) }
    }

    /// Runs an operation, and before it all that it waits for.
    fn run_through(&mut self, id: u64, machine: &mut dyn Machine) -> Result<(), Failure> {
        let mut stack = vec![id];
        while let Some(top) = stack.last().copied() {
            let Some(pending) = self.pending.get(&top) else {
                stack.pop();
                continue;
            };
            let open = pending.after.iter().copied().filter(|id| self.pending.contains_key(id)).collect::<Vec<_>>();
            if !open.is_empty() {
                stack.extend(open);
                continue;
            }
            stack.pop();
            if let Some(pending) = self.pending.remove(&top) {
                self.run(&pending, machine)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, pending: &Pending, machine: &mut dyn Machine) -> Result<(), Failure> {
        self.done += pending.work.operation.time();
        if let Operation::Marker(event) = pending.work.operation {
            if let Some(event) = self.events.get_mut(&event) {
                event.time = Some(self.done);
            }
            return Ok(());
        }
        let announcement = &pending.work.announcement;
        let key = (pending.round, announcement.clone());
        if self.last.get(&pending.lane) != Some(&key) {
            self.begin_announcement(pending.lane, key, machine);
        }
        let touched = machine.run(&pending.work.operation, &announcement.rights)?;
        let by = (pending.lane, pending.tick);
        for (start, end, write) in touched {
            if let Err(conflict) = self.hazards.touch((start, end), write, by, &pending.clock) {
                return Err(self.hazard(pending, write, &conflict));
            }
        }
        Ok(())
    }

    /// What the lane used as scratch before is unwritten again, and so is what it is to write now.
    fn begin_announcement(&mut self, lane: Lane, key: (u64, Arc<Announcement>), machine: &mut dyn Machine) {
        let before = self.last.insert(lane, key.clone());
        let regions = |announcement: &Announcement| announcement.rights.regions().to_vec();
        for (start, end, mode) in before.iter().flat_map(|(_, announcement)| regions(announcement)) {
            if mode == Mode::Scratch {
                // What another lane has brought there since is not this one's scratch any more.
                let left = self.hazards.written_by(lane, (start, end));
                left.into_iter().for_each(|(start, end)| machine.forget(start, end));
            }
        }
        for (start, end, mode) in regions(&key.1) {
            if mode.starts_unwritten() {
                machine.forget(start, end);
            }
        }
    }

    fn hazard(&self, pending: &Pending, write: bool, conflict: &super::Conflict) -> Failure {
        let verb = |write: bool| if write { "writes" } else { "reads" };
        let other = self.names.get(&conflict.other).copied().unwrap_or("an operation");
        let message = format!(
            "hazard: {} on stream {:#x} {} {:#x}, and nothing orders it with {other} on stream {:#x}, which {} it",
            pending.work.operation.name(),
            pending.lane,
            verb(write),
            conflict.start,
            conflict.other.0,
            verb(conflict.wrote),
        );
        // CUDA_ERROR_LAUNCH_FAILED: a card would say nothing, and compute wrongly.
        Failure { code: 719, message }
    }

    /// The host waits for a stream.
    pub fn synchronize(&mut self, lane: Lane, machine: &mut dyn Machine) -> Result<(), Failure> {
        let (clock, after) = self.before(lane);
        after.iter().try_for_each(|id| self.run_through(*id, machine))?;
        self.host.join(&clock);
        Ok(())
    }

    /// The host waits for everything.
    pub fn synchronize_all(&mut self, machine: &mut dyn Machine) -> Result<(), Failure> {
        while let Some(id) = self.pending.keys().next_back().copied() {
            self.run_through(id, machine)?;
        }
        let clocks = self.streams.values().map(|stream| stream.clock.clone()).collect::<Vec<_>>();
        clocks.iter().for_each(|clock| self.host.join(clock));
        Ok(())
    }

    /// Whether a stream has nothing left to do; if it has, that is done, so that whoever asks again gets on.
    pub fn poll(&mut self, lane: Lane, machine: &mut dyn Machine) -> Result<bool, Failure> {
        let (clock, after) = self.before(lane);
        let ready = after.iter().all(|id| !self.pending.contains_key(id));
        after.iter().try_for_each(|id| self.run_through(*id, machine))?;
        if ready {
            self.host.join(&clock);
        }
        Ok(ready)
    }

    /// Whether any stream is captured.
    pub fn capturing(&self) -> bool {
        self.streams.values().any(|stream| stream.capture.is_some())
    }

    /// Streams but for the legacy one, events and graphs.
    pub fn open_objects(&self) -> usize {
        self.streams.len() - 1 + self.events.len() + self.graphs.len()
    }

    /// A new event of this handle; `timed`: for measuring.
    pub fn create_event(&mut self, event: u64, timed: bool) {
        self.events.insert(event, Event { timed, ..Event::default() });
    }

    /// Ends an event. `false`: there is none.
    pub fn destroy_event(&mut self, event: u64) -> bool {
        self.events.remove(&event).is_some()
    }

    /// Whether an event exists.
    pub fn has_event(&self, event: u64) -> bool {
        self.events.contains_key(&event)
    }

    /// Whether an event belongs to a capture.
    pub fn event_capture(&self, event: u64) -> Option<u64> {
        self.events.get(&event).and_then(|event| event.captured.as_ref()).map(|(graph, _)| *graph)
    }

    /// An event stands for what a stream has done so far.
    pub fn record(&mut self, event: u64, lane: Lane, machine: &mut dyn Machine) -> Result<(), Failure> {
        let timed = self.events.get(&event).is_some_and(|event| event.timed);
        if let Some(graph) = self.capture_of(lane) {
            let nodes = self.graphs.get(&graph).map(|graph| graph.tail(lane)).unwrap_or_default();
            self.events.insert(event, Event { timed, captured: Some((graph, nodes)), ..Event::default() });
            return Ok(());
        }
        let (clock, after) = self.before(lane);
        let marker = Work { operation: Operation::Marker(event), announcement: Arc::default() };
        let id = self.push(marker, lane, clock, after, 0);
        let clock = self.pending[&id].clock.clone();
        self.settle(lane, &[id]);
        self.events.insert(event, Event { clock, operation: Some(id), captured: None, timed, time: None });
        if self.execution == Execution::Eager { self.run_through(id, machine) } else { Ok(()) }
    }

    /// A stream waits for what an event stood for when this was called.
    pub fn wait(&mut self, lane: Lane, event: u64) {
        let Some(event) = self.events.get(&event).cloned() else { return };
        if let Some((graph, nodes)) = event.captured {
            if let Some(graph) = self.graphs.get_mut(&graph) {
                graph.wait(lane, &nodes);
            }
            if let Some(stream) = self.streams.get_mut(&lane) {
                stream.capture = Some(graph);
            }
            return;
        }
        if let Some(stream) = self.streams.get_mut(&lane) {
            stream.clock.join(&event.clock);
            stream.waits.extend(event.operation);
        }
    }

    /// The host waits for an event.
    pub fn synchronize_event(&mut self, event: u64, machine: &mut dyn Machine) -> Result<(), Failure> {
        let Some(event) = self.events.get(&event).cloned() else { return Ok(()) };
        event.operation.map_or(Ok(()), |id| self.run_through(id, machine))?;
        self.host.join(&event.clock);
        Ok(())
    }

    /// Whether an event has happened; if not, it does now, so that whoever asks again gets on.
    pub fn poll_event(&mut self, event: u64, machine: &mut dyn Machine) -> Result<bool, Failure> {
        let Some(state) = self.events.get(&event).cloned() else { return Ok(true) };
        let ready = state.operation.is_none_or(|id| !self.pending.contains_key(&id));
        state.operation.map_or(Ok(()), |id| self.run_through(id, machine))?;
        if ready {
            self.host.join(&state.clock);
        }
        Ok(ready)
    }

    /// Operations that ran between two events. `None`: they aren't both for measuring; `Some(None)`: they have not both
    /// happened.
    pub fn operations_between(&self, first: u64, last: u64) -> Option<Option<u64>> {
        let (first, last) = (self.events.get(&first)?, self.events.get(&last)?);
        if !first.timed || !last.timed || first.operation.is_none() || last.operation.is_none() {
            return None;
        }
        Some(first.time.zip(last.time).map(|(first, last)| last.saturating_sub(first)))
    }
}
