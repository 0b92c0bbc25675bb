//! `plimsoll` without arguments: this machine, and which command is for what.

use super::failure::exit_code;
use crate::streams::talk;
use plimsoll_exec::cuda::Driver;
use plimsoll_telemetry::{available_memory, processor_name, total_memory};

/// What a command is for, and the command.
const AIMS: &[(&str, &str)] = &[
    ("see what fits", "plimsoll plan --model qwen3-8b --method qlora"),
    ("fine-tune a model on chats", "plimsoll train --init NAME --download --data chats.jsonl --method lora"),
    ("train on your own text", "plimsoll train --data FOLDER"),
    ("talk to a model", "plimsoll chat --checkpoint runs/NAME"),
    ("give it to llama.cpp or Ollama", "plimsoll export --checkpoint runs/NAME --gguf Q4_K_M --ollama"),
    ("predict a PyTorch run", "plimsoll estimate --model gpt2-medium --micro-batch 8 --gpu 3060"),
    #[cfg(unix)]
    ("restart a trainer that fails", "plimsoll run -- python train.py"),
    ("watch GPUs and runs", "plimsoll top"),
];

/// Returns the exit code of a usage error: a script that loses its arguments must not pass.
pub(super) fn run() -> u8 {
    let width = AIMS.iter().map(|(aim, _)| aim.len()).max().unwrap_or(0);
    let aims = AIMS.iter().map(|(aim, command)| format!("  {aim:width$}  {command}\n")).collect::<String>();
    talk(format_args!(
        "Train language models on the CPU or an NVIDIA GPU, within an exact memory budget\n\n\
         this machine: {}\n\n{aims}\n\
         `plimsoll train` alone trains a small model as a try. `plimsoll --help` lists all commands,\n\
         `plimsoll COMMAND -h` the flags of one, and `plimsoll doctor` says what is missing.",
        machine()
    ));
    exit_code::USAGE
}

/// The GPUs, or the processor if there are none, and the host's memory.
fn machine() -> String {
    let cards = Driver::find().and_then(Driver::cards).unwrap_or_default();
    let mut parts = cards.iter().map(|card| format!("{}, {}", card.name, card.memory)).collect::<Vec<_>>();
    if parts.is_empty() {
        let name = processor_name().map_or(String::new(), |name| format!(", {name}"));
        parts.push(format!("no NVIDIA GPU{name}"));
    }
    if let Some(total) = total_memory() {
        let free = available_memory().map_or(String::new(), |free| format!(", {} of it free", free.bytes));
        parts.push(format!("{total} of memory{free}"));
    }
    parts.join("; ")
}
