//! PTX: parses a text into a program, and runs the program warp by warp.
//!
//! `lexer` produces tokens, `parse` and `body` parse declarations and statements, `decode` turns each statement into an
//! action, `run` executes them. Unknown statements are refused by name when the text is parsed, never guessed.
//! Source: NVIDIA, "Parallel Thread Execution ISA", versions 6.3 to 8.8.

mod body;
mod cursor;
mod declaration;
mod decode;
mod error;
pub mod lanes;
mod lexer;
mod modifiers;
mod parse;
pub mod program;
pub mod run;
mod statement;
mod types;

pub use error::{ParseError, ParseErrorKind};
pub use parse::parse;
pub use program::{Kernel, Module};
pub use types::Type;
