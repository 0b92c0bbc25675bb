//! Training steps of a model on random tokens, in laps: each lap starts from the same weights and must have the losses and
//! the final state of the first one, to the bit.

use crate::findings::{Mismatch, Unit, WrongResults};
use crate::parts::Burst;
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{DType, Graph, Parameter, ProgramKind, Targets};
use plimsoll_plan::{
    Levers, Machine, Plan, PlanError, Precision, Rates, Request, Settings, default_head_chunk, plan_settings,
};
use plimsoll_train::{Engine, RandomStep, TrainError, random_step};
use rayon::prelude::*;
use std::time::{Duration, Instant};

/// The seed of weights and tokens.
const SEED: u64 = 1;

/// Fewest and most steps of a lap.
const FEWEST: usize = 2;
const MOST: usize = 64;

/// A model and the samples of a micro-batch.
#[derive(Debug, Clone)]
pub(crate) struct TrainedModel {
    pub name: &'static str,
    model: ModelConfig,
    micro_batch: usize,
    seq_len: usize,
}

impl TrainedModel {
    /// From one that any device trains to one that fills the multiprocessors of a large card.
    pub(crate) fn all() -> [Self; 4] {
        let preset = |name| ModelConfig::preset(name).expect("a preset");
        let nano = preset("nano");
        let ModelConfig::Gpt2(config) = &nano else { unreachable!("nano is a GPT-2") };
        let sizes = Gpt2Config { vocab_size: 32, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2, ..config.clone() };
        let (small, name) = (ModelConfig::Gpt2(sizes), "one block of 16 channels");
        [
            Self { name, model: small, micro_batch: 1, seq_len: 8 },
            Self { name: "nano", seq_len: nano.max_positions(), model: nano, micro_batch: 4 },
            Self { name: "gpt2", model: preset("gpt2"), micro_batch: 1, seq_len: 1024 },
            Self { name: "gpt2", model: preset("gpt2"), micro_batch: 16, seq_len: 1024 },
        ]
    }

    /// Its programs, and a plan whose batch sizes hold for any plan of these programs.
    pub(crate) fn plan(&self, targets: &Targets, precision: Precision) -> Result<(Graph, Plan), PlanError> {
        let machine = Machine::of_rates(Rates::guess(targets.host.threads()));
        let mut model = self.model.clone();
        model.set_dropout(0.0);
        let request = Request {
            global_batch: 2 * self.micro_batch,
            micro_batch: Some(self.micro_batch),
            seq_len: self.seq_len,
            ..Request::new(model, *targets, machine)
        };
        let rows = self.micro_batch * self.seq_len;
        let head_chunk = default_head_chunk(rows, self.model.vocab_size(), targets.device.kind());
        let levers = Levers { precision, ..Levers::default() };
        plan_settings(&request, Settings { micro_batch: self.micro_batch, head_chunk, levers })
    }

    /// Floating-point operations of a step, by the usual rule: six for each parameter and token.
    pub(crate) fn flops(&self, parameters: u64) -> f64 {
        6.0 * parameters as f64 * (2 * self.micro_batch * self.seq_len) as f64
    }

    /// Its size, in words.
    pub(crate) fn size(&self) -> String {
        format!("{}, 2 micro-batches of {} x {} tokens", self.name, self.micro_batch, self.seq_len)
    }
}

/// The laps of a model.
pub(crate) struct Training {
    model: TrainedModel,
    /// Losses of the first lap.
    losses: Vec<f32>,
    /// Hashes of the state at the end of the first lap; empty before.
    hashes: Vec<u64>,
    /// Steps of the current lap that were made.
    made: usize,
    /// Time of the steps of the first lap, and the time after which it ends.
    first_lap: Duration,
    lap: Duration,
}

impl Training {
    pub(crate) const LABEL: &str = "training";

    /// `lap`: about how long a lap takes.
    pub(crate) fn new(model: TrainedModel, lap: Duration) -> Self {
        Self { model, losses: vec![], hashes: vec![], made: 0, first_lap: Duration::ZERO, lap }
    }

    /// The model.
    pub(crate) fn model(&self) -> &TrainedModel {
        &self.model
    }

