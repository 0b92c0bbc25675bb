//! What is known of candidates before they are built: bounds on their bytes and on their step, read off the graph that
//! those share which differ in the part of the optimizer that is moved, and in rows of scratch.
//!
//! ```text
//!   trunk, its tensors on the device        without what is moved        and so the least that is live
//!     ▁▃▅█▅▃▁  activations                    ▁▃▅█▅▃▁                      with any part on the host
//!     ▁▁▂▂▃▃▄  gradients                      ▁▁▁▁▂▂▂
//! ```
//!
//! Moving a part of the optimizer takes what belongs to it out of the device, adds transfers and room for them, and
//! leaves the order of what the device computes as it is. So the rest lives as long as before, and queues work as long
//! as the nodes that are certain to be on them.

use crate::cost::{KnownTimes, Machine, Work};
use crate::layout::{ALIGNMENT, lifetimes_of, scalars_in, scratch_bytes, tight};
use crate::levers::{moved, whole, with_scratch};
use crate::lifetimes::{Buffer, Lifetimes};
use crate::request::Request;
use plimsoll_graph::ops::{Home, Transfer};
use plimsoll_graph::{
    Access, DType, Graph, Io, Node, Op, Parameter, Pass, Place, Program, Role, Storage, Targets, Tensor, TensorId,
    Training,
};
use plimsoll_units::Seconds;
use rustc_hash::FxHashMap;

/// Bounds for the candidates that share a graph.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outline {
    /// By the part that is moved.
    parts: Vec<f64>,
    /// By the rows of scratch.
    scratches: Vec<(usize, usize)>,
    /// For each part and scratch: its step takes no less.
    steps: Vec<Vec<Seconds>>,
    /// For each part and scratch: the arenas of device and host are no smaller.
    least: Vec<Vec<[u64; 2]>>,
}

impl Outline {
    /// Of the candidates that make of `trunk`, whose other levers are pulled, one with any of these parts moved and
    /// any of these rows of scratch, which are those that the common times are of.
    pub(crate) fn new(
        request: &Request,
        common: &CommonTimes,
        trunk: Graph,
        parts: &[f64],
        scratches: &[(usize, usize)],
    ) -> Self {
        let kept = kept_over_the_run(&trunk);
        let parts_moved = parts.iter().map(|&part| Moved::new(&trunk, part, kept)).collect::<Vec<_>>();
        let owners = Owners::of(&trunk);
        let steps = common.steps_at_least(request, &trunk, &parts_moved);
        let waiting = waiting_on_host(&trunk);
        let gathered = gathered(&trunk, &owners);
        let on_host = |moved: &Moved| waiting.max(gathered_on_host(&gathered, moved));
        let transient = parts_moved.iter().map(on_host).collect::<Vec<_>>();
        let live = live_at_least(&trunk, &request.targets, &owners, &parts_moved, scratches);
        let scalars = scalars_in(Place::Device, &request.targets);
        let least = live.into_iter().zip(&parts_moved).zip(transient).map(|((by_scratch, moved), transient)| {
            let [device, host] = moved.state;
            by_scratch.into_iter().map(|live| [scalars + device + tight(live), host + tight(transient)]).collect()
        });
        let least = least.collect();
        Self { parts: parts.to_vec(), scratches: scratches.to_vec(), steps, least }
    }

    /// The bytes that the arenas of device and host have at the least.
    pub(crate) fn least(&self, part: f64, scratch: (usize, usize)) -> [u64; 2] {
        self.least[self.index_of(part)][self.index_of_scratch(scratch)]
    }

    /// The time that a step takes at the least.
    pub(crate) fn step(&self, part: f64, scratch: (usize, usize)) -> Seconds {
        self.steps[self.index_of(part)][self.index_of_scratch(scratch)]
    }

    /// The same whatever the scratch, of which less never makes a step faster.
    pub(crate) fn shortest_step(&self, part: f64) -> Seconds {
        self.steps[self.index_of(part)][0]
    }

