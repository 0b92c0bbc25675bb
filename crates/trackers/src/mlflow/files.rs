//! MLflow's file store: one folder per experiment, one folder per run, one file per metric, one line per value.
//! Source: the files that MLflow's `FileStore` writes and reads.
//!
//! ```text
//!   mlruns/264748926002162641/meta.yaml                            the experiment
//!                            /5ffe59e562c14a51b6152b25e3a7bea6/meta.yaml
//!                                                             /metrics/train/loss    milliseconds value step
//!                                                             /params/learning_rate
//!                                                             /tags/mlflow.runName
//! ```

use super::{RUNNING, milliseconds, params, status};
use crate::appender::Appender;
use crate::lines::before_step;
use crate::row::{METRICS, Row};
use crate::writer::{Begin, End, WriteError, Writer};
use plimsoll_files::{Disk, is_there, read_text};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const META: &str = "meta.yaml";

const META_BYTES_MAX: Bytes = Bytes::mib(1);

/// Maximum number of folders searched for an experiment.
const EXPERIMENTS: usize = 10_000;

pub(crate) struct Files {
    disk: Disk,
    /// The run's folder.
    folder: PathBuf,
    /// The run's description, without status and end time.
    run: Description,
    metrics: BTreeMap<String, Appender>,
    first_step: u64,
}

#[derive(Debug, Clone)]
struct Description {
    experiment: String,
    id: String,
    name: String,
    began_ms: u64,
}

impl Files {
    pub(crate) fn open(disk: &Disk, root: &Path, begin: &Begin) -> Result<Self, WriteError> {
        let logs = begin.logs()?;
        let root = std::path::absolute(root)?;
        disk.create_folders(&root)?;
        let now = milliseconds(begin.time_s);
        // MLflow requires this experiment to exist.
        describe_experiment(disk, &root, "0", "Default", now)?;
        let experiment = experiment_of(&root, &begin.project);
        describe_experiment(disk, &root, &experiment, &begin.project, now)?;
        let folder = root.join(&experiment).join(&logs.ids.mlflow);
        for part in ["metrics", "params", "tags", "artifacts"] {
            disk.create_folders(&folder.join(part))?;
        }
        for (key, value) in params(begin) {
            write(disk, &folder.join("params").join(key), value.as_bytes())?;
        }
        let tags =
            [("mlflow.runName", &*begin.name), ("mlflow.source.name", "plimsoll"), ("mlflow.source.type", "LOCAL")];
        for (key, value) in tags {
            write(disk, &folder.join("tags").join(key), value.as_bytes())?;
        }
        let began_ms = milliseconds(logs.ids.began_s);
        let run = Description { experiment, id: logs.ids.mlflow.clone(), name: begin.name.clone(), began_ms };
        let mut files =
            Self { disk: disk.clone(), folder, run, metrics: BTreeMap::new(), first_step: begin.first_step };
        files.describe(RUNNING, None)?;
        // An earlier session may have logged metrics that this one does not.
        for name in METRICS {
            if is_there(&files.path_of(name))? {
                files.metric(name)?;
            }
        }
        Ok(files)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join("metrics").join(name)
    }

    /// The file of a metric, without the repeated steps.
    fn metric(&mut self, name: &str) -> io::Result<&mut Appender> {
        if !self.metrics.contains_key(name) {
            let path = self.path_of(name);
            self.disk.create_folders(path.parent().unwrap_or(&self.folder))?;
            let step_of = |line: &[u8]| str::from_utf8(line).ok()?.split_whitespace().nth(2)?.parse().ok();
            let file = Appender::open(&self.disk, &path, |log| before_step(log, self.first_step, step_of))?;
            self.metrics.insert(name.to_owned(), file);
        }
        Ok(self.metrics.get_mut(name).expect("it was just inserted"))
    }

    /// Texts are JSON strings, which are also valid YAML.
    fn describe(&self, status: u32, end_ms: Option<u64>) -> io::Result<()> {
        let Description { experiment, id, name, began_ms } = &self.run;
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let end = end_ms.map_or("null".to_owned(), |end| end.to_string());
        let yaml = format!(
            "artifact_uri: {}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '{experiment}'\nlifecycle_stage: active\n\
             run_id: {id}\nrun_name: {}\nrun_uuid: {id}\nsource_name: ''\nsource_type: 4\nsource_version: ''\n\
             start_time: {began_ms}\nstatus: {status}\ntags: []\nuser_id: ''\n",
            text(&uri(&self.folder.join("artifacts"))),
            text(name),
        );
        write(&self.disk, &self.folder.join(META), yaml.as_bytes())
    }
}

/// Writes a small file, unless it already has the same contents.
fn write(disk: &Disk, path: &Path, contents: &[u8]) -> io::Result<()> {
    match read_text(path, META_BYTES_MAX) {
        Ok(there) if there.as_bytes() == contents => Ok(()),
        _ => disk.replace(path, contents),
    }
}

/// A file's URI.
fn uri(path: &Path) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    format!("file://{}", path.as_os_str().as_encoded_bytes().iter().map(|byte| encode(*byte)).collect::<String>())
}

fn describe_experiment(disk: &Disk, root: &Path, id: &str, name: &str, now_ms: u64) -> io::Result<()> {
    let folder = root.join(id);
    let path = folder.join(META);
    if is_there(&path)? {
        return Ok(());
    }
    disk.create_folders(&folder)?;
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let yaml = format!(
        "artifact_location: {}\ncreation_time: {now_ms}\nexperiment_id: '{id}'\nlast_update_time: {now_ms}\n\
         lifecycle_stage: active\nname: {}\n",
        text(&uri(&folder)),
        text(name)
    );
    disk.replace(&path, yaml.as_bytes())
}

/// The id of the experiment with this name: an existing one, or one derived from the name, so that runs that start at
/// the same time agree.
fn experiment_of(root: &Path, name: &str) -> String {
    let is_it = |folder: &PathBuf| {
        let meta = read_text(&folder.join(META), META_BYTES_MAX).unwrap_or_default();
        let named = meta.lines().find_map(|line| line.strip_prefix("name: "));
        let quoted = serde_json::Value::from(name).to_string();
        named.is_some_and(|named| [name, &quoted].contains(&named))
    };
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten().take(EXPERIMENTS).map(|entry| entry.path());
    let mut found = entries.filter(is_it).collect::<Vec<_>>();
    found.sort();
    let found = found.first().and_then(|folder| Some(folder.file_name()?.to_str()?.to_owned()));
    found.filter(|id| id.bytes().all(|digit| digit.is_ascii_digit())).unwrap_or_else(|| {
        let [high, low] = [0, 1].map(|seed| {
            let mut hasher = crc32fast::Hasher::new_with_initial(seed);
            hasher.update(name.as_bytes());
            u64::from(hasher.finalize())
        });
        // Eighteen digits, like MLflow's own.
        (100_000_000_000_000_000 + (high << 32 | low) % 900_000_000_000_000_000).to_string()
    })
}

impl Writer for Files {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let mut lines = BTreeMap::<&str, String>::new();
        for row in rows {
            for (name, value) in &row.values {
                let value = if value.is_nan() { "nan".to_owned() } else { format!("{value:?}") };
                *lines.entry(name).or_default() += &format!("{} {value} {}\n", milliseconds(row.time_s), row.step);
            }
        }
        for (name, lines) in lines {
            self.metric(name)?.append(lines.as_bytes())?;
        }
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), WriteError> {
        Ok(self.describe(status(end.status).1, Some(milliseconds(end.time_s)))?)
    }
}
