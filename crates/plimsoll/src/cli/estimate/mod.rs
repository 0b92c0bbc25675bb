//! `plimsoll estimate`: whether a PyTorch run fits a card, what it takes, and what would fit.

mod args;
mod card;
mod python;
mod told;

pub(super) use args::EstimateArgs;

use super::Failure;
use super::failure::{exit_code, io_failure};
use super::gpus::list_known;
use crate::streams::{talk, write_data, write_text};
use ::plimsoll_plan::cards;
use card::{Asked, asked};
use console::Term;
use plimsoll_eager::{Cannot, Gpu, Verdict, estimate, nearest};
use plimsoll_render::{
    EstimateCard, EstimateReport, EstimateWay, changed_words, estimate_json, estimate_text, estimate_warnings,
};
use plimsoll_trainers::{Run, SettingChange, TrainerKind, alloc_line, export, export_env, rewrite};
use plimsoll_units::Bytes;
use told::{Told, told};

/// Ways that are told.
const WAYS_MAX: usize = 5;

/// A card whose memory is no limit, for a run that is asked for without one; its context is that of the cards most people have.
const ENDLESS: Gpu = Gpu { memory: Bytes(1 << 50), compute_capability: (8, 6) };

pub(super) fn run(args: &EstimateArgs) -> Result<u8, Failure> {
    if args.gpu.as_deref().is_some_and(|name| name.eq_ignore_ascii_case("list")) {
        return list_known(args.json);
    }
    let card = asked(args)?;
    let told = told(args)?;
    let gpu = card.as_ref().map_or(ENDLESS, Asked::gpu);
    let found = estimate(&told.model.config, &told.run, gpu).map_err(refused)?;
    let verdict = card.as_ref().map(|card| found.verdict(gpu, card.memory));
    let ways = match (&card, verdict) {
        (Some(card), Some(Verdict::MayFit | Verdict::DoesNotFit)) => {
            nearest(&told.model.config, &told.run, gpu, card.memory)
        }
        _ => vec![],
    };
    let shown = ways.iter().take(WAYS_MAX);
    let report = EstimateReport {
        model: &told.model.name,
        run: &told.run,
        read: told.read.as_ref(),
        missing: &told.missing,
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
        talk("warning: whether it fits is not known: the card has the least of the range, and not the most");
    }
    if let Some(name) = args.export {
        let repaired = ways.iter().find(|way| !way.trains_less).map(|way| &way.run);
        let run = match verdict {
            Some(Verdict::DoesNotFit) => repaired,
            Some(Verdict::MayFit) => repaired.or(Some(&told.run)),
            Some(Verdict::Fits) | None => Some(&told.run),
        };
        return export_what_fits(name.value(), &told, run);
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

/// Why there is no estimate.
fn refused(cannot: Cannot) -> Failure {
    let hint = match cannot {
        Cannot::Zero(_) => "every size is at least 1",
        Cannot::TooLarge { .. } => "give the samples of one forward pass on one card with `--micro-batch`",
        Cannot::Model(_) => "`plimsoll models` lists models whose sizes are known",
        Cannot::NoSuchLayer { .. } => {
            "name them by the ends of their names with `--lora-targets`, or all with `all-linear`"
        }
        Cannot::NotModeled(_) => "estimate the nearest run that is: without that setting, it is a bound or a guide",
    };
    Failure::bad_input(cannot.to_string()).hint(hint)
}

/// The smallest card that has so much memory, by its data sheet.
fn smallest(needed: Bytes) -> Option<(&'static str, Bytes)> {
    // What is not known exactly, and what a driver reports less than is sold.
    let enough = cards().iter().filter(|card| card.memory.as_f64() * 0.98 > needed.as_f64() + card::MARGIN.as_f64());
    enough.min_by_key(|card| card.memory).map(|card| (card.name, card.memory))
}

/// Prints the settings that fit in a trainer's own keys: in the trainer's own file, where that was given.
/// `kind`: none for the environment. `run`: none if nothing fits.
fn export_what_fits(kind: Option<TrainerKind>, told: &Told, run: Option<&Run>) -> Result<u8, Failure> {
    let Some(run) = run else {
        let message = format!("nothing is exported: no settings are known with which {} fits", told.model.name);
        return Err(
            Failure::new(exit_code::DOES_NOT_FIT, message).hint("without `--export` the report says what it takes")
        );
    };
    let changed = changed_words(&told.run, run);
    if !changed.is_empty() {
        talk(format_args!("changed so that it fits: {}", changed.join(", ")));
    }
    let (text, notes) = match kind {
        None => (export_env(run), vec![]),
        Some(kind) => match rewritten(kind, told, run) {
            Some(text) => (text, alloc_line(run).into_iter().collect()),
            None => {
                let exported = export(kind, run, told.name_elsewhere.as_deref());
                // Those of YAML are comments in it.
                let has_comments = exported.text.starts_with('#');
                (exported.text, if has_comments { vec![] } else { exported.notes })
            }
        },
    };
    notes.iter().for_each(talk);
    write_text(text.as_bytes()).map_err(io_failure("stdout"))?;
    Ok(exit_code::DONE)
}

/// The trainer's own file with the settings of a run, where it has keys for all of them.
fn rewritten(kind: TrainerKind, told: &Told, run: &Run) -> Option<String> {
    let file = told.file.as_ref().filter(|file| file.kind == kind)?;
    let read = told.read.as_ref()?;
    match rewrite(kind, &file.text, &SettingChange::between(&read.run, run)) {
        Ok(text) => Some(text),
        Err(error) => {
            talk(format_args!("{} is not rewritten but written anew: {error}", file.path.display()));
            None
        }
    }
}
