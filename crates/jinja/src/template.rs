//! Templates, and what a render of one takes from its caller.

use crate::Value;
use crate::ast::{Body, Scope, Statement, StatementKind};
use crate::error::Result;
use crate::parser::parsed;
use crate::render::Render;
use crate::scopes::{bodies, resolve};

/// A parsed template, ready to be rendered from any thread.
#[derive(Debug)]
pub struct Template {
    body: Body,
    scope: Scope,
    slots: usize,
    marks_generation: bool,
    generates_in_values: bool,
}

/// What a render may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Steps, of which 64 bytes that are read or written are one.
    pub steps: u64,
}

/// Characters that a render adds to the text, so that a caller finds its parts again.
#[derive(Debug, Clone, Copy)]
pub struct Marks {
    /// Before and after what `{% generation %}` encloses.
    pub generation: [char; 2],
    /// Before a loop that writes to the text, before each of its iterations, and after the loop. Loops whose text becomes a
    /// value, as in a macro, and recursive loops have no marks.
    pub iterations: [char; 3],
}

/// What a template gets from its caller besides variables.
pub struct Host<'a> {
    /// `strftime_now`: the current time in a format. Errors: in words.
    pub strftime_now: &'a (dyn Fn(&str) -> Result<String, String> + Sync),
    /// Marks to add, if any.
    pub marks: Option<Marks>,
    /// What a render may take.
    pub limits: Limits,
}

impl Template {
    /// Parses a template. Errors: it is not one, is too long, nests too deep, or uses what is not supported.
    pub fn new(text: &str) -> Result<Self> {
        let mut body = parsed(text)?;
        let (scope, slots) = resolve(&mut body)?;
        let mut found = (false, false);
        find_generation(&body, false, &mut found);
        let (marks_generation, generates_in_values) = found;
        Ok(Self { body, scope, slots, marks_generation, generates_in_values })
    }

    /// Whether the template has a `{% generation %}` block.
    pub fn marks_generation(&self) -> bool {
        self.marks_generation
    }

    /// Whether such a block is where the text becomes a value, as in a macro. Its marks are a part of that value.
    pub fn generates_in_values(&self) -> bool {
        self.generates_in_values
    }

    /// The text that the template writes, given these variables.
    /// Errors: the template raises one, uses what is not supported, or takes too much.
    pub fn render(&self, variables: &[(&str, Value)], host: &Host<'_>) -> Result<String> {
        Render::new(variables, host).template(&self.body, &self.scope, self.slots)
    }
}

/// Looks for generation blocks: whether there is one, and whether the text around one becomes a value.
fn find_generation(body: &[Statement], is_in_value: bool, found: &mut (bool, bool)) {
    for statement in body {
        let captures = match &statement.kind {
            StatementKind::Generation(_) => {
                *found = (true, found.1 | is_in_value);
                true
            }
            StatementKind::If(_) | StatementKind::With(_) => false,
            StatementKind::For(node) => node.recursive.is_some(),
            _ => true,
        };
        for body in bodies(statement) {
            find_generation(body, is_in_value | captures, found);
        }
    }
}
