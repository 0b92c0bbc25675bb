//! Finds runs, and follows the ones that are running, the newest, or the ones named by the user.

use crate::activity::activity;
use crate::follower::{RunFollower, WatchError};
use crate::run_view::{Kind, RunView};
use crate::text::{NAME, clean};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of entries read per folder.
const ENTRIES: usize = 20_000;

/// Maximum number of listed runs.
const MOST: usize = 1_000;

/// Interval between two searches for new runs.
const DISCOVER_EVERY: Duration = Duration::from_secs(3);

/// A run that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Absolute path of the folder.
    pub folder: PathBuf,
    /// Its name.
    pub name: String,
    /// Which program trains.
    pub kind: Kind,
    /// Unix time of the last write to its journal, in seconds.
    pub changed_s: f64,
    /// Whether it is running.
    pub is_running: bool,
}

/// Where to look for runs.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Folders that contain runs.
    pub roots: Vec<PathBuf>,
    /// The user's registry of runs (`plimsoll_registry::Registry`).
    pub state: Option<PathBuf>,
}

/// All runs that were found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runs {
    /// The runs: running ones first, then the newest.
    pub found: Vec<Found>,
    /// Number of further runs, which are not listed.
    pub more: usize,
}

impl Runs {
    /// Searches for runs. Folders that cannot be read are skipped.
    pub fn discover(places: &Places) -> Self {
        let mut folders = BTreeMap::new();
        for root in &places.roots {
            let entries = fs::read_dir(root).into_iter().flatten().flatten().take(ENTRIES);
            for folder in entries.map(|entry| entry.path()).chain([root.clone()]) {
                let Some((kind, changed_s)) = journal(&folder) else { continue };
                let folder = folder.canonicalize().unwrap_or(folder);
                folders.insert(folder, (kind, changed_s));
            }
        }
        for folder in registered(places) {
            folders.extend(journal(&folder).map(|journal| (folder, journal)));
        }
        let mut found = folders.into_iter().collect::<Vec<_>>();
        found.sort_by(|(a, (_, a_s)), (b, (_, b_s))| b_s.total_cmp(a_s).then_with(|| a.cmp(b)));
        let more = found.len().saturating_sub(MOST);
        found.truncate(MOST);
        let found = found.into_iter().map(|(folder, (kind, changed_s))| {
            let name = clean(&folder.file_name().unwrap_or_default().to_string_lossy(), NAME);
            let is_running = activity(&folder).is_running;
            Found { folder, name, kind, changed_s, is_running }
        });
        let mut found = found.collect::<Vec<_>>();
        found.sort_by_key(|run| !run.is_running);
        Self { found, more }
    }
}

/// Which program trains in a folder, and when its journal was last written to; `None` without a journal.
fn journal(folder: &Path) -> Option<(Kind, f64)> {
    let changed = |name: &str| {
        let metadata = fs::symlink_metadata(folder.join(name)).ok().filter(fs::Metadata::is_file)?;
        let since = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH);
        Some(since.map_or(0.0, |since| since.as_secs_f64()))
    };
    let train = changed("journal.jsonl").map(|changed_s| (Kind::Train, changed_s));
    #[cfg(unix)]
    let train = train.or_else(|| {
        let supervised = changed(plimsoll_registry::JOURNAL).or_else(|| changed(plimsoll_registry::FILE));
        supervised.map(|changed_s| (Kind::Supervised, changed_s))
    });
    train
}

#[cfg(unix)]
fn registered(places: &Places) -> Vec<PathBuf> {
    let Some(state) = &places.state else { return vec![] };
    // The folders listed above are not read twice.
    let registry = plimsoll_registry::Registry { state: Some(state.clone()), runs: PathBuf::new() };
    registry.entries().into_iter().map(|entry| entry.folder).collect()
}

#[cfg(not(unix))]
fn registered(_: &Places) -> Vec<PathBuf> {
    vec![]
}

/// Follows several runs.
pub struct RunsFollower {
    places: Places,
    /// Runs that the user named; they are always followed.
    named: Vec<PathBuf>,
    /// Maximum number of followed runs, if the user named none.
    most: usize,
    all: Runs,
    discovered: Option<Instant>,
    followers: Vec<RunFollower>,
}

impl RunsFollower {
    /// Follows the named runs; if none are named, the running and then the newest runs of `places`, at most `most` of
    /// them.
    /// Errors: a named folder is not a run's.
    pub fn new(places: Places, named: Vec<PathBuf>, most: usize) -> Result<Self, WatchError> {
        let followers = named.iter().map(|folder| RunFollower::open(folder)).collect::<Result<_, _>>()?;
        Ok(Self { places, named, most, all: Runs::default(), discovered: None, followers })
    }

    /// Refreshes the followed runs and, at intervals, searches for new ones. Returns whether anything has changed.
    pub fn refresh(&mut self) -> bool {
        let mut has_changed = false;
        let looks_for_new =
            self.named.is_empty() && self.discovered.is_none_or(|then| then.elapsed() >= DISCOVER_EVERY);
        if looks_for_new {
            has_changed |= self.discover();
            self.discovered = Some(Instant::now());
        }
        // An idle run that resumes is noticed at the same intervals as new runs.
        let looks_at_idle = looks_for_new || !self.named.is_empty();
        for follower in self.followers.iter_mut().filter(|follower| looks_at_idle || !follower.is_idle()) {
            // A journal that cannot be read now may be readable later; the view stays as it was.
            has_changed |= follower.refresh().unwrap_or(false);
        }
        has_changed
    }

    fn discover(&mut self) -> bool {
        let all = Runs::discover(&self.places);
        let mut followers = Vec::new();
        for found in all.found.iter().take(self.most) {
            let known = self.followers.iter().position(|follower| follower.view().folder == found.folder);
            followers.extend(match known {
                Some(index) => Some(self.followers.swap_remove(index)),
                None => RunFollower::open(&found.folder).ok(),
            });
        }
        let has_changed = all != self.all || !self.followers.is_empty();
        (self.followers, self.all) = (followers, all);
        has_changed
    }

    /// The runs, running ones first, then the newest; named runs in the order of their names. An unchanged view is the
    /// same value.
    pub fn views(&self) -> impl Iterator<Item = &Arc<RunView>> {
        self.followers.iter().map(RunFollower::view)
    }

    /// All runs found by the last search.
    pub fn all(&self) -> &Runs {
        &self.all
    }
}