    fn index_of_scratch(&self, scratch: (usize, usize)) -> usize {
        self.scratches.iter().position(|known| *known == scratch).expect("an outline's scratch")
    }

    fn index_of(&self, part: f64) -> usize {
        self.parts.iter().position(|known| *known == part).expect("an outline's part of the optimizer")
    }
}

/// What its tensors keep over the run on device and host once a part of the optimizer is moved. The graph may be one
/// whose update is joined to its micro-step or one where that is still to come.
pub(crate) fn state_when_moved(graph: &Graph, part: f64) -> [u64; 2] {
    Moved::of(graph, part).state
}

/// A part of the optimizer that is moved.
struct Moved {
    /// Whose, by the index of the parameter.
    parameters: Vec<bool>,
    /// Bytes that are kept over the run on device and host.
    state: [u64; 2],
}

/// Whether a tensor has bytes over the whole run: where a step has one micro-batch, gradients don't outlive it.
fn is_kept(graph: &Graph) -> impl Fn(&Tensor) -> bool + use<> {
    let keeps_gradients = graph.program("micro_step_add").is_some();
    move |tensor| tensor.storage == Storage::Persistent && (keeps_gradients || tensor.role != Role::Gradient)
}

fn kept_bytes(tensor: &Tensor) -> u64 {
    tensor.ty.bytes().align_up(ALIGNMENT).0
}

/// Bytes of device and host that tensors keep over the run where they lie.
fn kept_over_the_run(graph: &Graph) -> [u64; 2] {
    let is_kept = is_kept(graph);
    let mut state = [0; 2];
    for tensor in graph.tensors.iter().filter(|tensor| is_kept(tensor)) {
        state[tensor.place as usize] += kept_bytes(tensor);
    }
    state
}

impl Moved {
    fn of(graph: &Graph, part: f64) -> Self {
        Self::new(graph, part, kept_over_the_run(graph))
    }

    /// Beside it what is kept where nothing is moved yet.
    fn new(graph: &Graph, part: f64, mut state: [u64; 2]) -> Self {
        let (is_kept, bytes) = (is_kept(graph), kept_bytes);
        let mut parameters = vec![false; graph.parameters.len()];
        for index in moved(graph, part) {
            parameters[index] = true;
            let Parameter { tensor, training, .. } = &graph.parameters[index];
            let Training { gradient, master, remainder, state: moments, .. } =
                training.as_ref().expect("what is moved is trained");
            for &id in moments.iter().chain([gradient]).chain(master).filter(|id| is_kept(&graph[**id])) {
                state[Place::Device as usize] -= bytes(&graph[id]);
                state[Place::Host as usize] += bytes(&graph[id]);
            }
            // The master that it gets there.
            match (master, remainder) {
                (Some(_), _) => {}
                (None, Some(remainder)) => {
                    state[Place::Device as usize] -= bytes(&graph[*remainder]);
                    let ty = graph[*tensor].ty.with_dtype(DType::F32);
                    state[Place::Host as usize] += ty.bytes().align_up(ALIGNMENT).0;
                }
                (None, None) => state[Place::Host as usize] += bytes(&graph[*tensor]),
            }
        }
        Self { parameters, state }
    }
}

/// The parameter that each weight, master and gradient belongs to, by its index.
struct Owners {
    of_weight: Vec<Option<u32>>,
    of_gradient: Vec<Option<u32>>,
}

impl Owners {
    fn of(graph: &Graph) -> Self {
        let none = vec![None; graph.tensors.len()];
        let mut owners = Self { of_weight: none.clone(), of_gradient: none };
        for (parameter, index) in graph.parameters.iter().zip(0..) {
            owners.of_weight[parameter.tensor.index()] = Some(index);
            owners.of_weight[parameter.master().index()] = Some(index);
            if let Some(training) = &parameter.training {
                owners.of_gradient[training.gradient.index()] = Some(index);
            }
        }
        owners
    }

