//! Finds the settings nearest to a run that fit a card. Tries the usual changes in several orders, and keeps only the
//! changes of each order that are needed.
//! Not here: the estimate (`plimsoll_eager`), and its display (`plimsoll_render`).

use crate::{Estimate, Gpu, Verdict, estimate};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{
    Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, SettingChange,
    Sharding, Targets,
};
use plimsoll_units::Bytes;
use rayon::prelude::*;

/// The setting of the allocator with the least fragmentation.
const EXPANDABLE: &str = "expandable_segments:True";

/// A run that fits.
#[derive(Debug, Clone)]
pub struct Suggestion {
    /// The run.
    pub run: Run,
    /// Its memory.
    pub estimate: Estimate,
    /// Whether it trains fewer parameters, and so is only a suggestion.
    pub trains_less: bool,
}

/// A change of a run; `None` if there is nothing to change.
type Lever = fn(&Run) -> Option<Run>;

/// Changes that keep the result, in the order of their cost in time.
const EXACT: &[Lever] = &[allocator, attention, liger, checkpointing];
/// Smaller micro-batches with more accumulation.
const SMALLER: &[Lever] = &[halve as Lever; 12];
/// Changes of the optimizer's arithmetic.
const OPTIMIZER: &[Lever] = &[fused, paged];
/// Changes of all arithmetic.
const PRECISION: &[Lever] = &[lower_precision, lower_precision];
/// Changes that need several cards.
const CARDS: &[Lever] = &[divide, offload];

/// Whether an estimate's upper bound fits a card with this much memory.
fn fits(estimate: &Estimate, gpu: Gpu, memory: Bytes) -> bool {
    estimate.verdict(gpu, memory) == Verdict::Fits
}

/// Suggestions that fit, the nearest first; those that train fewer parameters come last. Empty if nothing fits.
/// `memory` is the card's total, `gpu` has the part that the margin leaves.
pub fn nearest(model: &ModelConfig, run: &Run, gpu: Gpu, memory: Bytes) -> Vec<Suggestion> {
    let search = Search { model, gpu, memory };
    let orders: [Vec<Lever>; 4] = [
        [EXACT, SMALLER].concat(),
        [&EXACT[..1], SMALLER, &EXACT[1..]].concat(),
        [EXACT, OPTIMIZER, SMALLER, PRECISION, CARDS].concat(),
        [&EXACT[..1], PRECISION, &EXACT[1..], OPTIMIZER, SMALLER, CARDS].concat(),
    ];
    let adapters = [false, true].map(|quantized| adapted(run, quantized)).into_iter().flatten();
    let starts = orders.iter().map(|order| (run.clone(), order, false));
    let starts = starts.chain(adapters.map(|run| (run, &orders[0], true))).collect::<Vec<_>>();
    let found = starts.par_iter().map(|(start, order, trains_less)| {
        search.first_that_fits(start, order).map(|(run, estimate)| Suggestion {
            run,
            estimate,
            trains_less: *trains_less,
        })
    });
    let mut ways: Vec<Suggestion> = vec![];
    for way in found.collect::<Vec<_>>().into_iter().flatten() {
        if !ways.iter().any(|other| other.run == way.run) {
            ways.push(way);
        }
    }
    // Fewer changes are nearer; among equals, the changes that keep the result were found first.
    ways.sort_by_key(|way| (way.trains_less, distance(run, &way.run)));
    ways
}

/// The distance between runs: changes of the optimizer and of all arithmetic weigh more than those that only cost time.
fn distance(from: &Run, to: &Run) -> usize {
    let weights = SettingChange::between(from, to).into_iter().map(|change| match change {
        SettingChange::Optimizer(_) => 3,
        SettingChange::Precision(_) => 4,
        SettingChange::Method(_) => 8,
        SettingChange::Accumulation(_) => 0,
        _ => 1,
    });
    weights.sum::<usize>() + usize::from(from.alloc_conf != to.alloc_conf)
}

struct Search<'m> {
    model: &'m ModelConfig,
    gpu: Gpu,
    memory: Bytes,
}

impl Search<'_> {
    /// The estimate of a run, if it fits. The outer `None` means that the run is not modeled.
    fn fitting(&self, run: &Run) -> Option<Option<Estimate>> {
        let found = estimate(self.model, run, self.gpu).ok()?;
        Some(fits(&found, self.gpu, self.memory).then_some(found))
    }

    /// Applies changes in their order until the run fits, then removes each change that is not needed.
    fn first_that_fits(&self, start: &Run, order: &[Lever]) -> Option<(Run, Estimate)> {
        let mut pulled: Vec<Lever> = vec![];
        let mut run = start.clone();
        let mut found = self.fitting(&run)?;
        for lever in order {
            if found.is_some() {
                break;
            }
            let next = lever(&run);
            if let Some((next, takes)) = next.and_then(|next| self.fitting(&next).map(|takes| (next, takes))) {
                (run, found) = (next, takes);
                pulled.push(*lever);
            }
        }
        let mut best = (run, found?);
        let mut at = pulled.len().saturating_sub(1);
        while at > 0 {
            at -= 1;
            let fewer = pulled.iter().enumerate().filter(|(place, _)| *place != at).map(|(_, lever)| *lever);
            let fewer = fewer.collect::<Vec<_>>();
            let run = fewer.iter().fold(start.clone(), |run, lever| lever(&run).unwrap_or(run));
            if let Some(Some(estimate)) = self.fitting(&run) {
                pulled = fewer;
                best = (run, estimate);
            }
        }
        Some(best)
    }
}

