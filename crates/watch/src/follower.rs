//! Follows a run: updates its view on request, at a cost proportional to what was added.

use crate::activity::{Activity, activity};
use crate::reader::{Cutoffs, PROBLEMS, Reader, first_step};
use crate::run_view::{Kind, RunView, SavedCheckpoint, Standing};
use crate::text::{LINE, NAME, clean};
use plimsoll_files::{is_folder, is_there, read_text_inside};
use plimsoll_telemetry::{Branches, JournalChange, JournalError, Lineage, SCHEMA_VERSION, Tail};
use plimsoll_units::Bytes;
use serde::Deserialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of config.yaml and sample.json, far more than they need.
const SETTINGS_BYTES_MAX: Bytes = Bytes::mib(1);

/// Why a run cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The folder is not a run's.
    #[error("{} is not the folder of a run", folder.display())]
    NotARun {
        /// The folder.
        folder: PathBuf,
    },
    /// Its journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Follows a run.
#[derive(Debug, Clone)]
pub struct RunFollower {
    folder: PathBuf,
    source: Source,
    /// Shared with the code that shows it, since views are large.
    view: Arc<RunView>,
}

#[derive(Debug, Clone)]
enum Source {
    Train(Box<Train>),
    #[cfg(unix)]
    Supervised(Box<crate::supervised::Supervised>),
}

#[derive(Debug, Clone)]
struct Train {
    tail: Tail,
    lineage: Lineage,
    /// Why the branches cannot be read.
    problem: Option<String>,
    reader: Reader,
    /// Number of sessions when the settings were last read.
    settings_of: Option<usize>,
    /// State outside of the journal at the last refresh.
    folder_state: Option<FolderState>,
}

/// State of a run that can change without a new journal record.
#[derive(Debug, Clone, PartialEq)]
struct FolderState {
    activity: Activity,
    problem: Option<String>,
    /// For each checkpoint in the view, whether it exists.
    checkpoints: Vec<bool>,
}

/// An identifier derived from the folder's path.
fn id(folder: &Path) -> String {
    // FNV-1a in 64 bits.
    let bytes = folder.as_os_str().as_encoded_bytes();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

impl RunFollower {
    /// Follows the run in a folder. Errors: the folder is not a run's, or its journal cannot be read.
    pub fn open(folder: &Path) -> Result<Self, WatchError> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = folder.file_name().map_or_else(String::new, |name| clean(&name.to_string_lossy(), NAME));
        let view = |kind| RunView::new(id(&folder), folder.clone(), name.clone(), kind);
        let mut follower = if is_there(&folder.join("journal.jsonl")).unwrap_or(false) {
            let view = view(Kind::Train);
            let source = Source::Train(Box::new(Train::new(&folder, view.clone())));
            Self { folder, source, view: Arc::new(view) }
        } else {
            Self::open_supervised(view(Kind::Supervised))?
        };
        follower.refresh()?;
        Ok(follower)
    }

    #[cfg(unix)]
    fn open_supervised(view: RunView) -> Result<Self, WatchError> {
        let folder = view.folder.clone();
        match crate::supervised::Supervised::open(&folder, view.clone()) {
            Some(supervised) => {
                Ok(Self { folder, source: Source::Supervised(Box::new(supervised)), view: Arc::new(view) })
            }
            None => Err(WatchError::NotARun { folder }),
        }
    }

    #[cfg(not(unix))]
    fn open_supervised(view: RunView) -> Result<Self, WatchError> {
        Err(WatchError::NotARun { folder: view.folder })
    }

    /// The view as of the last refresh; the same value as long as nothing has changed.
    pub fn view(&self) -> &Arc<RunView> {
        &self.view
    }

    /// Whether no process is working on the run, so that the view stays as it is until one starts.
    pub(crate) fn is_idle(&self) -> bool {
        self.view.standing != Standing::Running && self.view.process.is_none()
    }

    /// Refreshes the view, and returns whether anything has changed.
    /// Errors: the journal cannot be read or was deleted; the view stays as it was.
    pub fn refresh(&mut self) -> Result<bool, WatchError> {
        let view = match &mut self.source {
            Source::Train(train) => train.refresh(&self.folder)?,
            #[cfg(unix)]
            Source::Supervised(supervised) => Some(supervised.refresh(&self.folder)?),
        };
        let changed = view.filter(|view| *view != *self.view);
        let has_changed = changed.is_some();
        self.view = changed.map_or_else(|| self.view.clone(), Arc::new);
        Ok(has_changed)
    }
}

impl Train {
    fn new(folder: &Path, view: RunView) -> Self {
        let lineage = Branches::default().lineage();
        Self {
            tail: Tail::new(&folder.join("journal.jsonl"), SCHEMA_VERSION),
            reader: Reader::new(view, lineage.clone(), Cutoffs::default()),
            lineage,
            problem: None,
            settings_of: None,
            folder_state: None,
        }
    }

