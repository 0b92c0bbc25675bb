//! The records of a W&B run: its description, rows, machine metrics, summary and end.
//! Source: the descriptors in W&B's Python package, `wandb_internal.proto`.

use super::log::{Encoder, RecordKind};
use crate::protobuf::{Message, blobs};
use crate::row::{METRICS, Row, SYSTEM};
use crate::run_logs::Ids;
use crate::writer::Begin;
use serde_json::Value;
use std::collections::BTreeMap;

/// Field numbers of `Record`.
mod field {
    pub(super) const NUMBER: u32 = 1;
    pub(super) const HISTORY: u32 = 2;
    pub(super) const SUMMARY: u32 = 3;
    pub(super) const CONFIG: u32 = 5;
    pub(super) const STATS: u32 = 7;
    pub(super) const METRIC: u32 = 12;
    pub(super) const RUN: u32 = 17;
    pub(super) const EXIT: u32 = 18;
    pub(super) const HEADER: u32 = 21;
}

/// `value_json` of items of histories, summaries, configurations and statistics.
const VALUE_JSON: u32 = 16;

/// The metric for the x-axis of the others, as with Hugging Face's Trainer. W&B's own row count is `_step`.
const GLOBAL_STEP: &str = "train/global_step";

/// The oldest reader version that supports these records.
const MIN_CONSUMER: &str = "0.40.0";

/// Creates the records of a log, one after another.
#[derive(Debug, Clone)]
pub(super) struct Records {
    /// Number of records so far.
    count: u64,
    /// Number of rows so far.
    rows: u64,
    began_s: f64,
    newest: BTreeMap<String, String>,
}

impl Records {
    pub(super) fn new(count: u64, rows: u64, began_s: f64) -> Self {
        Self { count, rows, began_s, newest: BTreeMap::new() }
    }

    fn push(&mut self, log: &mut Encoder, field: u32, record: &Message) {
        self.count += 1;
        log.push(Message::new().integer(field::NUMBER, self.count).message(field, record).bytes());
    }

    /// The first records of a log; for a continued log, those that may have changed.
    pub(super) fn begin(&mut self, log: &mut Encoder, begin: &Begin, ids: &Ids) {
        let items =
            begin.config.iter().map(|(key, value)| Message::new().text(1, key).text(VALUE_JSON, &value.to_string()));
        let config = items.fold(Message::new(), |config, item| config.message(1, &item));
        if self.count > 0 {
            return self.push(log, field::CONFIG, &config);
        }
        let version = Message::new().text(1, env!("CARGO_PKG_VERSION")).text(2, MIN_CONSUMER);
        self.push(log, field::HEADER, &Message::new().message(1, &version));
        let mut run = Message::new().text(1, &ids.wandb);
        if let Some(entity) = &begin.entity {
            run = run.text(2, entity);
        }
        let run = run.text(3, &begin.project).message(4, &config).text(8, &begin.name);
        self.push(log, field::RUN, &run.message(17, &timestamp(ids.began_s)));
        let defined = Message::new().integer(1, 1).integer(3, 1);
        self.push(log, field::METRIC, &Message::new().text(1, GLOBAL_STEP).message(6, &Message::new().integer(3, 1)));
        for name in METRICS {
            self.push(log, field::METRIC, &Message::new().text(1, name).text(4, GLOBAL_STEP).message(6, &defined));
        }
    }

    pub(super) fn row(&mut self, log: &mut Encoder, row: &Row) {
        if row.of_machine {
            let items = row.values.iter().map(|(name, value)| {
                let key = name.strip_prefix(SYSTEM).unwrap_or(name);
                Message::new().text(1, key).text(VALUE_JSON, &json(*value))
            });
            let stats = Message::new().integer(1, 0).message(2, &timestamp(row.time_s));
            let stats = items.fold(stats, |stats, item| stats.message(3, &item));
            return self.push(log, field::STATS, &stats);
        }
        let mut items = vec![("_step".to_owned(), self.rows.to_string())];
        items.push((GLOBAL_STEP.to_owned(), row.step.to_string()));
        items.extend(row.values.iter().map(|(name, value)| (name.to_string(), json(*value))));
        items.push(("_timestamp".to_owned(), json(row.time_s)));
        items.push(("_runtime".to_owned(), json((row.time_s - self.began_s).max(0.0))));
        let step = Message::new().integer(1, self.rows);
        let history = items.iter().fold(Message::new(), |history, item| history.message(1, &nested(item)));
        self.push(log, field::HISTORY, &history.message(2, &step));
        self.newest.extend(items);
        self.rows += 1;
    }

    /// The newest values of all metrics.
    pub(super) fn summary(&mut self, log: &mut Encoder) {
        let items = self.newest.iter().map(|(key, value)| nested(&(key.clone(), value.clone())));
        let summary = items.fold(Message::new(), |summary, item| summary.message(1, &item));
        self.push(log, field::SUMMARY, &summary);
    }

    pub(super) fn exit(&mut self, log: &mut Encoder, code: u64, time_s: f64) {
        let runtime = (time_s - self.began_s).clamp(0.0, f64::from(i32::MAX)) as u64;
        self.push(log, field::EXIT, &Message::new().integer(1, code).integer(2, runtime));
    }
}

/// An item whose key contains literal slashes and dots.
fn nested((key, value): &(String, String)) -> Message {
    Message::new().text(2, key).text(VALUE_JSON, value)
}

/// A number in W&B's JSON, whose readers accept NaN and infinities.
fn json(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        value => Value::from(value).to_string(),
    }
}

fn timestamp(time_s: f64) -> Message {
    let time_s = time_s.max(0.0);
    Message::new().integer(1, time_s as u64).integer(2, (time_s.fract() * 1e9) as u64)
}

/// Whether to keep a record when a session repeats all steps from `first_step` on. Drops ends of sessions and all
/// records after them.
pub(super) fn is_before(record: &[u8], first_step: u64) -> RecordKind {
    let parts =
        |bytes, field: u32| blobs(bytes).filter(move |(number, _)| *number == u64::from(field)).map(|(_, part)| part);
    if parts(record, field::EXIT).next().is_some() {
        return RecordKind::Later;
    }
    let Some(history) = parts(record, field::HISTORY).next() else { return RecordKind::Other };
    let step = parts(history, 1).find_map(|item| {
        let is_step = parts(item, 2).eq([GLOBAL_STEP.as_bytes()]);
        let value = parts(item, VALUE_JSON).next().filter(|_| is_step)?;
        str::from_utf8(value).ok()?.parse::<u64>().ok()
    });
    if step.is_some_and(|step| step >= first_step) { RecordKind::Later } else { RecordKind::History }
}