    fn gradient(&self, id: TensorId) -> Option<usize> {
        self.of_gradient[id.index()].map(|index| index as usize)
    }

    /// The parameter that an optimizer's node updates.
    fn updated(&self, node: &Node) -> Option<usize> {
        let update = node.op.update()?;
        self.of_weight[node.outputs[update.weight].index()].map(|index| index as usize)
    }
}

/// For each part and scratch, the most bytes that are certain to be live at once in the micro-step's transients on the
/// device: those that its kernels hand to each other, and what they work with.
fn live_at_least(
    graph: &Graph,
    targets: &Targets,
    owners: &Owners,
    parts: &[Moved],
    scratches: &[(usize, usize)],
) -> Vec<Vec<u64>> {
    let Some(transients) = Transients::of(graph, targets, owners) else {
        return vec![vec![0; scratches.len()]; parts.len()];
    };
    let by_scratch = scratches.iter().map(|&scratch| transients.at_work(graph, targets, scratch)).collect::<Vec<_>>();
    let of_part = |part: &Moved| {
        let live = transients.at_rest(part);
        let working =
            |at_work: &[(usize, u64)]| at_work.iter().map(|&(time, bytes)| live[time] + bytes).max().unwrap_or(0);
        let always = live.iter().copied().max().unwrap_or(0).max(working(&transients.working));
        by_scratch.iter().map(|at_work| always.max(working(at_work))).collect()
    };
    parts.iter().map(of_part).collect()
}

/// The bytes of the device that are certain to be live at each tick of the micro-step's lifetimes, state and scalars
/// among them, with this part of the optimizer moved, for each scratch. None if there is no micro-step.
pub(crate) fn live_over_time(
    request: &Request,
    graph: &Graph,
    part: f64,
    scratches: &[(usize, usize)],
) -> Option<Vec<Vec<u64>>> {
    let part = Moved::of(graph, part);
    let owners = Owners::of(graph);
    let transients = Transients::of(graph, &request.targets, &owners)?;
    let mut always = transients.at_rest(&part);
    transients.working.iter().for_each(|&(time, bytes)| always[time] += bytes);
    let state = scalars_in(Place::Device, &request.targets) + part.state[Place::Device as usize];
    always.iter_mut().for_each(|live| *live += state);
    let with = |&scratch: &(usize, usize)| {
        let mut live = always.clone();
        let at_work = transients.at_work(graph, &request.targets, scratch);
        at_work.into_iter().for_each(|(time, bytes)| live[time] += bytes);
        live
    };
    Some(scratches.iter().map(with).collect())
}

/// What the micro-step's kernels hand to each other on the device.
struct Transients {
    program: usize,
    /// All but scratch, with nothing moved.
    at_rest: Live,
    /// Those of them that are gradients, with the parameter of each.
    owned: Vec<(Buffer, usize)>,
    gradients: Vec<StagedGradient>,
    /// Scratch of nodes that always have as much, each at its tick.
    working: Vec<(usize, u64)>,
    /// Nodes whose scratch is rows of logits or of scores.
    in_rows: Vec<usize>,
}