    /// The current view; `None` if nothing changed since the last refresh, which is cheap to detect.
    fn refresh(&mut self, folder: &Path) -> Result<Option<RunView>, JournalError> {
        let branches = Branches::read(&folder.join("checkpoints"));
        let problem = branches.as_ref().err().map(|error| format!("its branches cannot be read: {error}"));
        let lineage = branches.unwrap_or_default().lineage();
        // If reading fails below, the next refresh must not find the state unchanged.
        let before = self.folder_state.take();
        let is_first = self.reader.view.first_s.is_none();
        let has_branched = lineage != self.lineage;
        (self.lineage, self.problem) = (lineage, problem);
        let reader = &mut self.reader;
        let change = if is_first || has_branched {
            JournalChange::Replaced
        } else {
            self.tail.read(|record| reader.take(record))?
        };
        match change {
            JournalChange::Same => {
                let folder_state = Some(self.folder_state(folder));
                if folder_state == before {
                    self.folder_state = folder_state;
                    return Ok(None);
                }
            }
            JournalChange::Appended if !reader.is_outdated => {}
            JournalChange::Appended | JournalChange::Replaced => self.read_all(folder)?,
        }
        self.reader.settle();
        let folder_state = self.folder_state(folder);
        let view = self.finished(folder, &folder_state);
        self.folder_state = Some(folder_state);
        Ok(Some(view))
    }

    fn folder_state(&self, folder: &Path) -> FolderState {
        let checkpoints = folder.join("checkpoints");
        let is_there =
            |saved: &SavedCheckpoint| is_folder(&checkpoints.join(format!("step-{:06}", saved.step))).unwrap_or(false);
        let checkpoints = self.reader.view.checkpoints.iter().map(is_there).collect();
        FolderState { activity: activity(folder), problem: self.problem.clone(), checkpoints }
    }

    /// Reads the whole journal twice: first to find where sessions begin, then their records.
    fn read_all(&mut self, folder: &Path) -> Result<(), JournalError> {
        let old = &self.reader.view;
        let mut view = RunView::new(old.id.clone(), old.folder.clone(), old.name.clone(), Kind::Train);
        if let Some(name) = folder.file_name() {
            view.name = clean(&name.to_string_lossy(), NAME);
        }
        let mut first_steps = Vec::new();
        let mut ahead = self.tail.clone();
        ahead.rewind();
        ahead.read(|record| first_steps.extend(first_step(&record, &self.lineage)))?;
        self.reader = Reader::new(view, self.lineage.clone(), Cutoffs::of(first_steps));
        self.tail.rewind();
        let reader = &mut self.reader;
        self.tail.read(|record| reader.take(record))?;
        Ok(())
    }

    /// Adds everything to the view that is not in the journal.
    fn finished(&mut self, folder: &Path, folder_state: &FolderState) -> RunView {
        let mut view = self.reader.view.clone();
        let activity = &folder_state.activity;
        if view.standing == Standing::Running && !activity.is_running {
            (view.standing, view.seconds_left) = (Standing::CutShort, None);
        }
        view.is_paused &= view.standing == Standing::Running;
        (view.process, view.process_uid, view.processes) = (activity.process, activity.uid, activity.processes.clone());
        view.problems.extend(folder_state.problem.as_deref().map(|problem| clean(problem, LINE)));
        for (saved, is_there) in view.checkpoints.iter_mut().zip(&folder_state.checkpoints) {
            saved.is_there = *is_there;
        }
        // Settings are written before a session's first record, and the sample before its last.
        if self.settings_of != Some(view.sessions) || view.settings.is_none() {
            view.settings = text(&mut view.problems, folder, "config.yaml");
            self.reader.view.settings.clone_from(&view.settings);
            self.settings_of = Some(view.sessions);
        }
        view.device = view.setting("device");
        if view.standing != Standing::Running {
            let sample = text(&mut view.problems, folder, "sample.json");
            view.sample = sample.and_then(|sample| parsed(&mut view.problems, "sample.json", &sample));
        }
        view.problems.truncate(PROBLEMS);
        view
    }
}

/// The text of one of the folder's files; `None` if it does not exist or cannot be read. The latter is listed as a
/// problem.
fn text(problems: &mut Vec<String>, folder: &Path, name: &str) -> Option<String> {
    match read_text_inside(&folder.join(name), 1, SETTINGS_BYTES_MAX) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            problems.push(clean(&format!("{name} can't be read: {error}"), LINE));
            None
        }
    }
}

fn parsed<T: for<'a> Deserialize<'a>>(problems: &mut Vec<String>, name: &str, text: &str) -> Option<T> {
    let read = serde_json::from_str(text);
    read.map_err(|error| problems.push(clean(&format!("{name} is damaged: {error}"), LINE))).ok()
}
