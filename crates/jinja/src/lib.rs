//! Renders Jinja templates like Jinja2 in Python, configured as by `transformers` for chat templates: sandboxed, with
//! `trim_blocks`, `lstrip_blocks`, `break` and `continue`, `{% generation %}`, and its functions and `tojson`.
//!
//! ```text
//!   text → tokens → statements → statements with variables → text
//!        lexer.rs   parser.rs     scopes.rs               render.rs
//! ```
//!
//! A template either renders exactly like in Python or is refused with an error: an error that Python also raises, an
//! unsupported feature ([`ErrorKind::Unsupported`]), or too much work ([`ErrorKind::OverBudget`]). Templates are
//! untrusted: they have no access to the outside, and their steps, memory and recursion are bounded.
//!
//! Read next: `value.rs`, `state.rs`, then `render.rs`.

mod arguments;
mod arithmetic;
mod ast;
mod attributes;
mod calls;
mod error;
mod evaluate;
mod expressions;
mod filters;
mod format;
mod host;
mod iterate;
mod json;
mod lexer;
mod methods;
mod numbers;
mod objects;
mod parser;
mod predicates;
mod render;
mod repr;
mod scopes;
mod state;
mod template;
mod unicode;
mod value;

pub use error::{Error, ErrorKind};
pub use host::{Host, Limits, Marks};
pub use template::Template;
pub use value::{Dict, Function, Items, Method, ObjectId, Range, Text, Undefined, Value, View, Weight};
