//! What queues are certain to do in a step.

use super::moved::{Moved, Owners};
use crate::cost::{KnownTimes, Machine, Work};
use crate::levers::{whole, with_scratch};
use crate::request::Request;
use plimsoll_graph::ops::{Home, Transfer};
use plimsoll_graph::{Access, DType, Graph, Io, Node, Op, Pass, Place, Targets, TensorId};
use plimsoll_units::Seconds;

/// Seconds of the queues that work side by side.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Busy {
    pub(crate) device: f64,
    pub(crate) host: f64,
    pub(crate) to_device: f64,
    pub(crate) to_host: f64,
}

impl Busy {
    fn add(&mut self, other: Self) {
        self.device += other.device;
        self.host += other.host;
        self.to_device += other.to_device;
        self.to_host += other.to_host;
    }

    /// With what others do.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    fn end(self, overlaps: bool) -> f64 {
        let Self { device, host, to_device, to_host } = self;
        if overlaps { device.max(host).max(to_device).max(to_host) } else { device + host + to_device + to_host }
    }
}

/// Seconds of the nodes that all graphs of a micro-batch have, whatever they recompute.
pub(super) struct CommonTimes {
    /// Those of a step.
    programs: Vec<OfProgram>,
    overlaps: bool,
}

/// Seconds of a program's nodes.
struct OfProgram {
    name: &'static str,
    /// How often it runs in a step.
    repeats: usize,
    stays: Busy,
    movable: Vec<Movable>,
    /// For each scratch, how much longer the device takes than with all of it.
    longer: Vec<f64>,
}

impl CommonTimes {
    /// Of a graph with the first of these scratches, which is all of it.
    pub(super) fn new(
        request: &Request,
        micro_batch: usize,
        graph: &Graph,
        owners: &Owners,
        scratches: &[(usize, usize)],
    ) -> Self {
        let mut times = Times::new(request, graph);
        let programs = Machine::programs(request.global_batch / micro_batch).map(|(name, repeats)| {
            let nodes = times.nodes(name);
            let (stays, movable) = times.of_program(nodes, owners);
            let longer = scratches.iter().map(|&scratch| times.longer(nodes, scratch)).collect();
            OfProgram { name, repeats, stays, movable, longer }
        });
        Self { programs: programs.collect(), overlaps: request.machine.overlaps(&request.targets) }
    }

    /// What is done in each program with a part moved.
    pub(super) fn busy(&self, part: &Moved) -> Vec<Busy> {
        let of_program = |OfProgram { stays, movable, .. }: &OfProgram| {
            let mut busy = *stays;
            for (owner, here, moved) in movable {
                busy.add(if part.parameters[*owner] { *moved } else { *here });
            }
            busy
        };
        self.programs.iter().map(of_program).collect()
    }

    /// What a graph recomputes and sends, in each program.
    pub(super) fn beside(&self, request: &Request, graph: &Graph) -> Vec<Busy> {
        let mut times = Times::new(request, graph);
        let of_program = |OfProgram { name, .. }: &OfProgram| {
            let mut beside = Busy::default();
            // A first micro-step recomputes and sends what those do that add to it.
            let program = if graph.program(name).is_none() && *name == "micro_step" { "micro_step_add" } else { name };
            for node in times.nodes(program) {
                match node.op {
                    Op::Transfer(_) => beside.add(times.sent(node)),
                    _ if node.pass == Pass::Recompute => beside.add(times.on_device(node)),
                    _ => {}
                }
            }
            beside
        };
        self.programs.iter().map(of_program).collect()
    }

    /// What each program does of something that is done in each micro-step with a backward pass.
    pub(super) fn in_micro_steps(&self, each: Busy) -> impl Iterator<Item = Busy> {
        self.programs.iter().map(move |program| if program.name == "update" { Busy::default() } else { each })
    }

