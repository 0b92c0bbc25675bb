//! The JSON for the page and for scripts: units in the names of keys, `null` for unknown values. Texts are not escaped
//! for HTML; the page inserts them as text nodes, never as markup.

use crate::act::Action;
use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use plimsoll_telemetry::{CardSample, Curve, Sample, Stretch};
use plimsoll_watch::{EventLine, Kind, MachineView, MemoryMap, RunView, SavedCheckpoint, Standing};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Number of points of a run's curve in the list.
const SPARKLINE: usize = 60;

/// Maximum length of settings and samples; the report has them in full.
const LONGEST_TEXT: usize = 64 << 10;

/// An error response.
#[derive(Debug)]
pub(crate) struct Problem(pub(crate) StatusCode, pub(crate) String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.0, Json(json!({ "error": self.1 }))).into_response();
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

pub(crate) fn problem(status: StatusCode, message: &str) -> Problem {
    Problem(status, message.to_owned())
}

/// Entry of a run in the list.
#[derive(Debug, Serialize)]
pub(crate) struct Summary<'a> {
    id: &'a str,
    name: &'a str,
    kind: Kind,
    model: Option<&'a str>,
    standing: Standing,
    standing_words: &'static str,
    is_paused: bool,
    step: u64,
    last_step: Option<u64>,
    done: Option<f64>,
    seconds: f64,
    seconds_left: Option<f64>,
    last_s: Option<f64>,
    loss: Option<f64>,
    held_out: Option<f64>,
    tokens_per_s: Option<f64>,
    memory_bytes: Option<u64>,
    planned_bytes: Option<u64>,
    budget_bytes: Option<u64>,
    device: Option<&'a str>,
    /// Means of the loss, from the first step to the last.
    sparkline: Vec<f64>,
}

impl<'a> Summary<'a> {
    pub(crate) fn of(run: &'a RunView) -> Self {
        let last = run.last.as_ref();
        Self {
            id: &run.id,
            name: &run.name,
            kind: run.kind,
            model: run.model.as_deref(),
            standing: run.standing,
            standing_words: run.standing_words(),
            is_paused: run.is_paused,
            step: run.step,
            last_step: run.last_step,
            done: run.done(),
            seconds: run.seconds,
            seconds_left: run.seconds_left,
            last_s: run.last_s,
            loss: last.map(|last| last.loss),
            held_out: run.held_out.whole().map(|whole| whole.last.value),
            tokens_per_s: last.map(|last| last.tokens_per_s),
            memory_bytes: last.map(|last| last.memory_bytes),
            planned_bytes: run.planned_bytes,
            budget_bytes: run.budget_bytes,
            device: run.device.as_deref(),
            sparkline: run.losses.in_stretches(SPARKLINE).iter().map(|stretch| stretch.mean).collect(),
        }
    }
}

/// Everything that the page shows of a run, except its curves.
#[derive(Debug, Serialize)]
pub(crate) struct Detail<'a> {
    #[serde(flatten)]
    summary: Summary<'a>,
    folder: String,
    program: &'a str,
    parameters: Option<u64>,
    sessions: usize,
    first_s: Option<f64>,
    learning_rate: Option<f64>,
    grad_norm: Option<f64>,
    step_ms: Option<f64>,
    skipped_updates: u64,
    checkpoints: &'a [SavedCheckpoint],
    more_checkpoints: usize,
    events: &'a VecDeque<EventLine>,
    process: Option<u32>,
    settings: Option<&'a str>,
    sample: Option<Value>,
    problems: &'a [String],
    actions: Vec<Action>,
}

impl<'a> Detail<'a> {
    pub(crate) fn of(run: &'a RunView, actions: Vec<Action>) -> Self {
        let last = run.last.as_ref();
        let sample = run
            .sample
            .as_ref()
            .map(|sample| json!({ "step": sample.step, "prompt": truncated(&sample.prompt), "text": truncated(&sample.text) }));
        Self {
            summary: Summary::of(run),
            folder: plimsoll_watch::clean(&run.folder.to_string_lossy(), 400),
            // Not the arguments: they may contain secrets, and the page is sent to other machines.
            program: &run.program,
            parameters: run.parameters,
            sessions: run.sessions,
            first_s: run.first_s,
            learning_rate: last.map(|last| last.learning_rate),
            grad_norm: last.map(|last| last.grad_norm),
            step_ms: last.map(|last| last.step_ms),
            skipped_updates: run.skipped_updates,
            checkpoints: &run.checkpoints,
            more_checkpoints: run.more_checkpoints,
            events: &run.events,
            process: run.process,
            settings: run.settings.as_deref().map(truncated),
            sample,
            problems: &run.problems,
            actions,
        }
    }
}

