//! What can be wrong with a checkpoint.

use plimsoll_telemetry::BranchesError;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why a checkpoint can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A file is not what its checksum says.
    #[error("{path} is damaged: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A safetensors file lacks a tensor.
    #[error("{path} has no tensor `{tensor}`")]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A safetensors file has tensors that the model lacks.
    #[error("{path} has a tensor `{tensor}`{} that the model does not have", and_more(*.others))]
    ForeignTensor {
        /// The file.
        path: PathBuf,
        /// The first of them.
        tensor: String,
        /// How many more there are.
        others: usize,
    },
    /// Hardly a name is the model's.
    #[error(
        "{path} holds another kind of model: its tensors have {}, the model's have names like `{expected}`",
        such_as(.found.as_deref())
    )]
    OtherFamily {
        /// The file, or the index of its shards.
        path: PathBuf,
        /// The first name in it, if there is any.
        found: Option<String>,
        /// The model's first name.
        expected: String,
    },
    /// A tensor has another shape than the model's; in our own files, or another dtype.
    #[error("{path}: `{tensor}` is {found}, but the model needs {expected}")]
    WrongTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape and dtype needed.
        expected: String,
        /// Shape and dtype found.
        found: String,
    },
    /// Weights in a precision that is not read.
    #[error("{path}: `{tensor}` is {found}; only F32, F16 and BF16 weights are supported")]
    UnsupportedDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape and dtype found.
        found: String,
    },
    /// An index of shards can't be understood.
    #[error("{path} is not a shard index: {problem}")]
    BadIndex {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An index names a file that does not lie beside it.
    #[error("{path} places `{tensor}` in `{file}`, which is outside its folder")]
    ShardOutside {
        /// The index.
        path: PathBuf,
        /// The file that it names.
        file: String,
        /// A tensor that should be in it.
        tensor: String,
    },
    /// An index names a file that is not there.
    #[error("{path} is missing; it holds `{}`{}", .tensors[0], and_more(.tensors.len() - 1))]
    MissingShard {
        /// The file.
        path: PathBuf,
        /// The tensors in it, at least one.
        tensors: Vec<String>,
    },
    /// The checkpoint belongs to a run with other sizes or settings, so that going on would not be the same run.
    #[error("{path} was made with {what} {found}, but this run has {expected}")]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Of the checkpoint.
        found: String,
        /// Of this run.
        expected: String,
    },
    /// The checkpoint is of a model whose configuration differs, though its shapes may be the same.
    #[error("{path} is of another model than this run's: {}", differences.join(", "))]
    OtherModel {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Each size or setting that differs, with its value in the checkpoint and in this run's model.
        differences: Vec<String>,
    },
    /// The checkpoint is of a run with other data.
    #[error("{path} was trained on other data, or on the same data prepared in another way")]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
    },
    /// Nearly all losses of a run are missing, so that its state does not belong to this run.
    #[error(
        "{path} is after step {step}, but the journal has the losses of {known} steps; at most {most} may be missing"
    )]
    NoHistory {
        /// The checkpoint.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// Steps up to it that the journal knows.
        known: u64,
        /// How many may be missing.
        most: u64,
    },
    /// Nothing to resume from.
    #[error("{path} holds no complete checkpoint")]
    None {
        /// Where it was looked for.
        path: PathBuf,
    },
}

impl From<BranchesError> for CheckpointError {
    fn from(error: BranchesError) -> Self {
        match error {
            BranchesError::Io { path, source } => Self::Io { path, source },
            BranchesError::Damaged { path, problem } => Self::Damaged { path, problem },
        }
    }
}

impl CheckpointError {
    /// Whether a checkpoint was looked at and is damaged, so that it will not be whole later either. What the system
    /// refuses to show may be.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Io { source, .. } => matches!(
                source.kind(),
                ErrorKind::NotFound
                    | ErrorKind::NotADirectory
                    | ErrorKind::InvalidInput
                    | ErrorKind::InvalidData
                    | ErrorKind::FileTooLarge
            ),
            Self::Damaged { .. } => true,
            _ => false,
        }
    }
}

fn and_more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" and {others} more") }
}

fn such_as(name: Option<&str>) -> String {
    name.map_or("no names".to_owned(), |name| format!("names like `{name}`"))
}
