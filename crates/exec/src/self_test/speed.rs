//! Rates of a device for products, attention and copies, which dominate training. Sizes grow as long as the device is
//! fast enough for the next one, so that slow devices, and the stand-in, finish in the same time.
//!
//! Times are measured by the host's clock between two waits for the device, over enough runs that the waits are
//! negligible; the median of several measurements counts.

use super::node::{PlacedNode, plan_of_nodes};
use crate::cases::{Noise, encode, in_precision};
use crate::{Device, DeviceError};
use plimsoll_graph::ops::{ATTENTION_ROWS, Attention, AttentionGrad, Linear, Scale, Transfer, WeightLayout};
use plimsoll_graph::{DType, Example, Fill, Io, MemoryId, Op, Scalars, Targets, TensorId, TensorType};
use plimsoll_plan::Plan;
use std::time::{Duration, Instant};

/// The timed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// A product of two square matrices, as a linear layer.
    Product,
    /// Causal attention.
    Attention,
    /// Its gradient.
    AttentionGrad,
    /// A copy from the host, as plans move tensors.
    ToDevice,
    /// A copy to the host.
    ToHost,
    /// A pass over a tensor that writes another: counts bytes read and written.
    WithinDevice,
}

/// A rate that was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    /// The timed work.
    pub workload: Workload,
    /// Its precision.
    pub dtype: DType,
    /// Whether single precision is rounded to TF32 for products.
    pub tf32: bool,
    /// Its size as text.
    pub size: String,
    /// Floating point operations of a run.
    pub flops: u64,
    /// Bytes that a run moves.
    pub bytes: u64,
    /// The median time of a run.
    pub seconds: f64,
    /// Number of measurements.
    pub times: usize,
}

impl Rate {
    /// 10^12 operations a second.
    pub fn tflops(&self) -> f64 {
        self.flops as f64 / self.seconds / 1e12
    }

    /// 10^9 bytes a second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

/// All measurements.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speeds {
    /// In the order of [`measure_speeds`].
    pub rates: Vec<Rate>,
    /// The device's notes about loaded plans.
    pub notes: Vec<String>,
    /// The error that ended the measurements.
    pub error: Option<DeviceError>,
}

/// The longest expected time of a run that is measured.
const LONGEST: Duration = Duration::from_millis(500);

/// Least time of a measurement, and longest time per rate.
const TIMED: Duration = Duration::from_millis(20);
const MEASURED: Duration = Duration::from_millis(400);
const TIMES: usize = 5;

/// Number of the largest sizes of a workload that are reported.
const SIZES: usize = 3;

/// Channels of a head.
const HEAD_SIZE: usize = 64;

/// A size of a workload.
struct Rung {
    size: String,
    example: Example,
    from: MemoryId,
    to: MemoryId,
}

/// Measures products and attention in these precisions, and copies. Takes some seconds for each precision.
pub fn measure_speeds(device: &mut dyn Device, targets: &Targets, precisions: &[DType]) -> Speeds {
    let computing = [Workload::Product, Workload::Attention, Workload::AttentionGrad];
    let computing = computing.into_iter().flat_map(|workload| precisions.iter().map(move |&dtype| (workload, dtype)));
    let copying = [Workload::ToDevice, Workload::ToHost, Workload::WithinDevice];
    let copying = copying.into_iter().map(|workload| (workload, DType::F32));
    let mut speeds = Speeds::default();
    for (workload, dtype) in computing.chain(copying) {
        if let Err(error) = climb(device, targets, workload, dtype, &mut speeds) {
            speeds.error = Some(error);
            break;
        }
    }
    speeds
}

/// Measures only products: in these precisions, or in single precision on a device that rounds their operands to TF32.
pub fn measure_products(device: &mut dyn Device, targets: &Targets, precisions: &[DType], tf32: bool) -> Speeds {
    let mut speeds = Speeds::default();
    for &dtype in if tf32 { &[DType::F32][..] } else { precisions } {
        if let Err(error) = climb(device, targets, Workload::Product, dtype, &mut speeds) {
            speeds.error = Some(error);
            break;
        }
    }
    speeds.rates.iter_mut().for_each(|rate| rate.tf32 = tf32);
    speeds
}

