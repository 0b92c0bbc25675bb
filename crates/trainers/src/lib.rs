//! What PyTorch trainers are told: their files and command lines, read and rewritten in their own keys, and the run itself
//! (`run.rs`) in no trainer's words.
//! Text in, values out. Not here: what a run costs in memory, processes, files. Read next: `run.rs`, `change.rs`,
//! `keys/mod.rs`.

mod change;
mod command;
pub mod document;
mod export;
mod flags;
mod keys;
mod kind;
mod read;
mod rewrite;
mod run;
mod unsure;
mod view;

pub use change::Change;
pub use command::{Command, FileArgument, command};
pub use export::{ALLOC_VARIABLE, Export, alloc_line, export, export_env};
pub use kind::{Kind, detect};
pub use read::{BadValue, Read, ReadError, Told, Unknown, Unmodelled, read, read_command};
pub use rewrite::{
    RewriteError, Rewritten, rewrite, rewrite_command, rewrite_command_keys, rewrite_flags, rewrite_keys,
};
pub use run::{
    Attention, Buffers, Checkpointing, Elements, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run,
    Sharding, Targets,
};
pub use unsure::{Effect, Part, Unsure};
