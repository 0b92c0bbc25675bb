//! Errors of graphs and of models' configurations.

/// Why a graph could not be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An op received tensors that it is not defined on. This is a bug in a model's description, not a user error.
    #[error("{op}: {problem}")]
    ShapeMismatch {
        /// The op's name.
        op: &'static str,
        /// What was expected and what was found.
        problem: String,
    },
    /// The backward pass reached an op that has no gradient.
    #[error("{op} has no gradient")]
    NotDifferentiable {
        /// The op's name.
        op: &'static str,
    },
    /// A model configuration lacks a key, or a key's value is invalid.
    #[error("config: `{key}` {problem}")]
    BadConfig {
        /// The key as in config.json.
        key: String,
        /// What is wrong with it, with the numbers.
        problem: String,
    },
    /// No preset has this name.
    #[error("unknown model `{name}`{}", did_you_mean(suggestions))]
    UnknownModel {
        /// The name that the user wrote.
        name: String,
        /// The presets whose names are nearest.
        suggestions: Vec<String>,
    },
    /// Adapters name a layer that the model lacks, or that can't have one.
    #[error("`{module}` is no layer of the model that can have an adapter")]
    NoAdapter {
        /// The layer's name in the files of adapters.
        module: String,
    },
    /// An adapter can't have magnitudes, or is trained in another way as well.
    #[error("`{module}` can't have magnitudes (DoRA), because {because}")]
    NoMagnitudes {
        /// The layer's name in the files of adapters.
        module: String,
        /// Why not.
        because: &'static str,
    },
    /// A layer of experts has adapters of each expert and one of all.
    #[error("`{module}` has a second adapter, for each of its experts")]
    TwoAdapters {
        /// The layer's name in the files of adapters.
        module: String,
    },
    /// Adapters of experts have dropout of their inputs.
    #[error(
        "the adapters of experts, `{layer}`, can't have dropout: the order of an expert's rows depends on the micro-batch"
    )]
    DropsRows {
        /// The layer's name in the graph.
        layer: String,
    },
    /// A parameter to freeze does not exist.
    #[error("the model has no parameter `{name}`")]
    UnknownParameter {
        /// The unknown name.
        name: String,
    },
    /// All parameters are frozen.
    #[error("all {parameters} parameters are frozen; nothing is left to train")]
    NothingTrained {
        /// Number of parameters (tensors, not elements).
        parameters: usize,
    },
    /// The sequence is longer than the model's positions.
    #[error("a sequence of {seq_len} tokens does not fit {name}, which has {positions} positions")]
    TooLong {
        /// The model.
        name: String,
        /// Tokens requested.
        seq_len: usize,
        /// Positions of the model.
        positions: usize,
    },
}

fn did_you_mean(suggestions: &[String]) -> String {
    match suggestions {
        [] => String::new(),
        [one] => format!("; did you mean `{one}`?"),
        [rest @ .., last] => format!("; did you mean `{}` or `{last}`?", rest.join("`, `")),
    }
}
