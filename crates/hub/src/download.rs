//! Fetches the weights of a model, and the few files that are needed with them, into the cache of the hub's tools. An interrupted
//! download is continued by the next one.
//! Not here: requests (`client.rs`), and the cache's layout (`store.rs`).

use crate::cached::{cache, home};
use crate::client::{Client, Incoming, Listing, RemoteFile, strange};
use crate::error::{DownloadError, HubError};
use crate::index::{INDEX_BYTES_MAX, Index};
use crate::steady::LEAST;
use crate::store::Store;
use plimsoll_data::MODEL_FILES;
use plimsoll_files::free_space;
use plimsoll_train::checkpoint::{CONFIG_FILE, INDEX_FILE, MODEL_FILE};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// Files that are fetched with the weights if they exist.
const WITH_WEIGHTS: &[&str] = &MODEL_FILES;

/// The longest accepted file other than weights.
const SMALL_BYTES_MAX: Bytes = Bytes::mib(64);

/// The most shards accepted; the largest models have about two hundred.
const SHARDS_MAX: usize = 2000;

/// Milliseconds of delay after each consecutive attempt that received nothing.
const WAITS: [u64; 4] = [500, 1000, 2000, 4000];

/// Progress of a download.
#[derive(Debug)]
pub enum Progress<'a> {
    /// The files are known and the download begins.
    Begins {
        /// Number of files.
        files: usize,
        /// Size of all files.
        total: Bytes,
        /// Bytes still to be downloaded.
        missing: Bytes,
        /// The cache.
        cache: &'a Path,
    },
    /// Bytes arrived, or were found on disk.
    Added(u64),
    /// Bytes that were counted earlier are fetched again.
    Dropped(u64),
    /// All files are complete.
    Complete,
    /// A file that is fetched although it can't be verified.
    Unverified {
        /// Its name.
        file: &'a str,
        /// Why it can't.
        problem: &'a str,
    },
    /// Another process fetches the file; this one waits.
    Waits {
        /// Its name.
        file: &'a str,
    },
    /// An attempt failed and is repeated.
    Retries {
        /// Why it failed.
        error: &'a HubError,
        /// Time until the next attempt.
        wait: Duration,
    },
}

/// What to fetch of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// Everything that a run from its weights needs.
    All,
    /// Its configuration and tokenizer.
    WithoutWeights,
}

/// Receives progress.
type Tell<'t> = &'t dyn Fn(Progress<'_>);

/// A model at a commit.
struct Model<'m> {
    client: &'m Client,
    name: &'m str,
    listing: Listing,
    tell: Tell<'m>,
}

