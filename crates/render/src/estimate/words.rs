//! Runs in words and as flags of `plimsoll estimate`.

use super::EstimateReport;
use plimsoll_eager::Verdict;
use plimsoll_trainers::{
    Attention, Checkpointing, CustomLoop, KeptOutputs, Lora, Loss, Method, Offload, Optimizer, Part, Precision, Run,
    SettingChange, Sharding, Targets, Unsure,
};

/// The changes that turn one run into another, as flags.
pub fn changed_words(from: &Run, to: &Run) -> Vec<String> {
    let mut flags = vec![];
    if from.alloc_conf != to.alloc_conf {
        flags.push(format!("--alloc-conf {}", to.alloc_conf));
    }
    flags.extend(SettingChange::between(from, to).iter().map(flag));
    flags
}

/// A setting as a flag.
fn flag(change: &SettingChange) -> String {
    match change {
        SettingChange::MicroBatch(samples) => format!("--micro-batch {samples}"),
        SettingChange::Accumulation(times) => format!("--gradient-accumulation-steps {times}"),
        SettingChange::SeqLen(tokens) => format!("--seq-len {tokens}"),
        SettingChange::TargetLen(tokens) => format!("--target-len {tokens}"),
        SettingChange::Method(Method::Full) => "--method full".to_owned(),
        SettingChange::Method(Method::Lora(lora)) => format!("--method lora {}", lora_flags(lora)),
        SettingChange::Method(Method::Qlora(lora, _)) => format!("--method qlora {}", lora_flags(lora)),
        SettingChange::Precision(precision) => format!("--precision {}", precision_name(*precision)),
        SettingChange::Optimizer(optimizer) => format!("--optimizer {}", optimizer_flags(*optimizer)),
        SettingChange::Checkpointing(Checkpointing::Off) => "--gradient-checkpointing=off".to_owned(),
        SettingChange::Checkpointing(Checkpointing::Reentrant) => "--gradient-checkpointing=reentrant".to_owned(),
        SettingChange::Checkpointing(Checkpointing::NonReentrant) => "--gradient-checkpointing".to_owned(),
        SettingChange::Attention(attention) => format!("--attention {}", attention_name(*attention)),
        SettingChange::Loss(loss) => format!("--loss {}", loss_name(*loss)),
        SettingChange::Sharding(sharding) => format!("--sharding {}", sharding_name(*sharding)),
        SettingChange::Offload(offload) => format!("--offload {}", offload_name(*offload)),
        SettingChange::Clips(clips) => format!("--clip {}", if *clips { "on" } else { "off" }),
        SettingChange::Compiles(_) => "--compile".to_owned(),
        SettingChange::UpdatesInBackward(updates) => {
            format!("--update-in-backward {}", if *updates { "on" } else { "off" })
        }
    }
}

fn lora_flags(lora: &Lora) -> String {
    let targets = match &lora.targets {
        Targets::AllLinear => " --lora-targets all-linear".to_owned(),
        Targets::Named(names) => format!(" --lora-targets {}", names.join(",")),
        Targets::Default => String::new(),
    };
    format!("--lora-rank {}{targets}", lora.rank)
}

pub(super) fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "fp32",
        Precision::PureBf16 => "pure-bf16",
        Precision::PureFp16 => "pure-fp16",
        Precision::AmpBf16 => "amp-bf16",
        Precision::AmpFp16 => "amp-fp16",
    }
}

fn optimizer_flags(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::AdamWForeach => "adamw --optimizer-implementation foreach",
        Optimizer::AdamWFused => "adamw --optimizer-implementation fused",
        Optimizer::AdamWForLoop => "adamw --optimizer-implementation for-loop",
        other => optimizer_name(other),
    }
}

