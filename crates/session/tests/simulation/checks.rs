//! What holds in every run, whatever happens to it.

use crate::facts::{Facts, Seen};
use crate::schedule::{MAX_C, Schedule, Subject};
use crate::training::{Computed, TOKENS_PER_STEP};
use crate::world::State;
use plimsoll_exec::DeviceError;
use plimsoll_fake_disk::Tree;
use plimsoll_plan::OnPressure;
use plimsoll_session::SessionError;
use plimsoll_telemetry::{Event, Record, read_journal};
use plimsoll_train::checkpoint::CheckpointError;
use plimsoll_train::{Ending, FolderError, Outcome, TrainError};
use plimsoll_units::Bytes;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The promise of `ElasticBudget`.
const CHANGES_PER_HOUR: usize = 14;

/// Samples that show a working sensor before its temperatures must be obeyed.
const TRUSTED_SAMPLES: usize = 8;

/// Samples of a shortage after which a run must have followed: three count as one.
const SHORT_SAMPLES: usize = 6;

const HOUR: Duration = Duration::from_secs(3600);

/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// Why a batch may not begin, in a step or an evaluation; `None` if it may. `is_step`: whether a step begins with it.
pub fn may_not_begin(state: &State, is_step: bool) -> Option<String> {
    too_hot(state, is_step).or_else(|| too_large(state).filter(|_| is_step))
}

/// Whether the newest samples are a sensor's or a watcher's that works: regular, and not old.
fn are_regular(state: &State, samples: &[Seen]) -> bool {
    let Some(every) = state.schedule.sample_every else { return false };
    let is_near = |from: Duration, to: Duration| to - from <= 3 * every;
    samples.windows(2).all(|pair| is_near(pair[0].time, pair[1].time))
        && samples.last().is_some_and(|last| is_near(last.time, state.now))
}

/// At the temperature of the newest samples.
fn too_hot(state: &State, is_step: bool) -> Option<String> {
    let facts = &state.facts;
    let recent = &facts.samples[facts.samples.len().saturating_sub(TRUSTED_SAMPLES)..];
    let is_trusted = recent.len() == TRUSTED_SAMPLES && !facts.is_distrusted && are_regular(state, recent);
    let temperatures = recent.iter().map(|seen| seen.core_c).collect::<Option<Vec<_>>>()?;
    // The first one of a plan begins before anything is known.
    if facts.begun <= 1 || !is_trusted {
        return None;
    }
    let newest = temperatures[TRUSTED_SAMPLES - 1];
    // A step that has begun is finished once the run is to stop, or is ordered to end after two samples above the most.
    let stops = state.control.as_ref().is_some_and(|control| control.stop_flag().load(Ordering::Relaxed));
    let is_above = |seen: &Seen| seen.core_c > Some(MAX_C);
    let has_ended = facts.samples.windows(2).any(|pair| pair.iter().all(is_above));
    let is_forbidden = newest > MAX_C && (is_step || !(has_ended || stops));
    is_forbidden.then(|| format!("a batch begins at {newest} °C; the most is {MAX_C} °C"))
}

/// With a plan that holds more than the run can have, for so long that it must have followed.
fn too_large(state: &State) -> Option<String> {
    let facts = &state.facts;
    let follows = matches!(state.schedule.on_pressure, Some(OnPressure::Shrink | OnPressure::Wait));
    let recent = &facts.samples[facts.samples.len().saturating_sub(SHORT_SAMPLES)..];
    let held = Bytes(facts.planned?);
    let is_short = recent.len() == SHORT_SAMPLES && recent.iter().all(|seen| seen.usable < held);
    let is_since_plan = recent.first().is_some_and(|first| first.time > facts.planned_at);
    let is_explained = facts.is_refused || facts.disk_errors > 0 || facts.begun <= 1;
    (follows && is_short && is_since_plan && !is_explained && are_regular(state, recent)).then(|| {
        let usable = recent[recent.len() - 1].usable;
        format!("a step begins with a plan of {held}, but the run can have {usable}")
    })
}

