//! Finds the weights of `--init`, in a folder or in the Hugging Face cache, and downloads them with `--download`. Not here:
//! the cache and the requests (`plimsoll-hub`).

use super::Failure;
use super::failure::line;
use crate::progress::DownloadProgress;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::MODEL_FILE;
use plimsoll_graph::GraphError;
use plimsoll_graph::models::ModelConfig;
use plimsoll_hub::{
    DownloadError, HUB, HubError, Parts, Progress, Weights, cache, cached_config, is_hub_name, weights,
};
use plimsoll_units::Bytes;
use std::cell::RefCell;
use std::path::PathBuf;

/// The folder of the named weights. `named` is a folder, or the name of a preset or of a model on the hub, whose folder in the
/// cache this prints. `downloads`: download missing weights. Errors: the weights are not in the cache, or can't be downloaded.
pub(super) fn weights_of(named: PathBuf, downloads: bool) -> Result<PathBuf, Failure> {
    let found = match weights(&named) {
        Weights::Folder => return Ok(named),
        Weights::Cached(folder) => folder,
        Weights::Missing { name, is_on_hub } if downloads && is_on_hub => download(&name, Parts::All)?,
        Weights::Missing { name, is_on_hub } => return Err(missing(&name, is_on_hub)),
    };
    talk(format_args!("weights: {}", found.display()));
    Ok(found)
}

/// The folder of the weights of `--init`, if given. Errors: those of [`weights_of`]; `--download` without `--init` and
/// without the name of a model on the hub.
pub(super) fn init_of(
    named: Option<PathBuf>,
    model: Option<&str>,
    downloads: bool,
) -> Result<Option<PathBuf>, Failure> {
    if named.is_none() && downloads && !model.is_some_and(is_hub_name) {
        let failure = Failure::bad_flag("`--download` needs `--init` or `--model` with a name on the hub to download");
        return Err(failure.hint("`--init google/flan-t5-base --download` starts from weights on the hub"));
    }
    named.map(|named| weights_of(named, downloads)).transpose()
}

/// The folder in the cache with the config.json of a model on the hub; `None` if it is not there, or if the text is no name on
/// the hub. `downloads`: download a missing config.json and the tokenizer. Errors: they can't be downloaded.
pub(super) fn config_of(name: &str, downloads: bool) -> Result<Option<PathBuf>, Failure> {
    match cached_config(name) {
        None if downloads && is_hub_name(name) => download(name, Parts::WithoutWeights).map(Some),
        found => Ok(found),
    }
}

fn missing(name: &str, is_on_hub: bool) -> Failure {
    let place = cache().map_or("the Hugging Face cache".to_owned(), |cache| cache.display().to_string());
    let failure = Failure::bad_input(format!("the weights of {name} are not in {place}"));
    let folder = format!("give a folder with a {MODEL_FILE}");
    match is_on_hub {
        true => failure.hint(format!("`--download` downloads them; or {folder}")),
        false => failure.hint(format!("{folder} instead")),
    }
}

fn download(name: &str, parts: Parts) -> Result<PathBuf, Failure> {
    let bar = RefCell::new(None::<DownloadProgress>);
    let on_bar = |change: &dyn Fn(&DownloadProgress)| bar.borrow().iter().for_each(change);
    let fetched = plimsoll_hub::download(name, parts, &|progress| match progress {
        Progress::Begins { files, total, missing, cache } => {
            talk(format_args!("fetching {name}: {files} files, {total}, of which {missing} are missing"));
            talk(format_args!("into {}; after an interruption, the same command continues", cache.display()));
            bar.replace(Some(DownloadProgress::new(total, Bytes(total.0 - missing.0))));
        }
        Progress::Added(bytes) => on_bar(&|bar| bar.advance(bytes)),
        Progress::Dropped(bytes) => on_bar(&|bar| bar.retreat(bytes)),
        Progress::Complete => bar.take().into_iter().for_each(DownloadProgress::finish),
        Progress::Unverified { file, problem } => talk(format_args!("warning: {file}: {problem}")),
        Progress::Waits { file } => talk(format_args!("waiting for another process that downloads {file}")),
        Progress::Retries { error, wait } => {
            talk(format_args!("{error}; retrying in {} s", wait.as_secs_f64()));
        }
    });
    fetched.map_err(|error| failure_of(error, name))
}

/// The failure for an error of downloading the model of this name.
fn failure_of(error: DownloadError, name: &str) -> Failure {
    let message = line(&error);
    match error {
        DownloadError::Offline { variable } => {
            Failure::bad_flag(format!("{variable} is set, which forbids `--download`"))
                .hint(format!("`unset {variable}` allows it"))
        }
        DownloadError::NoCache => Failure::device(message).hint("set `HF_HOME` to a folder"),
        DownloadError::Setting(_) => Failure::bad_flag(message),
        DownloadError::NoRoom { .. } => {
            Failure::device(message).hint("free some space, or set `HF_HOME` to a folder on another disk")
        }
        DownloadError::NoWeights { page, .. } => Failure::bad_input(message).hint(format!(
            "other formats can run code and are not supported: look for a copy of the model with a {MODEL_FILE}, or ask for \
             one on {page}"
        )),
        DownloadError::Hub { endpoint, has_token, withholds_token, source } => match source {
            HubError::Refused { status: 401 | 403, .. } => {
                let failure =
                    Failure::bad_input(format!("{name} is private or gated on {endpoint}: {message}"));
                let failure = match has_token {
                    _ if withholds_token => failure.hint(
                        "your token was not sent, because HF_ENDPOINT does not use TLS; use `https://`",
                    ),
                    true => failure
                        .hint("the token of `HF_TOKEN` or `hf auth login` is invalid or has no access to this model"),
                    false => failure.hint(format!(
                        "`export HF_TOKEN=hf_...` with a token from {endpoint}/settings/tokens, or `hf auth login`"
                    )),
                };
                failure
                    .hint(format!("check the name, and accept the model's license on {endpoint}/{name}"))
            }
            HubError::Refused { status: 404, .. } => {
                let failure = Failure::bad_input(format!("{endpoint} has no model {name}: {message}"));
                let near = nearest(name);
                match near.is_empty() {
                    true => failure.hint("`plimsoll models` lists known models"),
                    false => failure.hint(format!("did you mean {}?", near.join(", "))),
                }
            }
            HubError::Unverified { .. } => Failure::bad_input(format!("can't download {name}: {message}")).hint(format!(
                "use a server that sends hashes, as {HUB} does; or give a folder with the weights to `--init`"
            )),
            HubError::Refused { .. } | HubError::Strange { .. } => {
                Failure::bad_input(format!("can't download {name}: {message}"))
            }
            HubError::Lost { .. } => Failure::device(format!("can't download {name}: {message}"))
                .hint("the same command continues the download, if the server supports parts of files"),
            HubError::Damaged { .. } => {
                Failure::bad_input(message).hint("it was deleted; the same command downloads it again")
            }
            HubError::Io { .. } => Failure::device(message).hint("is the disk full, or the folder read-only?"),
        },
    }
}

/// Names on the hub that are similar to an unknown name.
fn nearest(name: &str) -> Vec<String> {
    let Err(GraphError::UnknownModel { suggestions, .. }) = ModelConfig::preset(name) else { return vec![] };
    let on_hub = suggestions.iter().filter_map(|preset| ModelConfig::hub_names(preset).first());
    on_hub.map(|name| format!("`{name}`")).collect()
}
