//! Takes a built-in step for a recognized trainer, by its keys.
//! Not here: which steps there are (`rung.rs`), scripts that parse their own flags (`own_flags.rs`).

use super::allocator;
use super::configuration::{ChangeError, Configuration};
use super::own_flags;
use super::rung::{Rung, SHORTEST, Situation, Step};
use super::user::set_flag;
use crate::ends::{Cause, HostShortage};
use plimsoll_trainers::document::Document;
use plimsoll_trainers::{Attention, Checkpointing, Offload, Optimizer, Read, SettingChange, TrainerKind};

/// Takes the step; `None` if it is exhausted or would not help. Errors: the trainer is unknown, or has no key for
/// it.
pub(super) fn take(rung: Rung, from: &Configuration, situation: &Situation<'_>) -> Result<Option<Step>, ChangeError> {
    if rung == Rung::Allocator {
        return Ok(allocator_setting(from, situation));
    }
    if rung == Rung::Smallest {
        return Ok(smallest(from, situation));
    }
    if from.command().is_none() {
        return own_flags::take(rung, from, situation);
    }
    let read = from.read().ok_or(ChangeError::NoTrainer)?;
    match rung {
        Rung::Allocator | Rung::Smallest => Ok(None),
        Rung::Workers => workers(from, &read, situation),
        Rung::Unpinned => unpinned(from, &read, situation),
        Rung::Halve => halved(from, &read),
        Rung::Checkpointing => checkpointing(from, &read),
        Rung::Optimizer => optimizer(from, &read),
        Rung::Shorter if !situation.allow_shorter => Ok(None),
        Rung::Shorter => shorter(from, &read),
        Rung::Minimum => minimum(from, &read),
    }
}

fn allocator_setting(from: &Configuration, situation: &Situation<'_>) -> Option<Step> {
    let given = from.env.get(allocator::VARIABLE).map_or(situation.alloc_conf, String::as_str);
    let setting = allocator::improved(given, situation.cause)?;
    let mut to = from.clone();
    // The newer name wins if both are set; older versions read only the older one.
    for name in [allocator::VARIABLE, allocator::NEWER_VARIABLE] {
        to.env.insert(name.to_owned(), setting.clone());
    }
    Some((to, vec![format!("{}={setting}", allocator::VARIABLE)]))
}

/// Whether a trainer builds on Hugging Face's and has its keys for data loading.
fn has_loader_keys(kind: TrainerKind) -> bool {
    matches!(kind, TrainerKind::HuggingFace | TrainerKind::Axolotl | TrainerKind::LlamaFactory)
}

fn workers(from: &Configuration, read: &Read, situation: &Situation<'_>) -> Result<Option<Step>, ChangeError> {
    const KEY: &str = "dataloader_num_workers";
    let is_theirs = !matches!(situation.cause, Some(Cause::HostMemory(HostShortage::Pinned)));
    let workers = from.value(KEY).and_then(|workers| workers.parse::<u64>().ok()).unwrap_or(0);
    if !is_theirs || workers == 0 || !has_loader_keys(read.kind) {
        return Ok(None);
    }
    let to = from.set_keys(&[(KEY.to_owned(), Some((workers / 2).to_string()))])?;
    Ok(Some((to, vec![format!("data-loading workers {workers} → {}", workers / 2)])))
}

fn unpinned(from: &Configuration, read: &Read, situation: &Situation<'_>) -> Result<Option<Step>, ChangeError> {
    const KEY: &str = "dataloader_pin_memory";
    let is_meant = matches!(situation.cause, None | Some(Cause::HostMemory(HostShortage::Pinned)));
    let is_off = from.value(KEY).is_some_and(|value| value.eq_ignore_ascii_case("false"));
    if !is_meant || is_off || !has_loader_keys(read.kind) {
        return Ok(None);
    }
    let to = from.set_keys(&[(KEY.to_owned(), Some("false".to_owned()))])?;
    Ok(Some((to, vec!["batches are no longer in pinned memory".to_owned()])))
}

fn halved(from: &Configuration, read: &Read) -> Result<Option<Step>, ChangeError> {
    let Some(changes) = SettingChange::halve_micro_batch(&read.run) else { return Ok(None) };
    let to = from.change(&changes)?;
    let mut run = read.run.clone();
    changes.iter().for_each(|change| change.apply(&mut run));
    // The number of GPUs, which multiplies the effective batch, is not always known here.
    let note = format!(
        "micro-batch {} → {}, gradient accumulation {} → {}: the effective batch per GPU stays {}",
        read.run.micro_batch,
        run.micro_batch,
        read.run.accumulation,
        run.accumulation,
        run.micro_batch * run.accumulation,
    );
    Ok(Some((to, vec![note])))
}

