//! The input of an estimate: a trainer's files or command line, the files that they refer to, and the model that they
//! name.
//! Not here: the meaning of keys (`plimsoll_trainers`), and the flags that override them (`args.rs`).

use super::args::EstimateArgs;
use super::python::settings_of;
use crate::cli::Failure;
use crate::cli::model::{CONFIG_BYTES_MAX, Chosen, open_or_download};
use crate::cli::words::{torchtune_model, without_adapters};
use crate::streams::talk;
use plimsoll_graph::models::ModelConfig;
use plimsoll_hub::is_hub_name;
use plimsoll_trainers::{
    Attention, Checkpointing, Effect, Part, Precision, Read, ReadError, Run, Sharding, TrainerKind, command, detect,
    read, read_command,
};
use std::path::{Path, PathBuf};

/// The most bad values to list; a file with more is probably not a file of settings.
const BAD_MAX: usize = 20;

/// The input of an estimate.
pub(super) struct EstimateInput {
    /// The settings of files or of a command line, if there are any.
    pub(super) read: Option<Read>,
    /// The trainer's own file, which can be rewritten.
    pub(super) file: Option<TrainerFile>,
    /// The model.
    pub(super) model: Chosen,
    /// The model's name for PyTorch trainers: on the hub, or its folder; `None` for custom sizes.
    pub(super) name_elsewhere: Option<String>,
    /// The run with the flags applied.
    pub(super) run: Run,
    /// Files and settings that could not be used, and the assumption instead, as sentences.
    pub(super) missing: Vec<String>,
}

/// A trainer's file.
pub(super) struct TrainerFile {
    pub(super) kind: TrainerKind,
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Whether the text is the settings of a notebook or a script, which can't be rewritten.
    is_code: bool,
}

/// Reads all input. Errors: a file can't be read or belongs to no known trainer, a value is wrong, the model is missing
/// or unknown.
pub(super) fn read_input(args: &EstimateArgs) -> Result<EstimateInput, Failure> {
    let mut missing = vec![];
    let (mut read, file, folder) = if args.command.is_empty() { of_files(args)? } else { of_command(args)? };
    if let Some(read) = &mut read {
        lay_named_files(read, &folder, &mut missing)?;
    }
    read.as_ref().map_or(Ok(()), uncounted)?;
    let model = model(args, read.as_ref())?;
    let named = args.model.as_deref().or(read.as_ref().and_then(|read| read.model.as_deref()));
    let name_elsewhere = name_elsewhere(&model, named.unwrap_or_default());
    let mut run = match &read {
        Some(read) => read.run.clone(),
        None if args.is_qlora() => of_qlora(args),
        None => Run::default(),
    };
    if !read.as_ref().is_some_and(Read::has_length) {
        run.seq_len = model.default_seq_len() as u64;
        if let Some(read) = read.as_ref().filter(|_| args.seq_len.is_none()) {
            missing.push(format!(
                "{}: assuming {} tokens per sample, since its settings have no length: set it with `--seq-len`",
                read.kind, run.seq_len
            ));
        }
    }
    args.apply_to(&mut run);
    if let Some(name) = named.filter(|name| model.is_preset && ModelConfig::is_quantized_name(name)) {
        missing.push(format!("{name}: the quantization of its weights is not modeled: counted as not quantized"));
        run.unsure.add(Effect::Less(&[Part::Weights]));
    }
    if run.attention == Attention::Sdpa && !is_attention_chosen(args, read.as_ref()) {
        // Source: pull request 47014 of transformers.
        if ["t5", "mt5"].contains(&model.config.model_type()) && args.transformers.is_none() {
            run.unsure.add(Effect::More(&[Part::Attention]));
            missing.push(
                "attention is counted as SDPA, which transformers uses for T5 since 5.15; older versions keep all \
                 scores, as `--attention eager` counts them"
                    .to_owned(),
            );
        }
    }
    if run.updates_in_backward && args.export.is_some_and(|name| !name.has_updates_in_backward()) {
        missing.push("only torchtune updates in the backward pass: counted and exported without it".to_owned());
        run.updates_in_backward = false;
    }
    let positions = model.config.max_positions() as u64;
    if model.config.has_position_table() && run.seq_len > positions {
        let message = format!("{} has {positions} positions, but samples have {} tokens", model.name, run.seq_len);
        return Err(Failure::bad_flag(message).hint(format!("use `--seq-len {positions}` or less")));
    }
    Ok(EstimateInput { read, file, model, name_elsewhere, run, missing })
}

/// A QLoRA run with its trainers' defaults; prints the defaults that no flag sets.
/// Sources: Dettmers et al. 2023 (QLoRA), section 3; PEFT's `prepare_model_for_kbit_training`.
fn of_qlora(args: &EstimateArgs) -> Run {
    let default = Run::default();
    let run =
        Run { precision: Precision::AmpBf16, checkpointing: Checkpointing::NonReentrant, micro_batch: 1, ..default };
    let usual = [
        (args.precision.is_none(), "`--precision amp-bf16`"),
        (args.gradient_checkpointing.is_none(), "`--gradient-checkpointing`"),
        (args.micro_batch.is_none(), "`--micro-batch 1`"),
    ];
    let taken = usual.into_iter().filter(|(is_taken, _)| *is_taken).map(|(_, flag)| flag).collect::<Vec<_>>();
    if !taken.is_empty() {
        talk(format_args!("note: QLoRA is estimated with {}, as its trainers run it by default", taken.join(", ")));
    }
    run
}

