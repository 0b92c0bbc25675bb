//! Which runs there are, and those that are followed: whoever runs, the newest, and those that somebody named.

use crate::alive::alive;
use crate::follower::{RunFollower, WatchError};
use crate::run_view::{Kind, RunView};
use crate::text::{NAME, clean};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// Entries of a folder that are looked at.
const ENTRIES: usize = 20_000;

/// Runs that are listed.
const MOST: usize = 1_000;

/// Between two looks for runs that are new.
const DISCOVER_EVERY: Duration = Duration::from_secs(3);

/// A run's folder.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The folder, from the root.
    pub folder: PathBuf,
    /// Its name.
    pub name: String,
    /// Who trains there.
    pub kind: Kind,
    /// When something was written to its journal last: seconds since 1970.
    pub changed_s: f64,
    /// Whether somebody is at it.
    pub is_running: bool,
}

/// Where runs are looked for.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Folders of runs.
    pub roots: Vec<PathBuf>,
    /// The user's folder of names of runs (`plimsoll_supervise::Registry`).
    pub state: Option<PathBuf>,
}

/// All runs that were found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Runs {
    /// Those that run first, then the newest.
    pub found: Vec<Found>,
    /// How many others there are.
    pub more: usize,
}

impl Runs {
    /// Looks for runs. What can't be read is none.
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
            let is_running = alive(&folder).is_running;
            Found { folder, name, kind, changed_s, is_running }
        });
        let mut found = found.collect::<Vec<_>>();
        found.sort_by_key(|run| !run.is_running);
        Self { found, more }
    }
}

/// Who trains in a folder, and when its journal was written to; none if it has none.
fn journal(folder: &Path) -> Option<(Kind, f64)> {
    let changed = |name: &str| {
        let metadata = fs::symlink_metadata(folder.join(name)).ok().filter(fs::Metadata::is_file)?;
        let since = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH);
        Some(since.map_or(0.0, |since| since.as_secs_f64()))
    };
    let train = changed("journal.jsonl").map(|changed_s| (Kind::Train, changed_s));
    let of_supervisor = || changed("supervisor.jsonl").or_else(|| changed("process.json"));
    train.or_else(|| cfg!(unix).then(of_supervisor).flatten().map(|changed_s| (Kind::Supervised, changed_s)))
}

#[cfg(unix)]
fn registered(places: &Places) -> Vec<PathBuf> {
    let Some(state) = &places.state else { return vec![] };
    // Folders that are listed above are not read twice.
    let registry = plimsoll_supervise::Registry { state: Some(state.clone()), runs: PathBuf::new() };
    registry.entries().into_iter().map(|entry| entry.folder).collect()
}

#[cfg(not(unix))]
fn registered(_: &Places) -> Vec<PathBuf> {
    vec![]
}

/// Runs that are followed.
pub struct RunsFollower {
    places: Places,
    /// Those that are followed whatever else there is.
    named: Vec<PathBuf>,
    /// How many are followed that nobody named.
    most: usize,
    all: Runs,
    discovered: Option<Instant>,
    followers: Vec<RunFollower>,
}

impl RunsFollower {
    /// Follows the runs in these folders; where none is named those of the places that run, and the newest, in all so many.
    /// Errors: one that is named is none.
    pub fn new(places: Places, named: Vec<PathBuf>, most: usize) -> Result<Self, WatchError> {
        let followers = named.iter().map(|folder| RunFollower::open(folder)).collect::<Result<_, _>>()?;
        Ok(Self { places, named, most, all: Runs::default(), discovered: None, followers })
    }

    /// Looks again at what is followed, and now and then for what is new. Whether anything has changed.
    pub fn refresh(&mut self) -> bool {
        let mut has_changed = false;
        let looks_for_new =
            self.named.is_empty() && self.discovered.is_none_or(|then| then.elapsed() >= DISCOVER_EVERY);
        if looks_for_new {
            has_changed |= self.discover();
            self.discovered = Some(Instant::now());
        }
        // What begins again is noticed as soon as what is new.
        let looks_at_idle = looks_for_new || !self.named.is_empty();
        for follower in self.followers.iter_mut().filter(|follower| looks_at_idle || !follower.is_idle()) {
            // A journal that can't be read now may be later; the view stays as it was.
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

    /// The runs, those that run first, then the newest; named ones as they were named. One that is as it was is the same value.
    pub fn views(&self) -> impl Iterator<Item = &Arc<RunView>> {
        self.followers.iter().map(RunFollower::view)
    }

    /// All runs that were found when they were looked for last.
    pub fn all(&self) -> &Runs {
        &self.all
    }
}