fn allocator(run: &Run) -> Option<Run> {
    run.alloc_conf.is_empty().then(|| Run { alloc_conf: EXPANDABLE.to_owned(), ..run.clone() })
}

fn halve(run: &Run) -> Option<Run> {
    let mut halved = run.clone();
    SettingChange::halve_micro_batch(run)?.iter().for_each(|change| change.apply(&mut halved));
    Some(halved)
}

fn attention(run: &Run) -> Option<Run> {
    (run.attention == Attention::Eager).then(|| Run { attention: Attention::Sdpa, ..run.clone() })
}

fn liger(run: &Run) -> Option<Run> {
    (run.loss == Loss::Plain).then(|| Run { loss: Loss::Liger, ..run.clone() })
}

fn checkpointing(run: &Run) -> Option<Run> {
    let off = run.checkpointing == Checkpointing::Off;
    off.then(|| Run { checkpointing: Checkpointing::NonReentrant, ..run.clone() })
}

/// AdamW without temporaries of the weights' size.
fn fused(run: &Run) -> Option<Run> {
    (run.optimizer == Optimizer::AdamWForeach).then(|| Run { optimizer: Optimizer::AdamWFused, ..run.clone() })
}

/// 8-bit moments, which move to the host if the card is full.
fn paged(run: &Run) -> Option<Run> {
    let is_large = !matches!(run.optimizer, Optimizer::PagedAdamW8bit | Optimizer::Adafactor | Optimizer::Sgd { .. });
    is_large.then(|| Run { optimizer: Optimizer::PagedAdamW8bit, ..run.clone() })
}

fn lower_precision(run: &Run) -> Option<Run> {
    let precision = match run.precision {
        Precision::Fp32 => Precision::AmpBf16,
        Precision::AmpBf16 => Precision::PureBf16,
        _ => return None,
    };
    Some(Run { precision, ..run.clone() })
}

fn divide(run: &Run) -> Option<Run> {
    let is_whole = matches!(run.sharding, Sharding::None | Sharding::Ddp { .. });
    (is_whole && run.cards > 1).then(|| Run { sharding: Sharding::Fsdp, ..run.clone() })
}

fn offload(run: &Run) -> Option<Run> {
    let is_divided = matches!(run.sharding, Sharding::Zero { .. }) && run.offload == Offload::default();
    is_divided.then(|| Run { offload: Offload { optimizer: true, weights: false }, ..run.clone() })
}

/// The same run with LoRA on all linear layers, over 4-bit weights if requested. `None` if it has them already.
fn adapted(run: &Run, quantized: bool) -> Option<Run> {
    let lora = match &run.method {
        Method::Full => Lora { rank: 16, targets: Targets::AllLinear, dropout: false },
        Method::Lora(lora) => lora.clone(),
        Method::Qlora(..) => return None,
    };
    let method = match (quantized, &run.method) {
        (true, _) => Method::Qlora(lora, Quantized { block: 64, double: true }),
        (false, Method::Full) => Method::Lora(lora),
        (false, _) => return None,
    };
    Some(Run { method, ..run.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(memory: Bytes) -> Gpu {
        Gpu { memory, compute_capability: (8, 6) }
    }

    #[test]
    fn every_way_fits_and_has_the_same_effective_batch() {
        let model = ModelConfig::preset("gpt2").expect("a preset");
        let run = Run { micro_batch: 24, accumulation: 3, attention: Attention::Eager, ..Run::default() };
        let whole = estimate(&model, &run, gpu(Bytes::mib(1 << 20))).expect("modeled").likely.process();
        let mut found = 0;
        for part in [90, 60, 30, 15, 8] {
            let memory = Bytes(whole.0 / 100 * part);
            for way in nearest(&model, &run, gpu(memory), memory) {
                assert_eq!(way.run.micro_batch * way.run.accumulation, 72, "{:?}", way.run);
                let again = estimate(&model, &way.run, gpu(memory)).expect("modeled");
                assert!(fits(&again, gpu(memory), memory), "{part} %: {:?}", way.run);
                assert_eq!(way.trains_less, way.run.method != Method::Full);
                found += 1;
            }
        }
        assert!(found > 10, "{found}");
    }

    #[test]
    fn a_run_that_needs_one_change_is_changed_once() {
        let model = ModelConfig::preset("gpt2").expect("a preset");
        let run = Run { micro_batch: 16, ..Run::default() };
        let halved = Run { alloc_conf: String::new(), ..halve(&run).expect("it is even") };
        let of = |run: &Run| estimate(&model, run, gpu(Bytes::mib(1 << 20))).expect("modeled").range[1].process();
        let (before, after) = (of(&run), of(&halved));
        let between = Bytes((before.0 + after.0) / 2);
        let ways = nearest(&model, &run, gpu(between), between);
        assert_eq!(distance(&run, &ways[0].run), 1, "{:?}", ways[0].run);
        assert!(nearest(&model, &run, gpu(Bytes::mib(600)), Bytes::mib(600)).is_empty(), "nothing fits");
    }
}
