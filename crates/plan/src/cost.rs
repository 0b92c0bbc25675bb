//! The predicted time of a step: the sum over the nodes of the graph on their queues, so that it includes the price of every
//! lever.
//!
//! ```text
//!   measured    between the seconds of like nodes on this machine            where `calibrate` has run them
//!   roofline    the larger of operations / rate and bytes / bandwidth        everywhere else
//! ```
//!
//! `plimsoll calibrate` times nodes on this machine or its card, and stores them in the user's cache folder; for other cards,
//! `cards/rates.rs` derives rates from data sheets. On a card, nodes are timed one by one, which adds some 20 us each
//! that a captured step does not have (GPT-2's 864 nodes on an H100: 94 ms, 71 ms in a step); the shortest node shows how
//! much, and it is subtracted. `plimsoll calibrate --check` compares predictions with measured steps.

use crate::queue::Queue;
use plimsoll_graph::ops::{Nature, Tile};
use plimsoll_graph::{
    DType, DeviceKind, Graph, Io, MemoryId, MemoryKind, Node, Op, ProgramKind, Storage, Target, Targets, TensorId,
};
use plimsoll_units::Seconds;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a device does in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating point operations of kernels on single precision.
    pub flops_per_s: f64,
    /// The same of products alone, which may round their operands to TF32.
    pub product_flops_per_s: f64,
    /// The same on `F16`, with sums in single precision.
    pub f16_flops_per_s: f64,
    /// The same on `Bf16`.
    pub bf16_flops_per_s: f64,
    /// The same of products with factors of 8 bits.
    pub fp8_flops_per_s: f64,
    /// Rate of products that no library computes, relative to others on tensor cores.
    pub without_library: f64,
    /// Rate of attention in half precision, relative to products that a library may compute.
    pub attention: f64,
    /// Multiprocessors, each of which computes a block of a product on tensor cores; 0 if their number is not known.
    pub multiprocessors: usize,
    /// Bytes that kernels read and write.
    pub bytes_per_s: f64,
    /// Bytes that pass between device and host, one way.
    pub transfer_bytes_per_s: f64,
    /// Whether the device computes while bytes pass.
    pub overlaps_transfers: bool,
    /// Bytes of the host's memory that optimizers on the host read and write.
    pub host_bytes_per_s: f64,
    /// Seconds that a node takes beyond its work.
    pub node_s: f64,
}

impl Rates {
    /// Of a processor with 512-bit vectors, as a first guess: measured with `bench` on two cores of an AMD EPYC 9005.
    /// Products in half precision convert their operands.
    pub fn guess(threads: usize) -> Self {
        /// The part of single precision's rate that is left.
        const CONVERTING: f64 = 1.0 / 1.1;
        let flops_per_s = 150e9 * threads as f64;
        let bytes_per_s = 12e9 * threads.min(4) as f64;
        Self {
            flops_per_s,
            product_flops_per_s: flops_per_s,
            f16_flops_per_s: CONVERTING * flops_per_s,
            bf16_flops_per_s: CONVERTING * flops_per_s,
            fp8_flops_per_s: CONVERTING * flops_per_s,
            without_library: 1.0,
            attention: 1.0,
            multiprocessors: 0,
            bytes_per_s,
            transfer_bytes_per_s: 8e9,
            overlaps_transfers: false,
            host_bytes_per_s: bytes_per_s,
            node_s: 3e-6,
        }
    }

    /// The same of a processor whose products in `Bf16` are `times` as fast as those in single precision.
    #[must_use]
    pub fn with_bf16_products(self, times: f64) -> Self {
        let bf16_flops_per_s = times * self.product_flops_per_s;
        Self { bf16_flops_per_s, fp8_flops_per_s: bf16_flops_per_s, ..self }
    }

