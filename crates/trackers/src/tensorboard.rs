//! TensorBoard's event files: records with checksums, each a protocol buffer `Event`. A resumed session starts a new
//! file in the same folder, whose first record says that later steps are repeated; a file torn by a crash is left as it
//! is, since readers skip a torn record.
//! Sources: TensorFlow's `record_writer.h`, `event.proto`, `summary.proto`, TensorBoard's `plugins/hparams/plugin_data.proto`.

use crate::appender::Appender;
use crate::protobuf::Message;
use crate::row::Row;
use crate::writer::{Begin, End, SessionStatus, WriteError, Writer};
use plimsoll_files::Disk;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder in a run's logs.
pub(crate) const FOLDER: &str = "tensorboard";

const PREFIX: &str = "events.out.tfevents.";

/// Files are read in the order of their names, which contain times of this many digits.
const TIME_DIGITS: usize = 10;

pub(crate) struct TensorBoard {
    file: Appender,
}

impl TensorBoard {
    pub(crate) fn open(disk: &Disk, begin: &Begin) -> Result<Self, WriteError> {
        let folder = begin.logs()?.folder.join(FOLDER);
        disk.create_folders(&folder)?;
        let newest = newest(&folder);
        let mut records = Vec::new();
        // Since version 2, a session can state its first step.
        record(&mut records, event(begin.time_s, 0).text(3, "brain.Event:2"));
        if newest.is_some() {
            let starts = Message::new().integer(1, START);
            record(&mut records, event(begin.time_s, begin.first_step).message(7, &starts));
        }
        record(&mut records, hyperparameters(begin));
        let mut file = Appender::open(disk, &next_name(&folder, newest, begin.time_s), |_| Ok(0))?;
        file.append(&records)?;
        Ok(Self { file })
    }
}

/// `SessionLog.SessionStatus.START`
const START: u64 = 1;

/// The largest time in the names of a folder's event files, in seconds since 1970.
fn newest(folder: &Path) -> Option<u64> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let times = names.filter_map(|name| name.to_str()?.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok());
    times.filter(|time| *time < 10_u64.pow(TIME_DIGITS as u32)).max()
}

/// A name that sorts after all existing files, even if the clock was set back.
fn next_name(folder: &Path, newest: Option<u64>, time_s: f64) -> PathBuf {
    let time = newest.map_or(0, |newest| newest + 1).max(time_s.max(0.0) as u64);
    folder.join(format!("{PREFIX}{time:0TIME_DIGITS$}.plimsoll.{}", std::process::id()))
}

fn event(time_s: f64, step: u64) -> Message {
    Message::new().double(1, time_s).integer(2, step)
}

/// Appends a record: its length and its bytes, each with a checksum.
fn record(records: &mut Vec<u8>, message: Message) {
    let bytes = message.bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    records.extend(length);
    records.extend(masked(crc32c::crc32c(&length)).to_le_bytes());
    records.extend(bytes);
    records.extend(masked(crc32c::crc32c(bytes)).to_le_bytes());
}

/// Masks a checksum, for data that may itself contain checksums.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The settings in the format of the hyperparameter plugin.
fn hyperparameters(begin: &Begin) -> Message {
    let entries = begin.config.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| {
        let value = match value {
            Value::Number(number) => Message::new().double(2, number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => Message::new().text(3, text),
            Value::Bool(truth) => Message::new().integer(4, u64::from(*truth)),
            other => Message::new().text(3, &other.to_string()),
        };
        Message::new().text(1, key).message(2, &value)
    });
    let start = entries.fold(Message::new(), |start, entry| start.message(1, &entry));
    let start = start.text(4, &begin.name).double(5, begin.time_s);
    of_plugin("_hparams_/session_start_info", begin.time_s, &Message::new().integer(1, 0).message(3, &start))
}

/// A tagged value of the hyperparameter plugin.
fn of_plugin(tag: &str, time_s: f64, content: &Message) -> Message {
    let plugin = Message::new().text(1, "hparams").message(2, content);
    let value = Message::new().text(1, tag).message(9, &Message::new().message(1, &plugin));
    event(time_s, 0).message(5, &Message::new().message(1, &value))
}

impl Writer for TensorBoard {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let mut records = Vec::new();
        for row in rows {
            let values = row.values.iter().map(|(name, value)| Message::new().text(1, name).float(2, *value as f32));
            let summary = values.fold(Message::new(), |summary, value| summary.message(1, &value));
            record(&mut records, event(row.time_s, row.step).message(5, &summary));
        }
        Ok(self.file.append(&records)?)
    }

    fn end(&mut self, end: End) -> Result<(), WriteError> {
        let status = match end.status {
            SessionStatus::Finished => 1,
            SessionStatus::Failed => 2,
            // It may be resumed.
            SessionStatus::Stopped => 3,
        };
        let content = Message::new().integer(1, status).double(2, end.time_s);
        let mut records = Vec::new();
        let content = Message::new().integer(1, 0).message(4, &content);
        record(&mut records, of_plugin("_hparams_/session_end_info", end.time_s, &content));
        Ok(self.file.append(&records)?)
    }
}
