//! `plimsoll models`: lists the presets, and the smallest GPU that trains each.

use super::Failure;
use super::budget::CARD_MARGIN;
use super::failure::exit_code;
use super::model::{self, Chosen};
use crate::streams::write_data;
use ::plimsoll_plan::{
    Budget, Level, Levers, Machine, PlanError, Precision, Rates, Recompute, Request, Settings, cards, plan_settings,
};
use clap::Args;
use console::Term;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{AdapterSettings, Adapters, MemoryId, Optimizer, Targets, WeightCodes};
use plimsoll_render::{LeastMemory, ListedModel, models_table};
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
        let of = |least: LeastMemory| json!({ "least_bytes": least.device.0, "least_host_bytes": least.host.0, "card": least.card });
        let models = listed.iter().map(|model| {
            json!({
                "name": model.name, "hub": ModelConfig::hub_names(model.name), "parameters": model.parameters,
                "tokens": model.tokens, "full": of(model.full), "lora": of(model.lora), "qlora": model.qlora.map(of),
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

/// A preset, and the smallest GPU that trains it in bf16 by each method, one sample at a time, with all blocks recomputed and the
/// optimizer of all parameters on the host.
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
        evaluates: false,
        budget: Budget::unlimited(),
        ..Request::new(config, targets, Machine::of_rates(Rates::guess(1)))
    };
    let adapters = Adapters::of(&request.model, &AdapterSettings::default())?;
    let adapted = Request { adapters: Some(adapters), ..request.clone() };
    let qlora = match least(&adapted, Some(WeightCodes::Nf4)) {
        Ok(least) => Some(least),
        Err(PlanError::NothingQuantized { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(ListedModel {
        name,
        parameters: u64::try_from(request.model.parameters()).expect("a preset is smaller"),
        tokens,
        full: least(&request, None)?,
        lora: least(&adapted, None)?,
        qlora,
    })
}

/// The least memory for a request, and the smallest card that has it.
fn least(request: &Request, base_weights: Option<WeightCodes>) -> Result<LeastMemory, PlanError> {
    // The moments of adapters are small, and passes through a base on the host would wait for the link at one sample each.
    let on_host = if request.adapters.is_some() { 0.0 } else { 1.0 };
    let levers = Levers {
        precision: Precision::Bf16,
        base_weights,
        recompute: Recompute::all(Level::Block),
        optimizer_offload: on_host,
        weight_offload: on_host,
        ..Levers::default()
    };
    let (_, plan) = plan_settings(request, Settings { micro_batch: 1, head_chunk: HEAD_CHUNK, levers })?;
    let needed = plan.needed();
    let (device, host) = (needed[MemoryId::DEVICE], needed[MemoryId::HOST]);
    let fitting = cards().iter().filter(|card| card.bf16_tflops.is_some() && device + CARD_MARGIN <= card.memory);
    let card = fitting.min_by_key(|card| card.memory).map(|card| card.name);
    Ok(LeastMemory { device, host, card })
}
