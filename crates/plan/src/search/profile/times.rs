//! Lower bounds on the work of each queue in a step, and so on the step.
//!
//! ```text
//!   device      forward ─────────► backward, recomputation ─────────►
//!   to host            offloaded activations     gradients
//!   host                                         updates
//!   to device                                    activations, weights
//! ```

use super::live::{StagedWeight, micro_step, staged_weights};
use super::moved::{Moved, Owners};
use crate::cost::{KnownTimes, Machine, Work};
use crate::levers::with_scratch;
use crate::request::Request;
use plimsoll_graph::ops::{Home, Transfer};
use plimsoll_graph::{Access, Graph, Io, MemoryId, Node, Op, Pass, ProgramKind, Targets, TensorId};
use plimsoll_units::Seconds;

/// Seconds of each queue.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Busy {
    device: f64,
    host: f64,
    to_device: f64,
    to_host: f64,
}

impl Busy {
    fn add(&mut self, other: Self) {
        self.device += other.device;
        self.host += other.host;
        self.to_device += other.to_device;
        self.to_host += other.to_host;
    }
}

/// What each queue does of a program, in all and after the backward pass has come to the first block.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OfQueues {
    all: Busy,
    in_backward: Busy,
    /// Seconds in which the host updates weights that the forward pass needs.
    host_first: f64,
}

/// Seconds that a micro-step spends on activations that it does not keep.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Activity {
    /// Of the device.
    pub(super) recompute: f64,
    /// Of the link, each way.
    pub(super) offload: f64,
}

/// Seconds of the nodes of a micro-batch's programs.
pub(super) struct StepTimes {
    programs: Vec<OfProgram>,
    /// Of each parameter.
    weights: Vec<TensorId>,
    overlaps: bool,
    /// Whether the host updates while the next step begins.
    host_updates_later: bool,
}

/// Seconds of one program.
struct OfProgram {
    kind: ProgramKind,
    /// How often it runs in a step.
    repeats: usize,
    has_backward: bool,
    stays: Busy,
    /// Of the device, before it comes to the backward pass of the first block.
    before_backward: f64,
    movable: Vec<Movable>,
    fetches: Vec<Fetch>,
    /// For each scratch, how much longer the device takes than with the first.
    longer: Vec<f64>,
}

impl StepTimes {
    /// Of a graph with the first of these scratches that recomputes and offloads nothing.
    pub(super) fn new(
        request: &Request,
        micro_batch: usize,
        graph: &Graph,
        owners: &Owners,
        scratches: &[(usize, usize)],
        host_updates_later: bool,
    ) -> Self {
        let mut times = Times::new(request, graph);
        let micro_step = micro_step(graph).map(|index| &*graph.programs[index].nodes);
        let accumulation = request.global_batch / micro_batch;
        let programs = Machine::programs(ProgramKind::MicroStep, accumulation, graph.has_reference_point());
        let programs = programs.map(|(kind, repeats)| {
            // The first micro-step of several does what the others do.
            let nodes = graph.program(kind).map_or(&[][..], |program| &program.nodes);
            let is_micro_step = kind != ProgramKind::Update;
            let nodes = if is_micro_step && nodes.is_empty() { micro_step.unwrap_or_default() } else { nodes };
            let (stays, movable) = times.of_program(nodes, owners);
            let first_backward = nodes.iter().position(|n| n.pass == Pass::Backward && n.block.is_some());
            OfProgram {
                kind,
                repeats,
                has_backward: first_backward.is_some(),
                stays,
                before_backward: times.certain(&nodes[..first_backward.unwrap_or(0)]),
                movable,
                fetches: times.fetches(nodes),
                longer: scratches.iter().map(|&scratch| times.longer(nodes, scratch)).collect(),
            }
        });
        let weights = graph.parameters.iter().map(|parameter| parameter.tensor).collect();
        let overlaps = request.machine.overlaps(&request.targets);
        Self { programs: programs.collect(), weights, overlaps, host_updates_later }
    }