impl Transients {
    fn of(graph: &Graph, targets: &Targets, owners: &Owners) -> Option<Self> {
        let program = micro_step(graph)?;
        let Lifetimes { buffers, of_tensor, of_scratch } = lifetimes_of(graph, &graph.programs[program], targets);
        let gradients = staged_gradients(graph, &graph.programs[program], owners);
        let mut owner = vec![None; buffers.len()];
        for (id, buffer) in of_tensor.iter() {
            owner[buffer] = owner[buffer].or(owners.gradient(id));
        }
        // Single numbers may be made elsewhere.
        let is_certain = |buffer: &Buffer| {
            buffer.place == Place::Device && buffer.role != Role::Staging && buffer.role != Role::Scratch
        };
        let nodes = &graph.programs[program].nodes;
        let (mut at_rest, mut owned) = (Live::new(nodes.len() + 2), Vec::new());
        for (buffer, owner) in buffers.into_iter().zip(owner).filter(|(buffer, _)| is_certain(buffer)) {
            at_rest.add(buffer.lower as usize, buffer.upper as usize, buffer.bytes);
            owned.extend(owner.map(|owner| (buffer, owner)));
        }
        // Nodes that follow the optimizer take their scratch along.
        let stays = |node: &usize| nodes[*node].op.home() == Home::Device && nodes[*node].place(graph) == Place::Device;
        let (in_rows, working): (Vec<_>, Vec<_>) =
            of_scratch.into_keys().filter(stays).partition(|&node| with_scratch(&nodes[node].op, (1, 1)).is_some());
        let working = working.into_iter().map(|node| at_work(graph, targets, node, &nodes[node])).collect();
        Some(Self { program, at_rest, owned, gradients, working, in_rows })
    }

    /// Bytes at each tick, without scratch.
    fn at_rest(&self, part: &Moved) -> Vec<u64> {
        let mut live = self.at_rest.clone();
        for (buffer, _) in self.owned.iter().filter(|(_, owner)| part.parameters[*owner]) {
            live.remove(buffer.lower as usize, buffer.upper as usize, buffer.bytes);
        }
        live.add_staged(&self.gradients, part);
        live.over_time()
    }

    /// Scratch at the ticks of nodes with so many rows.
    fn at_work(&self, graph: &Graph, targets: &Targets, scratch: (usize, usize)) -> Vec<(usize, u64)> {
        let nodes = &graph.programs[self.program].nodes;
        let of_node = |&index: &usize| {
            let op = with_scratch(&nodes[index].op, scratch).expect("nodes that have rows at a time");
            at_work(graph, targets, index, &Node { op, ..nodes[index].clone() })
        };
        self.in_rows.iter().map(of_node).collect()
    }
}

/// A node's tick in lifetimes, and its scratch.
fn at_work(graph: &Graph, targets: &Targets, index: usize, node: &Node) -> (usize, u64) {
    (index + 1, scratch_bytes(graph, node, targets).next_multiple_of(ALIGNMENT))
}

/// Bytes of activations that the micro-step sends to the host. All of them are there as the backward pass begins.
fn waiting_on_host(graph: &Graph) -> u64 {
    let Some(program) = micro_step(graph) else { return 0 };
    let sent = graph.programs[program].nodes.iter().filter(|node| matches!(node.op, Op::Transfer(_)));
    let on_host = sent.map(|node| &graph[node.outputs[0]]).filter(|tensor| tensor.place == Place::Host);
    on_host.map(|tensor| tensor.ty.bytes().align_up(ALIGNMENT).0).sum()
}

/// A gradient whose update waits for a factor that is made of it and others: of which parameter, and its bytes.
struct Gathered {
    factor: TensorId,
    owner: usize,
    bytes: u64,
}

/// Those of the micro-step that are not kept.
fn gathered(graph: &Graph, owners: &Owners) -> Vec<Gathered> {
    let Some(program) = micro_step(graph) else { return Vec::new() };
    let mut made_of = vec![&[] as &[TensorId]; graph.tensors.len()];
    let mut gathered = Vec::new();
    for node in &graph.programs[program].nodes {
        if let (Some(update), Some(owner)) = (node.op.update(), owners.updated(node)) {
            let (gradient, factor) = (node.inputs[update.gradient], node.inputs[update.factor]);
            let norms = made_of[factor.index()];
            let waits_for_it = norms.iter().any(|norm| made_of[norm.index()].contains(&gradient));
            if waits_for_it && graph[gradient].storage == Storage::Transient {
                gathered.push(Gathered { factor, owner, bytes: kept_bytes(&graph[gradient]) });
            }
        }
        node.outputs.iter().for_each(|id| made_of[id.index()] = &node.inputs);
    }
    gathered
}

