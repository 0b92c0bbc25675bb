//! What can be wrong with a checkpoint.

use std::io;
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
    #[error("{path} has a tensor `{tensor}`{} that the model lacks", and_more(*.others))]
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
        "{path} holds another kind of model: its tensors have names {}, the model's such as `{expected}`",
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
    #[error("{path}: `{tensor}` is {found}, the model needs {expected}")]
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
    #[error("{path}: `{tensor}` is {found}; weights are read in F32, F16 and BF16")]
    UnsupportedDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape and dtype found.
        found: String,
    },
    /// An index of shards can't be understood.
    #[error("{path} is no index of shards: {problem}")]
    BadIndex {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// An index names a file that does not lie beside it.
    #[error("{path} says that `{tensor}` lies in `{file}`, which is outside its folder")]
    ShardOutside {
        /// The index.
        path: PathBuf,
        /// The file that it names.
        file: String,
        /// A tensor that should be in it.
        tensor: String,
    },
    /// An index names a file that is not there.
    #[error("{path} is missing, which holds `{}`{}", .tensors[0], and_more(.tensors.len() - 1))]
    MissingShard {
        /// The file.
        path: PathBuf,
        /// The tensors in it, at least one.
        tensors: Vec<String>,
    },
    /// The checkpoint belongs to a run with other data or sizes, so that going on would not be the same run.
    #[error("{path} was made with {what} {found}, this run has {expected}")]
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
    /// Nothing to resume from.
    #[error("{path} holds no whole checkpoint")]
    None {
        /// Where it was looked for.
        path: PathBuf,
    },
}

fn and_more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" and {others} more") }
}

fn such_as(name: Option<&str>) -> String {
    name.map_or("of no kind".to_owned(), |name| format!("such as `{name}`"))
}
