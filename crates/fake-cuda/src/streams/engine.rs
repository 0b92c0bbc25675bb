//! Operations of streams: when they run, and how they are ordered.

use super::capture::Graph;
use super::clock::{Clock, Lane};
use super::failure::Failure;
use super::hazards::Hazards;
use super::operation::{Announcement, Operation, Work};
use crate::shadow::{Mode, Rights};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The legacy stream, which is ordered with all blocking streams.
pub const LEGACY: Lane = 0;

/// When operations run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// As soon as they are enqueued.
    Eager,
    /// When the host waits for them, or for an operation that depends on them.
    Late,
}

/// Runs operations, and returns the bytes accessed: start, end, whether written.
pub trait Machine {
    /// Runs an operation.
    fn run(&mut self, operation: &Operation, rights: &Rights) -> Result<Vec<(u64, u64, bool)>, Failure>;
    /// Marks bytes of the device as unwritten.
    fn forget(&mut self, start: u64, end: u64);
}

#[derive(Debug, Default)]
struct Stream {
    clock: Clock,
    /// Operations that its next operation waits for.
    waits: Vec<u64>,
    /// Whether it is ordered with the legacy stream.
    blocking: bool,
    /// The graph into which it is captured.
    capture: Option<u64>,
}

#[derive(Debug, Default, Clone)]
struct Event {
    clock: Clock,
    /// The recorded operation.
    operation: Option<u64>,
    /// Graph and nodes, if recorded in a capture.
    captured: Option<(u64, Vec<usize>)>,
    /// Whether it has timing.
    timed: bool,
    /// Position in the order in which operations ran, used as time; `None` before that.
    time: Option<u64>,
}

#[derive(Debug)]
struct Pending {
    work: Work,
    lane: Lane,
    tick: u64,
    clock: Clock,
    after: Vec<u64>,
    /// Distinguishes launches of a graph.
    round: u64,
}

/// Streams, events and pending operations.
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
    /// Bytes accessed so far.
    pub hazards: Hazards,
    /// Names of operations, for messages.
    names: HashMap<(Lane, u64), &'static str>,
    /// The announcement under which each lane last ran.
    last: HashMap<Lane, (u64, Arc<Announcement>)>,
    /// Number of operations run.
    done: u64,
}

impl Engine {
    /// An engine with only the legacy stream.
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

    /// Creates a stream with this handle.
    pub fn create_stream(&mut self, lane: Lane, blocking: bool) {
        self.streams.insert(lane, Stream { blocking, ..Stream::default() });
    }

    /// Whether a stream exists.
    pub fn has_stream(&self, lane: Lane) -> bool {
        self.streams.contains_key(&lane)
    }

    /// Destroys a stream after running its pending operations.
    pub fn destroy_stream(&mut self, lane: Lane, machine: &mut dyn Machine) -> Result<bool, Failure> {
        let Some(stream) = self.streams.remove(&lane) else { return Ok(false) };
        stream.waits.iter().try_for_each(|id| self.run_through(*id, machine))?;
        Ok(true)
    }

    /// The graph into which a stream is captured.
    pub fn capture_of(&self, lane: Lane) -> Option<u64> {
        self.streams.get(&lane).and_then(|stream| stream.capture)
    }

    /// Begins to capture a stream into a graph with this handle.
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

    /// Enqueues work on an existing stream, or adds it to the graph into which the stream is captured.
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

    /// Clock and dependencies of a stream's next operation.
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