/// The most bytes of gradients that are certain to lie on the host at once, beside those that are kept: all those whose
/// updates wait for a factor that is made of all of them.
fn gathered_on_host(gathered: &[Gathered], part: &Moved) -> u64 {
    let mut by_factor = FxHashMap::<TensorId, u64>::default();
    for Gathered { factor, bytes, .. } in gathered.iter().filter(|gradient| part.parameters[gradient.owner]) {
        *by_factor.entry(*factor).or_default() += bytes;
    }
    by_factor.into_values().max().unwrap_or(0)
}

/// Bytes that begin and end at each tick of lifetimes.
#[derive(Clone)]
struct Live(Vec<[u64; 2]>);

impl Live {
    fn new(end: usize) -> Self {
        Self(vec![[0; 2]; end + 1])
    }

    fn add(&mut self, lower: usize, upper: usize, bytes: u64) {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        self.0[lower][0] += bytes;
        self.0[upper][1] += bytes;
    }

    /// Takes away what was added.
    fn remove(&mut self, lower: usize, upper: usize, bytes: u64) {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        self.0[lower][0] -= bytes;
        self.0[upper][1] -= bytes;
    }

    /// Adds the buffers that moved gradients have on the device, each until the next is sent, and where they are added
    /// to, since the one before was used.
    fn add_staged(&mut self, gradients: &[StagedGradient], part: &Moved) {
        let moved = gradients.iter().filter(|gradient| part.parameters[gradient.owner]).collect::<Vec<_>>();
        for (index, gradient) in moved.iter().enumerate() {
            let before = moved[index.saturating_sub(1)];
            let after = moved[(index + 1).min(moved.len() - 1)];
            // What the node before sends can't be fetched before that is done.
            let since = moved[..index].iter().rev().take_while(|earlier| earlier.time >= before.time);
            let comes_ahead = gradient.is_fetched && since.clone().all(|g| g.is_fetched && g.id != gradient.id);
            let begin = if comes_ahead { before.time } else { gradient.time };
            self.add(begin, after.time + 1, gradient.bytes);
        }
    }

    fn over_time(self) -> Vec<u64> {
        let live = self.0.into_iter().scan(0, |live, [begin, end]| {
            *live = *live - end + begin;
            Some(*live)
        });
        live.collect()
    }
}

/// A gradient that a kernel of the device makes or adds to. If it is moved, it has a buffer there too (`levers/settle.rs`),
/// since what is sent is held until the next is, and what is fetched comes one ahead (`levers/overlap.rs`).
struct StagedGradient {
    id: TensorId,
    owner: usize,
    /// When it is made, in ticks of lifetimes.
    time: usize,
    bytes: u64,
    is_fetched: bool,
}

fn staged_gradients(graph: &Graph, program: &Program, owners: &Owners) -> Vec<StagedGradient> {
    let mut gradients = Vec::new();
    for (node, time) in program.nodes.iter().zip(1..) {
        for (index, &id) in node.outputs.iter().enumerate() {
            let takes_a_place = node.op.reuse().iter().any(|&(_, output)| output == index);
            let is_tensor = graph[id].ty.elements() > 1;
            if let Some(owner) = owners.gradient(id).filter(|_| is_tensor && !takes_a_place) {
                let bytes = graph[id].ty.bytes().0;
                let is_fetched = node.op.access(index) == Access::ReadWrite;
                gradients.push(StagedGradient { id, owner, time, bytes, is_fetched });
            }
        }
    }
    gradients
}

/// The program that is live the most: the one that adds to what an earlier one left, or else the only one.
fn micro_step(graph: &Graph) -> Option<usize> {
    let position = |name| graph.programs.iter().position(|program| program.name == name);
    position("micro_step_add").or_else(|| position("micro_step"))
}

