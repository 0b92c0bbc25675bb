//! `plimsoll plan`: the plan for a model and a budget, and nothing run.

use super::budget::BudgetArgs;
use super::failure::exit_code;
use super::model;
use super::options::{RecomputeLevel, positive_size};
use super::{Failure, train::PREFILL};
use crate::report::{misfit_failure, plan_json, plan_table};
use crate::streams::write_data;
use ::plan::{Request, search};
use clap::Args;
use data::{Tokenizer, TokenizerSpec};
use graph::{DeviceKind, Optimizer, Target};
use std::time::Instant;

#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct PlanArgs {
    /// nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or the path of a config.json
    #[arg(long, visible_alias = "model-size", value_name = "NAME|PATH", default_value = "nano")]
    model: String,
    /// Take the vocabulary from this tokenizer: `bytes`, `gpt2`, or the path of a tokenizer.json
    #[arg(long, value_name = "NAME|PATH")]
    tokenizer: Option<String>,
    #[command(flatten)]
    budget: BudgetArgs,
    /// Tokens of a sample [default: the model's positions, at most 1024]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    seq_len: Option<usize>,
    /// Samples of an optimizer step [default: 32 for nano, else 4]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    global_batch: Option<usize>,
    /// Samples at a time [default: the largest divisor of the global batch that fits]
    #[arg(long, value_name = "N", value_parser = positive_size)]
    micro_batch: Option<usize>,
    /// Dropout rate everywhere [default: the model's]
    #[arg(long, value_name = "X", value_parser = super::options::rate)]
    dropout: Option<f32>,
    /// What the backward pass computes anew instead of keeping: nothing, or what costs next to no time
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = RecomputeLevel::Cheap)]
    recompute: RecomputeLevel,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: PlanArgs) -> Result<u8, Failure> {
    let budget = args.budget.budget()?;
    let mut chosen = model::open(&args.model)?;
    let seq_len = args.seq_len.unwrap_or_else(|| chosen.default_seq_len());
    let vocab_size = match &args.tokenizer {
        Some(spec) => Some(Tokenizer::open(&spec.parse::<TokenizerSpec>()?)?.vocab_size()),
        None => None,
    };
    chosen.fit(vocab_size, seq_len);
    if let Some(rate) = args.dropout {
        chosen.config.set_dropout(rate);
    }
    let default_batch = if chosen.name == "nano" { 32 } else { 4 };
    let request = Request {
        model: chosen.config.clone(),
        optimizer: Optimizer::default(),
        global_batch: args.global_batch.unwrap_or_else(|| args.micro_batch.unwrap_or(default_batch)),
        micro_batch: args.micro_batch,
        seq_len,
        budget: budget.bytes,
        target: Target { device: DeviceKind::Cpu, threads: args.budget.threads()? },
        recompute: args.recompute.into(),
        evaluates: true,
        sample_prefill: Some(PREFILL),
    };
    let start = Instant::now();
    let result = search(&request)?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    if args.json {
        write_data(plan_json(&chosen.name, &result, milliseconds))?;
        return Ok(if result.is_ok() { exit_code::DONE } else { exit_code::DOES_NOT_FIT });
    }
    match result {
        Ok(found) => {
            write_data(plan_table(&chosen.name, &found, &budget.describe()))?;
            Ok(exit_code::DONE)
        }
        Err(misfit) => Err(misfit_failure(&chosen.name, &misfit)),
    }
}
