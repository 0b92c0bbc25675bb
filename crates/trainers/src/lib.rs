//! Settings of PyTorch trainers: reads and rewrites their files and command lines in each trainer's own keys, and
//! describes a run independently of trainers (`run.rs`).
//! Text in, values out. Not here: the memory of a run, processes, files. Read next: `run.rs`, `change.rs`,
//! `keys/mod.rs`.

mod change;
mod command;
mod detect;
pub mod document;
mod export;
mod flags;
mod keys;
mod kind;
pub mod notebook;
mod read;
mod report;
mod rewrite;
mod run;
mod unsure;
mod versions;
mod view;
pub mod words;

pub use change::SettingChange;
pub use command::{Command, FileArgument, command};
pub use detect::detect;
pub use export::{ALLOC_VARIABLE, Export, alloc_line, export, export_env};
pub use kind::TrainerKind;
pub use read::{Read, ReadError, read, read_command};
pub use report::{BadValue, UnknownKey, UnmodeledKey, UsedKey};
pub use rewrite::{
    RewriteError, Rewritten, rewrite, rewrite_command, rewrite_command_keys, rewrite_flags, rewrite_keys,
};
pub use run::{
    Attention, Buffers, Checkpointing, CustomLoop, Elements, KeptOutputs, Lora, Loss, Method, Offload, Optimizer,
    Precision, Quantized, Run, Sharding, Targets,
};
pub use unsure::{Effect, Part, Unsure};
pub use versions::{Libraries, Library, Version};