    /// Floating point operations in a second of a node.
    fn flops_of(&self, op: &Op, work: Work) -> f64 {
        let nature = op.nature();
        let rate = match work.dtype {
            _ if matches!(op, Op::Fp8Linear(_)) => self.fp8_flops_per_s,
            DType::F16 => self.f16_flops_per_s,
            DType::Bf16 => self.bf16_flops_per_s,
            DType::F32 if nature == Nature::Products => self.product_flops_per_s,
            DType::F32 | DType::I32 | DType::I16 | DType::U8 => self.flops_per_s,
        };
        let is_on_tensor_cores = rate > self.flops_per_s;
        match nature {
            Nature::Products if is_on_tensor_cores && !op.uses_library() => {
                self.without_library * self.fill(work.blocks) * rate
            }
            Nature::Products if is_on_tensor_cores => self.fill(work.blocks) * rate,
            Nature::Attention if is_on_tensor_cores => self.attention * rate,
            Nature::Products | Nature::Attention | Nature::Streaming => rate,
        }
    }

    /// The share of the multiprocessors that compute, over the waves of these blocks: all wait for the last wave.
    fn fill(&self, blocks: usize) -> f64 {
        if blocks == 0 || self.multiprocessors == 0 {
            return 1.0;
        }
        blocks as f64 / blocks.next_multiple_of(self.multiprocessors) as f64
    }
}

/// How long a node took on a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The kind of device that ran it.
    pub device: DeviceKind,
    /// The op's name.
    pub op: String,
    /// The precision that it works in.
    pub dtype: DType,
    /// Its floating point operations.
    pub flops: u64,
    /// The bytes that it moves.
    pub bytes: u64,
    /// The operands that it works through one after another; see [`Work`]. Files of earlier versions don't say.
    #[serde(default)]
    pub operands: usize,
    /// Its time.
    pub seconds: f64,
}

/// A machine, as far as planning cares.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    rates: Rates,
    samples: BTreeMap<(DeviceKind, String, DType), Vec<Sample>>,
}

/// Work of a node: operations, and bytes moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Work {
    /// The kind of device that does it.
    pub device: DeviceKind,
    /// The precision that it works in: that of its first operand or result in half precision, else single.
    pub dtype: DType,
    /// Floating point operations.
    pub flops: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Operands that are worked through one after another, each at the cost of a start: those of a norm over many gradients. 1 for
    /// ops whose operands are needed together.
    pub operands: usize,
    /// Blocks in which a card's tensor cores compute its product; 0 if there is no product, or no card.
    pub blocks: usize,
}

impl Work {
    /// Of an op on operands and results of these types.
    pub fn of(op: &Op, io: &Io, target: &Target) -> Self {
        let half = io.inputs.iter().chain(&io.outputs).map(|ty| ty.dtype).find(|dtype| dtype.is_half());
        let (dtype, bytes) = (half.unwrap_or(DType::F32), op.bytes_moved(io).0);
        let operands = if matches!(op, Op::GradNorm(_)) { io.inputs.len() } else { 1 };
        let (device, flops) = (target.kind(), op.flops(io));
        let blocks = if device == DeviceKind::Cuda { op.blocks(io) } else { 0 };
        Self { device, dtype, flops, bytes, operands, blocks }
    }

    /// The usual one of its operands: what a start costs and what grows with the size add up to the same.
    fn of_operand(self) -> Self {
        let operands = self.operands.max(1) as u64;
        Self { flops: self.flops / operands, bytes: self.bytes / operands, operands: 1, ..self }
    }
}

/// When queues are free and tensors are ready, in seconds from a program's start.
struct Timeline {
    free: [f64; 4],
    written: Vec<f64>,
    read: Vec<f64>,
}

impl Timeline {
    fn new(tensors: usize) -> Self {
        Self { free: [0.0; 4], written: vec![0.0; tensors], read: vec![0.0; tensors] }
    }

