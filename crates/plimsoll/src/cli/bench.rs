//! `plimsoll bench`: times training steps on random tokens.
//! Not here: the speed of data loading (`bench_data.rs`).

use super::bench_data::DataBenchArgs;
use super::blas::BlasArgs;
use super::budget::BudgetArgs;
use super::cards::DeviceArgs;
use super::cublas::TuneArgs;
use super::device::Device;
use super::failure::exit_code;
use super::levers::note_if_sent_for_nothing;
use super::loading::Flags;
use super::misfit::misfit_of;
use super::options::{positive_count, positive_size};
use super::request::{RequestArgs, Sequences};
use super::{Failure, in_pool, model};
use crate::streams::write_data;
use ::plimsoll_plan::{saved_activations, search};
use ::plimsoll_train::{Engine, PlanSummary, TimedStep, TrainError};
use clap::Args;
use plimsoll_exec::Ceilings;
use plimsoll_graph::DType;
use plimsoll_graph::models::ModelConfig;
use plimsoll_render::{Best, StepProfile};
use plimsoll_units::Bytes;
use serde_json::json;

/// The default number of tokens per sample.
const SEQ_LEN: usize = 256;

/// The default number of samples per step.
const BATCH: usize = 4;

/// The default number of pairs per step with `--data-only`.
const DATA_GLOBAL_BATCH: usize = 64;

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct BenchArgs {
    /// Preset, or the path of a config.json; `--layers` and other size flags override its sizes
    #[arg(long, visible_alias = "model-size", value_name = "NAME|PATH", default_value = "gpt2")]
    model: String,
    /// Number of transformer layers
    #[arg(long, value_name = "N", value_parser = positive_size)]
    layers: Option<usize>,
    /// Hidden size
    #[arg(long, value_name = "N", value_parser = positive_size)]
    hidden: Option<usize>,
    /// Number of attention heads
    #[arg(long, value_name = "N", value_parser = positive_size)]
    heads: Option<usize>,
    /// Vocabulary size
    #[arg(long, value_name = "N", value_parser = positive_size)]
    vocab_size: Option<usize>,
    /// Whether linear layers and norms have biases
    #[arg(long, value_name = "true|false")]
    bias: Option<bool>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    tune: TuneArgs,
    #[command(flatten)]
    budget: BudgetArgs,
    #[command(flatten)]
    blas: BlasArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Number of timed steps
    #[arg(long, value_name = "N", value_parser = positive_count, default_value = "5")]
    steps: u64,
    /// Number of warm-up steps
    #[arg(long, value_name = "N", value_parser = plimsoll_units::parse_count, default_value = "2")]
    warmup: u64,
    /// Random seed
    #[arg(long, value_name = "N", value_parser = super::options::seed, default_value = "1337")]
    seed: u64,
    /// Also time every node, in as many additional steps, and print the time per op and per matrix-product shape, compared
    /// with the GPU's data sheet, or on the CPU with a large product and a large copy measured after the plan's memory is
    /// freed
    #[arg(long)]
    profile: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataBenchArgs,
}

pub(super) fn run(args: BenchArgs) -> Result<u8, Failure> {
    args.budget.refuse_range("bench")?;
    let threads = args.budget.threads()?;
    if args.data.is_asked_for() {
        let global_batch = args.request.global_batch.unwrap_or(DATA_GLOBAL_BATCH);
        return in_pool(threads, || args.data.run(global_batch, threads, args.seed, args.json));
    }
    args.data.say_if_unused();
    args.blas.choose()?;
    in_pool(threads, || args.bench(threads))
}

impl BenchArgs {
    /// Applies the size flags to the model. Errors: its family does not support them.
    fn resize(&self, model: &mut ModelConfig, seq_len: usize) -> Result<(), Failure> {
        let sizes = [self.layers, self.hidden, self.heads];
        if let Some(vocab_size) = self.vocab_size {
            model.set_vocab_size(vocab_size);
        }
        let ModelConfig::Gpt2(config) = model else {
            let asked = sizes.iter().any(Option::is_some) || self.bias.is_some();
            let message = "`--layers`, `--hidden`, `--heads` and `--bias` apply only to GPT-2";
            return if asked {
                Err(Failure::bad_input(message).hint("for other families, set sizes in a config.json: `--model FILE`"))
            } else {
                Ok(())
            };
        };
        if self.layers.or(self.hidden).is_some() {
            // A model of custom sizes has no published number of positions.
            config.n_positions = seq_len;
        }
        config.n_layer = self.layers.unwrap_or(config.n_layer);
        config.n_embd = self.hidden.unwrap_or(config.n_embd);
        config.n_head = self.heads.unwrap_or(config.n_head);
        config.bias = self.bias.unwrap_or(config.bias);
        Ok(())
    }

