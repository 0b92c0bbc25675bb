//! Everything that can be wrong with a graph or a model's configuration.

/// Why a graph could not be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An op got tensors that it is not defined on. This is a bug of a model's description, not of its user.
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
        /// The key as it is written in config.json.
        key: String,
        /// What is wrong with it, with the numbers.
        problem: String,
    },
    /// No preset has this name.
    #[error("unknown model `{name}`{}", did_you_mean(suggestions))]
    UnknownModel {
        /// What the user wrote.
        name: String,
        /// The presets whose names are nearest.
        suggestions: Vec<String>,
    },
    /// A parameter to freeze does not exist.
    #[error("the model has no parameter `{name}`")]
    UnknownParameter {
        /// The name.
        name: String,
    },
    /// All parameters are frozen.
    #[error("all {parameters} parameters are frozen; nothing is left to train")]
    NothingTrained {
        /// How many there are (tensors, not elements).
        parameters: usize,
    },
    /// The sequence is longer than the model has positions for.
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