pub(super) fn optimizer_name(optimizer: Optimizer) -> &'static str {
    match optimizer {
        Optimizer::AdamWForeach => "adamw (foreach)",
        Optimizer::AdamWFused => "adamw (fused)",
        Optimizer::AdamWForLoop => "adamw (for-loop)",
        Optimizer::AdamW8bit => "adamw-8bit",
        Optimizer::PagedAdamW8bit => "paged-adamw-8bit",
        Optimizer::PagedAdamW => "paged-adamw",
        Optimizer::Adafactor => "adafactor",
        Optimizer::Sgd { momentum: false } => "sgd",
        Optimizer::Sgd { momentum: true } => "sgd-momentum",
    }
}

pub(super) fn attention_name(attention: Attention) -> &'static str {
    match attention {
        Attention::Eager => "eager",
        Attention::Sdpa => "sdpa",
        Attention::Efficient => "efficient",
        Attention::Flash2 => "flash2",
    }
}

/// The differences from the training loop of Hugging Face's `Trainer`, as values of `--loop`.
pub(super) fn loop_words(custom_loop: CustomLoop) -> Vec<&'static str> {
    let outputs = match custom_loop.outputs {
        KeptOutputs::UntilLoss => None,
        KeptOutputs::UntilBackward => Some("outputs-until-backward"),
        KeptOutputs::UntilStep => Some("outputs-until-step"),
        KeptOutputs::UntilNext => Some("outputs-until-next"),
    };
    let gradients = custom_loop.keeps_gradients.then_some("zeroed-gradients");
    let mask = custom_loop.omits_mask.then_some("no-attention-mask");
    [outputs, gradients, mask].into_iter().flatten().collect()
}

pub(super) fn loss_name(loss: Loss) -> &'static str {
    match loss {
        Loss::Plain => "plain",
        Loss::Liger => "liger",
        Loss::CutCrossEntropy => "cce",
    }
}

pub(super) fn sharding_name(sharding: Sharding) -> &'static str {
    match sharding {
        Sharding::None => "none",
        Sharding::Ddp { .. } => "ddp",
        Sharding::Zero { stage: 0 | 1 } => "zero1",
        Sharding::Zero { stage: 2 } => "zero2",
        Sharding::Zero { .. } => "zero3",
        Sharding::Fsdp => "fsdp",
    }
}

pub(super) fn offload_name(offload: Offload) -> &'static str {
    match offload {
        Offload { weights: true, .. } => "all",
        Offload { optimizer: true, .. } => "optimizer",
        Offload { .. } => "none",
    }
}

pub(super) fn checkpointing_name(checkpointing: Checkpointing) -> &'static str {
    match checkpointing {
        Checkpointing::Off => "off",
        Checkpointing::Reentrant => "reentrant",
        Checkpointing::NonReentrant => "non-reentrant",
    }
}

pub(super) fn method_name(method: &Method) -> &'static str {
    match method {
        Method::Full => "full",
        Method::Lora(_) => "lora",
        Method::Qlora(..) => "qlora",
    }
}

/// The parts of a run that a setting outside the model leaves uncertain.
pub(super) fn part_name(part: Part) -> &'static str {
    match part {
        Part::Weights => "weights",
        Part::Gradients => "gradients",
        Part::OptimizerState => "optimizer state",
        Part::Activations => "saved activations",
        Part::Temporaries => "temporaries",
        Part::Logits => "logits",
        Part::Recomputation => "recomputation",
        Part::Attention => "attention kernels",
        Part::FusedUpdate => "AdamW in one kernel",
        Part::Loss => "a cut loss",
        Part::Division => "division among GPUs",
        Part::Additions => "training additions alone",
        Part::SinglePrecision => "single precision",
    }
}

