//! A command to start: arguments, environment variables, and changed versions of the files that it names, which are
//! stored in the run's folder. Never writes the originals.
//! Not here: the changes themselves (`rungs.rs`, `user.rs`).

use plimsoll_files::{Disk, read_text};
use plimsoll_trainers::document::Document;
use plimsoll_trainers::{Command, Read, RewriteError, Rewritten, SettingChange, TrainerKind};
use plimsoll_trainers::{command, read_command, rewrite, rewrite_command, rewrite_command_keys, rewrite_keys};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;

/// Size limit of a settings file; real ones are far smaller.
const LONGEST_FILE: Bytes = Bytes::mib(1);
/// The key in trainers' files for the path of DeepSpeed's file.
const KEY: &str = "deepspeed";

/// A command to start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Environment variables to set.
    pub(crate) env: BTreeMap<String, String>,
    /// Changed contents of files, by the path that the command or one of its files uses.
    pub(crate) files: BTreeMap<String, String>,
}

/// Why a configuration can't be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("unknown trainer or unreadable settings file, and no flag on the command line sets it")]
    NoTrainer,
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    #[error("{path}: {source}")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl Configuration {
    pub(crate) fn new(argv: &[OsString]) -> Self {
        Self { argv: argv.to_vec(), ..Self::default() }
    }

    /// The arguments as text; `None` if one is not UTF-8.
    pub(crate) fn words(&self) -> Option<Vec<String>> {
        self.argv.iter().map(|word| word.to_str().map(str::to_owned)).collect()
    }

    /// The trainer's command, if the arguments certainly start a known trainer. Only then may settings be added that
    /// the command does not have yet.
    pub(crate) fn command(&self) -> Option<Command> {
        let words = self.words()?;
        let command = command(&words)?;
        let file = command.config.as_ref().and_then(|config| self.text(&config.path).ok());
        command.is_certain(&words, file.as_deref()).then_some(command)
    }

    /// The text of a file: changed, or as on disk.
    pub(crate) fn text(&self, path: &str) -> io::Result<String> {
        match self.files.get(path) {
            Some(text) => Ok(text.clone()),
            None => read_text(Path::new(path), LONGEST_FILE),
        }
    }

    /// The trainer's settings: from its arguments, its file, and the files of DeepSpeed and accelerate that it uses.
    /// `None` if the trainer is unknown or its settings can't be read.
    pub(crate) fn read(&self) -> Option<Read> {
        let (command, words) = (self.command()?, self.words()?);
        let file = match &command.config {
            Some(config) => Some(self.text(&config.path).ok()?),
            None => None,
        };
        let mut read = read_command(&command, &words, file.as_deref()).ok()?;
        for (kind, path) in self.layers(&command, &read) {
            // If a layer can't be read, the ladder starts from the trainer's own settings.
            if let Ok(text) = self.text(&path) {
                let mut layered = read.clone();
                if layered.layer(kind, &text).is_ok() {
                    read = layered;
                }
            }
        }
        Some(read)
    }

    fn layers(&self, command: &Command, read: &Read) -> Vec<(TrainerKind, String)> {
        let mut layers: Vec<_> = command.layers.iter().map(|(kind, file)| (*kind, file.path.clone())).collect();
        for layer in &read.layers {
            if !layers.contains(layer) {
                layers.push(layer.clone());
            }
        }
        layers
    }

    /// Changes settings under the trainer's keys, in its arguments or files. Errors: the trainer has no key for one of
    /// them;
    /// then nothing is changed.
    pub(crate) fn change(&self, changes: &[SettingChange]) -> Result<Self, ChangeError> {
        let changed = self.rewritten(|command, words, file| rewrite_command(command, words, file, changes))?;
        let (Some(command), Some(read)) = (changed.command(), changed.read()) else {
            return Err(ChangeError::NoTrainer);
        };
        let mut changed = changed.clone();
        for (kind, path) in self.layers(&command, &read) {
            // A layer repeats only the sizes; all other settings are the trainer's alone.
            let sizes =
                changes.iter().filter(|c| matches!(c, SettingChange::MicroBatch(_) | SettingChange::Accumulation(_)));
            let sizes: Vec<SettingChange> = sizes.cloned().collect();
            if let (TrainerKind::DeepSpeed, Ok(text)) = (kind, changed.text(&path)) {
                let layer = rewrite(kind, &text, &sizes)?;
                changed.set_file(path, layer, &text);
            }
        }
        Ok(changed)
    }

    /// Changes DeepSpeed's file. Errors: the command uses none.
    pub(crate) fn change_deepspeed(&self, changes: &[SettingChange]) -> Result<Self, ChangeError> {
        let (Some(command), Some(read)) = (self.command(), self.read()) else { return Err(ChangeError::NoTrainer) };
        let layer = self.layers(&command, &read).into_iter().find(|(kind, _)| *kind == TrainerKind::DeepSpeed);
        let (kind, path) = layer.ok_or(ChangeError::NoTrainer)?;
        let text = self.text(&path).map_err(|source| ChangeError::File { path: path.clone(), source })?;
        let mut changed = self.clone();
        changed.set_file(path, rewrite(kind, &text, changes)?, &text);
        Ok(changed)
    }

    /// Sets trainer keys by their exact names.
    pub(crate) fn set_keys(&self, keys: &[(String, Option<String>)]) -> Result<Self, ChangeError> {
        self.rewritten(|command, words, file| rewrite_command_keys(command, words, file, keys))
    }

    /// Sets keys in any file that the command names.
    pub(crate) fn set_file_keys(&self, path: &str, keys: &[(String, Option<String>)]) -> Result<Self, ChangeError> {
        let text = self.text(path).map_err(|source| ChangeError::File { path: path.to_owned(), source })?;
        let mut changed = self.clone();
        changed.set_file(path.to_owned(), rewrite_keys(&text, keys)?, &text);
        Ok(changed)
    }

    fn rewritten(
        &self,
        rewrite: impl FnOnce(&Command, &[String], Option<&str>) -> Result<Rewritten, RewriteError>,
    ) -> Result<Self, ChangeError> {
        let (Some(command), Some(words)) = (self.command(), self.words()) else { return Err(ChangeError::NoTrainer) };
        let path = command.config.as_ref().map(|config| config.path.clone());
        let file = match &path {
            Some(path) => Some(self.text(path).map_err(|source| ChangeError::File { path: path.clone(), source })?),
            None => None,
        };
        let rewritten = rewrite(&command, &words, file.as_deref())?;
        let mut changed = Self { argv: rewritten.argv.into_iter().map(OsString::from).collect(), ..self.clone() };
        if let (Some(path), Some(before), Some(after)) = (path, file, rewritten.file) {
            changed.set_file(path, after, &before);
        }
        Ok(changed)
    }

    fn set_file(&mut self, path: String, text: String, before: &str) {
        if text != before {
            self.files.insert(path, text);
        }
    }

    /// Writes changed files to `folder` and returns the arguments with their paths replaced. Errors: those of the
    /// system.
    pub(crate) fn write(&self, disk: &Disk, folder: &Path) -> io::Result<Vec<OsString>> {
        let mut whole = self.clone();
        let mut argv = self.argv.clone();
        // The trainer's file may name DeepSpeed's. Point it to the copy.
        if let Some(config) = self.command().and_then(|command| command.config).map(|config| config.path) {
            let named =
                self.text(&config).ok().and_then(|text| Some(Document::parse(&text).ok()?.plain(KEY)?.to_owned()));
            for (_, copy) in self.copies(folder).into_iter().filter(|(path, _)| named.as_ref() == Some(path)) {
                whole = whole.set_file_keys(&config, &[(KEY.to_owned(), Some(copy))]).map_err(io::Error::other)?;
            }
        }
        for (path, copy) in whole.copies(folder) {
            disk.create_folders(folder)?;
            disk.replace(Path::new(&copy), whole.files[&path].as_bytes())?;
            argv = argv.into_iter().map(|word| renamed(word, &path, &copy)).collect();
        }
        Ok(argv)
    }

    /// Paths of changed files with the paths of their copies. A copy's name contains the whole original path.
    fn copies(&self, folder: &Path) -> Vec<(String, String)> {
        let copy = |path: &String| {
            let name = path.replace(['/', '\\', ':'], "-");
            let name = name.trim_start_matches(['-', '.']);
            (path.clone(), folder.join(name).to_string_lossy().into_owned())
        };
        self.files.keys().map(copy).collect()
    }
}

/// Replaces a path in an argument that is the path, or `key=path`.
fn renamed(word: OsString, path: &str, copy: &str) -> OsString {
    match word.to_str() {
        Some(text) if text == path => copy.into(),
        Some(text) => match text.split_once('=') {
            Some((key, value)) if value == path => format!("{key}={copy}").into(),
            _ => word,
        },
        None => word,
    }
}
