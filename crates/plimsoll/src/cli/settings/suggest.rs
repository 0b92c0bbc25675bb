//! Suggestions for an unknown key: a known key with nearly the same spelling, or else one for the same thing.

use crate::cli::{Failure, words};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use plimsoll_units::spelling;

/// Parts of keys, and the setting for each; the first match in this order applies.
const ABOUT: &[(&str, &str)] = &[
    ("accum", "gradient_accumulation_steps"),
    ("global", "global_batch"),
    ("batch", "micro_batch"),
    ("checkpointing", "recompute"),
    ("recompute", "recompute"),
    ("warm", "warmup_steps"),
    ("sched", "scheduler"),
    ("learn", "learning_rate"),
    ("lr", "learning_rate"),
    ("decay", "weight_decay"),
    ("clip", "grad_clip"),
    ("optim", "optimizer"),
    ("offload", "optimizer_offload"),
    ("keep", "keep_checkpoints"),
    ("limit", "keep_checkpoints"),
    ("checkpoint", "checkpoint_every"),
    ("save", "checkpoint_every"),
    ("eval", "eval_every"),
    ("valid", "eval_every"),
    ("epoch", "epochs"),
    ("iter", "max_steps"),
    ("step", "max_steps"),
    ("hour", "duration"),
    ("time", "duration"),
    ("context", "seq_len"),
    ("length", "seq_len"),
    ("seq", "seq_len"),
    ("dtype", "precision"),
    ("precision", "precision"),
    ("half", "precision"),
    ("pack", "packing"),
    ("smooth", "label_smoothing"),
    ("drop", "dropout"),
    ("frozen", "freeze"),
    ("freeze", "freeze"),
    ("average", "ema"),
    ("ema", "ema"),
    ("vram", "vram"),
    ("memory", "vram"),
    ("gpu", "device"),
    ("device", "device"),
    ("thread", "threads"),
    ("token", "tokenizer"),
    ("data", "data"),
    ("corpus", "data"),
    ("weights", "init"),
    ("pretrain", "init"),
    ("model", "model"),
    ("resume", "resume"),
    ("out", "runs_dir"),
    ("dir", "runs_dir"),
    ("name", "name"),
    ("seed", "seed"),
];

/// Longer keys match nothing.
const LONGEST: usize = 80;

/// The known key that was probably meant. `own`: the settings of `train`.
pub(super) fn suggestion(name: &str, own: &[String]) -> Option<String> {
    if name.len() > LONGEST {
        return None;
    }
    let names = own.iter().map(String::as_str).chain(plimsoll_trainers::words::words().map(|word| word as &str));
    let spelled = spelling::nearest(name, names);
    let about = || ABOUT.iter().find(|(part, _)| name.contains(part)).map(|(_, setting)| *setting);
    spelled.or_else(about).map(str::to_owned)
}

/// The failure for an unknown flag of a command of a run, with a suggestion in place of clap's tip, which knows only
/// Plimsoll's own spellings.
pub(in crate::cli) fn unknown_flag(mut error: clap::Error) -> Failure {
    let flag = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) if flag.starts_with("--") => {
            flag[2..].replace('-', "_")
        }
        _ => return Failure::usage(error),
    };
    let Some(meant) = suggestion(&flag, &super::flags()) else { return Failure::usage(error) };
    error.remove(ContextKind::SuggestedArg);
    let here = plimsoll_trainers::words::meaning(&meant).and_then(words::setting);
    let here = here.map_or(String::new(), |here| format!(", which is `--{}` here", here.replace('_', "-")));
    Failure::usage(error).hint(format!("did you mean `--{}`{here}?", meant.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_spelling_is_suggested_else_the_same_meaning() {
        let own = super::super::flags();
        for (key, expected) in [
            ("lerning_rate", Some("learning_rate")),
            ("per_device_train_batchsize", Some("per_device_train_batch_size")),
            ("samples_in_a_batch", Some("micro_batch")),
            ("context_window_tokens", Some("seq_len")),
            ("how_often_to_save", Some("checkpoint_every")),
            ("zebra", None),
        ] {
            assert_eq!(suggestion(key, &own).as_deref(), expected, "{key}");
        }
        for (_, setting) in ABOUT {
            assert!(own.iter().any(|flag| flag == setting), "{setting} is not a setting");
        }
    }
}