/// Whether a flag or a key chooses the attention; transformers refuses a choice that the model does not have.
fn is_attention_chosen(args: &EstimateArgs, read: Option<&Read>) -> bool {
    const KEYS: [&str; 5] =
        ["attn_implementation", "flash_attn", "flash_attention", "sdp_attention", "eager_attention"];
    let has_key = |read: &Read| read.used.iter().any(|used| KEYS.contains(&used.key.as_str()));
    args.attention.is_some() || read.is_some_and(has_key)
}

/// The settings, the trainer's file, and the folder of the files that it names.
type Found = (Option<Read>, Option<TrainerFile>, PathBuf);

fn of_files(args: &EstimateArgs) -> Result<Found, Failure> {
    let files = args.config.iter().map(|path| opened(path)).collect::<Result<Vec<_>, _>>()?;
    let (layers, mut own): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.kind.is_layer());
    if own.len() > 1 {
        let (first, second) = (own[0].path.display(), own[1].path.display());
        let message = format!("{first} and {second} are both files of trainers");
        return Err(Failure::bad_flag(message).hint("give one of them; files of DeepSpeed or accelerate can be added"));
    }
    let own = own.pop();
    let folder = own.as_ref().and_then(|file| file.path.parent()).unwrap_or(Path::new("")).to_owned();
    let mut all = own.as_ref().into_iter().chain(&layers);
    let Some(first) = all.next() else { return Ok((None, None, folder)) };
    let mut found = read(first.kind, &first.text).map_err(|error| unreadable(&first.path, &error))?;
    for layer in all {
        // This file replaces the one that the trainer's file names.
        found.layers.retain(|(kind, _)| *kind != layer.kind);
        found.layer(layer.kind, &layer.text).map_err(|error| unreadable(&layer.path, &error))?;
    }
    Ok((Some(found), own.filter(|file| !file.is_code), folder))
}

fn of_command(args: &EstimateArgs) -> Result<Found, Failure> {
    let argv = &args.command;
    let command = command(argv).ok_or_else(|| {
        let message = format!("`{}` does not start a known trainer", argv.join(" "));
        Failure::bad_flag(message).hint("give the trainer's file with `--config FILE`, or its settings as flags")
    })?;
    let path = command.config.as_ref().map(|config| PathBuf::from(&config.path));
    let text = path.as_ref().map(|path| text_of(path)).transpose()?;
    let mut found = read_command(&command, argv, text.as_deref()).map_err(|error| {
        let path = path.clone().unwrap_or_else(|| PathBuf::from("the command"));
        unreadable(&path, &error)
    })?;
    let layers = command.layers.iter().map(|(kind, file)| (*kind, file.path.clone()));
    let new = layers.filter(|(kind, _)| !found.layers.iter().any(|(other, _)| other == kind)).collect::<Vec<_>>();
    found.layers.extend(new);
    Ok((Some(found), None, PathBuf::new()))
}

fn opened(path: &Path) -> Result<TrainerFile, Failure> {
    let text = text_of(path)?;
    let settings = settings_of(path, &text)?;
    let is_code = settings.is_some();
    let text = settings.unwrap_or(text);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(kind) = detect(&text, &name) else {
        // If the text can't be parsed, the parser gives the reason.
        if let Err(error) = read(TrainerKind::HuggingFace, &text) {
            return Err(unreadable(path, &error));
        }
        let message = format!("{} has no keys of a known trainer", path.display());
        return Err(Failure::bad_input(message).hint(
            "use a file of Hugging Face's TrainingArguments, axolotl, LLaMA-Factory, torchtune, Unsloth, DeepSpeed or \
             accelerate, a notebook or a Python script; for settings of `plimsoll train`, use `plimsoll plan`",
        ));
    };
    Ok(TrainerFile { kind, path: path.to_owned(), text, is_code })
}

fn text_of(path: &Path) -> Result<String, Failure> {
    plimsoll_files::read_text(path, CONFIG_BYTES_MAX)
        .map_err(|e| Failure::bad_input(format!("{} can't be read: {e}", path.display())))
        .map_err(|failure| failure.hint("`--config` takes the trainer's own file, YAML or JSON"))
}

fn unreadable(path: &Path, error: &ReadError) -> Failure {
    let path = path.display();
    match error {
        ReadError::Unreadable { what } => {
            Failure::bad_input(format!("{path}: {what}")).hint("the trainer would not read it either")
        }
        ReadError::Values(bad) => {
            let mut message = format!("{path} has invalid values");
            for value in bad.iter().take(BAD_MAX) {
                let line = value.line.map_or(String::new(), |line| format!("line {line}: "));
                message += &format!("\n  {line}`{}`: {}", value.key, value.what);
            }
            let others = bad.len().saturating_sub(BAD_MAX);
            if others > 0 {
                message += &format!("\n  and {others} more");
            }
            Failure::bad_input(message).hint("correct them; the trainer would refuse them too")
        }
    }
}

