//! `plimsoll gpus`: the NVIDIA cards of this machine.

use super::Failure;
use super::failure::exit_code;
use crate::report::{gpus_table, known_cards_table};
use crate::streams::{talk, write_data};
use ::plimsoll_plan::cards;
use clap::Args;
use plimsoll_telemetry::{GpuError, Gpus, gpus};
use serde_json::json;

#[derive(Debug, Args)]
pub(super) struct GpusArgs {
    /// List the cards that `plan --gpu` knows instead, by their data sheets
    #[arg(long)]
    known: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &GpusArgs) -> Result<u8, Failure> {
    if args.known {
        return list_known(args.json);
    }
    let found = match gpus() {
        Err(error @ GpuError::NoDriver { .. }) => {
            talk(error);
            talk(
                "hint: `plimsoll doctor` says what is missing; `plimsoll plan --gpu 3060` plans for a card that is elsewhere",
            );
            Gpus { driver: None, cards: vec![], notes: vec![] }
        }
        found => found?,
    };
    if args.json {
        write_data(serde_json::to_string_pretty(&found).expect("plain data"))?;
        return Ok(exit_code::DONE);
    }
    write_data(gpus_table(&found))?;
    for note in &found.notes {
        talk(format_args!("note: {note}"));
    }
    Ok(exit_code::DONE)
}

/// The cards that plans can be made for without having one.
pub(super) fn list_known(json: bool) -> Result<u8, Failure> {
    if json {
        let cards = cards().iter().map(|card| {
            let (major, minor) = card.compute_capability;
            json!({
                "name": card.name, "memory_bytes": card.memory.0, "bandwidth_gb_per_s": card.bandwidth_gb_per_s,
                "fp16_tflops": card.fp16_tflops, "bf16_tflops": card.bf16_tflops, "fp32_tflops": card.fp32_tflops,
                "compute_capability": format!("{major}.{minor}"), "source": card.source,
            })
        });
        let value = json!({ "cards": cards.collect::<Vec<_>>() });
        write_data(serde_json::to_string_pretty(&value).expect("plain data"))?;
    } else {
        write_data(known_cards_table(cards()))?;
    }
    Ok(exit_code::DONE)
}
