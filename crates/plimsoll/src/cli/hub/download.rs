//! `--download`: fetches the weights of a model, and the few files that are needed beside them, into the cache of the hub's
//! tools. What was fetched stays when it is interrupted, and is continued.
//! Not here: requests (`client.rs`), and the cache's layout (`store.rs`).

use super::client::{Client, HUB, HubError, Incoming, Listing, RemoteFile, SettingError, strange};
use super::steady::LEAST;
use super::store::Store;
use super::{INDEX_BYTES_MAX, cache, home};
use crate::cli::Failure;
use crate::cli::failure::line;
use crate::progress::DownloadProgress;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::{CONFIG_FILE, INDEX_FILE, MODEL_FILE};
use plimsoll_data::MODEL_FILES;
use plimsoll_files::free_space;
use plimsoll_graph::GraphError;
use plimsoll_graph::models::ModelConfig;
use plimsoll_units::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// What is fetched beside the weights where it is there.
const BESIDE: &[&str] = &MODEL_FILES;

/// Files beside the weights are shorter.
const SMALL_BYTES_MAX: Bytes = Bytes::mib(64);

/// The largest models have some two hundred.
const SHARDS_MAX: usize = 2000;

/// Milliseconds that are waited after each attempt in a row that brought nothing.
const WAITS: [u64; 4] = [500, 1000, 2000, 4000];

/// Which shard each tensor is in.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Index {
    pub(super) weight_map: BTreeMap<String, String>,
}

/// What is asked for: a model at a commit.
struct Model<'m> {
    client: &'m Client,
    name: &'m str,
    listing: Listing,
}

/// Fetches a model and gives the folder that it lies in. Errors: the hub has no such model, keeps it for others or can't be
/// reached; it has no weights that can be read; the disk has no room; what came is not what the hub says that it is.
pub(super) fn download(name: &str) -> Result<PathBuf, Failure> {
    refuse_offline()?;
    let Some(cache) = cache() else {
        return Err(Failure::device("there is no folder for the Hugging Face cache").hint("`HF_HOME` names one"));
    };
    let client = Client::from_environment(home())?;
    fetch(&client, &cache, name).map_err(|failed| failed.failure(&client, name))
}

/// Why a model was not fetched.
enum Failed {
    Hub(HubError),
    Said(Failure),
}

impl From<HubError> for Failed {
    fn from(error: HubError) -> Self {
        Self::Hub(error)
    }
}

fn fetch(client: &Client, cache: &Path, name: &str) -> Result<PathBuf, Failed> {
    let listing = patiently(|_| client.listing(name))?;
    let model = Model { client, name, listing };
    let store = Store::new(cache, name);
    let index = if model.is_sharded()? { Some(model.index()?) } else { None };
    let mut files = model.files(index.as_deref())?;
    check_hashes(&files)?;
    let missing = files.iter().map(|file| file.size.0 - store.held(file)).fold(0, u64::saturating_add);
    check_room(cache, Bytes(missing)).map_err(Failed::Said)?;
    let (count, total) = (files.len(), Bytes(files.iter().map(|file| file.size.0).fold(0, u64::saturating_add)));
    talk(format_args!("fetching {name}: {count} files, {total}, {} of it to come", Bytes(missing)));
    talk(format_args!("into {}; the same command continues after an interruption", cache.display()));
    let progress = DownloadProgress::new(total, Bytes(total.0 - missing));
    for file in &files {
        model.fetch(&store, file, index.as_deref().filter(|_| file.name == INDEX_FILE), &progress)?;
    }
    progress.finish();
    // Those that say that a folder has weights come last.
    files.sort_by_key(|file| [INDEX_FILE, MODEL_FILE].contains(&file.name.as_str()));
    Ok(store.publish(&model.listing.commit, &files)?)
}

/// Says which files can't be verified. Errors: weights are among them.
fn check_hashes(files: &[RemoteFile]) -> Result<(), HubError> {
    for file in files.iter().filter(|file| file.hash().is_none()) {
        let problem = "it can't be verified: the server names no hash of its contents";
        if file.name.ends_with(".safetensors") {
            return Err(HubError::Unverified { file: file.name.clone(), problem });
        }
        talk(format_args!("warning: {}: {problem}", file.name));
    }
    Ok(())
}

/// Errors: the environment forbids to use the network. Source: huggingface_hub, "Environment variables".
fn refuse_offline() -> Result<(), Failure> {
    let is_set = |name: &&&str| {
        let value = std::env::var(name).unwrap_or_default().to_ascii_lowercase();
        ["1", "on", "yes", "true"].contains(&value.as_str())
    };
    match ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().find(is_set) {
        Some(name) => Err(Failure::bad_flag(format!("{name} is set, so `--download` may fetch nothing"))
            .hint(format!("`unset {name}` allows it"))),
        None => Ok(()),
    }
}