/// Leaves of a graph whose levers are not pulled the programs that an [`Outline`] is read off: that one and the update.
pub(crate) fn keep_what_is_outlined(graph: &mut Graph) {
    let most_live = micro_step(graph).map(|program| graph.programs[program].name.clone());
    graph.programs.retain(|program| Some(&program.name) == most_live.as_ref() || program.name == "update");
}

/// Seconds of the queues that work side by side.
#[derive(Default, Clone, Copy)]
struct Busy {
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

    fn end(self, overlaps: bool) -> f64 {
        let Self { device, host, to_device, to_host } = self;
        if overlaps { device.max(host).max(to_device).max(to_host) } else { device + host + to_device + to_host }
    }
}

/// Seconds of the nodes that all graphs of a micro-batch have, whatever they recompute.
pub(crate) struct CommonTimes {
    /// Those of a step.
    programs: Vec<OfProgram>,
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
    pub(crate) fn new(request: &Request, micro_batch: usize, graph: &Graph, scratches: &[(usize, usize)]) -> Self {
        let owners = Owners::of(graph);
        let mut times = Times::new(request, graph);
        let programs = Machine::programs(request.global_batch / micro_batch).map(|(name, repeats)| {
            let nodes = times.nodes(name);
            let (stays, movable) = times.of_program(nodes, &owners);
            let longer = scratches.iter().map(|&scratch| times.longer(nodes, scratch)).collect();
            OfProgram { name, repeats, stays, movable, longer }
        });
        Self { programs: programs.collect() }
    }

