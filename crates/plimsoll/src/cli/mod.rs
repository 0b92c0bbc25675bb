//! The command line: one file per command. Flags may be written with hyphens or underscores.

mod adapters;
mod answer;
mod arena;
mod bench;
mod bench_data;
mod blas;
mod budget;
mod cache;
mod calibrate;
mod cards;
mod chats;
mod cublas;
mod data_failure;
#[cfg(unix)]
mod detach;
mod device;
mod doctor;
mod embed;
mod estimate;
mod explain;
mod export;
mod failure;
mod find;
mod fp8;
mod generate;
mod gpus;
mod half;
mod heat;
mod help;
mod hub;
mod in_pytorch;
mod levers;
mod limits;
mod loading;
mod machine;
mod merge;
mod misfit;
mod model;
mod models;
mod named;
mod notify;
mod objective;
mod optimizer;
mod options;
mod pairs;
mod places;
mod plan;
mod power;
mod processor;
mod quoted;
mod recipe;
mod replay;
mod report;
mod request;
mod samples;
mod schedule;
mod self_test;
mod serve;
#[cfg(unix)]
mod service;
mod settings;
mod shell;
mod signals;
mod sought;
mod speed;
mod state;
mod story;
mod stress;
#[cfg(unix)]
mod supervise;
mod tokenizer;
mod top;
mod track;
mod train;
mod weights;
mod welcome;
mod words;

use failure::no_threads;
pub use failure::{Failure, exit_code};
use processor::planning;

use crate::streams::{Finish, print_panics_as_messages};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Train language models on the CPU or an NVIDIA GPU, within an exact memory budget
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train or fine-tune a model (by default, a small GPT-2 on cached Rust sources)
    Train(Box<train::TrainArgs>),
    /// Show the plan for a model and a budget, without running anything
    Plan(plan::PlanArgs),
    /// List known models, with their parameters and the smallest GPU that trains each
    Models(models::ModelsArgs),
    /// Write a web page about a run: its losses, speed, memory and settings
    Report(report::ReportArgs),
    /// Estimate the GPU memory of a PyTorch run, whether it fits, and settings that fit
    Estimate(Box<estimate::EstimateArgs>),
    /// Explain a PyTorch memory snapshot: what uses the memory, and which allocator setting needs least
    Replay(replay::ReplayArgs),
    /// Supervise any training command: restart it after failures and hangs, and store its output
    #[cfg(unix)]
    Run(Box<supervise::RunArgs>),
    /// List runs, and restart supervisors that died
    #[cfg(unix)]
    Ps(supervise::PsArgs),
    /// Print the output of a run
    #[cfg(unix)]
    Logs(supervise::LogsArgs),
    /// Stop runs: ask them to end, then kill them
    #[cfg(unix)]
    Stop(supervise::StopArgs),
    /// Pause runs; they keep their memory
    #[cfg(unix)]
    Pause(supervise::PauseArgs),
    /// Resume paused runs
    #[cfg(unix)]
    Resume(supervise::PauseArgs),
    /// Change the memory budget of a running `train`
    #[cfg(unix)]
    Budget(supervise::BudgetArgs),
    /// Follow the output of a run until it ends
    #[cfg(unix)]
    Attach(supervise::AttachArgs),
    /// Start a command at each boot, by a systemd unit of this user
    #[cfg(unix)]
    InstallService(service::ServiceArgs),
    /// Generate text from a checkpoint; `plimsoll chat` is `plimsoll generate --chat`
    Generate(generate::GenerateArgs),
    /// Merge adapters into the weights below them, and compare the logits before and after
    Merge(merge::MergeArgs),
    /// Write a model or its adapters as a GGUF file, for llama.cpp and Ollama
    Export(export::ExportArgs),
    /// Compute vectors of texts with an encoder
    Embed(embed::EmbedArgs),
    /// Train tokenizers
    Tokenizer(tokenizer::TokenizerArgs),
    /// Time training steps on random tokens, or data loading
    Bench(bench::BenchArgs),
    /// List the NVIDIA GPUs of this machine
    Gpus(gpus::GpusArgs),
    /// Watch GPUs, processes and runs in a full-screen view, or replay a run
    Top(top::TopArgs),
    /// Serve a web page of runs and GPUs, for desktop and phone browsers
    Serve(serve::ServeArgs),
    /// Show this machine's hardware and libraries for training, and what is missing
    Doctor(doctor::DoctorArgs),
    /// Stress a GPU or the CPU with checked work in filled memory, and pass or fail it
    Stress(stress::StressArgs),
    /// Test the notifications of runs
    Notify(notify::NotifyArgs),
    /// Show what failed on this machine's devices and what runs do differently because of it, or forget it
    Limits(limits::LimitsArgs),
    /// Measure this machine, so that plans can predict step times
    Calibrate(calibrate::CalibrateArgs),
    /// Print a shell completion script
    Completions(shell::CompletionsArgs),
    /// Write manual pages
    Man(shell::ManArgs),
    /// Pack buffers with lifetimes, from a CSV with the columns id,lower,upper,size
    Arena(arena::ArenaArgs),
    /// Try a BLAS library in this process, which it may crash
    #[command(hide = true)]
    TryBlas(blas::TryBlasArgs),
}

