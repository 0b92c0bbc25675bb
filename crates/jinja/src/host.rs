//! The inputs of a render in addition to its variables.

/// Limits of a render.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum steps; 64 bytes read or written count as one.
    pub steps: u64,
}

/// Characters that a render adds to the text, so that the caller can locate its parts.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// Before and after the text of `{% generation %}` blocks.
    pub generation: [char; 2],
    /// Before a loop that writes to the text, before each of its iterations, and after the loop. Loops whose text
    /// becomes a value, as in a macro, and recursive loops are not marked.
    pub iterations: [char; 3],
}

/// The caller's inputs in addition to variables.
pub struct Host<'a> {
    /// `strftime_now`: formats the current time. Errors: a message.
    pub strftime_now: &'a (dyn Fn(&str) -> Result<String, String> + Sync),
    /// Marks to add, if any.
    pub marks: Option<Marks>,
    /// Limits of the render.
    pub limits: Limits,
}
