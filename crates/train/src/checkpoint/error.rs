//! Errors of checkpoints.

use plimsoll_graph::WeightCodes;
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
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file does not match its checksum.
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
        /// The number of the others.
        others: usize,
    },
    /// Hardly any name is one of the model's.
    #[error(
        "{path} holds another kind of model: its tensors have {}, the model's have names like `{expected}`",
        such_as(.found.as_deref())
    )]
    OtherFamily {
        /// The file, or the index of its shards.
        path: PathBuf,
        /// The first name in it, if there is one.
        found: Option<String>,
        /// The model's first name.
        expected: String,
    },
    /// A tensor's shape differs from the model's; in our own files, or its dtype.
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
    /// Weights are in codes that the plan does not have.
    #[error("{path}: `{tensor}` is stored as {} codes", .format.name())]
    InCodes {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The format of the codes.
        format: WeightCodes,
    },
    /// Quantized weights in a format that is not read.
    #[error("{path}: `{tensor}` is stored as {found}; of the formats of bitsandbytes, nf4 and int8 are read")]
    UnsupportedCodes {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The format.
        found: String,
    },
    /// Quantized weights are incomplete or contradict themselves.
    #[error("{path}: `{tensor}` {problem}")]
    BadCodes {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Weights in an unsupported precision.
    #[error("{path}: `{tensor}` is {found}; only F32, F16 and BF16 weights are supported")]
    UnsupportedDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape and dtype found.
        found: String,
    },
    /// The configuration of adapters is invalid.
    #[error("{path}: {problem}")]
    BadAdapters {
        /// The configuration.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An embedding or an output head has an adapter, and both have one weight, in a family that always shares it.
    #[error(
        "{path}: `{module}` has an adapter, but in this family the embedding and the output head always share a weight"
    )]
    TiedAdapter {
        /// The file of the adapters.
        path: PathBuf,
        /// The embedding or the head.
        module: String,
    },
    /// The weights below the adapters are not those that the run began with.
    #[error("{path} was made with other weights below its adapters than those in {weights}")]
    OtherBase {
        /// The checkpoint.
        path: PathBuf,
        /// The folder of the weights.
        weights: PathBuf,
    },
    /// An index of shards is invalid.
    #[error("{path} is not a shard index: {problem}")]
    BadIndex {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An index names a file outside its folder.
    #[error("{path} places `{tensor}` in `{file}`, which is outside its folder")]
    ShardOutside {
        /// The index.
        path: PathBuf,
        /// The file.
        file: String,
        /// A tensor listed for it.
        tensor: String,
    },
    /// An index names a file that does not exist.
    #[error("{path} is missing; it holds `{}`{}", .tensors[0], and_more(.tensors.len() - 1))]
    MissingShard {
        /// The file.
        path: PathBuf,
        /// The tensors listed for it, at least one.
        tensors: Vec<String>,
    },
    /// The checkpoint belongs to a run with other sizes or settings, so this run can't resume from it.
    #[error("{path} was made with {what} {found}, but this run has {expected}")]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// The setting that differs.
        what: &'static str,
        /// Its value in the checkpoint.
        found: String,
        /// Its value in this run.
        expected: String,
    },
    /// The checkpoint's model has another configuration, even if its shapes may be the same.
    #[error("{path} is of another model than this run's: {}", differences.join(", "))]
    OtherModel {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Each size or setting that differs, with its value in the checkpoint and in this run's model.
        differences: Vec<String>,
    },
    /// The checkpoint's run used other data.
    #[error("{path} was trained on other data, or on the same data prepared in another way")]
    OtherData {
        /// The checkpoint.
        path: PathBuf,
    },
    /// Nearly all losses of a run are missing, so the state does not belong to this run.
    #[error(
        "{path} is after step {step}, but the journal has the losses of {known} steps; at most {most} may be missing"
    )]
    NoHistory {
        /// The checkpoint.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// Number of steps up to it in the journal.
        known: u64,
        /// How many may be missing.
        most: u64,
    },
    /// The state has values that are not finite, so it is not saved.
    #[error("`{tensor}` has values that are not finite")]
    NotFinite {
        /// The first tensor with such values.
        tensor: String,
    },
    /// There is no checkpoint to resume from.
    #[error("{path} holds no complete checkpoint")]
    None {
        /// The folder that was searched.
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
    /// Whether a checkpoint was read and is damaged, so that retrying can't help. After a system error, it can.
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