/// Fetches a model into the cache and returns its folder there. `tell` receives the progress. Errors: the hub has no such model,
/// refuses it or can't be reached; it has no weights that can be read; the disk has no room; a file is not what the hub
/// describes.
pub fn download(name: &str, parts: Parts, tell: &dyn Fn(Progress<'_>)) -> Result<PathBuf, DownloadError> {
    refuse_offline()?;
    let cache = cache().ok_or(DownloadError::NoCache)?;
    let client = Client::from_environment(home())?;
    fetch(&client, &cache, name, parts, tell).map_err(|failed| match failed {
        Failed::Hub(source) => DownloadError::Hub {
            endpoint: client.endpoint().to_owned(),
            has_token: client.has_token(),
            withholds_token: client.withholds_token(),
            source,
        },
        Failed::Other(error) => error,
    })
}

/// Why a model was not fetched.
enum Failed {
    Hub(HubError),
    Other(DownloadError),
}

impl From<HubError> for Failed {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

fn fetch(client: &Client, cache: &Path, name: &str, parts: Parts, tell: Tell<'_>) -> Result<PathBuf, Failed> {
    let listing = patiently(tell, |_| client.listing(name))?;
    let model = Model { client, name, listing, tell };
    let store = Store::new(cache, name);
    let mut names = model.small_files()?;
    let is_sharded = parts == Parts::All && model.is_sharded()?;
    let index = if is_sharded { Some(model.index()?) } else { None };
    match &index {
        Some(index) => {
            names.push(INDEX_FILE.to_owned());
            names.extend(model.shards(index)?);
        }
        None if parts == Parts::All => names.push(MODEL_FILE.to_owned()),
        None => {}
    }
    let mut files = model.described(&names)?;
    check_hashes(&files, tell)?;
    let missing = files.iter().map(|file| file.size.0 - store.held(file)).fold(0, u64::saturating_add);
    check_room(cache, Bytes(missing)).map_err(Failed::Other)?;
    let total = Bytes(files.iter().map(|file| file.size.0).fold(0, u64::saturating_add));
    tell(Progress::Begins { files: files.len(), total, missing: Bytes(missing), cache });
    for file in &files {
        model.fetch(&store, file, index.as_deref().filter(|_| file.name == INDEX_FILE))?;
    }
    tell(Progress::Complete);
    // The files that mark a folder as complete come last.
    files.sort_by_key(|file| [INDEX_FILE, MODEL_FILE].contains(&file.name.as_str()));
    Ok(store.publish(&model.listing.commit, &files)?)
}

/// Reports the files that can't be verified. Errors: weights are among them.
fn check_hashes(files: &[RemoteFile], tell: Tell<'_>) -> Result<(), HubError> {
    for file in files.iter().filter(|file| file.hash().is_none()) {
        let problem = "it can't be verified: the server sends no hash of its contents";
        if file.name.ends_with(".safetensors") {
            return Err(HubError::Unverified { file: file.name.clone(), problem });
        }
        tell(Progress::Unverified { file: &file.name, problem });
    }
    Ok(())
}

/// Errors: the environment forbids network access. Source: huggingface_hub, "Environment variables".
fn refuse_offline() -> Result<(), DownloadError> {
    let is_set = |name: &&&'static str| {
        let value = std::env::var(name).unwrap_or_default().to_ascii_lowercase();
        ["1", "on", "yes", "true"].contains(&value.as_str())
    };
    match ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().find(is_set) {
        Some(variable) => Err(DownloadError::Offline { variable }),
        None => Ok(()),
    }
}

/// Errors: the disk has no room for this size. Nothing is written then.
fn check_room(cache: &Path, missing: Bytes) -> Result<(), DownloadError> {
    match free_space(cache) {
        Ok(room) if room < missing => Err(DownloadError::NoRoom { cache: cache.to_owned(), room, missing }),
        // If the system does not report free space, writing fails instead.
        _ => Ok(()),
    }
}

impl Model<'_> {
    fn strange(&self, file: &str, problem: impl ToString) -> HubError {
        strange(&self.client.url(self.name, &self.listing.commit, file), problem)
    }

    /// The files other than weights. Errors: it has no configuration.
    fn small_files(&self) -> Result<Vec<String>, Failed> {
        if !self.listing.has(CONFIG_FILE) {
            return Err(self.lacks(CONFIG_FILE));
        }
        let others = WITH_WEIGHTS.iter().filter(|file| self.listing.has(file));
        Ok([CONFIG_FILE].iter().chain(others).map(|&file| file.to_owned()).collect())
    }

    /// Whether its weights are sharded. Errors: it has no readable weights.
    fn is_sharded(&self) -> Result<bool, Failed> {
        let [has_file, has_index] = [MODEL_FILE, INDEX_FILE].map(|file| self.listing.has(file));
        if !has_file && !has_index {
            return Err(self.lacks("weights in safetensors"));
        }
        Ok(!has_file)
    }

    fn lacks(&self, lacks: &'static str) -> Failed {
        let page = format!("{}/{}", self.client.endpoint(), self.name);
        Failed::Other(DownloadError::NoWeights { name: self.name.to_owned(), lacks, page })
    }

    fn index(&self) -> Result<Vec<u8>, HubError> {
        patiently(self.tell, |_| self.client.contents(self.name, &self.listing.commit, INDEX_FILE, INDEX_BYTES_MAX))
    }

    /// The files of these names. Errors: the hub does not describe one, or a file other than weights is too large.
    fn described(&self, names: &[String]) -> Result<Vec<RemoteFile>, HubError> {
        let commit = &self.listing.commit;
        let described =
            names.iter().map(|file| patiently(self.tell, |_| self.client.describe(self.name, commit, file)));
        let files = described.collect::<Result<Vec<_>, _>>()?;
        let is_long = |file: &&RemoteFile| !file.name.ends_with(".safetensors") && file.size > SMALL_BYTES_MAX;
        match files.iter().find(is_long) {
            Some(file) => Err(self.strange(&file.name, format!("it has {}, more than {SMALL_BYTES_MAX}", file.size))),
            None => Ok(files),
        }
    }

    /// The shards that an index names. These names are untrusted; only files in the same folder are accepted.
    fn shards(&self, index: &[u8]) -> Result<BTreeSet<String>, HubError> {
        let index = serde_json::from_slice::<Index>(index).map_err(|error| self.strange(INDEX_FILE, error))?;
        let shards = index.weight_map.into_values().collect::<BTreeSet<_>>();
        if shards.is_empty() || shards.len() > SHARDS_MAX {
            return Err(self.strange(INDEX_FILE, format!("it names {} shards", shards.len())));
        }
        match shards.iter().find(|shard| !is_shard(shard) || !self.listing.has(shard)) {
            Some(shard) => {
                Err(self.strange(INDEX_FILE, format!("it names `{shard}`, which is not a file in the same folder")))
            }
            None => Ok(shards),
        }
    }

    /// Fetches the missing bytes of a file, some or all of which may be on disk already.
    fn fetch(&self, store: &Store, file: &RemoteFile, contents: Option<&[u8]>) -> Result<(), HubError> {
        let counted = store.held(file);
        let waits = || (self.tell)(Progress::Waits { file: &file.name });
        let added = |bytes| (self.tell)(Progress::Added(bytes));
        let dropped = |bytes| (self.tell)(Progress::Dropped(bytes));
        let Some(mut partial) = store.partial(file, waits)? else {
            added(file.size.0 - counted);
            return Ok(());
        };
        if let Some(mut contents) = contents {
            dropped(counted);
            partial.restart()?;
            // Memory can always be read.
            let _ = partial.append(&mut contents, &added)?;
            return store.finish(partial, file);
        }
        let held = partial.held()?;
        added(held.saturating_sub(counted));
        let mut sends_parts = true;
        patiently(self.tell, |furthest| {
            let held = partial.held()?;
            if held >= file.size.0 {
                return Ok(());
            }
            // The server may send different contents than before, which only a hash detects.
            let from = if file.hash().is_some() { held } else { 0 };
            let Incoming { start, mut body } = self.client.open(self.name, &self.listing.commit, file, from)?;
            sends_parts &= start == from;
            if start < held {
                dropped(held);
                partial.restart()?;
            }
            let ended = partial.append(&mut body, &added)?;
            let held = partial.held()?;
            *furthest = held;
            let lost = |problem: String| HubError::Lost {
                url: self.client.url(self.name, &self.listing.commit, &file.name),
                problem: if sends_parts { problem } else { format!("{problem}; the server sends no parts of files") },
            };
            match ended {
                Err(error) => Err(lost(error.to_string())),
                Ok(()) if held < file.size.0 => {
                    Err(lost(format!("the connection was closed after {held} of {} bytes", file.size.0)))
                }
                Ok(()) => Ok(()),
            }
        })?;
        store.finish(partial, file)
    }
}

/// Whether a name is a shard in the same folder.
fn is_shard(name: &str) -> bool {
    let may_be = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= 200 && !name.starts_with('.') && name.ends_with(".safetensors") && name.chars().all(may_be)
}

/// Retries after lost connections, with growing delays, until several consecutive attempts received nothing new. An attempt
/// returns the number of bytes on disk after it; bytes from before, and a trickle, are not new.
/// Errors: those of the last attempt.
fn patiently<T>(tell: Tell<'_>, mut attempt: impl FnMut(&mut u64) -> Result<T, HubError>) -> Result<T, HubError> {
    let (mut failures, mut furthest) = (0, 0);
    loop {
        let mut there = 0;
        match attempt(&mut there) {
            Err(error @ HubError::Lost { .. }) => {
                if there >= furthest + LEAST {
                    (failures, furthest) = (0, there);
                }
                let Some(&wait) = WAITS.get(failures) else { return Err(error) };
                let wait = Duration::from_millis(wait);
                failures += 1;
                tell(Progress::Retries { error: &error, wait });
                sleep(wait);
            }
            done => return done,
        }
    }
}