fn checkpointing(from: &Configuration, read: &Read) -> Result<Option<Step>, ChangeError> {
    if read.run.checkpointing != Checkpointing::Off {
        return Ok(None);
    }
    let note = "gradient checkpointing: activations are recomputed".to_owned();
    // Scripts with their own parser may know this flag, but not the one for the kind of checkpointing.
    let is_flag =
        read.kind == TrainerKind::HuggingFace && from.command().is_some_and(|command| command.config.is_none());
    let to = match is_flag {
        true => {
            let mut to = from.clone();
            set_flag(&mut to.argv, "--gradient_checkpointing", Some("true"));
            to
        }
        false => from.change(&[SettingChange::Checkpointing(Checkpointing::NonReentrant)])?,
    };
    Ok(Some((to, vec![note])))
}

/// Offloads the optimizer if DeepSpeed has a file, since results stay the same; otherwise, moments in 8 bits.
fn optimizer(from: &Configuration, read: &Read) -> Result<Option<Step>, ChangeError> {
    if !read.run.offload.optimizer {
        let offload = Offload { optimizer: true, ..read.run.offload };
        if let Ok(to) = from.change_deepspeed(&[SettingChange::Offload(offload)]) {
            return Ok(Some((to, vec!["the optimizer state is offloaded to host memory".to_owned()])));
        }
    }
    let is_wide = matches!(
        read.run.optimizer,
        Optimizer::AdamWForeach | Optimizer::AdamWFused | Optimizer::AdamWForLoop | Optimizer::PagedAdamW
    );
    if !is_wide || read.run.offload.optimizer {
        return Ok(None);
    }
    let to = from.change(&[SettingChange::Optimizer(Optimizer::PagedAdamW8bit)])?;
    let note = "the optimizer's moments are paged and in 8 bits: results differ slightly".to_owned();
    Ok(Some((to, vec![note])))
}

fn shorter(from: &Configuration, read: &Read) -> Result<Option<Step>, ChangeError> {
    let tokens = (read.run.seq_len / 2).max(SHORTEST);
    if tokens >= read.run.seq_len {
        return Ok(None);
    }
    let to = from.change(&[SettingChange::SeqLen(tokens)])?;
    let note = format!("samples are truncated to {tokens} tokens instead of {}: results differ", read.run.seq_len);
    Ok(Some((to, vec![note])))
}

/// Halves the micro-batch and the samples for as long as a setting for them is left.
fn smallest(from: &Configuration, situation: &Situation<'_>) -> Option<Step> {
    let situation = Situation { allow_shorter: true, ..*situation };
    let (mut to, mut notes) = (from.clone(), Vec::new());
    for rung in [Rung::Halve, Rung::Shorter] {
        let mut last = None;
        while let Ok(Some((next, note))) = take(rung, &to, &situation) {
            (to, last) = (next, Some(note));
        }
        notes.extend(last.into_iter().flatten());
    }
    (to != *from).then(|| {
        notes.push("the smallest settings, until memory is free".to_owned());
        (to, notes)
    })
}

fn minimum(from: &Configuration, read: &Read) -> Result<Option<Step>, ChangeError> {
    let mut to = from.clone();
    let mut notes = Vec::new();
    let changes = [
        (read.run.compiles, SettingChange::Compiles(false), "without `torch.compile`"),
        (
            read.run.attention == Attention::Eager,
            SettingChange::Attention(Attention::Sdpa),
            "attention without a score matrix (SDPA)",
        ),
    ];
    // Skip settings that the trainer has no key for: the others may suffice.
    for (_, change, note) in changes.into_iter().filter(|(is_on, ..)| *is_on) {
        if let Ok(changed) = to.change(&[change]) {
            to = changed;
            notes.push(note.to_owned());
        }
    }
    const EVALUATION: &str = "per_device_eval_batch_size";
    if has_loader_keys(read.kind) && to.value(EVALUATION).is_some_and(|value| value != "1") {
        to = to.set_keys(&[(EVALUATION.to_owned(), Some("1".to_owned()))])?;
        notes.push("evaluation with one sample at a time".to_owned());
    }
    Ok((to != *from).then_some((to, notes)))
}

impl Configuration {
    /// The plain value of a trainer's key, from its arguments or its file.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let (command, words) = (self.command()?, self.words()?);
        let own = &words[command.own.min(words.len())..];
        argument(own, key).or_else(|| {
            let document = Document::parse(&self.text(&command.config?.path).ok()?).ok()?;
            document.resolve(document.plain(key)?).ok()
        })
    }
}

/// The value of `--key value`, `--key=value` or `key=value`. Hyphens and underscores are equal. The last duplicate
/// wins.
fn argument(words: &[String], key: &str) -> Option<String> {
    let is_key = |name: &str| name.trim_start_matches("--").replace('-', "_") == key;
    (0..words.len()).rev().find_map(|at| match words[at].split_once('=') {
        Some((name, value)) if is_key(name) => Some(value.to_owned()),
        None if words[at].starts_with("--") && is_key(&words[at]) => words.get(at + 1).cloned(),
        _ => None,
    })
}