/// Applies the files that a run's settings name. A missing file is replaced by a guess from its name, if that has a
/// stage.
fn lay_named_files(read: &mut Read, folder: &Path, missing: &mut Vec<String>) -> Result<(), Failure> {
    // accelerate's file may name one of DeepSpeed's, which names no further file.
    for _ in 0..2 {
        for (kind, named) in std::mem::take(&mut read.layers) {
            let here = [folder.join(&named), PathBuf::from(&named)].into_iter().find(|path| path.is_file());
            match here {
                Some(path) => {
                    let text = text_of(&path)?;
                    read.layer(kind, &text).map_err(|error| unreadable(&path, &error))?;
                }
                None => missing.push(by_name(&mut read.run, kind, &named)),
            }
        }
    }
    Ok(())
}

/// Refuses settings that make every estimate unbounded: the first of them, in a line.
fn uncounted(read: &Read) -> Result<(), Failure> {
    let Some(key) = read.unmodeled.iter().find(|key| key.effect == Effect::Unbounded) else { return Ok(()) };
    let line = key.line.map_or(String::new(), |line| format!(", line {line}"));
    let message = format!("{}{line}: `{}`: {}", key.kind, key.key, key.why);
    Err(Failure::bad_input(message).hint("remove the key to estimate training on the next token"))
}

/// The assumption for a file that does not exist.
fn by_name(run: &mut Run, kind: TrainerKind, named: &str) -> String {
    let name = named.to_ascii_lowercase();
    let stage =
        (1..=3u8).find(|stage| ["zero", "z", "stage"].iter().any(|word| name.contains(&format!("{word}{stage}"))));
    let Some(stage) = stage.filter(|_| kind == TrainerKind::DeepSpeed) else {
        return format!("the {kind} file {named} does not exist: counted without it");
    };
    run.sharding = Sharding::Zero { stage };
    run.offload.optimizer |= name.contains("offload");
    run.offload.weights |= name.contains("offload") && (name.contains("all") || name.contains("param"));
    format!("{named} does not exist: counted as stage {stage} of DeepSpeed's ZeRO, by its name")
}

/// The model of `--model`, or of the trainer's settings. Errors: there is none, or it is unknown.
fn model(args: &EstimateArgs, read: Option<&Read>) -> Result<Chosen, Failure> {
    if let Some(name) = &args.model {
        return open_or_download(name, args.download);
    }
    let Some(named) = read.and_then(|read| read.model.as_deref()) else {
        let message = "no model is named".to_owned();
        return Err(Failure::bad_flag(message)
            .hint("`--model` takes a name that `plimsoll models` lists, a config.json, or a folder with one"));
    };
    let of_torchtune = named.starts_with("torchtune.");
    let name = if of_torchtune { torchtune_model(&without_adapters(named)) } else { Ok(named.to_owned()) };
    let found = name.map_err(|refusal| Failure::bad_input(format!("`{named}` {}", refusal.what)));
    found
        .and_then(|name| open_or_download(&name, args.download))
        .map_err(|failure| failure.hint("`--download` fetches the config.json of a model that is not listed"))
}

/// The model's name on the hub: the requested one if it is one, otherwise its preset's; for a config.json its folder.
fn name_elsewhere(model: &Chosen, named: &str) -> Option<String> {
    if !model.is_preset {
        let path = Path::new(named);
        let folder = if path.is_dir() { path } else { path.parent()? };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        return Some(folder.to_string_lossy().into_owned());
    }
    let names = ModelConfig::hub_names(&model.name);
    let published = names.iter().find(|name| name.eq_ignore_ascii_case(named));
    // Another owner's copy keeps its name.
    let name = published.copied().or_else(|| is_hub_name(named).then_some(named)).or(names.first().copied());
    name.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_names_that_trainers_know() {
        for (asked, expected) in [
            ("flan-t5-xl", Some("google/flan-t5-xl")),
            ("google/flan-t5-xl", Some("google/flan-t5-xl")),
            ("gpt2", Some("openai-community/gpt2")),
            ("meta-llama/Llama-3.2-1B-Instruct", Some("meta-llama/Llama-3.2-1B-Instruct")),
            ("META-LLAMA/llama-3.2-1b-instruct", Some("meta-llama/Llama-3.2-1B-Instruct")),
            ("llama-3.2-1b", Some("meta-llama/Llama-3.2-1B")),
            ("NousResearch/Llama-2-7b-hf", Some("NousResearch/Llama-2-7b-hf")),
            ("nano", None),
        ] {
            let found = name_elsewhere(&open_or_download(asked, false).expect("a preset"), asked);
            assert_eq!(found.as_deref(), expected, "{asked}");
        }
    }
}
