//! One line of JSON per log: `{"step":1,"time_s":…,"train/loss":…}`. Values that are not finite are `null`, since JSON
//! can't represent them.

use crate::appender::Appender;
use crate::lines::before_step;
use crate::row::Row;
use crate::writer::{Begin, End, WriteError, Writer};
use plimsoll_files::Disk;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The file.
pub(crate) const FILE: &str = "metrics.jsonl";

pub(crate) struct Jsonl {
    file: Appender,
}

#[derive(Deserialize)]
struct Stepped {
    step: u64,
}

impl Jsonl {
    pub(crate) fn open(disk: &Disk, begin: &Begin) -> Result<Self, WriteError> {
        let step_of = |line: &[u8]| serde_json::from_slice::<Stepped>(line).ok().map(|line| line.step);
        let path = begin.logs()?.folder.join(FILE);
        Ok(Self { file: Appender::open(disk, &path, |log| before_step(log, begin.first_step, step_of))? })
    }
}

impl Writer for Jsonl {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let mut text = String::new();
        for row in rows {
            let mut line = Map::new();
            line.insert("step".to_owned(), row.step.into());
            line.insert("time_s".to_owned(), row.time_s.into());
            line.extend(row.values.iter().map(|(name, value)| (name.to_string(), Value::from(*value))));
            text += &Value::from(line).to_string();
            text.push('\n');
        }
        Ok(self.file.append(text.as_bytes())?)
    }

    fn end(&mut self, _: End) -> Result<(), WriteError> {
        Ok(())
    }
}