    /// What each program does with a share of the state moved. What the host updates, it updates while the next step begins.
    pub(super) fn busy(&self, share: &Moved) -> Vec<OfQueues> {
        let mut host_updates = Busy::default();
        let of_program = |OfProgram { stays, movable, fetches, .. }: &OfProgram| {
            let mut of_queues = OfQueues { all: *stays, ..OfQueues::default() };
            for Fetch { seconds, is_in_backward, .. } in fetches.iter().filter(|of| share.weights[of.weight.index()]) {
                let busy = Busy { to_device: *seconds, ..Busy::default() };
                of_queues.all.add(busy);
                if *is_in_backward {
                    of_queues.in_backward.add(busy);
                }
            }
            for Movable { owner, here, moved, with_its_weight, is_in_block, is_update } in movable {
                let is_moved = share.parameters[*owner];
                let busy = match (is_moved, share.weights[self.weights[*owner].index()]) {
                    (true, true) => *with_its_weight,
                    (true, false) => *moved,
                    (false, _) => *here,
                };
                if *is_update && is_moved && self.host_updates_later {
                    host_updates.add(busy);
                    continue;
                }
                of_queues.all.add(busy);
                if *is_in_block {
                    of_queues.in_backward.add(busy);
                }
            }
            of_queues
        };
        let mut busy = self.programs.iter().map(of_program).collect::<Vec<_>>();
        if let Some(first) = self.programs.iter().position(|program| program.kind == ProgramKind::MicroStep) {
            busy[first].all.add(host_updates);
            busy[first].host_first = host_updates.host;
        }
        busy
    }

    /// The least time of a step whose programs do this, with a scratch by its index.
    pub(super) fn at_least(&self, busy: &[OfQueues], activity: Activity, scratch: usize) -> Seconds {
        /// Sums of thousands of numbers, in another order than the step's that is predicted.
        const ROUNDING: f64 = 1.0 - 1e-9;
        let seconds = self.programs.iter().zip(busy).map(|(program, OfQueues { all, in_backward, host_first })| {
            let activity = if program.has_backward { activity } else { Activity::default() };
            let Activity { recompute, offload } = activity;
            let Busy { device, host, to_device, to_host } = *all;
            let device = device + recompute + program.longer[scratch];
            let end = if self.overlaps {
                // The backward pass comes to the first block when all that is offloaded is on the host, and all weights are
                // updated. Then that comes back, and the optimizer on the host begins with the blocks' gradients.
                let begin = program.before_backward.max(offload).max(*host_first);
                let rest = program.stays.device - program.before_backward + recompute;
                let Busy { host: host_then, to_device: to_device_then, to_host: to_host_then, .. } = *in_backward;
                let backward = rest.max(host_then).max(to_host_then).max(to_device_then + offload);
                device.max(host).max(to_device + offload).max(to_host + offload).max(begin + backward)
            } else {
                device + host + to_device + to_host + 2.0 * offload
            };
            ROUNDING * program.repeats as f64 * end
        });
        Seconds(seconds.sum())
    }
}

/// A node whose queue depends on whether a parameter's optimizer is moved.
struct Movable {
    /// The parameter's index.
    owner: usize,
    /// Its seconds with the optimizer on the device.
    here: Busy,
    /// The same with the optimizer on the host.
    moved: Busy,
    /// The same with the weight on the host, too.
    with_its_weight: Busy,
    is_in_block: bool,
    /// Whether it updates the parameter.
    is_update: bool,
}

/// A weight that travels if it rests on the host.
struct Fetch {
    weight: TensorId,
    /// On the link.
    seconds: f64,
    /// Whether a block needs it in its backward pass.
    is_in_backward: bool,
}

struct Times<'a> {
    machine: &'a Machine,
    targets: &'a Targets,
    graph: &'a Graph,
    known: KnownTimes,
}

impl<'a> Times<'a> {
    fn new(request: &'a Request, graph: &'a Graph) -> Self {
        Self { machine: &request.machine, targets: &request.targets, graph, known: KnownTimes::default() }
    }

    /// Seconds of the nodes that run on the device wherever the optimizer is.
    fn certain(&mut self, nodes: &[Node]) -> f64 {
        let is_certain = |node: &&Node| node.op.home() == Home::Device && node.memory(self.graph) == MemoryId::DEVICE;
        nodes.iter().filter(is_certain).map(|node| self.on_device(node).device).sum()
    }

