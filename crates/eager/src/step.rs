//! The training steps of a run as events: loads the model, then runs steps until one repeats the step before.
//! Not here: the model (`modules/`), the allocator (`simulate.rs`).

use crate::card::Gpu;
use crate::caveats;
use crate::estimate::Cannot;
use crate::modules::{Model, Outputs};
use crate::runtime::{DType, Event, Record, Rt, Runtime, Tensor, backward};
use crate::sharding::{self, Bound, Division};
use crate::usage::Phase;
use crate::{modules, optimizers};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{KeptOutputs, Precision, Run, Sharding};
use std::any::Any;

/// Number of steps: the first has no optimizer state yet, and the third equals the second.
const STEPS: usize = 3;

/// A process from its start to the end of its last step.
#[derive(Clone)]
pub(crate) struct Steps {
    pub records: Vec<Record>,
    pub events: Vec<Event>,
    pub caveats: Vec<String>,
}

/// Runs the steps. `kernels`: whether to trace internal allocations of kernels.
/// Errors: settings that are not modeled.
pub(crate) fn steps(model: &ModelConfig, run: &Run, gpu: Gpu, kernels: bool, bound: Bound) -> Result<Steps, Cannot> {
    let rt = Runtime::new(gpu, kernels);
    let mut caveats = caveats::of(model, run);
    rt.has_flat_weights.set(sharding::has_weights(run));
    let config = model;
    let (model, notes) = modules::load(&rt, config, &sharding::as_computed(run))?;
    caveats.extend(notes);
    let division = sharding::build(&rt, config, run, model.trained(), bound);
    let mut optimizer = optimizers::build(run);
    let mut held = Held::default();
    for _ in 0..STEPS {
        let micro_batches = run.accumulation.min(2);
        for number in 1..=micro_batches {
            rt.fusion.set(run.compiles && bound == Bound::Least);
            let step = || micro_step(&rt, &*model, run, &*division, number == micro_batches, &mut held);
            let ((), graph) = rt.with_kept_graph(step);
            if !held.outputs.is_empty() {
                held.graph = graph;
            }
        }
        rt.fusion.set(false);
        phase(&rt, Phase::Update);
        division.update(&rt, &mut *optimizer, run.clips);
        if run.custom_loop.outputs == KeptOutputs::UntilStep {
            held = Held::default();
        }
    }
    sharding::release(&rt, model.trained());
    // Frees at the end of the process are not events.
    let trace = rt.trace.take();
    rt.end();
    Ok(Steps { records: trace.records, events: trace.events, caveats })
}

/// What a variable of the training loop keeps alive.
#[derive(Default)]
struct Held {
    /// The model's outputs.
    outputs: Vec<Tensor>,
    /// Their executed graph, whose leaves are parameters and inputs of recomputed blocks.
    graph: Vec<Box<dyn Any>>,
}

/// The forward and the backward pass of a micro-batch. `held`: what the training loop keeps alive.
fn micro_step(rt: &Rt, model: &dyn Model, run: &Run, division: &dyn Division, is_last: bool, held: &mut Held) {
    phase(rt, Phase::Forward);
    division.begin(rt, is_last);
    let inputs = model.inputs(rt);
    let Outputs { mut loss, others } = rt.autocast().with(autocast(run), || model.outputs(rt, &inputs));
    // The variable holds the previous outputs until it is assigned again.
    let outputs = if run.custom_loop.outputs == KeptOutputs::UntilLoss {
        drop(others);
        vec![]
    } else {
        [others, vec![loss.clone()]].concat()
    };
    *held = Held { outputs, graph: vec![] };
    if run.accumulation > 1 {
        loss = loss.scale();
    }
    phase(rt, Phase::Backward);
    let gradient = Tensor::new(rt, loss.shape(), loss.dtype(), "ones_like");
    if let Some(edge) = loss.edge().cloned() {
        backward(rt, vec![(edge, gradient)]);
    }
    if run.custom_loop.outputs == KeptOutputs::UntilBackward {
        *held = Held::default();
    }
    division.end(rt, is_last);
}

fn phase(rt: &Rt, phase: Phase) {
    rt.trace.borrow_mut().phase(phase);
}

/// The type of autocast; `None` if it is off.
fn autocast(run: &Run) -> Option<DType> {
    match run.precision {
        // DeepSpeed casts weights and inputs itself.
        _ if matches!(run.sharding, Sharding::Zero { .. }) => None,
        Precision::AmpBf16 => Some(DType::BF16),
        Precision::AmpFp16 => Some(DType::F16),
        Precision::Fp32 | Precision::PureBf16 | Precision::PureFp16 => None,
    }
}