/// Errors: the disk has no room for so much; nothing was written then.
fn check_room(cache: &Path, missing: Bytes) -> Result<(), Failure> {
    match free_space(cache) {
        Ok(room) if room < missing => {
            Err(Failure::device(format!("{} has room for {room}, {missing} are to come", cache.display()))
                .hint("make room, or let `HF_HOME` name a folder on another disk"))
        }
        // Where the system does not say, the disk will.
        _ => Ok(()),
    }
}

impl Model<'_> {
    fn strange(&self, file: &str, problem: impl ToString) -> HubError {
        strange(&self.client.url(self.name, &self.listing.commit, file), problem)
    }

    /// Whether its weights lie in shards. Errors: there are none that can be read, or no configuration.
    fn is_sharded(&self) -> Result<bool, Failed> {
        let [has_file, has_index, has_config] =
            [MODEL_FILE, INDEX_FILE, CONFIG_FILE].map(|file| self.listing.has(file));
        let page = format!("{}/{}", self.client.endpoint(), self.name);
        if !has_config || (!has_file && !has_index) {
            let lacks = if has_config { "weights in safetensors" } else { CONFIG_FILE };
            let failure = Failure::bad_input(format!("{} has no {lacks}, so nothing was fetched", self.name));
            return Err(Failed::Said(failure.hint(format!(
                "other formats can run code and are not read: look for a copy of the model with a {MODEL_FILE}, or ask for one \
                 on {page}"
            ))));
        }
        Ok(!has_file)
    }

    fn index(&self) -> Result<Vec<u8>, HubError> {
        patiently(|_| self.client.contents(self.name, &self.listing.commit, INDEX_FILE, INDEX_BYTES_MAX))
    }

    /// All that is fetched: small files first, so that what can't be used is known soon.
    /// Errors: an index that can't be read, or names what is no shard; what the hub does not describe.
    fn files(&self, index: Option<&[u8]>) -> Result<Vec<RemoteFile>, HubError> {
        let beside = BESIDE.iter().filter(|file| self.listing.has(file)).map(|&file| file.to_owned());
        let mut names = [CONFIG_FILE.to_owned()].into_iter().chain(beside).collect::<Vec<_>>();
        match index {
            Some(index) => {
                names.push(INDEX_FILE.to_owned());
                names.extend(self.shards(index)?);
            }
            None => names.push(MODEL_FILE.to_owned()),
        }
        let commit = &self.listing.commit;
        let described = names.iter().map(|file| patiently(|_| self.client.describe(self.name, commit, file)));
        let files = described.collect::<Result<Vec<_>, _>>()?;
        let is_long = |file: &&RemoteFile| !file.name.ends_with(".safetensors") && file.size > SMALL_BYTES_MAX;
        match files.iter().find(is_long) {
            Some(file) => Err(self.strange(&file.name, format!("it has {}, more than {SMALL_BYTES_MAX}", file.size))),
            None => Ok(files),
        }
    }

    /// The shards that an index names. Names are the only ones that come from outside: those of files beside it, and no others.
    fn shards(&self, index: &[u8]) -> Result<BTreeSet<String>, HubError> {
        let index = serde_json::from_slice::<Index>(index).map_err(|error| self.strange(INDEX_FILE, error))?;
        let shards = index.weight_map.into_values().collect::<BTreeSet<_>>();
        if shards.is_empty() || shards.len() > SHARDS_MAX {
            return Err(self.strange(INDEX_FILE, format!("it names {} shards", shards.len())));
        }
        match shards.iter().find(|shard| !is_shard(shard) || !self.listing.has(shard)) {
            Some(shard) => Err(self.strange(INDEX_FILE, format!("it names `{shard}`, which is no file beside it"))),
            None => Ok(shards),
        }
    }

    /// Fetches what is missing of a file, of which the bytes may be here already.
    fn fetch(
        &self,
        store: &Store,
        file: &RemoteFile,
        contents: Option<&[u8]>,
        progress: &DownloadProgress,
    ) -> Result<(), HubError> {
        let counted = store.held(file);
        let waits = || talk(format_args!("waiting for another process that fetches {}", file.name));
        let Some(mut partial) = store.partial(file, waits)? else {
            progress.advance(file.size.0 - counted);
            return Ok(());
        };
        if let Some(mut contents) = contents {
            progress.retreat(counted);
            partial.restart()?;
            // Memory can always be read.
            let _ = partial.append(&mut contents, |n| progress.advance(n))?;
            return store.finish(partial, file);
        }
        let held = partial.held()?;
        progress.advance(held.saturating_sub(counted));
        let mut sends_parts = true;
        patiently_saying(
            |text| talk(text),
            |furthest| {
                let held = partial.held()?;
                if held >= file.size.0 {
                    return Ok(());
                }
                // The server may send other contents than before, which only a hash shows.
                let from = if file.hash().is_some() { held } else { 0 };
                let Incoming { start, mut body } = self.client.open(self.name, &self.listing.commit, file, from)?;
                sends_parts &= start == from;
                if start < held {
                    progress.retreat(held);
                    partial.restart()?;
                }
                let ended = partial.append(&mut body, |n| progress.advance(n))?;
                let held = partial.held()?;
                *furthest = held;
                let lost = |problem: String| HubError::Lost {
                    url: self.client.url(self.name, &self.listing.commit, &file.name),
                    problem: if sends_parts {
                        problem
                    } else {
                        format!("{problem}; the server sends no parts of files")
                    },
                };
                match ended {
                    Err(error) => Err(lost(error.to_string())),
                    Ok(()) if held < file.size.0 => {
                        Err(lost(format!("the connection was closed after {held} of {} bytes", file.size.0)))
                    }
                    Ok(()) => Ok(()),
                }
            },
        )?;
        store.finish(partial, file)
    }
}

