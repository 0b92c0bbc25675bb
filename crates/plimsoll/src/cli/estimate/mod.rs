//! `plimsoll estimate`: how much memory a PyTorch run needs, whether it fits a card, and which settings would fit.

mod args;
mod card;
mod custom_loop;
mod input;
mod python;

pub(super) use args::EstimateArgs;

use super::Failure;
use super::failure::{exit_code, io_failure};
use super::gpus::list_known;
use crate::streams::{talk, write_data, write_text};
use ::plimsoll_plan::cards;
use card::{TargetCard, target_card};
use console::Term;
use input::{EstimateInput, read_input};
use plimsoll_eager::{Cannot, Gpu, Verdict, estimate, nearest};
use plimsoll_render::{
    EstimateCard, EstimateReport, EstimateWay, changed_words, estimate_json, estimate_text, estimate_warnings,
};
use plimsoll_trainers::{Method, Run, SettingChange, TrainerKind, alloc_line, export, export_env, rewrite};
use plimsoll_units::Bytes;

/// The most suggestions to show.
const SUGGESTIONS_MAX: usize = 5;

/// A card of unlimited memory, for a run without a card; its context is that of the most common cards.
const UNLIMITED: Gpu = Gpu { memory: Bytes(1 << 50), compute_capability: (8, 6) };

pub(super) fn run(args: &EstimateArgs) -> Result<u8, Failure> {
    if args.gpu.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("list")) {
        return list_known(args.json);
    }
    let card = target_card(args)?;
    let input = read_input(args)?;
    if args.double_quant.is_some() && !matches!(input.run.method, Method::Qlora(..)) {
        let message = "`--double-quant` is for weights in 4 bits";
        return Err(Failure::bad_flag(message).hint("add `--method qlora`, or leave out `--double-quant`"));
    }
    let gpu = card.as_ref().map_or(UNLIMITED, TargetCard::gpu);
    let found = estimate(&input.model.config, &input.run, gpu).map_err(refused)?;
    let verdict = card.as_ref().map(|card| found.verdict(gpu, card.memory));
    let ways = match (&card, verdict) {
        (Some(card), Some(Verdict::MayFit | Verdict::DoesNotFit)) => {
            nearest(&input.model.config, &input.run, gpu, card.memory)
        }
        _ => vec![],
    };
    let shown = ways.iter().take(SUGGESTIONS_MAX);
    let report = EstimateReport {
        model: &input.model.name,
        run: &input.run,
        read: input.read.as_ref(),
        missing: &input.missing,
        estimate: &found,
        card: card.as_ref().zip(verdict).map(|(card, verdict)| EstimateCard {
            name: &card.name,
            memory: card.memory,
            margin: card.margin,
            verdict,
        }),
        smallest: smallest(found.range[1].process()),
        ways: shown
            .map(|way| EstimateWay { run: &way.run, estimate: &way.estimate, trains_less: way.trains_less })
            .collect(),
    };
    estimate_warnings(&report).iter().for_each(|warning| talk(format_args!("warning: {warning}")));
    if verdict == Some(Verdict::MayFit) {
        talk("warning: it may not fit: the GPU has enough memory for the low end of the range only");
    }
    if let Some(name) = args.export {
        let repaired = ways.iter().find(|way| !way.trains_less).map(|way| &way.run);
        let run = match verdict {
            Some(Verdict::DoesNotFit) => repaired,
            Some(Verdict::MayFit) => repaired.or(Some(&input.run)),
            Some(Verdict::Fits) | None => Some(&input.run),
        };
        return export_what_fits(name.value(), &input, run);
    }
    match args.json {
        true => write_data(serde_json::to_string_pretty(&estimate_json(&report)).expect("plain data"))?,
        false => {
            let columns = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
            write_data(estimate_text(&report, columns))?;
        }
    }
    Ok(if verdict == Some(Verdict::DoesNotFit) { exit_code::DOES_NOT_FIT } else { exit_code::DONE })
}

/// The failure for a run without an estimate.
fn refused(cannot: Cannot) -> Failure {
    let hint = match cannot {
        Cannot::Zero(_) => "every size is at least 1",
        Cannot::TooLarge { .. } => "give the samples of one forward pass on one GPU with `--micro-batch`",
        Cannot::Model(_) => "`plimsoll models` lists models whose sizes are known",
        Cannot::NoSuchLayer { .. } | Cannot::NoDefaultLayers { .. } => {
            "name them by the ends of their names with `--lora-targets`, or all with `all-linear`"
        }
        Cannot::NotModeled(_) => "estimate the run without that setting, as a bound or a guide",
    };
    Failure::bad_input(cannot.to_string()).hint(hint)
}

/// The smallest card with this much memory, by its data sheet.
fn smallest(needed: Bytes) -> Option<(&'static str, Bytes)> {
    // Leave a margin for the estimate's uncertainty, and for a driver that reports less memory than the data sheet.
    let enough = cards().iter().filter(|card| card.memory.as_f64() * 0.98 > needed.as_f64() + card::MARGIN.as_f64());
    enough.min_by_key(|card| card.memory).map(|card| (card.name, card.memory))
}

/// Prints the settings that fit in a trainer's own keys, or in the trainer's own file if that was given.
/// `kind`: `None` for the environment. `run`: `None` if nothing fits.
fn export_what_fits(kind: Option<TrainerKind>, input: &EstimateInput, run: Option<&Run>) -> Result<u8, Failure> {
    let Some(run) = run else {
        let message = format!("nothing is exported: found no settings with which {} fits", input.model.name);
        return Err(
            Failure::new(exit_code::DOES_NOT_FIT, message).hint("run it without `--export` to see the memory it needs")
        );
    };
    let changed = changed_words(&input.run, run);
    if !changed.is_empty() {
        talk(format_args!("changed so that it fits: {}", changed.join(", ")));
    }
    let (text, notes) = match kind {
        None => (export_env(run), vec![]),
        Some(kind) => match rewritten(kind, input, run) {
            Some(text) => (text, alloc_line(run).into_iter().collect()),
            None => {
                let exported = export(kind, run, input.name_elsewhere.as_deref());
                // YAML has the notes as comments.
                let has_comments = exported.text.starts_with('#');
                (exported.text, if has_comments { vec![] } else { exported.notes })
            }
        },
    };
    notes.iter().for_each(talk);
    write_text(text.as_bytes()).map_err(io_failure("stdout"))?;
    Ok(exit_code::DONE)
}

/// The trainer's own file with the settings of a run, if it has keys for all of them.
fn rewritten(kind: TrainerKind, input: &EstimateInput, run: &Run) -> Option<String> {
    let file = input.file.as_ref().filter(|file| file.kind == kind)?;
    let read = input.read.as_ref()?;
    match rewrite(kind, &file.text, &SettingChange::between(&read.run, run)) {
        Ok(text) => Some(text),
        Err(error) => {
            talk(format_args!("can't edit {}, writing a new file instead: {error}", file.path.display()));
            None
        }
    }
}