/// Measures a workload's sizes from the smallest on, as long as the device is fast enough and has enough memory.
fn climb(
    device: &mut dyn Device,
    targets: &Targets,
    workload: Workload,
    dtype: DType,
    speeds: &mut Speeds,
) -> Result<(), DeviceError> {
    let mut measured = Vec::<Rate>::new();
    for rung in workload.rungs(dtype) {
        let plan = plan_of_nodes([PlacedNode { example: &rung.example, from: rung.from, to: rung.to }], targets);
        let [flops, bytes] = work(&plan);
        if measured.last().is_some_and(|below| expected(below, [flops, bytes]) > LONGEST.as_secs_f64()) {
            break;
        }
        match device.load(&plan) {
            Err(DeviceError::NoRoom { .. }) if !measured.is_empty() => break,
            loaded => loaded?,
        }
        for note in device.notes() {
            if !speeds.notes.contains(&note) {
                speeds.notes.push(note);
            }
        }
        fill(device, &plan, &rung.example)?;
        let (seconds, times) = time(device, &plan, &rung.example.scalars)?;
        measured.push(Rate { workload, dtype, tf32: false, size: rung.size, flops, bytes, seconds, times });
    }
    // Smaller sizes only predict the time of larger ones.
    let guessed_by = measured.len().saturating_sub(SIZES);
    speeds.rates.extend(measured.into_iter().skip(guessed_by));
    Ok(())
}

/// Operations and bytes of the plan's only node.
fn work(plan: &Plan) -> [u64; 2] {
    let step = &plan.programs[0].steps[0];
    let types = |ids: &[TensorId]| ids.iter().map(|&id| &plan[id].ty).collect();
    let io = Io { inputs: types(&step.inputs), outputs: types(&step.outputs) };
    let bytes = match step.op {
        // The bytes read on one side are those written on the other.
        Op::Transfer(_) => io.outputs[0].bytes().0,
        _ => step.op.bytes_moved(&io).0,
    };
    [step.op.flops(&io), bytes]
}

/// Expected seconds of a run, at the rate of a smaller one.
fn expected(below: &Rate, [flops, bytes]: [u64; 2]) -> f64 {
    let flops = flops as f64 / below.flops.max(1) as f64;
    let bytes = bytes as f64 / below.bytes.max(1) as f64;
    below.seconds * flops.max(bytes)
}

/// Fills all operands with noise, since the power that kernels draw depends on the values.
fn fill(device: &mut dyn Device, plan: &Plan, example: &Example) -> Result<(), DeviceError> {
    /// Length of the repeated pattern; odd, so that rows of matrices differ.
    const REPEATED: usize = 4099;
    let mut noise = Noise::new(1);
    let values = (0..REPEATED).map(|_| (2.0 * noise.unit() - 1.0) as f32).collect::<Vec<_>>();
    let step = &plan.programs[0].steps[0];
    for (&tensor, (ty, _)) in step.inputs.iter().zip(&example.inputs) {
        let (mut bytes, pattern) = (Vec::with_capacity(ty.bytes().0 as usize), encode(ty.dtype, &values));
        while bytes.len() < bytes.capacity() {
            let left = bytes.capacity() - bytes.len();
            bytes.extend_from_slice(&pattern[..left.min(pattern.len())]);
        }
        device.write(plan, tensor, &bytes)?;
    }
    device.synchronize()
}

/// The median time of a run, and the number of measurements.
fn time(device: &mut dyn Device, plan: &Plan, scalars: &Scalars) -> Result<(f64, usize), DeviceError> {
    let mut timed = |runs: usize| -> Result<Duration, DeviceError> {
        let start = Instant::now();
        for _ in 0..runs {
            device.run_program(plan, 0, scalars)?;
        }
        device.synchronize()?;
        Ok(start.elapsed())
    };
    let fits = |run: Duration| (TIMED.as_secs_f64() / run.as_secs_f64().max(1e-7)).ceil() as usize;
    let begin = Instant::now();
    // The first run is slower, and only used to predict the others.
    let mut runs = fits(timed(1)?);
    let mut times = Vec::new();
    while times.len() < TIMES && (times.is_empty() || begin.elapsed() < MEASURED) {
        let elapsed = timed(runs)?;
        if elapsed < TIMED / 2 && begin.elapsed() < MEASURED {
            runs = fits(elapsed / runs as u32);
            continue;
        }
        times.push(elapsed.as_secs_f64() / runs as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times.len()))
}