/// What is wrong with an event; `None` if nothing is. Records it.
pub fn event(state: &mut State, event: &Event) -> Option<String> {
    let now = state.now;
    let facts = &mut state.facts;
    match event {
        Event::RunStarted { planned_bytes, first_step, .. } => {
            (facts.planned, facts.planned_at) = (Some(*planned_bytes), now);
            facts.begun = 0;
            if facts.step.is_some_and(|step| step + 1 != *first_step) {
                return Some(format!("another plan begins with step {first_step} after {:?}", facts.step));
            }
            facts.step = Some(first_step - 1);
        }
        Event::Step { step, memory_bytes, .. } => {
            if facts.step != Some(step - 1) {
                return Some(format!("step {step} follows {:?}", facts.step));
            }
            facts.step = Some(*step);
            let planned = facts.planned.map(|planned| planned.next_multiple_of(PAGE));
            if planned != Some(*memory_bytes) {
                return Some(format!("step {step} holds {memory_bytes} bytes, {planned:?} are planned"));
            }
        }
        Event::Replanned { order, .. } if *order >= 1 << 32 => facts.changes.push(now),
        Event::MemoryPressure { waits: true, .. } => {
            facts.has_waited = true;
            facts.changes.push(now);
        }
        Event::EventsLost { .. } => facts.told_losses = true,
        Event::OrderRefused { .. } => facts.is_refused = true,
        Event::Paused { .. } => facts.is_paused = true,
        Event::Unpaused { .. } => facts.is_paused = false,
        Event::Heat { what, .. }
            if ["not believed", "no temperature", "no sensor"].iter().any(|words| what.contains(words)) =>
        {
            facts.is_distrusted = true;
        }
        _ => {}
    }
    let within = |from: &Duration| facts.changes.iter().filter(|time| (*from..*from + HOUR).contains(time)).count();
    let most = facts.changes.iter().map(within).max().unwrap_or(0);
    (most > CHANGES_PER_HOUR).then(|| format!("the memory watcher changed the plan {most} times within an hour"))
}

/// What is wrong with a checkpoint that was reported as saved: on a disk that lost everything that was not synced, it and the
/// losses before it must be whole. `tree`: that disk.
pub fn promise(tree: &Tree, step: u64, checkpoint: &Path, lost_events: bool) -> Option<String> {
    let name = checkpoint.file_name().expect("a name");
    let folder = Path::new("run/checkpoints").join(name);
    let files = std::fs::read_dir(checkpoint).expect("a checkpoint").flatten();
    for file in files {
        let path = folder.join(file.file_name());
        let contents = std::fs::read(file.path()).expect("a file of a checkpoint");
        if tree.get(&path) != Some(&Some(contents)) {
            return Some(format!("{} of a saved checkpoint is not durable", path.display()));
        }
    }
    let journal = tree.get(Path::new("run/journal.jsonl")).cloned().flatten().unwrap_or_default();
    let records = journal.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice::<Record>(line).ok());
    let steps = records.filter_map(|record| match record.event {
        Event::Step { step, .. } => Some(step),
        _ => None,
    });
    let steps = steps.collect::<std::collections::BTreeSet<_>>();
    let missing = (1..=step).find(|step| !steps.contains(step)).filter(|_| !lost_events);
    missing.map(|missing| format!("the loss of step {missing} is not durable, but the checkpoint of step {step} is"))
}

/// Why an error is not explained by what happened to the session; `None` if it is.
pub fn error(facts: &Facts, error: &SessionError) -> Option<String> {
    let SessionError::Train(train) = error else { return Some(format!("unexpected: {error}")) };
    let is_explained = match train {
        TrainError::Device(DeviceError::NoRoom { .. }) => facts.refused_load,
        TrainError::Device(DeviceError::Cuda(_)) => facts.card_failed,
        TrainError::Folder(FolderError::Io { .. })
        | TrainError::Journal(_)
        | TrainError::Checkpoint(CheckpointError::Io { .. }) => facts.disk_errors > 0,
        _ => false,
    };
    (!is_explained).then(|| format!("an error that nothing explains: {error} ({error:?})"))
}