    /// Trains for about this long.
    pub(crate) fn run(
        &mut self,
        engine: &mut Engine,
        time: Duration,
        wrong: &mut WrongResults,
    ) -> Result<Burst, TrainError> {
        let (mut steps, mut busy, start) = (0, Duration::ZERO, Instant::now());
        while steps == 0 || start.elapsed() < time {
            if self.made == 0 {
                engine.restart(SEED)?;
            }
            let ran = random_step(engine, self.model.model.vocab_size(), SEED, self.made as u64 + 1)?;
            self.made += 1;
            (steps, busy) = (steps + 1, busy + ran.took);
            self.check(engine, ran, wrong)?;
        }
        let tokens = steps * engine.plan().tokens_per_step();
        Ok(Burst { busy, work: tokens as f64, unit: Unit::Tokens })
    }

    /// Compares a step's loss with the first lap's, and after the last step of a lap the state.
    fn check(&mut self, engine: &Engine, ran: RandomStep, wrong: &mut WrongResults) -> Result<(), TrainError> {
        if self.hashes.is_empty() {
            return self.check_first_lap(engine, ran, wrong);
        }
        let expected = self.losses[self.made - 1];
        wrong.checks += 1;
        if ran.loss.to_bits() != expected.to_bits() {
            self.report(engine, Some([ran.loss, expected].map(f32::to_bits)), wrong);
        }
        if self.made == self.losses.len() {
            self.made = 0;
            let hashes = hashes(engine)?;
            wrong.checks += 1;
            let differing = hashes.iter().zip(&self.hashes).filter(|(found, expected)| found != expected).count();
            (0..differing).for_each(|_| self.report(engine, None, wrong));
        }
        Ok(())
    }

    /// The first loss is near ln V, since tokens are random; later ones are finite.
    fn check_first_lap(
        &mut self,
        engine: &Engine,
        ran: RandomStep,
        wrong: &mut WrongResults,
    ) -> Result<(), TrainError> {
        let expected = (self.model.model.vocab_size() as f32).ln();
        let is_first = self.losses.is_empty();
        wrong.checks += 1;
        if !ran.loss.is_finite() || (is_first && (ran.loss - expected).abs() > 0.1 * expected) {
            self.report(engine, Some([ran.loss, expected].map(f32::to_bits)), wrong);
        }
        self.losses.push(ran.loss);
        self.first_lap += ran.took;
        let is_over = (self.made >= FEWEST && self.first_lap >= self.lap) || self.made == MOST;
        if is_over {
            self.hashes = hashes(engine)?;
            self.made = 0;
        }
        Ok(())
    }

    fn report(&self, engine: &Engine, bits: Option<[u32; 2]>, wrong: &mut WrongResults) {
        let loss = engine.ports(ProgramKind::MicroStep).loss.expect("a micro-step yields a loss");
        let offset = engine.plan()[loss].region().offset;
        wrong.add(Mismatch { workload: Self::LABEL.to_owned(), offset, on_host: false, bits });
    }
}

/// A hash of each tensor that a step changes: weights, gradients and the optimizer's state.
fn hashes(engine: &Engine) -> Result<Vec<u64>, TrainError> {
    let of_parameter = |parameter: &Parameter| {
        let training = parameter.training.as_ref();
        let state = training.map_or_else(Vec::new, |training| training.state.clone());
        let others = [training.map(|training| training.gradient), training.and_then(|training| training.remainder)];
        [parameter.master()].into_iter().chain(others.into_iter().flatten()).chain(state).collect::<Vec<_>>()
    };
    let tensors = engine.parameters().iter().flat_map(of_parameter);
    tensors.map(|tensor| Ok(hash(&engine.view(tensor)?, engine.plan()[tensor].dtype()))).collect()
}

/// A sum of mixed words: any changed bit changes it, and its parts may be added in any order.
fn hash(bytes: &[u8], dtype: DType) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = bytes.par_chunks(dtype.size_bytes() as usize).enumerate();
    let mixed = words.map(|(index, bytes)| crate::numbers::mix((index as u64) << 32 ^ word(bytes)));
    mixed.reduce(|| 0, u64::wrapping_add)
}
