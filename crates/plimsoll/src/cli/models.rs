//! `plimsoll models`: lists the presets, and the smallest GPU that trains each.

use super::Failure;
use super::budget::CARD_MARGIN;
use super::failure::exit_code;
use super::model::{self, Chosen};
use crate::streams::write_data;
use ::plimsoll_plan::{
    Budget, Level, Levers, Machine, Precision, Rates, Recompute, Request, Settings, cards, plan_settings,
};
use clap::Args;
use console::Term;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{MemoryId, Optimizer, Targets};
use plimsoll_render::{ListedModel, models_table};
use rayon::prelude::*;
use serde_json::json;

/// Tokens per sample in the plans of this list, or the model's positions if it has fewer.
const SEQ_LEN: usize = 1024;

/// Rows of logits at a time: a small number, for small scratch.
const HEAD_CHUNK: usize = 128;

#[derive(Debug, Args)]
pub(super) struct ModelsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &ModelsArgs) -> Result<u8, Failure> {
    let listed = ModelConfig::preset_names().into_par_iter().map(list).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let models = listed.iter().map(|model| {
            json!({
                "name": model.name, "hub": ModelConfig::hub_names(model.name), "parameters": model.parameters,
                "tokens": model.tokens, "least_bytes": model.least.0, "least_host_bytes": model.least_host.0,
                "card": model.card,
            })
        });
        let value = json!({ "models": models.collect::<Vec<_>>() });
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
    } else {
        let columns = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
        write_data(models_table(&listed, columns))?;
    }
    Ok(exit_code::DONE)
}

/// A preset, and the smallest GPU that trains it in bf16 with single-precision master weights, one sample at a time, with
/// all blocks recomputed and the optimizer on the host.
fn list(name: &'static str) -> Result<ListedModel, Failure> {
    let Chosen { config, .. } = model::open(name)?;
    let tokens = config.max_positions().min(SEQ_LEN);
    let targets = Targets::cuda((8, 0), 1);
    let request = Request {
        optimizer: Optimizer::default(),
        global_batch: 1,
        micro_batch: Some(1),
        seq_len: tokens,
        target_len: config.takes_pairs().then_some(tokens),
        evaluates: true,
        budget: Budget::unlimited(),
        ..Request::new(config, targets, Machine::of_rates(Rates::guess(1)))
    };
    let levers = Levers {
        precision: Precision::Bf16,
        recompute: Recompute::all(Level::Block),
        optimizer_offload: 1.0,
        ..Levers::default()
    };
    let (_, plan) = plan_settings(&request, Settings { micro_batch: 1, head_chunk: HEAD_CHUNK, levers })?;
    let needed = plan.needed();
    let (least, least_host) = (needed[MemoryId::DEVICE], needed[MemoryId::HOST]);
    let fitting = cards().iter().filter(|card| card.bf16_tflops.is_some() && least + CARD_MARGIN <= card.memory);
    let card = fitting.min_by_key(|card| card.memory).map(|card| card.name);
    Ok(ListedModel { name, parameters: plan.parameters, tokens, least, least_host, card })
}
