//! The text of a run: from `--data` to batches.

use super::args::TrainArgs;
use crate::cli::Failure;
use crate::streams::talk;
use data::{Batches, Tokenizer};
use std::path::PathBuf;

impl TrainArgs {
    pub(super) fn open_data(&self, tokenizer: &Tokenizer, seq_len: usize) -> Result<Batches, Failure> {
        let sources = if self.data.is_empty() {
            data::cargo_registry_sources()?
        } else {
            data::resolve(&self.data, &self.text_field)?
        };
        let cache = match &self.cache_dir {
            Some(path) => path.clone(),
            None => default_cache_dir()?,
        };
        let bar = crate::report::DataProgress::new();
        let store = data::prepare(&sources, tokenizer, &cache, &|progress| bar.show(&progress))?;
        bar.finish();
        let batches = Batches::new(store, seq_len, self.seed)?;
        let (store, windows) = (&batches.store, &batches.windows);
        talk(format_args!(
            "data: {} of text in {} files, {} tokens; {} samples to train on, {} held out",
            store.bytes_of_text(),
            sources.files.len(),
            store.len(),
            windows.training(),
            windows.held_out()
        ));
        Ok(batches)
    }
}

pub(in crate::cli) fn default_cache_dir() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let none = || Failure::bad_flag("neither HOME nor XDG_CACHE_HOME is set").hint("say where: `--cache-dir PATH`");
    Ok(base.ok_or_else(none)?.join("plimsoll"))
}