    fn bench(&self, threads: usize) -> Result<u8, Failure> {
        let mut chosen = model::open(&self.model)?;
        let asked = &self.request;
        if asked.finds_seq_len() {
            return Err(Failure::bad_flag("`bench` does not support `--seq-len auto`; it measures one given length")
                .hint("`plimsoll plan --seq-len auto` finds the length"));
        }
        let seq_len = asked.seq_len().unwrap_or(SEQ_LEN);
        chosen.fit(None, seq_len);
        self.resize(&mut chosen.config, seq_len)?;
        chosen.config.set_dropout(0.0);
        asked.set_dropout(&mut chosen);
        // By default, a step is one micro-batch.
        let global_batch = asked.global_batch.or(match asked.gradient_accumulation_steps {
            Some(_) => None,
            None => asked.micro_batch.given(),
        });
        let asked = RequestArgs { global_batch, ..asked.clone() };
        let mut opened = self.device.open(&self.budget, None)?;
        opened.choose_products(None, self.tune.autotune);
        let target_len = self.data.target_len().or(chosen.takes_pairs().then_some(seq_len));
        let sequences = Sequences::of_length(seq_len, target_len);
        let plan_for = |device: &Device| {
            let request = asked.request(&chosen, device, sequences.clone(), BATCH)?;
            let found = search(&request).map_err(|e| {
                Failure::from(e).hint("`--layers`, `--hidden`, `--heads` and `--vocab-size` change the model")
            })?;
            found.map_err(|misfit| misfit_of(&chosen.name, &misfit, &device.budget))
        };
        let mut found = plan_for(&opened.device)?;
        opened.check_free(&self.budget, &found.plan)?;
        let (paper, tf32, times) = (opened.on_paper(), opened.tf32, opened.device.times.clone());
        if self.profile && paper.is_none() {
            // The ceilings are measured after the plan's memory is freed.
            self.budget.check_room(Ceilings::MEMORY)?;
        }
        let flags = Flags { device: &self.device, budget: &self.budget };
        let mut engine = flags.load(opened, &mut found, plan_for)?;
        note_if_sent_for_nothing(&found.settings, found.plan.targets.device.kind());
        let plan = PlanSummary::from(&found.plan);
        let (saved, predicted_ms) = (saved_activations(&found.plan), found.step.0 * 1e3);
        let (parameters, products) = (found.plan.parameters, found.plan.targets.device.products());
        let vocab = chosen.config.vocab_size();
        let result = ::plimsoll_train::bench(&mut engine, vocab, self.warmup, self.steps, self.seed)?;
        let timed = if self.profile { Some(self.time_nodes(&mut engine, vocab)?) } else { None };
        drop(engine);
        let profile = match &timed {
            Some(timed) => {
                let best = match paper {
                    Some(card) => Best::on_paper(card, found.settings.levers.precision, tf32),
                    None => {
                        let in_bf16 = found.settings.levers.precision.dtype() == DType::Bf16;
                        Best::measured(Ceilings::measure(threads, in_bf16).map_err(TrainError::from)?)
                    }
                };
                Some(StepProfile::new(timed, self.steps, best))
            }
            None => None,
        };
        if self.json {
            let value = json!({
                "model": { "name": chosen.name, "parameters": parameters },
                "plan": plan,
                "saved_activations_bytes": saved.0,
                "predicted": { "step_ms": predicted_ms, "times": times },
                "measured": result.measured,
                "step_ms": result.step_ms,
                "loss": result.loss,
                "threads": threads,
                "products": products,
                "profile": profile.map(|profile| profile.json()),
            });
            write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
            return Ok(exit_code::DONE);
        }
        let measured = &result.measured;
        let shown = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{x:.1}"));
        let counted = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |b| Bytes(b).to_string());
        let exact = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |b| b.to_string());
        let footprint = &measured.footprint;
        write_data(format_args!(
            "{parameters} parameters, {} x {} tokens per step, {threads} threads\n\
             {} tokens/s, {} ms per step\n\
             planned {} bytes, on the host {}; resident {}, in whole pages\n\
             outside the plan: {}; peak resident size: {}",
            plan.global_batch,
            plan.seq_len,
            shown(measured.tokens_per_s),
            shown(measured.step_ms_p50),
            plan.peak_bytes + plan.host_bytes,
            plan.host_bytes,
            exact(footprint.arena_resident_bytes),
            counted(footprint.outside_plan_bytes),
            counted(footprint.peak_rss_bytes)
        ))?;
        if let Some(profile) = profile {
            write_data(profile.table())?;
            write_data(format_args!(
                "nodes timed separately take {:.1} ms in total; a whole step takes {} ms",
                profile.milliseconds(),
                shown(measured.step_ms_p50)
            ))?;
        }
        Ok(exit_code::DONE)
    }

    /// Runs the timed steps again, and times every node.
    fn time_nodes(&self, engine: &mut Engine, vocab: usize) -> Result<Vec<TimedStep>, Failure> {
        engine.start_profile();
        ::plimsoll_train::bench(engine, vocab, 0, self.steps, self.seed)?;
        Ok(engine.profile().map_or_else(Vec::new, |profile| profile.steps(engine.plan())))
    }
}