/// Runs the program. `arguments`: the program's name, then its arguments.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let _finish = Finish;
    print_panics_as_messages();
    processor::configure_heap();
    if arguments.len() == 1 {
        return ExitCode::from(welcome::run());
    }
    let result = with_settings(hyphenate(chat(arguments))).and_then(|cli| match cli.command {
        Command::Train(args) => train::run(*args),
        Command::Plan(args) => start_threads().and_then(|()| planning(|| plan::run(args))),
        Command::Models(args) => start_threads().and_then(|()| planning(|| models::run(&args))),
        Command::Report(args) => report::run(&args),
        Command::Estimate(args) => start_threads().and_then(|()| planning(|| estimate::run(&args))),
        Command::Replay(args) => replay::run(&args),
        #[cfg(unix)]
        Command::Run(args) => supervise::run(*args),
        #[cfg(unix)]
        Command::Ps(args) => supervise::ps(&args),
        #[cfg(unix)]
        Command::Logs(args) => supervise::logs(&args),
        #[cfg(unix)]
        Command::Stop(args) => supervise::stop(&args),
        #[cfg(unix)]
        Command::Pause(args) => supervise::pause(&args),
        #[cfg(unix)]
        Command::Resume(args) => supervise::resume(&args),
        #[cfg(unix)]
        Command::Budget(args) => supervise::budget(&args),
        #[cfg(unix)]
        Command::Attach(args) => supervise::attach(&args),
        #[cfg(unix)]
        Command::InstallService(args) => service::run(&args),
        Command::Generate(args) => generate::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Export(args) => export::run(args),
        Command::Embed(args) => embed::run(args),
        Command::Tokenizer(args) => tokenizer::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Gpus(args) => gpus::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Stress(args) => stress::run(&args),
        Command::Notify(args) => notify::run(&args),
        Command::Limits(args) => limits::run(&args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Completions(args) => shell::complete(&args),
        Command::Man(args) => shell::write_pages(&args),
        Command::Arena(args) => start_threads().and_then(|()| arena::run(args)),
        Command::TryBlas(args) => blas::run(&args),
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Parses the arguments, after adding the settings of the files that they name, which they override.
fn with_settings(arguments: Vec<OsString>) -> Result<Cli, Failure> {
    let words::Arguments { own: arguments, of_run } = words::translate(arguments, Cli::command())?;
    let unknown = match arguments.get(1) {
        _ if of_run.is_some() => settings::unknown_flag,
        #[cfg(unix)]
        Some(command) if command == "run" => supervise::misplaced_command,
        _ => Failure::usage,
    };
    let refused = |error| sought::refused(error, unknown);
    let matches = help::command().try_get_matches_from(&arguments).map_err(refused)?;
    let arguments = match of_run {
        Some(of_run) => settings::underlay(arguments, &matches, &of_run)?,
        None => arguments,
    };
    let matches = help::command().try_get_matches_from(arguments).map_err(Failure::usage)?;
    Cli::from_arg_matches(&matches).map_err(Failure::usage)
}

/// Turns `plimsoll chat` into `plimsoll generate --chat`.
fn chat(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|command| command == "chat") {
        arguments.splice(1..2, ["generate".into(), "--chat".into()]);
    }
    arguments
}

/// Turns `--seq_len=64` into `--seq-len=64`. Values, and all arguments after `--`, stay as they are.
fn hyphenate(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut literal = false;
    let hyphenated = arguments.into_iter().map(|argument| {
        literal |= argument == "--";
        match argument.to_str() {
            Some(text) if text.starts_with("--") && !literal => {
                let (flag, value) = text.split_at(text.find('=').unwrap_or(text.len()));
                OsString::from(flag.replace('_', "-") + value)
            }
            _ => argument,
        }
    });
    hyphenated.collect()
}

/// Runs `work` in a pool of exactly this many threads, including the caller's.
fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let refused = |error| no_threads(threads, format!("can't start {threads} threads: {error}"));
    pool.map_err(refused)?.install(work)
}

/// Starts the threads of commands that have no pool. If the system refuses to, the calling thread computes alone.
fn start_threads() -> Result<(), Failure> {
    let alone = || rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global();
    rayon::ThreadPoolBuilder::new()
        .build_global()
        .or_else(|_| alone())
        .map_err(|error| no_threads(1, format!("can't start threads: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_all_flags_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_accept_underscores_and_values_keep_theirs() {
        let given = ["plimsoll", "train", "--seq_len=64", "--data_dir", "my_data", "--name=a_b", "--", "--x_y"];
        let expected = ["plimsoll", "train", "--seq-len=64", "--data-dir", "my_data", "--name=a_b", "--", "--x_y"];
        assert_eq!(hyphenate(given.map(OsString::from).to_vec()), expected.map(OsString::from));
    }
}