/// The text, truncated to [`LONGEST_TEXT`].
fn truncated(text: &str) -> &str {
    let end = (0..=LONGEST_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// End of a curve, from stretch `from`. Earlier stretches have not changed.
#[derive(Debug, Serialize)]
pub(crate) struct CurveTail {
    from: usize,
    /// Last step, mean, minimum and maximum of each stretch.
    points: Vec<(u64, f64, f64, f64)>,
}

/// The curves of a run by name; only what differs from `had`, the state that the client has.
pub(crate) fn curves(run: &RunView, had: Option<&RunView>) -> Value {
    let each = |curve: fn(&RunView) -> &Curve| {
        let now = curve(run).stretches();
        let before = had.map_or(&[][..], |had| curve(had).stretches());
        let from = now.iter().zip(before).take_while(|(now, before)| now == before).count();
        let point = |stretch: &Stretch| (stretch.last.step, stretch.mean, stretch.lowest.value, stretch.highest.value);
        CurveTail { from, points: now[from..].iter().map(point).collect() }
    };
    json!({
        "loss": each(|run| &run.losses),
        "held_out": each(|run| &run.held_out),
        "averaged": each(|run| &run.averaged),
        "learning_rate": each(|run| &run.learning_rate),
        "grad_norm": each(|run| &run.grad_norm),
        "tokens_per_s": each(|run| &run.tokens_per_s),
        "memory_bytes": each(|run| &run.memory_bytes),
    })
}

/// The current state of the machine: its cards with their memory as segments, and the system.
pub(crate) fn machine(view: &MachineView, runs: &[&RunView]) -> Value {
    let system = view.latest.as_ref().map(|sample| &sample.system);
    let cards = view.cards.iter().map(|card| {
        json!({
            "is_there": card.is_there,
            "card": without_processes(&card.sample),
            "memory": MemoryMap::of_card(&card.sample, runs),
        })
    });
    json!({
        "time_s": view.latest.as_ref().map(|sample| sample.time_s),
        "cards": cards.collect::<Vec<_>>(),
        "system": system,
        "memory": system.and_then(|system| MemoryMap::of_system(system, runs)),
    })
}

/// A card's sample without its processes: the page does not show processes of other users.
fn without_processes(card: &CardSample) -> CardSample {
    CardSample { processes: vec![], ..card.clone() }
}

/// Maximum number of points in charts of temperature and power over time.
const MOMENTS: usize = 500;

/// Samples of cards and system, joined to at most [`MOMENTS`] points: the maximum of temperatures, the mean of
/// everything else.
pub(crate) fn moments(samples: &[Sample]) -> Value {
    let each = samples.len().div_ceil(MOMENTS).max(1);
    let mut cards = samples.iter().flat_map(|sample| &sample.cards).map(|card| card.index).collect::<Vec<_>>();
    cards.sort_unstable();
    cards.dedup();
    let chunks = || samples.chunks(each);
    let of_system = |read: fn(&Sample) -> Option<f64>| {
        chunks().map(|chunk| mean(chunk.iter().filter_map(read))).collect::<Vec<_>>()
    };
    let cards = cards.into_iter().map(|index| {
        let of = |read: fn(&CardSample) -> Option<f64>, join: fn(&[f64]) -> Option<f64>| {
            let values = chunks().map(|chunk| {
                let own = chunk.iter().flat_map(|sample| &sample.cards).filter(|card| card.index == index);
                join(&own.filter_map(read).collect::<Vec<_>>())
            });
            values.collect::<Vec<_>>()
        };
        let newest = samples.iter().rev().flat_map(|sample| &sample.cards).find(|card| card.index == index);
        json!({
            "index": index,
            "name": newest.map(|card| &card.name),
            "slowdown_c": newest.and_then(|card| card.limits.slowdown_c),
            "temperature_c": of(|card| card.temperature_c, highest),
            "memory_temperature_c": of(|card| card.memory_temperature_c, highest),
            "power_w": of(|card| card.power_w, |values| mean(values.iter().copied())),
            "busy_percent": of(|card| card.busy_percent.map(f64::from), |values| mean(values.iter().copied())),
        })
    });
    json!({
        "time_s": chunks().filter_map(|chunk| chunk.last()).map(|sample| sample.time_s).collect::<Vec<_>>(),
        "cpu_percent": of_system(|sample| sample.system.cpu_percent),
        "cards": cards.collect::<Vec<_>>(),
    })
}

fn highest(values: &[f64]) -> Option<f64> {
    values.iter().copied().reduce(f64::max)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}
