//! `plimsoll plan`: the plan for a model and a budget, and nothing run.

use super::budget::BudgetArgs;
use super::failure::exit_code;
use super::levers::LeverArgs;
use super::machine::known;
use super::model;
use super::options::{AutoOr, auto_or_size, number_from_zero, positive_size};
use super::{Failure, train::PREFILL};
use crate::report::{levers_table, misfit_failure, moment_text, plan_json, plan_table};
use crate::streams::{talk, write_data};
use ::plan::{Request, lever_effects, moment_of_peak, search};
use clap::Args;
use data::{Tokenizer, TokenizerSpec};
use graph::{DeviceKind, Optimizer, Target};
use std::path::PathBuf;
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
    #[arg(long, value_name = "auto|N", value_parser = auto_or_size, default_value = "auto")]
    micro_batch: AutoOr<usize>,
    /// Dropout rate everywhere [default: the model's]
    #[arg(long, value_name = "X", value_parser = super::options::rate)]
    dropout: Option<f32>,
    /// Largest norm of the gradient; 0: none, which lets parameters be updated in the backward pass
    #[arg(long, value_name = "X", value_parser = number_from_zero, default_value = "1")]
    grad_clip: f64,
    #[command(flatten)]
    levers: LeverArgs,
    /// Name the moment of the peak and the largest tensors alive at it
    #[arg(long)]
    explain: bool,
    /// What `plimsoll calibrate --out` measured [default: what it left in the user's cache folder]
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Tensors that `--explain` names.
const EXPLAINED: usize = 10;

pub(super) fn run(args: PlanArgs) -> Result<u8, Failure> {
    let budget = args.budget.budget()?;
    let threads = args.budget.threads()?;
    let (machine, source) = known(threads, args.machine.as_deref())?;
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
        optimizer: Optimizer {
            grad_clip: (args.grad_clip > 0.0).then_some(args.grad_clip as f32),
            ..Optimizer::default()
        },
        global_batch: args.global_batch.unwrap_or_else(|| args.micro_batch.given().unwrap_or(default_batch)),
        micro_batch: args.micro_batch.given(),
        seq_len,
        budget: budget.bytes,
        target: Target { device: DeviceKind::Cpu, threads },
        machine,
        host_budget: args.levers.host_budget()?,
        levers: args.levers.request(),
        evaluates: true,
        sample_prefill: Some(PREFILL),
    };
    let start = Instant::now();
    let result = search(&request)?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let effects = match &result {
        Ok(found) => lever_effects(&request, found)?,
        Err(_) => Vec::new(),
    };
    let plan = match &result {
        Ok(found) => &found.plan,
        Err(misfit) => &misfit.plan,
    };
    let moment = if args.explain { moment_of_peak(plan, EXPLAINED) } else { None };
    if args.json {
        write_data(plan_json(&chosen.name, &result, &effects, moment.as_ref(), &source, milliseconds))?;
        return Ok(if result.is_ok() { exit_code::DONE } else { exit_code::DOES_NOT_FIT });
    }
    match result {
        Ok(found) => {
            write_data(plan_table(&chosen.name, &found, &budget.describe(), &source))?;
            write_data(levers_table(&effects))?;
            if let Some(moment) = moment {
                write_data(moment_text(&moment))?;
            }
            Ok(exit_code::DONE)
        }
        Err(misfit) => {
            if let Some(moment) = moment {
                talk(moment_text(&moment));
            }
            Err(misfit_failure(&chosen.name, &misfit))
        }
    }
}