    /// For each part and scratch, no step with it moved is shorter: what the busiest queue certainly does.
    fn steps_at_least(&self, request: &Request, graph: &Graph, parts: &[Moved]) -> Vec<Vec<Seconds>> {
        /// Sums of thousands of numbers, in another order than the step's that is predicted.
        const ROUNDING: f64 = 1.0 - 1e-9;
        let mut times = Times::new(request, graph);
        let mut steps = vec![Vec::new(); parts.len()];
        for OfProgram { name, repeats, stays, movable, longer } in &self.programs {
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
            for (steps, part) in steps.iter_mut().zip(parts) {
                let mut busy = *stays;
                busy.add(beside);
                for (owner, here, moved) in movable {
                    busy.add(if part.parameters[*owner] { *moved } else { *here });
                }
                steps.resize(longer.len(), Seconds(0.0));
                for (step, longer) in steps.iter_mut().zip(longer) {
                    let busy = Busy { device: busy.device + longer, ..busy };
                    step.0 += ROUNDING * *repeats as f64 * busy.end(request.machine.overlaps(&request.targets));
                }
            }
        }
        steps
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
        let work = Work::of(&op, &io, &self.targets.host);
        let host = match self.machine.overlaps(self.targets) {
            true => self.machine.on_host_known(&op, work, &mut self.known),
            false => self.machine.known(&op, work, &mut self.known),
        };
        let is_sent_itself = parameter.master() == parameter.tensor && update.remainder.is_none();
        let to_device = if is_sent_itself { self.transfer(parameter.tensor) } else { 0.0 };
        Busy { host, to_device, ..Busy::default() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::candidates::{Kept, micro_batches, offloads, rungs, scratches, settings};
    use crate::cards::card;
    use crate::cost::Rates;
    use crate::layout::at_least;
    use crate::least::ends;
    use crate::levers::{Average, LeverRequest, Precision};
    use crate::workshop::Workshop;
    use plimsoll_graph::models::ModelConfig;
    use plimsoll_graph::{Lengths, Optimizer};
    use plimsoll_units::Bytes;

    fn requests() -> Vec<Request> {
        let gpt2 =
            r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 64, "vocab_size": 300}"#;
        let gpt2 = ModelConfig::from_json(gpt2).expect("a sensible model");
        let t5 = ModelConfig::preset("t5-nano").expect("a preset");
        let average = Some(Average { decay: 0.9, place: Place::Host });
        let mut requests = Vec::new();
        for (model, target_len) in [(gpt2, None), (t5, Some(32))] {
            for (precision, grad_clip, average, on_card) in [
                (Precision::Fp32, Some(1.0), None, true),
                (Precision::Bf16, None, average, true),
                (Precision::Bf16Pure, Some(1.0), None, true),
                (Precision::Fp16, Some(1.0), average, true),
                (Precision::Bf16Pure, None, None, true),
                (Precision::Fp32, None, average, false),
            ] {
                let (targets, rates) = match on_card {
                    true => (Targets::cuda((8, 6), 2), Rates::of_card(card("3060").expect("a known card"))),
                    false => (Targets::cpu(2), Rates::guess(2)),
                };
                requests.push(Request {
                    optimizer: Optimizer { grad_clip, ..Optimizer::default() },
                    global_batch: 4,
                    seq_len: 32,
                    target_len,
                    buckets: vec![Lengths { tokens: 16, target: target_len }],
                    budget: Budget::Apart { device: Bytes::gib(1), host: Bytes::gib(1) },
                    levers: LeverRequest { precision, average, ..LeverRequest::default() },
                    evaluates: true,
                    sample_prefill: Some(4),
                    ..Request::new(model.clone(), targets, Machine::of_rates(rates))
                });
            }
        }
        requests
    }

    /// What is built is never smaller and never faster than its outline says.
    #[test]
    fn outlines_are_bounds_of_what_is_built() {
        for request in requests() {
            let workshop = Workshop::new(&request);
            for micro_batch in ends(&request) {
                let sending = |(index, kept): (usize, Kept)| Kept { sent_blocks: index % 3, ..kept };
                for kept in rungs(&request).into_iter().enumerate().map(sending).step_by(2) {
                    let outline = workshop.outline(micro_batch, kept).expect("a sensible request");
                    for part in offloads(&request) {
                        for scratch in scratches(&request, micro_batch) {
                            let settings = settings(&request, micro_batch, part, scratch, kept);
                            let candidate = workshop.candidate(settings).expect("levers that go together");
                            let found = at_least(&candidate.graph, &request.targets);
                            let least = outline.least(part, scratch);
                            assert!(least[0] <= found[0] && least[1] <= found[1], "{least:?}, {found:?}: {settings:?}");
                            let (step, bound) = (workshop.step(&candidate), outline.step(part, scratch));
                            assert!(bound <= step, "{bound:?}, {step:?}: {settings:?}");
                        }
                    }
                }
            }
        }
    }

    /// Of weights, gradients and moments it knows all, before any lever is pulled that says when something is done.
    #[test]
    fn state_is_known_before_it_is_moved() {
        for request in requests() {
            let request = Request { evaluates: false, sample_prefill: None, ..request };
            let workshop = Workshop::new(&request);
            for micro_batch in micro_batches(&request) {
                for part in offloads(&request) {
                    let scratch = scratches(&request, micro_batch)[0];
                    let settings = settings(&request, micro_batch, part, scratch, rungs(&request)[0]);
                    let candidate = workshop.candidate(settings).expect("levers that go together");
                    let mut kept = [Bytes::ZERO; 2];
                    for tensor in candidate.graph.tensors.iter().filter(|t| t.storage == Storage::Persistent) {
                        kept[tensor.place as usize] += tensor.ty.bytes().align_up(ALIGNMENT);
                    }
                    let without = Budget::Apart { device: Bytes::ZERO, host: Bytes::ZERO };
                    let request = Request { budget: without, ..workshop.request.clone() };
                    let lacks = Workshop::new(&request).lacks_for_state(micro_batch, part).expect("a sensible request");
                    assert_eq!(lacks, kept, "{settings:?}");
                }
            }
        }
    }
}