/// The reasons for a run's range, in a line. `None` if all of its settings are modeled.
pub(super) fn range_words(unsure: &Unsure) -> Option<String> {
    let names = |parts: &[Part]| parts.iter().map(|part| part_name(*part)).collect::<Vec<_>>().join(", ");
    let is_doubled = |part: &&Part| **part <= Part::Logits;
    let less = unsure.less.iter().copied().collect::<Vec<_>>();
    let (twice, without): (Vec<_>, Vec<_>) = unsure.more.iter().copied().partition(|part| is_doubled(&part));
    let mut most = vec![];
    most.extend((!twice.is_empty()).then(|| format!("with twice the {}", names(&twice))));
    most.extend((!without.is_empty()).then(|| format!("without {}", names(&without))));
    most.extend(unsure.evaluated.map(|samples| format!("with {samples} samples at a time")));
    let mut ends = vec![];
    ends.extend((!less.is_empty()).then(|| format!("the least is without {}", names(&less))));
    ends.extend((!most.is_empty()).then(|| format!("the most is {}", most.join(" and "))));
    (!ends.is_empty()).then(|| ends.join("; "))
}

/// Whether a run fits, in words.
pub(super) fn verdict_words(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fits => "fits",
        Verdict::MayFit => "may fit",
        Verdict::DoesNotFit => "does not fit",
    }
}

/// A run in two lines: what it trains and how, then its batches and cards.
pub(super) fn run_lines(run: &Run) -> Vec<String> {
    let method = match &run.method {
        Method::Full => "all weights".to_owned(),
        Method::Lora(lora) => format!("LoRA of rank {} on {}", lora.rank, targets_words(&lora.targets)),
        Method::Qlora(lora, _) => format!("QLoRA of rank {} on {}", lora.rank, targets_words(&lora.targets)),
    };
    let checkpointing = match run.checkpointing {
        Checkpointing::Off => "no checkpointing".to_owned(),
        kind => format!("{} checkpointing", checkpointing_name(kind)),
    };
    let mut how = vec![method, precision_name(run.precision).to_owned(), optimizer_name(run.optimizer).to_owned()];
    how.extend([format!("{} attention", attention_name(run.attention)), checkpointing]);
    if run.loss != Loss::Plain {
        how.push(format!("{} loss", loss_name(run.loss)));
    }
    if run.compiles {
        how.push("compiled".to_owned());
    }
    if run.updates_in_backward {
        how.push("updates in the backward pass".to_owned());
    }
    let target = run.target_len.map_or(String::new(), |target| format!(" -> {target}"));
    let mut what = format!("{} x {} samples of {}{target} tokens", run.micro_batch, run.accumulation, run.seq_len);
    if run.cards > 1 {
        what += &format!(", on each of {} GPUs ({})", run.cards, sharding_name(run.sharding));
    }
    if run.offload != Offload::default() {
        what += &format!(
            ", with {} on the host",
            if run.offload.weights { "weights and optimizer" } else { "the optimizer" }
        );
    }
    vec![how.join(", "), what]
}

fn targets_words(targets: &Targets) -> String {
    match targets {
        Targets::AllLinear => "all linear layers".to_owned(),
        Targets::Named(names) => names.join(", "),
        Targets::Default => "PEFT's default layers".to_owned(),
    }
}

/// Warnings about missing files, keys that are unknown or not modeled, and assumptions, one line each.
pub fn estimate_warnings(report: &EstimateReport) -> Vec<String> {
    /// A file with more unknown keys belongs to another program.
    const MAX: usize = 50;
    let mut lines = report.missing.to_vec();
    let line_words = |line: Option<u64>| line.map_or(String::new(), |line| format!(", line {line}"));
    if let Some(read) = report.read {
        for unknown in read.unknown.iter().take(MAX) {
            let near = unknown.near.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let (kind, line) = (unknown.kind, line_words(unknown.line));
            lines.push(format!("{kind}{line}: `{}` is unknown and not counted{near}", unknown.key));
        }
        let others = read.unknown.len().saturating_sub(MAX);
        if others > 0 {
            lines.push(format!("and {others} more unknown keys"));
        }
        lines.extend(read.unmodeled.iter().map(|key| {
            let (kind, line) = (key.kind, line_words(key.line));
            format!("{kind}{line}: `{}`: {}", key.key, key.why)
        }));
        lines.extend(read.assumed.iter().map(|assumed| format!("{}: assumed: {assumed}", read.kind)));
    }
    lines
}
