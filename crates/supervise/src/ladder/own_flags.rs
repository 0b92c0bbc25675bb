//! Steps for scripts that parse their own flags: rewrites only flags that the command line has, in their spelling and
//! form, and claims nothing about settings that the command line does not contain.
//! Not here: recognized trainers, which also accept settings that the command line does not have yet (`rungs.rs`).

use super::configuration::{ChangeError, Configuration};
use super::rung::{Rung, SHORTEST, Situation, Step};
use super::user::set_flag;
use crate::ends::{Cause, HostShortage};

/// Flags for the batch of a forward pass. A script with two of them divides one by the other; the first here is the
/// smaller.
const BATCH: &[&str] =
    &["per_device_train_batch_size", "per_gpu_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"];

const ACCUMULATION: &[&str] = &[
    "gradient_accumulation_steps",
    "grad_accumulation_steps",
    "grad_accum_steps",
    "accumulation_steps",
    "accum_steps",
    "gradient_accumulation",
];

/// Flags for the fraction of the optimizer or the model in host memory.
const OFFLOAD: &[&str] = &["cpu_offload_fraction"];
const WORKERS: &[&str] = &["dataloader_num_workers", "num_workers"];
const LENGTH: &[&str] = &["max_seq_length", "max_seq_len", "max_length", "block_size", "seq_len"];

/// Offload fractions, one per step.
const FRACTIONS: [f64; 3] = [0.5, 0.75, 1.0];

/// Takes the step; `None` if it is exhausted. Errors: no flag on the command line sets it.
pub(super) fn take(rung: Rung, from: &Configuration, situation: &Situation<'_>) -> Result<Option<Step>, ChangeError> {
    let flags = Flags(from.words().ok_or(ChangeError::NoTrainer)?);
    match rung {
        Rung::Halve => smaller_batch(from, &flags),
        Rung::Optimizer => more_offload(from, &flags),
        Rung::Workers => fewer_workers(from, &flags, situation),
        Rung::Shorter if situation.allow_shorter => shorter(from, &flags),
        Rung::Shorter => Ok(None),
        Rung::Allocator | Rung::Unpinned | Rung::Checkpointing | Rung::Minimum | Rung::Smallest => {
            Err(ChangeError::NoTrainer)
        }
    }
}

/// The arguments of a command line.
struct Flags(Vec<String>);

/// A flag on the command line.
struct Flag {
    /// Its spelling on the command line.
    name: String,
    value: String,
}

impl Flags {
    /// The last flag of this name that has a value. Hyphens and underscores are equal.
    fn find(&self, name: &str) -> Option<Flag> {
        // Flags before the script belong to the interpreter and the launcher.
        let own = 1 + self.0.iter().position(|word| word.ends_with(".py")).unwrap_or(0);
        let is_it = |word: &str| word.strip_prefix("--").is_some_and(|word| word.replace('-', "_") == name);
        (own..self.0.len()).rev().find_map(|at| match self.0[at].split_once('=') {
            Some((spelled, value)) => {
                is_it(spelled).then(|| Flag { name: spelled.to_owned(), value: value.to_owned() })
            }
            None => is_it(&self.0[at])
                .then(|| Some(Flag { name: self.0[at].clone(), value: self.0.get(at + 1)?.clone() }))
                .flatten(),
        })
    }

    /// The first of these flags whose value is a whole number, with the value.
    fn count(&self, names: &[&str]) -> Option<(String, u64)> {
        names.iter().find_map(|name| self.find(name).and_then(|flag| Some((flag.name, flag.value.parse().ok()?))))
    }
}

/// The command line with new values for flags that it has.
fn with(from: &Configuration, values: &[(&str, String)]) -> Configuration {
    let mut to = from.clone();
    values.iter().for_each(|(name, value)| set_flag(&mut to.argv, name, Some(value)));
    to
}

/// Divides the batch by its smallest divisor and multiplies the accumulation steps by it. Halves the batch if the
/// accumulation is unknown.
fn smaller_batch(from: &Configuration, flags: &Flags) -> Result<Option<Step>, ChangeError> {
    let (name, batch) = flags.count(BATCH).ok_or(ChangeError::NoTrainer)?;
    let Some(divisor) = (2..=batch).find(|divisor| batch.is_multiple_of(*divisor)) else { return Ok(None) };
    let other = BATCH.iter().filter_map(|other| flags.find(other)).find(|other| other.name != name);
    let accumulation = flags.count(ACCUMULATION).filter(|_| other.is_none());
    let product = accumulation.and_then(|(times_name, times)| Some((times_name, times, times.checked_mul(divisor)?)));
    let Some((times_name, times, more)) = product else {
        let half = batch / 2;
        let why = match other {
            Some(other) => format!("{} is also set, so the effective batch is unknown", other.name),
            None => "the effective batch changes, since no flag for gradient accumulation is set".to_owned(),
        };
        let to = with(from, &[(&name, half.to_string())]);
        return Ok(Some((to, vec![format!("{name} {batch} → {half}: {why}")])));
    };
    let smaller = batch / divisor;
    let to = with(from, &[(&name, smaller.to_string()), (&times_name, more.to_string())]);
    let note = format!(
        "{name} {batch} → {smaller}, {times_name} {times} → {more}: the effective batch per process stays {}",
        u128::from(smaller) * u128::from(more),
    );
    Ok(Some((to, vec![note])))
}

fn more_offload(from: &Configuration, flags: &Flags) -> Result<Option<Step>, ChangeError> {
    let flag = OFFLOAD.iter().find_map(|name| flags.find(name)).ok_or(ChangeError::NoTrainer)?;
    let fraction: f64 = flag.value.parse().map_err(|_| ChangeError::NoTrainer)?;
    let Some(more) = FRACTIONS.into_iter().find(|more| *more > fraction) else { return Ok(None) };
    let note = format!("{} {} → {more}: more is offloaded to host memory", flag.name, flag.value);
    Ok(Some((with(from, &[(&flag.name, more.to_string())]), vec![note])))
}

fn fewer_workers(from: &Configuration, flags: &Flags, situation: &Situation<'_>) -> Result<Option<Step>, ChangeError> {
    let (name, workers) = flags.count(WORKERS).ok_or(ChangeError::NoTrainer)?;
    let is_theirs = !matches!(situation.cause, Some(Cause::HostMemory(HostShortage::Pinned)));
    if !is_theirs || workers == 0 {
        return Ok(None);
    }
    let note = format!("{name} {workers} → {}", workers / 2);
    Ok(Some((with(from, &[(&name, (workers / 2).to_string())]), vec![note])))
}

fn shorter(from: &Configuration, flags: &Flags) -> Result<Option<Step>, ChangeError> {
    let (name, tokens) = flags.count(LENGTH).ok_or(ChangeError::NoTrainer)?;
    let fewer = (tokens / 2).max(SHORTEST);
    if fewer >= tokens {
        return Ok(None);
    }
    let to = with(from, &[(&name, fewer.to_string())]);
    Ok(Some((to, vec![format!("{name} {tokens} → {fewer}: results differ")])))
}
