//! Readers of the trackers' formats, written from their specifications: slow, strict, and without code of the crate.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Metric, step and value, in the order of the file.
pub type Points = Vec<(String, u64, f64)>;

/// A bitwise checksum with a reversed polynomial.
fn crc(polynomial: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    !bytes.into_iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (polynomial & (crc & 1).wrapping_neg()))
    })
}

/// A field of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Field {
    Integer(u64),
    Double(f64),
    Float(f32),
    Bytes(Vec<u8>),
}

pub type Fields = Vec<(u64, Field)>;

pub fn fields(mut bytes: &[u8]) -> Fields {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let length = 1 + bytes.iter().position(|byte| byte & 0x80 == 0).expect("an end");
        let value = bytes[..length].iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f));
        *bytes = &bytes[length..];
        value
    }
    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(length);
        *bytes = rest;
        taken
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Integer(varint(&mut bytes)),
            1 => Field::Double(f64::from_le_bytes(take(&mut bytes, 8).try_into().expect("8"))),
            2 => {
                let length = varint(&mut bytes) as usize;
                Field::Bytes(take(&mut bytes, length).to_vec())
            }
            5 => Field::Float(f32::from_le_bytes(take(&mut bytes, 4).try_into().expect("4"))),
            kind => panic!("kind {kind}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

pub fn messages(fields: &Fields, number: u64) -> Vec<Fields> {
    blobs(fields, number).iter().map(|bytes| self::fields(bytes)).collect()
}

pub fn blobs(fields: &Fields, number: u64) -> Vec<Vec<u8>> {
    let found = fields.iter().filter(|(n, _)| *n == number);
    found.map(|(_, field)| if let Field::Bytes(bytes) = field { bytes.clone() } else { panic!("{field:?}") }).collect()
}

pub fn texts(fields: &Fields, number: u64) -> Vec<String> {
    blobs(fields, number).into_iter().map(|bytes| String::from_utf8(bytes).expect("text")).collect()
}

fn integer(fields: &Fields, number: u64) -> u64 {
    let found = fields.iter().find(|(n, _)| *n == number);
    found.map_or(0, |(_, field)| if let Field::Integer(value) = field { *value } else { panic!("{field:?}") })
}

/// The events of a file, up to its first torn record.
pub fn event_file(path: &Path) -> Vec<Fields> {
    const CASTAGNOLI: u32 = 0x82f6_3b78;
    let masked = |bytes: &[u8]| crc(CASTAGNOLI, bytes.iter().copied()).rotate_right(15).wrapping_add(0xa282_ead8);
    let bytes = std::fs::read(path).expect("a file");
    let (mut rest, mut events) = (&bytes[..], Vec::new());
    while rest.len() >= 12 {
        let length = u64::from_le_bytes(rest[..8].try_into().expect("8")) as usize;
        assert_eq!(u32::from_le_bytes(rest[8..12].try_into().expect("4")), masked(&rest[..8]));
        let Some(whole) = rest.get(12..12 + length + 4) else { break };
        let (event, checksum) = whole.split_at(length);
        assert_eq!(u32::from_le_bytes(checksum.try_into().expect("4")), masked(event));
        events.push(fields(event));
        rest = &rest[12 + length + 4..];
    }
    events
}

pub fn event_files(logs: &Path) -> Vec<PathBuf> {
    let mut files = names(&logs.join("tensorboard"));
    files.sort();
    files
}

pub fn names(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

/// The points that TensorBoard shows for a folder: where a session starts, later steps are dropped.
pub fn tensorboard(logs: &Path) -> Points {
    let mut points = Points::new();
    for file in event_files(logs) {
        let events = event_file(&file);
        assert_eq!(texts(&events[0], 3), ["brain.Event:2"]);
        for event in events {
            let step = integer(&event, 2);
            if messages(&event, 7).iter().any(|session| integer(session, 1) == 1) {
                points.retain(|(_, other, _)| *other < step);
            }
            for value in messages(&event, 5).iter().flat_map(|summary| messages(summary, 1)) {
                if let Some((_, Field::Float(number))) = value.iter().find(|(number, _)| *number == 2) {
                    points.push((texts(&value, 1).remove(0), step, (*number).into()));
                }
            }
        }
    }
    points
}

/// The records of a W&B log, all of which must be valid.
pub fn wandb_records(logs: &Path) -> Vec<Fields> {
    const IEEE: u32 = 0xedb8_8320;
    let bytes = std::fs::read(wandb_log(logs)).expect("a log");
    assert_eq!(bytes[..7], *b":W&B\xe1\xbe\x00");
    let (mut at, mut records, mut open) = (7, Vec::new(), Vec::new());
    while at < bytes.len() {
        let left = 32_768 - at % 32_768;
        if left < 7 {
            assert!(bytes[at..at + left].iter().all(|byte| *byte == 0));
            at += left;
            continue;
        }
        let length = usize::from(u16::from_le_bytes(bytes[at + 4..at + 6].try_into().expect("2")));
        assert!(length + 7 <= left, "a piece leaves its block");
        let (kind, piece) = (bytes[at + 6], &bytes[at + 7..at + 7 + length]);
        let checksum = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
        assert_eq!(checksum, crc(IEEE, std::iter::once(kind).chain(piece.iter().copied())), "at {at}");
        assert_eq!(matches!(kind, 1 | 2), open.is_empty());
        open.extend(piece);
        if matches!(kind, 1 | 4) {
            records.push(fields(&std::mem::take(&mut open)));
        }
        at += 7 + length;
    }
    assert!(open.is_empty(), "the last record is torn");
    for (index, record) in records.iter().enumerate() {
        assert_eq!(integer(record, 1), index as u64 + 1, "records are numbered");
    }
    records
}

pub fn wandb_log(logs: &Path) -> PathBuf {
    let mut runs = names(&logs.join("wandb"));
    assert_eq!(runs.len(), 1, "one folder a run");
    let files = names(&runs.remove(0));
    files.into_iter().find(|file| file.extension().is_some_and(|end| end == "wandb")).expect("a log")
}

/// Keys and values of the items of histories, summaries and statistics.
pub fn items(record: &Fields, number: u64) -> BTreeMap<String, String> {
    let items = messages(record, number);
    let key = |item: &Fields| texts(item, 1).into_iter().chain(texts(item, 2)).next().expect("a key");
    items.iter().map(|item| (key(item), texts(item, 16).remove(0))).collect()
}

pub fn wandb(logs: &Path) -> Points {
    let mut points = Points::new();
    let histories = wandb_records(logs).iter().flat_map(|record| messages(record, 2)).collect::<Vec<_>>();
    for (index, history) in histories.iter().enumerate() {
        let items = items(history, 1);
        assert_eq!(items["_step"], index.to_string(), "W&B counts rows");
        let step = items["train/global_step"].parse().expect("a step");
        for (name, value) in items.iter().filter(|(name, _)| !name.starts_with('_') && *name != "train/global_step") {
            let value = match &**value {
                "NaN" => f64::NAN,
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                number => number.parse().expect("a number"),
            };
            points.push((name.clone(), step, value));
        }
    }
    points
}

pub fn jsonl(logs: &Path) -> Points {
    let text = std::fs::read_to_string(logs.join("metrics.jsonl")).expect("a file");
    assert!(text.is_empty() || text.ends_with('\n'));
    let mut points = Points::new();
    for line in text.lines() {
        let line = serde_json::from_str::<Value>(line).expect("JSON");
        let line = line.as_object().expect("an object");
        for (name, value) in line.iter().filter(|(name, _)| name.contains('/')) {
            let value = if value.is_null() { f64::NAN } else { value.as_f64().expect("a number") };
            points.push((name.clone(), line["step"].as_u64().expect("a step"), value));
        }
    }
    points
}

pub fn csv(logs: &Path) -> Points {
    let text = std::fs::read_to_string(logs.join("metrics.csv")).expect("a file");
    let mut lines = text.strip_suffix("\r\n").expect("an end").split("\r\n");
    let names = lines.next().expect("a header").split(',').collect::<Vec<_>>();
    assert_eq!(names[..2], ["step", "time_s"]);
    let mut points = Points::new();
    for line in lines {
        let fields = line.split(',').collect::<Vec<_>>();
        assert_eq!(fields.len(), names.len(), "{line}");
        for (name, field) in names.iter().zip(&fields).skip(2).filter(|(_, field)| !field.is_empty()) {
            points.push(((*name).to_owned(), fields[0].parse().expect("a step"), field.parse().expect("a number")));
        }
    }
    points
}

/// The one run of a file store.
pub fn mlflow_run(root: &Path) -> PathBuf {
    let experiments = names(root).into_iter().filter(|folder| !folder.ends_with("0")).collect::<Vec<_>>();
    assert_eq!(experiments.len(), 1);
    let mut runs = names(&experiments[0]).into_iter().filter(|path| path.is_dir()).collect::<Vec<_>>();
    assert_eq!(runs.len(), 1);
    runs.remove(0)
}

pub fn mlflow(logs: &Path) -> Points {
    let metrics = mlflow_run(&logs.join("mlruns")).join("metrics");
    let mut points = Points::new();
    for group in names(&metrics) {
        for file in names(&group) {
            let name = file.strip_prefix(&metrics).expect("inside").to_str().expect("text").to_owned();
            for line in std::fs::read_to_string(&file).expect("text").lines() {
                let [_, value, step] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
                points.push((name.clone(), step.parse().expect("a step"), value.parse().expect("a number")));
            }
        }
    }
    points
}

/// Reads the logs in a folder.
pub type Read = fn(&Path) -> Points;

/// All formats, by name.
pub const ALL: [(&str, Read); 5] =
    [("tensorboard", tensorboard), ("wandb", wandb), ("jsonl", jsonl), ("csv", csv), ("mlflow", mlflow)];

/// The steps and values of a metric, in order.
pub fn of(points: &Points, metric: &str) -> Vec<(u64, f64)> {
    points.iter().filter(|(name, ..)| name == metric).map(|(_, step, value)| (*step, *value)).collect()
}