impl Workload {
    /// Whether it moves bytes and computes nothing.
    pub fn is_copy(self) -> bool {
        matches!(self, Self::ToDevice | Self::ToHost | Self::WithinDevice)
    }

    /// Sizes, from a negligible one to those of training.
    fn rungs(self, dtype: DType) -> Vec<Rung> {
        let attentions = |of: fn([usize; 2]) -> Example| ATTENTIONS.map(|sizes| (words(sizes), of(sizes))).to_vec();
        let sizes = match self {
            Self::Product => PRODUCTS.map(|n| (format!("{n} x {n} x {n}"), product(n))).to_vec(),
            Self::Attention => attentions(attention),
            Self::AttentionGrad => attentions(attention_grad),
            Self::ToDevice | Self::ToHost => COPIES.map(|kib| (in_mib(kib), copy(kib))).to_vec(),
            Self::WithinDevice => PASSES.map(|kib| (in_mib(kib), pass(kib))).to_vec(),
        };
        let (from, to) = match self {
            Self::ToDevice => (MemoryId::HOST, MemoryId::DEVICE),
            Self::ToHost => (MemoryId::DEVICE, MemoryId::HOST),
            Self::Product | Self::Attention | Self::AttentionGrad | Self::WithinDevice => {
                (MemoryId::DEVICE, MemoryId::DEVICE)
            }
        };
        let rung = |(size, example)| Some(Rung { size, example: in_precision(&example, dtype)?, from, to });
        sizes.into_iter().filter_map(rung).collect()
    }
}

/// Extents of a product.
const PRODUCTS: [usize; 5] = [32, 128, 512, 1024, 4096];

/// Heads and tokens.
const ATTENTIONS: [[usize; 2]; 4] = [[1, 16], [4, 128], [16, 1024], [16, 4096]];

/// KiB copied between host and device, and KiB that a pass within the device reads and writes: more than any card's
/// caches.
const COPIES: [usize; 4] = [16, 512, 16 << 10, 64 << 10];
const PASSES: [usize; 4] = [16, 512, 16 << 10, 512 << 10];

fn words([heads, tokens]: [usize; 2]) -> String {
    format!("{heads} x {HEAD_SIZE}, {tokens} tokens")
}

fn in_mib(kib: usize) -> String {
    if kib < 1024 { format!("{kib} KiB") } else { format!("{} MiB", kib >> 10) }
}

fn filled(op: impl Into<Op>, shapes: &[&[usize]]) -> Example {
    let inputs = shapes.iter().map(|shape| (TensorType::f32(shape), Fill::Uniform)).collect();
    Example { op: op.into(), inputs, state: Fill::Uniform, scalars: Scalars::default() }
}

fn product(n: usize) -> Example {
    filled(Linear { layout: WeightLayout::InOut, bias: false }, &[&[1, n, n], &[n, n]])
}

fn causal(heads: usize) -> Attention {
    Attention {
        heads,
        kv_heads: heads,
        packed: false,
        causal: true,
        scale: 1.0 / (HEAD_SIZE as f32).sqrt(),
        window: None,
        cap: None,
        bias: None,
        has_sinks: false,
        segmented: false,
        dropout: None,
        rows: ATTENTION_ROWS,
    }
}

fn attention([heads, tokens]: [usize; 2]) -> Example {
    causal(heads).example([1, tokens, tokens, HEAD_SIZE])
}

fn attention_grad([heads, tokens]: [usize; 2]) -> Example {
    let grad = AttentionGrad::of_all(causal(heads));
    grad.example([1, tokens, tokens, HEAD_SIZE])
}

fn floats(kib: usize) -> usize {
    kib * 1024 / 4
}

fn copy(kib: usize) -> Example {
    filled(Transfer, &[&[floats(kib)]])
}

/// One half is read, the other written.
fn pass(kib: usize) -> Example {
    filled(Scale { factor: 0.5 }, &[&[floats(kib) / 2]])
}