    /// Makes a stream's next operation depend on these.
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
            // Within a launch, each captured stream is a lane of its own.
            ids.push(self.push(node.work.clone(), node.lane | 1 << 63, clock, waits, self.round));
        }
        let marker = Work { operation: Operation::Marker(0), announcement: Arc::default() };
        let mut clock = base;
        ids.iter().for_each(|id| clock.join(&self.pending[id].clock));
        // The end of a graph without nodes still depends on what was enqueued before.
        let end = self.push(marker, lane, clock, [after, ids].concat(), 0);
        self.settle(lane, &[end]);
        if self.execution == Execution::Eager { self.run_through(end, machine) } else { Ok(()) }
    }

    /// Runs an operation, after all that it depends on.
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

    /// Marks as unwritten what the lane used as scratch before, and what the operation is about to write.
    fn begin_announcement(&mut self, lane: Lane, key: (u64, Arc<Announcement>), machine: &mut dyn Machine) {
        let before = self.last.insert(lane, key.clone());
        let regions = |announcement: &Announcement| announcement.rights.regions().to_vec();
        for (start, end, mode) in before.iter().flat_map(|(_, announcement)| regions(announcement)) {
            if mode == Mode::Scratch {
                // Bytes that another lane wrote since then are not this lane's scratch any more.
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
            "hazard: {} on stream {:#x} {} {:#x}, not ordered with {other} on stream {:#x}, which {} it",
            pending.work.operation.name(),
            pending.lane,
            verb(write),
            conflict.start,
            conflict.other.0,
            verb(conflict.wrote),
        );
        // CUDA_ERROR_LAUNCH_FAILED; a real card would silently compute a wrong result.
        Failure { code: 719, message }
    }

    /// Waits for a stream.
    pub fn synchronize(&mut self, lane: Lane, machine: &mut dyn Machine) -> Result<(), Failure> {
        let (clock, after) = self.before(lane);
        after.iter().try_for_each(|id| self.run_through(*id, machine))?;
        self.host.join(&clock);
        Ok(())
    }

    /// Waits for all operations.
    pub fn synchronize_all(&mut self, machine: &mut dyn Machine) -> Result<(), Failure> {
        while let Some(id) = self.pending.keys().next_back().copied() {
            self.run_through(id, machine)?;
        }
        let clocks = self.streams.values().map(|stream| stream.clock.clone()).collect::<Vec<_>>();
        clocks.iter().for_each(|clock| self.host.join(clock));
        Ok(())
    }

    /// Whether a stream has finished; if not, runs its operations, so that a loop that polls ends.
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

    /// Number of streams (without the legacy one), events and graphs.
    pub fn open_objects(&self) -> usize {
        self.streams.len() - 1 + self.events.len() + self.graphs.len()
    }

    /// Creates an event with this handle; `timed`: with timing.
    pub fn create_event(&mut self, event: u64, timed: bool) {
        self.events.insert(event, Event { timed, ..Event::default() });
    }

    /// Destroys an event. Returns false if it does not exist.
    pub fn destroy_event(&mut self, event: u64) -> bool {
        self.events.remove(&event).is_some()
    }

    /// Whether an event exists.
    pub fn has_event(&self, event: u64) -> bool {
        self.events.contains_key(&event)
    }

    /// Whether an event was recorded in a capture.
    pub fn event_capture(&self, event: u64) -> Option<u64> {
        self.events.get(&event).and_then(|event| event.captured.as_ref()).map(|(graph, _)| *graph)
    }

    /// Records an event: it stands for a stream's operations so far.
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

    /// Makes a stream wait for an event, as recorded at the time of this call.
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

    /// Waits for an event.
    pub fn synchronize_event(&mut self, event: u64, machine: &mut dyn Machine) -> Result<(), Failure> {
        let Some(event) = self.events.get(&event).cloned() else { return Ok(()) };
        event.operation.map_or(Ok(()), |id| self.run_through(id, machine))?;
        self.host.join(&event.clock);
        Ok(())
    }

    /// Whether an event has happened; if not, runs its operations, so that a loop that polls ends.
    pub fn poll_event(&mut self, event: u64, machine: &mut dyn Machine) -> Result<bool, Failure> {
        let Some(state) = self.events.get(&event).cloned() else { return Ok(true) };
        let ready = state.operation.is_none_or(|id| !self.pending.contains_key(&id));
        state.operation.map_or(Ok(()), |id| self.run_through(id, machine))?;
        if ready {
            self.host.join(&state.clock);
        }
        Ok(ready)
    }

    /// Number of operations between two events. `None`: one has no timing; `Some(None)`: one has not happened.
    pub fn operations_between(&self, first: u64, last: u64) -> Option<Option<u64>> {
        let (first, last) = (self.events.get(&first)?, self.events.get(&last)?);
        if !first.timed || !last.timed || first.operation.is_none() || last.operation.is_none() {
            return None;
        }
        Some(first.time.zip(last.time).map(|(first, last)| last.saturating_sub(first)))
    }
}