/// What is wrong with the outcome of a session; `None` if nothing is.
pub fn outcome(schedule: &Schedule, facts: &Facts, outcome: &Outcome) -> Option<String> {
    let report = &outcome.report;
    let is_explained = match outcome.ending {
        Ending::Finished => report.losses.len() as u64 == schedule.subject.steps,
        Ending::Interrupted => facts.stop_asked || schedule.on_pressure == Some(OnPressure::Stop),
        Ending::TooHot => facts.samples.iter().filter(|seen| seen.core_c > Some(MAX_C)).count() >= 2,
        Ending::Replanned | Ending::Diverged => false,
    };
    if !is_explained {
        return Some(format!("nothing explains {:?} after {} steps", outcome.ending, report.losses.len()));
    }
    if facts.card_failed {
        return Some("a failure of the card is lost".to_owned());
    }
    if (outcome.unsaved.is_some() || outcome.unreported.is_some()) && facts.disk_errors == 0 {
        return Some(format!("not saved without an error of the disk: {:?}", outcome.unsaved));
    }
    if outcome.unsaved.is_none() && outcome.saved.as_ref().map(|(step, _)| *step) != Some(report.losses.len() as u64) {
        return Some(format!("saved {:?} after {} steps", outcome.saved, report.losses.len()));
    }
    if facts.journal_errors > 0 && !facts.told_losses && !facts.has_waited && facts.step.is_some() {
        return Some(format!("{} errors of the journal are not reported", facts.journal_errors));
    }
    let measured = &report.measured;
    if facts.begun > 0 && measured.touched_bytes != measured.planned_bytes_of_what_ran {
        let (touched, planned) = (measured.touched_bytes, measured.planned_bytes_of_what_ran);
        return Some(format!("{touched} bytes were used, {planned} are planned"));
    }
    (measured.device_allocations_after_first_step > 0).then(|| "memory was allocated after the first step".to_owned())
}

/// What is wrong with a finished run. `has_lost`: whether the journal may lack events.
pub fn finished(found: &Computed, expected: &Computed, has_lost: bool) -> Option<String> {
    if (found.weights, found.moments) != (expected.weights, expected.moments) {
        return Some("the weights or moments are not those of an undisturbed run".to_owned());
    }
    for (index, (loss, of_whole)) in found.losses.iter().zip(&expected.losses).enumerate() {
        if loss != of_whole && !(has_lost && loss.is_none()) {
            let [loss, of_whole] = [loss, of_whole].map(|loss| loss.map(f64::from_bits));
            return Some(format!("the loss of step {} is {loss:?}, not {of_whole:?}", index + 1));
        }
    }
    let is_wrong = |(step, loss)| !expected.eval.contains(&(step, loss));
    let wrong = found.eval.iter().copied().find(|eval| is_wrong(*eval));
    if let Some((step, loss)) = wrong {
        return Some(format!("the held-out loss after step {step} is {}", f64::from_bits(loss)));
    }
    (found.eval.len() != expected.eval.len() && !has_lost).then(|| format!("held-out losses: {:?}", found.eval))
}

/// What is wrong with the counts of a finished run, also of an undisturbed one.
pub fn counts(found: &Computed, subject: Subject) -> Option<String> {
    let tokens = subject.steps * TOKENS_PER_STEP;
    (found.tokens_seen != tokens).then(|| format!("{} tokens are counted, {tokens} were seen", found.tokens_seen))
}

/// What is wrong with the journal of a finished run, which lost no events: each session must have made its steps one after
/// another, and begun after a step that was made.
pub fn journal(path: &Path) -> Option<String> {
    let records = match read_journal(path) {
        Ok(records) => records,
        Err(error) => return Some(error.to_string()),
    };
    let mut last = None;
    for record in records {
        match (record.event, last) {
            (Event::RunStarted { first_step, .. }, None) if first_step > 1 => {
                return Some(format!("the first session begins with step {first_step}"));
            }
            (Event::RunStarted { first_step, .. }, Some(last)) if first_step > last + 1 => {
                return Some(format!("a session begins with step {first_step} after step {last}"));
            }
            (Event::RunStarted { first_step, .. }, _) => last = Some(first_step - 1),
            (Event::Step { step, .. }, Some(before)) if step == before + 1 => last = Some(step),
            (Event::Step { step, .. }, _) => return Some(format!("the journal has step {step} after {last:?}")),
            _ => {}
        }
    }
    None
}
