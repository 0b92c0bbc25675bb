//! The sizes of the workloads: as large as the device is fast, so that a run of each takes a small part of the time. On a
//! fast card a product has 8,192 rows and columns.

use crate::device::{OpenDevice, StressError};
use crate::training::TrainedModel;
use plimsoll_graph::ops::{Linear, WeightLayout};
use plimsoll_graph::{DType, Graph, ProgramBuilder, ProgramKind, Role, Scalars, Storage, Targets, TensorType};
use plimsoll_plan::{Precision, lay_out};
use plimsoll_train::{Engine, TrainError};
use plimsoll_units::Bytes;
use std::time::{Duration, Instant};

/// Extents of products that measure the device, and the time of a run that is long enough to be measured.
const PROBES: [usize; 4] = [32, 128, 512, 2048];
const MEASURABLE: Duration = Duration::from_millis(4);

/// Runs of each, of which the fastest counts.
const RUNS: usize = 4;

/// Extents of the smallest and the largest product.
const PRODUCT: [usize; 2] = [32, 8192];

/// Heads and tokens of attention, from the smallest to the largest.
const ATTENTION: [[usize; 2]; 4] = [[1, 16], [4, 128], [16, 1024], [16, 4096]];

/// Words of the largest transfer, and of the largest block that the device moves; fewest words of either.
const TRANSFER: usize = 16 << 20;
const MOVE: usize = 128 << 20;
const FEWEST: usize = 1 << 10;

/// How much slower attention is than a product of as many operations.
const ATTENTION_COST: f64 = 4.0;

/// Operations of a product in the time in which the device moves a byte.
const FLOPS_PER_BYTE: f64 = 4.0;

/// Sizes of all workloads.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    pub product: usize,
    pub attention: [usize; 2],
    pub transfer_words: usize,
    pub move_words: usize,
    /// The model's place in [`TrainedModel::all`].
    model: usize,
}

impl Sizes {
    /// For a device that makes `rate` operations per second in products of single precision. `each`: about how long a run of
    /// a workload may take.
    pub(crate) fn for_rate(rate: f64, each: Duration, targets: &Targets) -> Result<Self, StressError> {
        let flops = rate * each.as_secs_f64();
        let product = |extent: usize| 2.0 * (extent as f64).powi(3);
        let mut extent = PRODUCT[0];
        while extent < PRODUCT[1] && product(2 * extent) <= flops {
            extent *= 2;
        }
        let of_attention =
            |[heads, tokens]: [usize; 2]| ATTENTION_COST * 128.0 * heads as f64 * (tokens as f64).powi(2);
        let attention = ATTENTION.into_iter().rev().find(|sizes| of_attention(*sizes) <= flops);
        let words = |most: usize| ((flops / FLOPS_PER_BYTE / 4.0) as usize).clamp(FEWEST, most);
        let mut model = 0;
        for (index, candidate) in TrainedModel::all().iter().enumerate().skip(1) {
            let (_, plan) = candidate.plan(targets, Precision::Fp32)?;
            // A step needs more than the products that the rule counts.
            if 2.0 * candidate.flops(plan.parameters) <= flops {
                model = index;
            }
        }
        Ok(Self {
            product: extent,
            attention: attention.unwrap_or(ATTENTION[0]),
            transfer_words: words(TRANSFER),
            move_words: words(MOVE),
            model,
        })
    }

    /// The model.
    pub(crate) fn model(&self) -> TrainedModel {
        TrainedModel::all()[self.model].clone()
    }

    /// Smaller sizes, for less memory; `None` if these are the smallest.
    pub(crate) fn smaller(&self) -> Option<Self> {
        let attention = ATTENTION.iter().position(|sizes| *sizes == self.attention).unwrap_or(0).saturating_sub(1);
        let smaller = Self {
            product: (self.product / 2).max(PRODUCT[0]),
            attention: ATTENTION[attention],
            transfer_words: (self.transfer_words / 4).max(FEWEST),
            move_words: self.move_words,
            model: self.model.saturating_sub(1),
        };
        let is_same = smaller.product == self.product
            && smaller.attention == self.attention
            && smaller.transfer_words == self.transfer_words
            && smaller.model == self.model;
        (!is_same).then_some(smaller)
    }
}

/// Operations per second of products in single precision, measured within this memory.
pub(crate) fn measured_rate(open: OpenDevice, targets: &Targets, memory: Bytes) -> Result<f64, TrainError> {
    let mut rate = 1.0;
    for extent in PROBES.into_iter().filter(|extent| 24 * extent * extent <= memory.0 as usize) {
        let mut graph = Graph::default();
        let mut kept = |shape: &[usize]| {
            graph.tensor(
                "probe",
                TensorType { shape: shape.into(), dtype: DType::F32 },
                Role::Activation,
                Storage::Persistent,
            )
        };
        let (x, weight, y) = (kept(&[1, extent, extent]), kept(&[extent, extent]), kept(&[1, extent, extent]));
        let mut builder = ProgramBuilder::new(&mut graph);
        let op = Linear { layout: WeightLayout::InOut, bias: false };
        builder.push_into(op, &[x, weight], &[Some(y)]).expect("the operands of a product fit");
        builder.finish(ProgramKind::Numbered(0));
        let mut engine = Engine::new(open(false)?, &graph, lay_out(&graph, targets))?;
        let mut took = Duration::MAX;
        for _ in 0..RUNS {
            let start = Instant::now();
            engine.run(ProgramKind::Numbered(0), &Scalars::default())?;
            took = took.min(start.elapsed());
        }
        rate = 2.0 * (extent as f64).powi(3) / took.as_secs_f64().max(1e-9);
        if took >= MEASURABLE {
            break;
        }
    }
    Ok(rate)
}