    /// Puts a node on a queue: after the nodes before it on that queue, those that wrote what it reads, and those that read or
    /// wrote what it writes. A node that awaits a transfer comes after all that read its operand.
    fn run(&mut self, queue: Queue, node: &Node, seconds: f64) {
        let mut start = self.free[queue as usize];
        let awaits = matches!(node.op, Op::AwaitTransfer(_));
        for id in &node.inputs {
            let read = if awaits { self.read[id.index()] } else { 0.0 };
            start = start.max(self.written[id.index()]).max(read);
        }
        for id in &node.outputs {
            start = start.max(self.written[id.index()]).max(self.read[id.index()]);
        }
        let end = start + seconds;
        for id in &node.inputs {
            self.read[id.index()] = end.max(self.read[id.index()]);
        }
        for id in &node.outputs {
            self.written[id.index()] = end;
        }
        self.free[queue as usize] = end;
    }

    /// Lets a queue continue no earlier than another one is free.
    fn follow(&mut self, before: Queue, queue: Queue) {
        self.free[queue as usize] = self.free[queue as usize].max(self.free[before as usize]);
    }

    fn end(&self) -> f64 {
        self.free.iter().copied().fold(0.0, f64::max)
    }
}

/// Times of nodes that were predicted already.
pub(crate) type KnownTimes = FxHashMap<(&'static str, Work), f64>;

/// A node's queue and its time. On a machine that does one thing at a time the queue is always the device's.
struct TimedNode {
    queue: Queue,
    seconds: f64,
    /// Whether it writes over bytes that the device has finished with: it fetches a transient tensor.
    takes_place: bool,
}

impl Rates {
    /// The share of each run if this many compute at the same time.
    fn shared_by(self, runs: f64) -> Self {
        Self {
            flops_per_s: self.flops_per_s / runs,
            product_flops_per_s: self.product_flops_per_s / runs,
            f16_flops_per_s: self.f16_flops_per_s / runs,
            bf16_flops_per_s: self.bf16_flops_per_s / runs,
            fp8_flops_per_s: self.fp8_flops_per_s / runs,
            bytes_per_s: self.bytes_per_s / runs,
            transfer_bytes_per_s: self.transfer_bytes_per_s / runs,
            host_bytes_per_s: self.host_bytes_per_s / runs,
            node_s: self.node_s * runs,
            ..self
        }
    }
}

impl Machine {
    /// The share of each of `runs` runs: everything takes `runs` times as long.
    #[must_use]
    pub(crate) fn shared_by(&self, runs: usize) -> Self {
        let mut shared = Self { rates: self.rates.shared_by(runs as f64), ..self.clone() };
        shared.samples.values_mut().flatten().for_each(|sample| sample.seconds *= runs as f64);
        shared
    }

    /// The same, where this share of the bytes between device and host passes through a buffer of the host, before or after the
    /// link.
    #[must_use]
    pub fn with_staged_copies(&self, share: f64) -> Self {
        /// Bytes that one thread reads and writes in a second: a guess, that `memcpy` on one core copies half of that.
        const OF_THREAD: f64 = 20e9;
        // A byte that passes is read and written on the way to the buffer.
        let of_byte = share / OF_THREAD.min(self.rates.host_bytes_per_s);
        let mut staged = self.clone();
        staged.rates.transfer_bytes_per_s = 1.0 / (1.0 / self.rates.transfer_bytes_per_s + 2.0 * of_byte);
        let transfers = staged.samples.iter_mut().filter(|((_, op, _), _)| op == "transfer");
        for sample in transfers.flat_map(|(_, samples)| samples) {
            sample.seconds += of_byte * sample.bytes as f64;
        }
        staged
    }

    /// A machine with known rates and no measured nodes.
    pub fn of_rates(rates: Rates) -> Self {
        Self { rates, samples: BTreeMap::new() }
    }

    /// A machine on which nodes were timed.
    pub fn measured(rates: Rates, samples: Vec<Sample>) -> Self {
        let mut by_op = BTreeMap::<_, Vec<_>>::new();
        for sample in samples {
            let Sample { device, dtype, flops, bytes, operands, .. } = sample;
            let Work { flops, bytes, .. } = Work { device, dtype, flops, bytes, operands, blocks: 0 }.of_operand();
            let seconds = sample.seconds / operands.max(1) as f64;
            let sample = Sample { flops, bytes, operands: 1, seconds, ..sample };
            by_op.entry((sample.device, sample.op.clone(), sample.dtype)).or_default().push(sample);
        }
        Self { rates, samples: by_op }
    }

    /// Predicted time of an optimizer step with `accumulation` micro-batches.
    pub fn step(&self, graph: &Graph, accumulation: usize, targets: &Targets) -> Seconds {
        let mut known = KnownTimes::default();
        let programs = Self::programs(graph.first_of_step(), accumulation, graph.has_reference_point());
        let seconds = programs.map(|(kind, repeats)| {
            let nodes = graph.program(kind).map_or(&[][..], |program| &program.nodes);
            repeats as f64 * self.program(graph, nodes, targets, &mut known)
        });
        Seconds(seconds.sum())
    }

    /// Nodes on the queues that run them, each as early as what it needs is there.
    fn program(&self, graph: &Graph, nodes: &[Node], targets: &Targets, known: &mut KnownTimes) -> f64 {
        let mut timeline = Timeline::new(graph.tensors.len());
        for node in nodes {
            let TimedNode { queue, seconds, takes_place } = self.timed_node(graph, node, targets, known);
            if takes_place {
                timeline.follow(Queue::Device, queue);
            }
            timeline.run(queue, node, seconds);
        }
        timeline.end()
    }

    /// The programs of a step, and how often each runs. `first`: the one with which it begins. `estimates`: whether the step
    /// estimates the reference point of its loss before.
    pub(crate) fn programs(
        first: ProgramKind,
        accumulation: usize,
        estimates: bool,
    ) -> impl Iterator<Item = (ProgramKind, usize)> {
        let programs = [
            (ProgramKind::Evaluate, if estimates { accumulation } else { 0 }),
            (first, 1),
            (ProgramKind::MicroStepAdd, accumulation.saturating_sub(1)),
            (ProgramKind::Update, 1),
        ];
        programs.into_iter().filter(|(_, times)| *times > 0)
    }

    /// Bytes a second between device and host, in each direction.
    pub(crate) fn transfer_bytes_per_s(&self) -> f64 {
        self.rates.transfer_bytes_per_s
    }

    /// Whether queues run at the same time.
    pub(crate) fn overlaps(&self, targets: &Targets) -> bool {
        targets.overlaps() && self.rates.overlaps_transfers
    }

    fn timed_node(&self, graph: &Graph, node: &Node, targets: &Targets, known: &mut KnownTimes) -> TimedNode {
        let seconds = self.seconds_of(graph, node, targets, known);
        let (overlaps, memory) = (self.overlaps(targets), node.memory(graph));
        let kind = |memory: MemoryId| graph.memories[memory].kind;
        let first = |ids: &[TensorId]| ids.first().map(|&id| kind(graph[id].memory));
        let queue = match overlaps {
            true => Queue::of(&node.op, kind(memory), first(&node.inputs), first(&node.outputs)),
            false => Queue::Device,
        };
        let is_handed_over = |id: &TensorId| {
            let tensor = &graph[*id];
            tensor.memory == MemoryId::DEVICE && tensor.storage == Storage::Transient && tensor.ty.elements() > 1
        };
        let takes_place = matches!(node.op, Op::Transfer(_)) && node.outputs.iter().all(is_handed_over);
        TimedNode { queue, seconds, takes_place }
    }

    /// Predicted time of a node where it runs.
    fn seconds_of(&self, graph: &Graph, node: &Node, targets: &Targets, known: &mut KnownTimes) -> f64 {
        let kind = graph.memories[node.memory(graph)].kind;
        let io = graph.io(&node.inputs, &node.outputs);
        let work = Work::of(&node.op, &io, &targets[kind]);
        if let Some(bytes_per_s) = rate_of_link(graph, node) {
            return self.rates.node_s + work.bytes as f64 / 2.0 / bytes_per_s;
        }
        match kind {
            MemoryKind::Host if self.overlaps(targets) => self.on_host_known(&node.op, work, known),
            _ => self.in_tiles_or_whole(&node.op, &io, &targets[kind], known),
        }
    }

    /// Predicted time of an op that works through tiles of rows: that of the ops of each tile; `None` for other ops.
    fn in_tiles(&self, op: &Op, io: &Io, target: &Target, known: &mut KnownTimes) -> Option<f64> {
        let (chain, tiles) = op.tiles(io)?;
        let of_tile = |(tile, count): (Tile, usize)| {
            let times =
                chain.ops.iter().map(|own| self.known(&own.op, Work::of(&own.op, &tile.io(own), target), known));
            count as f64 * times.sum::<f64>()
        };
        Some(tiles.map(of_tile).into_iter().sum())
    }

    /// Predicted time of a node of the device.
    pub(crate) fn on_device(&self, graph: &Graph, node: &Node, targets: &Targets, known: &mut KnownTimes) -> f64 {
        self.in_tiles_or_whole(&node.op, &graph.io(&node.inputs, &node.outputs), &targets.device, known)
    }

    /// Predicted time of an op on operands and results of these types.
    pub fn op(&self, op: &Op, io: &Io, target: &Target) -> Seconds {
        Seconds(self.in_tiles_or_whole(op, io, target, &mut KnownTimes::default()))
    }

    fn in_tiles_or_whole(&self, op: &Op, io: &Io, target: &Target, known: &mut KnownTimes) -> f64 {
        self.in_tiles(op, io, target, known).unwrap_or_else(|| self.known(op, Work::of(op, io, target), known))
    }

    /// Predicted time of a node that may be known. Layers are alike, so most are.
    pub(crate) fn known(&self, op: &Op, work: Work, known: &mut KnownTimes) -> f64 {
        *known.entry((op.name(), work)).or_insert_with(|| self.node(op, work))
    }

    /// Predicted time of a node of a card's host that may be known.
    pub(crate) fn on_host_known(&self, op: &Op, work: Work, known: &mut KnownTimes) -> f64 {
        *known.entry((op.name(), work)).or_insert_with(|| self.on_host(op, work))
    }

    /// Predicted time of a node of a card's host: as measured there, else by the bytes that it reads and writes and the rate of
    /// the host's memory.
    pub fn on_host(&self, op: &Op, work: Work) -> f64 {
        self.as_measured(op, work).unwrap_or_else(|| work.bytes as f64 / self.rates.host_bytes_per_s)
    }

    /// Predicted time of a node.
    pub fn node(&self, op: &Op, work: Work) -> f64 {
        self.as_measured(op, work).unwrap_or_else(|| self.roofline(op, work))
    }

    fn as_measured(&self, op: &Op, work: Work) -> Option<f64> {
        let like = self.samples.get(&(work.device, op.name().to_owned(), work.dtype))?;
        Some(work.operands as f64 * from_samples(like, work.of_operand())?)
    }

    fn roofline(&self, op: &Op, work: Work) -> f64 {
        let bytes = work.bytes as f64;
        let seconds = match op {
            // Read here and written there, each once.
            Op::Transfer(_) => bytes / 2.0 / self.rates.transfer_bytes_per_s,
            // The bytes are those of passes before the product.
            Op::Fp8Linear(_) => work.flops as f64 / self.rates.flops_of(op, work) + bytes / self.rates.bytes_per_s,
            _ => (work.flops as f64 / self.rates.flops_of(op, work)).max(bytes / self.rates.bytes_per_s),
        };
        self.rates.node_s + seconds
    }
}

/// The rate of the link that a node uses, if the table of memories has one for it.
fn rate_of_link(graph: &Graph, node: &Node) -> Option<f64> {
    let Op::Transfer(_) = node.op else { return None };
    let memory = |ids: &[TensorId]| ids.first().map(|&id| graph[id].memory);
    graph.memories.link(memory(&node.inputs)?, memory(&node.outputs)?)?.bytes_per_s
}

/// The time of a node between those that were measured; `None` if there are no samples. The logarithm of time is fitted by
/// a plane over those of operations and bytes, to which the nearest samples count most, and which is drawn a little
/// towards time that grows with the work: a fit of two slopes to samples on a line has no unique solution. Beyond the
/// largest sample time grows with the work: near it the constant cost of a node still bends the fit.
/// Source: Cleveland & Devlin 1988, with the ridge of Hoerl & Kennard 1970.
fn from_samples(samples: &[Sample], work: Work) -> Option<f64> {
    /// How little a slope is drawn towards what it is expected to be.
    const RIDGE: f64 = 2e-3;
    /// The square of the distance below which all samples count alike.
    const NEAR: f64 = 1e-3;
    let size = |flops: u64, bytes: u64| [flops, bytes].map(|work| (work.max(1) as f64).ln());
    let here = size(work.flops, work.bytes);
    let expected = if work.flops == 0 { [0.0, 1.0] } else { [0.5, 0.5] };
    let largest = samples.iter().max_by_key(|sample| (sample.flops, sample.bytes))?;
    if samples.iter().all(|sample| sample.flops <= work.flops && sample.bytes <= work.bytes) {
        let there = size(largest.flops, largest.bytes);
        let growth = expected[0] * (here[0] - there[0]) + expected[1] * (here[1] - there[1]);
        return Some(largest.seconds * growth.exp());
    }
    let points = samples.iter().map(|sample| {
        let there = size(sample.flops, sample.bytes);
        let apart = [there[0] - here[0], there[1] - here[1]];
        let distance = apart[0].abs() + apart[1].abs();
        let beyond_expected = sample.seconds.ln() - expected[0] * apart[0] - expected[1] * apart[1];
        (1.0 / (distance * distance + NEAR), apart, beyond_expected)
    });
    let points = points.collect::<Vec<_>>();
    let total = points.iter().map(|(weight, ..)| weight).sum::<f64>();
    let mean = |of: &dyn Fn(&[f64; 2], f64) -> f64| {
        points.iter().map(|(weight, apart, y)| weight * of(apart, *y)).sum::<f64>() / total
    };
    let (f, b, y) = (mean(&|apart, _| apart[0]), mean(&|apart, _| apart[1]), mean(&|_, y| y));
    let ff = mean(&|apart, _| (apart[0] - f).powi(2)) + RIDGE;
    let bb = mean(&|apart, _| (apart[1] - b).powi(2)) + RIDGE;
    let fb = mean(&|apart, _| (apart[0] - f) * (apart[1] - b));
    let [fy, by] = [0, 1].map(|axis| mean(&|apart, value| (apart[axis] - [f, b][axis]) * (value - y)));
    let determinant = ff * bb - fb * fb;
    let slopes = [(fy * bb - by * fb) / determinant, (by * ff - fy * fb) / determinant];
    Some((y - slopes[0] * f - slopes[1] * b).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::ops::{Add, GradNorm};

    fn sample(flops: u64, bytes: u64, seconds: f64) -> Sample {
        Sample { device: DeviceKind::Cpu, op: "add".into(), dtype: DType::F32, flops, bytes, operands: 1, seconds }
    }

    /// Half of the bytes are also read and written by a thread, at 20 GB/s.
    #[test]
    fn copies_through_a_buffer_take_longer() {
        let rates = Rates { transfer_bytes_per_s: 10e9, host_bytes_per_s: 40e9, ..Rates::guess(2) };
        let sample = Sample {
            device: DeviceKind::Cuda,
            op: "transfer".to_owned(),
            dtype: DType::F32,
            flops: 0,
            bytes: 2_000_000_000,
            operands: 1,
            seconds: 0.1,
        };
        let other = Sample { op: "add".to_owned(), ..sample.clone() };
        let staged = Machine::measured(rates, vec![sample, other]).with_staged_copies(0.5);
        assert!((staged.rates.transfer_bytes_per_s - 1e9 / 0.15).abs() < 1.0, "{:?}", staged.rates);
        let seconds = |op: &str| staged.samples[&(DeviceKind::Cuda, op.to_owned(), DType::F32)][0].seconds;
        assert!((seconds("transfer") - 0.15).abs() < 1e-9 && seconds("add") == 0.1);
        assert_eq!(staged.with_staged_copies(0.0).samples, staged.samples);
    }

    /// What was measured of a norm over all gradients says what one costs by itself, and the other way around.
    #[test]
    fn operands_one_after_another_cost_what_they_do_by_themselves() {
        let norm = |operands: usize, seconds| {
            let (flops, bytes) = (operands as u64 * 1_000, operands as u64 * 2_000);
            Sample { op: "grad_norm".into(), operands, ..sample(flops, bytes, seconds) }
        };
        let (device, dtype) = (DeviceKind::Cpu, DType::F32);
        let work = |operands: u64| Work {
            device,
            dtype,
            flops: operands * 1_000,
            bytes: operands * 2_000,
            operands: operands as usize,
            blocks: 0,
        };
        for samples in [vec![norm(100, 700e-6)], vec![norm(1, 7e-6)], vec![norm(1, 7e-6), norm(100, 700e-6)]] {
            let machine = Machine::measured(Rates::guess(2), samples);
            for operands in [1, 10, 100] {
                let seconds = machine.node(&GradNorm.into(), work(operands));
                assert!((seconds / (operands as f64 * 7e-6) - 1.0).abs() < 1e-6, "{operands} operands: {seconds}");
            }
        }
    }

    /// Each op costs a start for each tile, and the rest takes as long as with all rows at a time.
    #[test]
    fn an_op_in_tiles_takes_as_long_as_the_ops_of_each_tile() {
        let rates = Rates { node_s: 1.0, ..Rates::guess(2) };
        let machine = Machine::of_rates(rates);
        let examples = Op::all_examples().into_iter().filter(|example| matches!(example.op, Op::ByRows(_)));
        for (example, [tiles, ops]) in examples.zip([[4.0, 5.0], [3.0, 5.0], [2.0, 5.0], [3.0, 7.0]]) {
            let types = example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
            let results = example.op.infer(&types).expect("examples are well-typed");
            let io = Io::new(types, &results);
            let target = Target::Cpu { threads: 2 };
            let seconds = machine.in_tiles(&example.op, &io, &target, &mut KnownTimes::default());
            let seconds = seconds.expect("the op works in tiles");
            assert!((seconds - tiles * ops) / seconds < 1e-3 && seconds >= tiles * ops, "{seconds}");
        }
        assert!(
            machine
                .in_tiles(&Add.into(), &Io::new([], []), &Target::Cpu { threads: 2 }, &mut KnownTimes::default())
                .is_none()
        );
    }

    #[test]
    fn a_node_that_was_measured_takes_what_was_measured_and_others_scale() {
        let rates = Rates::guess(2);
        let machine = Machine::measured(rates, vec![sample(1_000, 12_000, 1e-6), sample(1_000_000, 12_000_000, 2e-3)]);
        let work = |dtype, flops, bytes| Work { device: DeviceKind::Cpu, dtype, flops, bytes, operands: 1, blocks: 0 };
        let seconds = |flops, bytes| machine.node(&Add.into(), work(DType::F32, flops, bytes));
        assert!((seconds(1_000_000, 12_000_000) / 2e-3 - 1.0).abs() < 0.01);
        assert!(
            (seconds(2_000_000, 24_000_000) / 4e-3 - 1.0).abs() < 1e-9,
            "beyond what was measured as the work grows"
        );
        // Between the two as they grow: a little faster than the work.
        let growth = 2000f64.ln() / 1000f64.ln();
        let between = 1e-6 * 30f64.powf(growth);
        assert!((seconds(30_000, 360_000) / between - 1.0).abs() < 0.05, "{}", seconds(30_000, 360_000));
        let half = machine.node(&Add.into(), work(DType::Bf16, 1_000, 24_000_000));
        assert!((half / (24e6 / rates.bytes_per_s) - 1.0).abs() < 0.01, "an op that was not measured has its roofline");
    }
}
