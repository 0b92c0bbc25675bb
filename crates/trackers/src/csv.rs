//! Comma-separated values: one row per log, with the same columns in every run. Missing values are empty; others that
//! are not finite are `NaN`, `inf` or `-inf`, as spreadsheets and pandas read them. Source: RFC 4180.
//! The machine's metrics are excluded, since their columns would depend on its cards.

use crate::appender::Appender;
use crate::lines::before_step;
use crate::row::{METRICS, Row};
use crate::writer::{Begin, End, WriteError, Writer};
use plimsoll_files::{Disk, Log};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// The file.
pub(crate) const FILE: &str = "metrics.csv";

const LINE_END: &str = "\r\n";

pub(crate) struct Csv {
    file: Appender,
}

impl Csv {
    /// Errors: also if the file has other columns.
    pub(crate) fn open(disk: &Disk, begin: &Begin) -> Result<Self, WriteError> {
        let header = format!("step,time_s,{}{LINE_END}", METRICS.join(","));
        let step_of = |line: &[u8]| str::from_utf8(line).ok()?.split(',').next()?.parse().ok();
        let path = begin.logs()?.folder.join(FILE);
        let mut file = Appender::open(disk, &path, |log| {
            if !has_header(log, header.as_bytes())? {
                let message = format!("{} has other columns; move it away", path.display());
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            before_step(log, begin.first_step, step_of)
        })?;
        if file.len() == 0 {
            file.append(header.as_bytes())?;
        }
        Ok(Self { file })
    }
}

/// Whether a file begins with these columns, or with a part of them.
fn has_header(log: &mut Log, header: &[u8]) -> io::Result<bool> {
    let mut begins = Vec::new();
    log.file().seek(SeekFrom::Start(0))?;
    log.file().take(header.len() as u64).read_to_end(&mut begins)?;
    Ok(header.starts_with(&begins))
}

impl Writer for Csv {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let mut text = String::new();
        for row in rows.iter().filter(|row| !row.of_machine) {
            let value_of = |name: &str| row.values.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
            let fields = METRICS.map(|name| value_of(name).map_or(String::new(), |value| format!("{value:?}")));
            text += &format!("{},{:?},{}{LINE_END}", row.step, row.time_s, fields.join(","));
        }
        Ok(self.file.append(text.as_bytes())?)
    }

    fn end(&mut self, _: End) -> Result<(), WriteError> {
        Ok(())
    }
}
