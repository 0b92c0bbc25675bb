//! Templates.

use crate::Value;
use crate::ast::{Body, Scope, Statement, StatementKind};
use crate::error::Result;
use crate::host::Host;
use crate::parser::parsed;
use crate::scopes::{bodies, resolve};
use crate::state::Render;

/// A parsed template that any thread can render.
#[derive(Debug)]
pub struct Template {
    body: Body,
    scope: Scope,
    slots: usize,
    marks_generation: bool,
    generates_in_values: bool,
}

impl Template {
    /// Parses a template. Errors: it is invalid, too long, nested too deep, or uses an unsupported feature.
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

    /// Whether such a block is inside text that becomes a value, as in a macro. Its marks are then part of that value.
    pub fn generates_in_values(&self) -> bool {
        self.generates_in_values
    }

    /// Renders the template with these variables.
    /// Errors: the template raises an error, uses an unsupported feature, or exceeds the limits.
    pub fn render(&self, variables: &[(&str, Value)], host: &Host<'_>) -> Result<String> {
        Render::new(variables, host).template(&self.body, &self.scope, self.slots)
    }
}

/// Searches for generation blocks: whether there is one, and whether the text around one becomes a value.
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