    /// What is on the device in any case, and what may be elsewhere. Left out is what follows its operands, and what not all
    /// graphs have: what is recomputed, and activations on their way.
    fn of_program(&mut self, nodes: &[Node], owners: &Owners) -> (Busy, Vec<Movable>) {
        let (mut stays, mut movable) = (Busy::default(), Vec::new());
        let is_common =
            |node: &&Node| node.pass != Pass::Recompute && !matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_));
        for node in nodes.iter().filter(is_common) {
            let is_in_block = node.block.is_some();
            if let Some(owner) = owners.updated(node) {
                let (here, moved) = (self.on_device(node), self.when_moved(owner, node));
                let host = self.on_host(&node.op, &self.graph.io(&node.inputs, &node.outputs));
                let with_its_weight = Busy { host, ..Busy::default() };
                movable.push(Movable { owner, here, moved, with_its_weight, is_in_block, is_update: true });
            } else if let Some(owner) = owners.gradient(node.outputs[0]).filter(|_| node.op.home() == Home::Result) {
                let (here, moved) = (self.on_device(node), self.with_its_result(node));
                movable.push(Movable { owner, here, moved, with_its_weight: moved, is_in_block, is_update: false });
            } else if node.op.home() == Home::Device && node.memory(self.graph) == MemoryId::DEVICE {
                stays.add(self.on_device(node));
                for (index, &id) in node.outputs.iter().enumerate() {
                    if let Some(owner) = owners.gradient(id) {
                        let seconds = self.transfer(id);
                        let fetched = if node.op.access(index) == Access::ReadWrite { seconds } else { 0.0 };
                        let sent = Busy { to_host: seconds, to_device: fetched, ..Busy::default() };
                        let (here, moved) = (Busy::default(), sent);
                        movable.push(Movable {
                            owner,
                            here,
                            moved,
                            with_its_weight: moved,
                            is_in_block,
                            is_update: false,
                        });
                    }
                }
            }
        }
        (stays, movable)
    }

    /// The weights that nodes need on the device.
    fn fetches(&mut self, nodes: &[Node]) -> Vec<Fetch> {
        let staged = staged_weights(self.graph, nodes);
        let fetch = |of: StagedWeight| {
            let (weight, is_in_backward) = (of.id, of.is_in_backward);
            Fetch { weight, seconds: self.transfer(weight), is_in_backward }
        };
        staged.into_iter().map(fetch).collect()
    }

    /// How much longer the device takes with other rows at a time than these nodes have.
    fn longer(&mut self, nodes: &[Node], scratch: (usize, usize)) -> f64 {
        let of_node = |node: &Node| {
            let op = with_scratch(&node.op, scratch)?;
            Some(self.on_device(&Node { op, ..node.clone() }).device - self.on_device(node).device)
        };
        nodes.iter().filter_map(of_node).sum()
    }

    fn on_device(&mut self, node: &Node) -> Busy {
        let device = self.machine.on_device(self.graph, node, self.targets, &mut self.known);
        Busy { device, ..Busy::default() }
    }

    /// An optimizer's node with its state on the host; a weight without a master is sent back.
    fn when_moved(&mut self, owner: usize, node: &Node) -> Busy {
        let parameter = &self.graph.parameters[owner];
        let host = self.on_host(&node.op, &self.graph.io(&node.inputs, &node.outputs));
        let is_sent_itself = parameter.master() == parameter.tensor;
        let to_device = if is_sent_itself { self.transfer(parameter.tensor) } else { 0.0 };
        Busy { host, to_device, ..Busy::default() }
    }

    /// What follows its result to the host, where its operands are sent.
    fn with_its_result(&mut self, node: &Node) -> Busy {
        let host = self.on_host(&node.op, &self.graph.io(&node.inputs, &node.outputs));
        let to_host = node.inputs.iter().map(|&id| self.transfer(id)).sum();
        Busy { host, to_host, ..Busy::default() }
    }

    fn on_host(&mut self, op: &Op, io: &Io) -> f64 {
        let work = Work::of(op, io, &self.targets.host);
        match self.machine.overlaps(self.targets) {
            true => self.machine.on_host_known(op, work, &mut self.known),
            false => self.machine.known(op, work, &mut self.known),
        }
    }

    fn transfer(&mut self, id: TensorId) -> f64 {
        let (op, ty) = (Op::from(Transfer), &self.graph[id].ty);
        let io = Io::new([ty], [ty]);
        self.machine.known(&op, Work::of(&op, &io, &self.targets.device), &mut self.known)
    }
}