    /// No step is shorter whose queues do this in each program, with a scratch: what the busiest queue certainly does.
    pub(super) fn step(&self, busy: impl Iterator<Item = Busy>, scratch: usize) -> Seconds {
        /// Sums of thousands of numbers, in another order than the step's that is predicted.
        const ROUNDING: f64 = 1.0 - 1e-9;
        let of_program = |(OfProgram { repeats, longer, .. }, busy): (&OfProgram, Busy)| {
            let busy = Busy { device: busy.device + longer[scratch], ..busy };
            ROUNDING * *repeats as f64 * busy.end(self.overlaps)
        };
        Seconds(self.programs.iter().zip(busy).map(of_program).sum())
    }
}

/// A node whose queue depends on whether a parameter's optimizer is moved: of which, and its seconds here and there.
type Movable = (usize, Busy, Busy);

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

    fn nodes(&self, program: &str) -> &'a [Node] {
        self.graph.program(program).map_or(&[], |program| &program.nodes)
    }

    /// What is on the device in any case, and what may be elsewhere. Left out is what follows its operands, and what not all
    /// graphs have: what is recomputed, and activations on their way.
    fn of_program(&mut self, nodes: &[Node], owners: &Owners) -> (Busy, Vec<Movable>) {
        let (mut stays, mut movable) = (Busy::default(), Vec::new());
        let is_common =
            |node: &&Node| node.pass != Pass::Recompute && !matches!(node.op, Op::Transfer(_) | Op::AwaitTransfer(_));
        for node in nodes.iter().filter(is_common) {
            if let Some(owner) = owners.updated(node) {
                movable.push((owner, self.on_device(node), self.when_moved(owner, node)));
            } else if let Some(owner) = owners.gradient(node.outputs[0]).filter(|_| node.op.home() == Home::Result) {
                movable.push((owner, self.on_device(node), self.beside_its_result(node)));
            } else if node.op.home() == Home::Device && node.place(self.graph) == Place::Device {
                stays.add(self.on_device(node));
                for (index, &id) in node.outputs.iter().enumerate() {
                    if let Some(owner) = owners.gradient(id) {
                        let seconds = self.transfer(id);
                        let fetched = if node.op.access(index) == Access::ReadWrite { seconds } else { 0.0 };
                        let sent = Busy { to_host: seconds, to_device: fetched, ..Busy::default() };
                        movable.push((owner, Busy::default(), sent));
                    }
                }
            }
        }
        (stays, movable)
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

    /// An optimizer's node beside its state on the host; where the weight has no master, it is sent back.
    fn when_moved(&mut self, owner: usize, node: &Node) -> Busy {
        let parameter = &self.graph.parameters[owner];
        let mut io = self.graph.io(&node.inputs, &node.outputs);
        let (mut op, mut master) = (node.op.clone(), None);
        let update = node.op.update().expect("an optimizer's node updates a weight");
        if let Some(remainder) = update.remainder {
            op = whole(&node.op);
            io.outputs.remove(remainder);
            io.outputs[update.weight] = master.insert(self.graph[parameter.tensor].ty.with_dtype(DType::F32));
        }
        let host = self.on_host(&op, &io);
        let is_sent_itself = parameter.master() == parameter.tensor && update.remainder.is_none();
        let to_device = if is_sent_itself { self.transfer(parameter.tensor) } else { 0.0 };
        Busy { host, to_device, ..Busy::default() }
    }

    /// What follows its result to the host, where its operands are sent.
    fn beside_its_result(&mut self, node: &Node) -> Busy {
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

    /// A transfer of an activation.
    fn sent(&mut self, node: &Node) -> Busy {
        let seconds = self.transfer(node.inputs[0]);
        match self.graph[node.outputs[0]].place {
            Place::Device => Busy { to_device: seconds, ..Busy::default() },
            Place::Host => Busy { to_host: seconds, ..Busy::default() },
        }
    }

    fn transfer(&mut self, id: TensorId) -> f64 {
        let (op, ty) = (Op::from(Transfer), &self.graph[id].ty);
        let io = Io::new([ty], [ty]);
        self.machine.known(&op, Work::of(&op, &io, &self.targets.device), &mut self.known)
    }
}
