//! PTX: text into a program, and the program run warp by warp.
//!
//! `lexer` makes words of the text, `parse` and `body` find declarations and statements, `decode` turns each statement
//! into an action, `run` executes. What is not known is refused by name when the text is parsed, never guessed.
//! Source: NVIDIA, "Parallel Thread Execution ISA", versions 6.3 to 8.8.

mod body;
mod decode;
mod error;
pub mod lanes;
mod lexer;
mod modifiers;
mod parse;
pub mod program;
pub mod run;
mod types;

pub use error::{ParseError, ParseErrorKind};
pub use parse::parse;
pub use program::{Kernel, Module};
pub use types::Type;