/// Whether a name is that of a shard in the same folder.
fn is_shard(name: &str) -> bool {
    let may_be = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.len() <= 200 && !name.starts_with('.') && name.ends_with(".safetensors") && name.chars().all(may_be)
}

fn patiently<T>(attempt: impl FnMut(&mut u64) -> Result<T, HubError>) -> Result<T, HubError> {
    patiently_saying(|text| talk(text), attempt)
}

/// Tries again what was lost on the way, later each time, until several attempts in a row brought nothing new. An attempt
/// says how many bytes are there after it; those that were there before, and a trickle, are nothing new.
/// Errors: those of the last attempt.
fn patiently_saying<T>(
    mut say: impl FnMut(std::fmt::Arguments<'_>),
    mut attempt: impl FnMut(&mut u64) -> Result<T, HubError>,
) -> Result<T, HubError> {
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
                say(format_args!("{error}; trying again in {} s", wait.as_secs_f64()));
                sleep(wait);
            }
            done => return done,
        }
    }
}

impl From<SettingError> for Failure {
    fn from(error: SettingError) -> Self {
        Self::bad_flag(line(&error))
    }
}

impl Failed {
    /// In words, for the model of this name.
    fn failure(self, client: &Client, name: &str) -> Failure {
        let error = match self {
            Self::Said(failure) => return failure,
            Self::Hub(error) => error,
        };
        let (endpoint, message) = (client.endpoint(), line(&error));
        match error {
            HubError::Refused { status: 401 | 403, .. } => {
                let failure =
                    Failure::bad_input(format!("{endpoint} gives {name} to nobody without the right: {message}"));
                let failure = match client.has_token() {
                    _ if client.withholds_token() => failure.hint(
                        "your token was not sent, since HF_ENDPOINT has no TLS and others could read it; use `https://`",
                    ),
                    true => failure
                        .hint("the token in `HF_TOKEN`, or of `hf auth login`, is not valid or not allowed this model"),
                    false => failure.hint(format!(
                        "`export HF_TOKEN=hf_...` with a token from {endpoint}/settings/tokens, or `hf auth login`"
                    )),
                };
                failure
                    .hint(format!("accept the model's license on its page, {endpoint}/{name}; or is its name right?"))
            }
            HubError::Refused { status: 404, .. } => {
                let failure = Failure::bad_input(format!("{endpoint} has no model {name}: {message}"));
                let near = nearest(name);
                match near.is_empty() {
                    true => failure.hint("`plimsoll models` lists the models that are known"),
                    false => failure.hint(format!("did you mean {}?", near.join(", "))),
                }
            }
            HubError::Unverified { .. } => Failure::bad_input(format!("{name} can't be fetched: {message}")).hint(format!(
                "weights are fetched from servers that send a hash, as {HUB} does; or name a folder that has them by `--init`"
            )),
            HubError::Refused { .. } | HubError::Strange { .. } => {
                Failure::bad_input(format!("{name} can't be fetched: {message}"))
            }
            HubError::Lost { .. } => Failure::device(format!("{name} can't be fetched: {message}"))
                .hint("what was fetched is kept; the same command continues, unless the server sends no parts of files"),
            HubError::Damaged { .. } => {
                Failure::bad_input(message).hint("it was deleted; the same command fetches it again")
            }
            HubError::Io { .. } => Failure::device(message).hint("is the disk full, or the folder read-only?"),
        }
    }
}

/// Names on the hub that are near to one that it has not.
fn nearest(name: &str) -> Vec<String> {
    let Err(GraphError::UnknownModel { suggestions, .. }) = ModelConfig::preset(name) else { return vec![] };
    let on_hub = suggestions.iter().filter_map(|preset| ModelConfig::hub_names(preset).first());
    on_hub.map(|name| format!("`{name}`")).collect()
}
