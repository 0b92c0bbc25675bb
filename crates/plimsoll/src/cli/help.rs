//! The help of all commands. `-h` fits on a screen: the common flags, one line each. `--help` shows every flag in
//! groups, with examples.

use super::Cli;
use clap::{Arg, Command, CommandFactory};

/// A heading and its flags in display order: each with its line of `-h`, or with an empty string if `-h` omits it.
type Group = (&'static str, &'static [(&'static str, &'static str)]);

/// The flags of the commands that plan, train and generate.
const GROUPS: &[Group] = &[
    (
        "Data",
        &[
            ("data", "Text: files, folders or globs"),
            ("tokenizer", "`bytes`, `gpt2` or a tokenizer.json"),
            ("seq-len", "Tokens per sample"),
            ("prompt", "Text to continue or to answer"),
            ("prompt-file", "File of prompts, one per line"),
            ("chat", "Prompts are messages to a chat model"),
            ("system", ""),
            ("messages", ""),
            ("text-field", ""),
            ("data-format", ""),
            ("train-on", ""),
            ("chat-template", ""),
            ("chat-date", ""),
            ("packing", ""),
            ("source-column", ""),
            ("target-column", ""),
            ("prefix", ""),
            ("source-len", ""),
            ("target-len", ""),
            ("bucket", ""),
            ("held-out", ""),
            ("tokens", ""),
            ("records", ""),
            ("data-only", ""),
        ],
    ),
    (
        "Model",
        &[
            ("model", "One of `plimsoll models`"),
            ("init", "Start from weights, such as google/flan-t5-base"),
            ("checkpoint", "A run, or weights as for `train --init`"),
            ("download", ""),
            ("dropout", ""),
            ("freeze", ""),
            ("method", "`full`, or adapters: `lora`, `qlora`"),
            ("lora-rank", ""),
            ("lora-alpha", ""),
            ("lora-dropout", ""),
            ("lora-targets", ""),
            ("lora-rank-pattern", ""),
            ("lora-alpha-pattern", ""),
            ("lora-modules-to-save", ""),
            ("rslora", ""),
            ("dora", ""),
            ("lora-plus-ratio", ""),
            ("layers", ""),
            ("hidden", ""),
            ("heads", ""),
            ("vocab-size", ""),
            ("bias", ""),
        ],
    ),
    (
        "Memory",
        &[
            ("device", "`auto`, `cpu`, `cuda` or `cuda:1`"),
            ("gpu", "Plan for a GPU: `rtx-3060`; `list` lists them"),
            ("compare", "Compare plans for several GPUs"),
            ("find", "Largest `seq-len`, `micro-batch` or `model`"),
            ("vram", "Hard memory budget: `12` (GiB), `600MiB`"),
            ("micro-batch", "Samples per forward pass"),
            ("precision", "`fp32`, `bf16`, `fp16`, `bf16-pure` or `fp8`"),
            ("recompute", "What to recompute: `none` to `blocks`"),
            ("activation-offload", ""),
            ("optimizer-offload", ""),
            ("weight-offload", ""),
            ("base-weights", ""),
            ("optimizer-state", ""),
            ("gradient-precision", ""),
            ("vram-auto", ""),
            ("memory-fraction", ""),
            ("vram-margin", ""),
            ("emergency-reserve", ""),
            ("on-pressure", ""),
            ("progressive", ""),
            ("safe", ""),
            ("host-ram", ""),
            ("update-in-backward", ""),
            ("ema-space", ""),
            ("workers", "Parallel processes"),
            ("gpu-share", "Share of the GPU's compute: `50%`"),
            ("alloc-conf", "PYTORCH_CUDA_ALLOC_CONF for the program"),
            ("ladder", "Custom out-of-memory recovery steps"),
            ("allow-shorter", "Allow recovery to shorten samples"),
            ("on-no-memory", "`wait`, `minimal` or `stop` if nothing helps"),
            ("no-repair", "Restart without changing settings"),
            ("python-hook", "Always install the Python hook"),
            ("no-python-hook", "Never install the Python hook"),
        ],
    ),
    (
        "Schedule",
        &[
            ("max-steps", "Stop after this many steps"),
            ("epochs", "Stop after this many passes over the text"),
            ("duration", "Stop after this long: `90s`, `1h30m`"),
            ("phase", "`1`, `2`, `3`, or a range: `1..2`"),
            ("steps", "Steps to time"),
            ("global-batch", "Samples per optimizer step"),
            ("learning-rate", "Peak learning rate"),
            ("scheduler", ""),
            ("optimizer", "`adamw` or `lion`"),
            ("max-tokens", "Most tokens to generate, or of a text"),
            ("temperature", "0 always picks the likeliest token"),
            ("top-k", "Sample from the N most likely tokens"),
            ("top-p", "Sample from tokens up to this probability sum"),
            ("gradient-accumulation-steps", ""),
            ("warmup", ""),
            ("warmup-steps", ""),
            ("warmup-ratio", ""),
            ("final-lr-part", ""),
            ("decay-part", ""),
            ("weight-decay", ""),
            ("beta1", ""),
            ("beta2", ""),
            ("adam-eps", ""),
            ("grad-clip", ""),
            ("objective", "`sft`, or for preferences `dpo`, `orpo`, `kto`"),
            ("beta", ""),
            ("dpo-loss", ""),
            ("kto-loss", ""),
            ("kto-desirable-weight", ""),
            ("kto-undesirable-weight", ""),
            ("label-smoothing", ""),
            ("r-drop", ""),
            ("neftune-noise-alpha", ""),
            ("similarity-scale", ""),
            ("pooling", ""),
            ("negative-column", ""),
            ("layer-decay", ""),
            ("ema", ""),
            ("batch", ""),
        ],
    ),
    (
        "Output",
        &[
            ("name", "Name of the run"),
            ("detach", "Run in the background"),
            ("detached", ""),
            ("runs-dir", ""),
            ("resume", "`auto`, or a run or checkpoint to continue"),
            ("checkpoint-every", "Steps between checkpoints"),
            ("eval-every", ""),
            ("log-every", ""),
            ("log-to", ""),
            ("log-dir", ""),
            ("log-project", ""),
            ("explain", "Show what uses the memory at the peak"),
            ("profile", "Show where the time goes"),
            ("html", "Write a web page with the memory map"),
            ("config", "YAML or JSON file of settings"),
            ("json", "Print JSON"),
            ("svg", ""),
            ("curve", ""),
            ("curve-svg", ""),
            ("keep-checkpoints", ""),
            ("eval-samples", ""),
            ("sample-tokens", ""),
            ("rules", ""),
            ("beside", ""),
            ("logits", ""),
            ("out", "File or folder to write"),
            ("no-check", "Do not compare logits"),
            ("no-normalize", ""),
        ],
    ),
    (
        "Heat, power, messages",
        &[
            ("max-temp", "GPU temperature limit in Celsius: 83"),
            ("throttle-temp", ""),
            ("resume-temp", ""),
            ("memory-temp", ""),
            ("power-limit", "`auto`, watts, or percent: `80%`"),
            ("clock-offset", ""),
            ("memory-clock-offset", ""),
            ("kwh-price", ""),
            ("sample-every", ""),
            ("notify", "Services to notify: mail, discord, ntfy, ..."),
            ("notify-every", ""),
            ("mail-to", ""),
            ("mail-from", ""),
            ("smtp", ""),
            ("smtp-encryption", ""),
            ("smtp-ca", ""),
            ("mail-every", ""),
            ("secrets", ""),
        ],
    ),
    (
        "Restarts",
        &[
            ("max-restarts", "Most restarts"),
            ("same-error", "Identical failures before giving up"),
            ("hang-timeout", "Time without activity that counts as a hang"),
            ("grace", ""),
            ("backoff", ""),
        ],
    ),
    (
        "Background",
        &[
            ("keep", ""),
            ("adopt", "Take over a run whose supervisor died"),
            ("stagger", ""),
            ("stagger-time", ""),
            ("log-limit", ""),
            ("inside", ""),
        ],
    ),
    (
        "Advanced",
        &[
            ("seed", ""),
            ("threads", ""),
            ("blas", ""),
            ("cublas", ""),
            ("autotune", ""),
            ("cuda-graph", ""),
            ("disable-cudagraphs", ""),
            ("tf32", ""),
            ("head-chunk", ""),
            ("sequence-tile", ""),
            ("attention-rows", ""),
            ("loss-scale", ""),
            ("machine", ""),
            ("cache-dir", ""),
        ],
    ),
];

/// The commands that show these groups.
const GROUPED: &[&str] = &["train", "plan", "bench", "run", "generate", "embed", "merge", "stress"];

/// The flags of `estimate`, whose values are PyTorch's, and its trailing command, each with its line of the short help.
const OF_ESTIMATE: &[(&str, &str)] = &[
    ("command", "The trainer's command"),
    ("model", "`t5-base`, or a config.json"),
    ("download", "Fetch the model's config.json"),
    ("config", "The trainer's own file"),
    ("method", "`full`, `lora` or `qlora`"),
    ("lora-rank", "Rank of LoRA"),
    ("lora-targets", "Layers to adapt with LoRA"),
    ("double-quant", "Scales of 4-bit weights in 8 bits"),
    ("precision", "`fp32`, `amp-bf16`, ..."),
    ("micro-batch", "Samples per forward pass"),
    ("gradient-accumulation-steps", "Micro-batches per step"),
    ("seq-len", "Tokens per sample"),
    ("target-len", "Tokens per target"),
    ("optimizer", "`adamw`, `adafactor`, ..."),
    ("optimizer-implementation", "How AdamW is computed"),
    ("gradient-checkpointing", "Recompute each block"),
    ("attention", "`eager`, `sdpa`, `flash2`, ..."),
    ("loss", "`plain`, `liger` or `cce`"),
    ("clip", "Gradient clipping: `on` or `off`"),
    ("sharding", "`zero3`, `fsdp`, ..."),
    ("offload", "What to offload to host memory"),
    ("cards", "Number of GPUs"),
    ("compile", "Use `torch.compile`"),
    ("update-in-backward", "Update during the backward pass"),
    ("loop", "How your loop differs"),
    ("transformers", "Version of transformers"),
    ("torch", "Version of PyTorch"),
    ("alloc-conf", "The allocator's settings"),
    ("gpu", "The GPU, or `list`"),
    ("vram", "Its memory: `24` (GiB)"),
    ("vram-margin", "Memory to leave free"),
    ("json", "Print JSON"),
    ("export", "Print settings that fit: `hf`, ..."),
];

/// Example commands, each with what it does.
type Example = (&'static str, &'static str);

/// Three examples per command.
const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "train",
        &[
            ("plimsoll train", "a small GPT-2, a minute or so, to see it work"),
            ("plimsoll train --data notes/ --model gpt2 --vram 12", "GPT-2 124M from scratch on your text, in 12 GiB"),
            (
                "plimsoll train --data notes/ --init openai-community/gpt2-medium --epochs 3 --resume auto",
                "fine-tune; the same command continues it",
            ),
        ],
    ),
    (
        "plan",
        &[
            ("plimsoll plan --model gpt2-xl --gpu rtx-3090", "does it fit, how, and how fast"),
            ("plimsoll plan --model llama-3.2-1b --compare 3060,4070,4090", "which GPU to buy"),
            ("plimsoll plan --model gpt2 --vram 8 --find seq-len", "the longest samples that fit"),
        ],
    ),
    (
        "bench",
        &[
            ("plimsoll bench --model gpt2 --steps 20", "time a step"),
            ("plimsoll bench --model gpt2 --seq-len 1024 --micro-batch 8 --profile", "where its time goes"),
            ("plimsoll bench --model t5-base --vram 12 --json", "for a script"),
        ],
    ),
    (
        "report",
        &[
            ("plimsoll report", "write a web page of the newest run into its folder"),
            ("plimsoll report runs/nano-1", "report one run: finished, crashed or still running"),
            ("plimsoll report runs/nano-1 --html nano.html", "write the page to a file, to share it"),
        ],
    ),
    (
        "estimate",
        &[
            (
                "plimsoll estimate --model google/flan-t5-xl --precision pure-bf16 --micro-batch 8 --gpu 5090",
                "memory per step, whether it fits, and what would fit",
            ),
            ("plimsoll estimate --config axolotl.yml --gpu 4090", "the same for a trainer's own file"),
            (
                "plimsoll estimate --config arguments.json --vram 12 --export hf",
                "the settings that fit, in the trainer's own keys",
            ),
        ],
    ),
    (
        "replay",
        &[
            ("plimsoll replay snapshot.pickle", "what uses the memory, and which setting needs least"),
            ("plimsoll replay snapshot.pickle.gz --html memory.html", "a page with memory over time"),
            ("plimsoll replay snapshot.pickle --json", "for a script"),
        ],
    ),
    (
        "run",
        &[
            ("plimsoll run -- python train.py --epochs 3", "restart it after failures and hangs"),
            ("plimsoll run --detach --name night -- torchrun train.py", "in the background; `plimsoll logs -f night`"),
            (
                "plimsoll run --workers 2 -- python sweep.py --seed {worker}",
                "two per GPU, each with half of its memory",
            ),
        ],
    ),
    (
        "ps",
        &[
            ("plimsoll ps", "list running runs and their progress"),
            ("plimsoll ps --all", "include runs that ended"),
            ("plimsoll ps --json", "for a script"),
        ],
    ),
    (
        "logs",
        &[
            ("plimsoll logs train-1", "print all stored output"),
            ("plimsoll logs -f -n 20 train-1", "print the last lines, then follow"),
            ("plimsoll logs runs/train-1 --worker 1", "output of the second worker"),
        ],
    ),
    (
        "stop",
        &[
            ("plimsoll stop train-1", "send Ctrl-C's signal, then SIGTERM, then SIGKILL"),
            ("plimsoll stop train-1 train-2 --grace 5m", "with time to write checkpoints"),
            ("plimsoll stop train-1 --now", "at once"),
        ],
    ),
    (
        "pause",
        &[
            ("plimsoll pause nano-1", "pause between two micro-batches; it keeps its memory"),
            ("plimsoll pause train-1 train-2", "pause other programs, as Ctrl-Z does"),
            ("plimsoll pause nano-1 --wait 0", "do not wait for its answer"),
        ],
    ),
    (
        "resume",
        &[
            ("plimsoll resume nano-1", "the losses are the same as without the pause"),
            ("plimsoll resume train-1 train-2", "several at once"),
            ("plimsoll resume runs/nano-1", "by its folder"),
        ],
    ),
    (
        "budget",
        &[
            ("plimsoll budget nano-1 6", "save, plan again within 6 GiB, and continue"),
            ("plimsoll budget nano-1 600MiB", "if nothing fits, the run refuses and continues as before"),
            ("plimsoll budget runs/nano-1 12 --wait 10m", "with time for a long step"),
        ],
    ),
    (
        "attach",
        &[
            ("plimsoll attach train-1", "its output and its exit code; Ctrl-C leaves it running"),
            ("plimsoll attach runs/train-1", "by its folder"),
            ("plimsoll attach train-1 -n 100", "with its last 100 lines"),
        ],
    ),
    (
        "install-service",
        &[
            ("plimsoll install-service night -- train --data notes/", "train, and resume after each reboot"),
            ("plimsoll install-service page --print -- serve", "print the unit of a web page"),
            ("plimsoll install-service night --uninstall", "stop it and remove its unit"),
        ],
    ),
    (
        "generate",
        &[
            ("plimsoll generate --checkpoint runs/nano-1 --prompt Once", "continue a prompt"),
            ("plimsoll generate --checkpoint runs/chat-1 --chat", "talk to a chat model in the terminal"),
            ("plimsoll generate --checkpoint runs/t5-1 --prompt-file questions.txt", "one line of output per prompt"),
        ],
    ),
    (
        "merge",
        &[
            ("plimsoll merge --checkpoint runs/adapted --out merged", "a model folder without adapters"),
            (
                "plimsoll merge --checkpoint runs/adapted --out merged --base-weights nf4",
                "into the weights that a QLoRA run has",
            ),
            ("plimsoll merge --checkpoint runs/adapted --out merged --ema", "the moving average of the adapters"),
        ],
    ),
    (
        "export",
        &[
            (
                "plimsoll export --checkpoint runs/chat-1 --gguf Q4_K_M --out chat.gguf",
                "the newest checkpoint, for llama.cpp",
            ),
            (
                "plimsoll export --checkpoint runs/chat-1 --gguf Q8_0 --out chat.gguf --ollama",
                "also a Modelfile; `ollama create chat -f Modelfile`",
            ),
            ("plimsoll export --checkpoint runs/adapted --gguf F16 --out adapters.gguf", "the adapters of a run"),
        ],
    ),
    (
        "embed",
        &[
            ("plimsoll embed --checkpoint runs/bert-1 --data texts.txt --out vectors.npy", "one row per line"),
            ("plimsoll embed --checkpoint runs/bert-1 Ahoy", "print the vector of a text as JSON"),
            (
                "plimsoll embed --checkpoint BAAI/bge-small-en-v1.5 --download --pooling cls --out v.jsonl",
                "the lines of stdin, with weights of the hub",
            ),
        ],
    ),
    (
        "models",
        &[
            ("plimsoll models", "memory of each model, and the smallest GPU for it"),
            ("plimsoll models --json", "for a script"),
            ("plimsoll plan --model google/flan-t5-xl --gpu 4090", "one model on one GPU"),
        ],
    ),
    (
        "gpus",
        &[
            ("plimsoll gpus", "the GPUs of this machine"),
            ("plimsoll gpus --watch", "temperatures, power and memory, every second"),
            ("plimsoll gpus --csv=index,temperature.gpu,memory.used", "as nvidia-smi writes them, for a script"),
        ],
    ),
    (
        "serve",
        &[
            ("plimsoll serve", "print a link for this machine's browser"),
            ("plimsoll serve --listen 0.0.0.0:7077", "also for a phone on the same network"),
            ("plimsoll serve --runs-dir /data/runs --listen [::1]:8080", "runs in another folder, over IPv6"),
        ],
    ),
    (
        "top",
        &[
            ("plimsoll top", "GPUs, processes and runs; `q` quits, `F1` lists the keys"),
            ("plimsoll top nano-1", "one run, with its curves"),
            ("plimsoll top --replay runs/nano-1", "replay a finished run, with a slider over its time"),
        ],
    ),
    (
        "doctor",
        &[
            ("plimsoll doctor", "show what this machine has and what is missing"),
            ("plimsoll doctor --self-test", "test a GPU, and print a block to paste into an issue"),
            ("plimsoll doctor --json", "for a script"),
        ],
    ),
    (
        "stress",
        &[
            ("plimsoll stress --device cuda --duration 60m", "all phases, an hour together"),
            ("plimsoll stress --device cpu --vram 8 --phase 1", "the CPU and 8 GiB of its memory, each workload alone"),
            ("plimsoll stress --duration 10m --html stress.html --json", "a page, and JSON for a script"),
        ],
    ),
    (
        "notify",
        &[
            ("plimsoll notify test", "send a test message by every configured service"),
            ("plimsoll notify test --notify ntfy,discord --secrets ~/.plimsoll-secrets", "by two services"),
            ("plimsoll notify test --mail-to me@example.com --smtp smtp.example.com:465", "by mail"),
        ],
    ),
    (
        "limits",
        &[
            ("plimsoll limits", "what failed, and what runs do differently because of it"),
            ("plimsoll limits --forget", "begin with the usual budgets and settings again"),
            ("plimsoll limits --json", "the same for scripts"),
        ],
    ),
    (
        "calibrate",
        &[
            ("plimsoll calibrate", "measure this machine for better predictions"),
            ("plimsoll calibrate --device cuda --duration 2m", "measure a GPU for two minutes"),
            ("plimsoll calibrate --check", "compare predicted with measured times"),
        ],
    ),
    (
        "completions",
        &[
            ("plimsoll completions bash", "save as ~/.local/share/bash-completion/completions/plimsoll"),
            ("plimsoll completions zsh", "save as _plimsoll in a folder of $fpath"),
            ("plimsoll completions powershell", "add to $PROFILE"),
        ],
    ),
    (
        "man",
        &[
            ("plimsoll man man1", "write the pages into a folder"),
            ("plimsoll man ~/.local/share/man/man1", "where man finds them"),
            ("plimsoll man /usr/local/share/man/man1", "for all users"),
        ],
    ),
    (
        "arena",
        &[
            ("plimsoll arena problem.csv", "the lowest peak found in ten seconds"),
            ("plimsoll arena problem.csv --capacity 1048576", "stop at the first packing that fits"),
            ("plimsoll arena problem.csv --time-limit 1m --out packed.csv", "keep the offsets"),
        ],
    ),
];

/// The definition of the command line, with its help.
pub(super) fn command() -> Command {
    let mut command = Cli::command();
    for name in GROUPED {
        command = command.mut_subcommand(name, |command| grouped(name, &command));
    }
    let short = |arg: &Arg| OF_ESTIMATE.iter().find(|(name, _)| name_of(arg) == *name).map(|(_, short)| *short);
    command = command.mut_subcommand("estimate", |command| {
        command.mut_args(|arg| match short(&arg) {
            Some(line) => with_line(arg, line),
            None => arg,
        })
    });
    for (name, examples) in EXAMPLES {
        command = command.mut_subcommand(name, |command| command.after_long_help(shown(examples)));
    }
    // Changed commands moved to the end; help lists commands in the order of their definition.
    for (place, sub) in Cli::command().get_subcommands().enumerate() {
        command = command.mut_subcommand(sub.get_name(), |command| command.display_order(place));
    }
    command
}

/// The name of a flag, or of a positional argument.
fn name_of(arg: &Arg) -> &str {
    arg.get_long().unwrap_or_else(|| arg.get_id().as_str())
}

/// Puts a command's flags into their groups. clap orders headings by their first flag, so this rebuilds the command
/// with its flags in the order of the table.
fn grouped(name: &'static str, command: &Command) -> Command {
    let places = GROUPS.iter().flat_map(|(heading, flags)| flags.iter().map(move |flag| (*heading, *flag)));
    let places = places.enumerate().map(|(place, (heading, (flag, short)))| (place, heading, flag, short));
    let places = places.collect::<Vec<_>>();
    let mut args = Vec::new();
    for arg in command.get_arguments() {
        let found = places.iter().find(|(_, _, flag, _)| arg.get_long() == Some(flag));
        args.push(match found {
            None => (places.len(), arg.clone()),
            Some((place, heading, _, short)) => {
                let arg = arg.clone().help_heading(*heading).display_order(*place);
                (*place, if short.is_empty() { arg.hide_short_help(true) } else { with_line(arg, short) })
            }
        });
    }
    args.sort_by_key(|(place, _)| *place);
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(name)
        .about(about)
        .allow_negative_numbers(true)
        .args(args.into_iter().map(|(_, arg)| arg))
        .groups(command.get_groups().cloned())
}

/// A flag with a line of help for `-h`. The default and possible values that clap would append to that line go into the
/// long help.
fn with_line(arg: Arg, short: &'static str) -> Arg {
    let mut all = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    let defaults = defaults.collect::<Vec<_>>().join(" ");
    if !defaults.is_empty() && !arg.is_hide_default_value_set() {
        all += &format!(" [default: {defaults}]");
    }
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect::<Vec<_>>();
    if !values.is_empty() && arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
        all += &format!(" [possible values: {}]", values.join(", "));
    }
    arg.help(short).long_help(all).hide_default_value(true).hide_possible_values(true)
}

fn shown(examples: &[Example]) -> String {
    let lines = examples.iter().map(|(line, what)| format!("  {line}\n      {what}\n"));
    format!("Examples:\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible(command: &Command) -> impl Iterator<Item = &Command> {
        command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
    }

    #[test]
    fn every_flag_has_its_group() {
        let command = command();
        command.clone().debug_assert();
        let listed = GROUPS.iter().flat_map(|(_, flags)| flags.iter().map(|(flag, _)| *flag)).collect::<Vec<_>>();
        let mut known = Vec::new();
        for sub in GROUPED.iter().map(|name| command.find_subcommand(name).unwrap()) {
            for arg in sub.get_arguments().filter_map(|arg| arg.get_long()) {
                assert!(listed.contains(&arg), "--{arg} of {} has no group", sub.get_name());
                known.push(arg);
            }
        }
        for flag in listed {
            assert!(known.contains(&flag), "no command has --{flag}");
        }
    }

    /// Each flag of `estimate` has a line in the short help, and each line a flag.
    #[test]
    fn short_help_of_estimate_has_every_flag() {
        let command = command();
        let estimate = command.find_subcommand("estimate").expect("the command");
        let has = estimate.get_arguments().map(name_of).filter(|name| !matches!(*name, "help" | "version"));
        let listed = OF_ESTIMATE.iter().map(|(name, _)| *name).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(has.collect::<std::collections::BTreeSet<_>>(), listed);
        let text = estimate.clone().term_width(80).render_help().to_string();
        for (name, line) in OF_ESTIMATE {
            assert!(text.contains(line), "{name}: {line}\n{text}");
        }
    }

    #[test]
    fn short_help_fits_on_a_screen() {
        for sub in visible(&command()) {
            let text = sub.clone().term_width(80).render_help().to_string();
            assert!(text.lines().count() <= 45, "{}: {} lines\n{text}", sub.get_name(), text.lines().count());
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(80), "{}: {widest:?} columns", sub.get_name());
        }
    }

    #[test]
    fn examples_parse() {
        for sub in visible(&command()).filter(|sub| !sub.has_subcommands()) {
            let (_, examples) = EXAMPLES.iter().find(|(name, _)| *name == sub.get_name()).expect("it has examples");
            assert_eq!(examples.len(), 3);
            for (line, _) in *examples {
                let understood = command().try_get_matches_from(line.split(' '));
                assert!(understood.is_ok(), "{line}: {}", understood.unwrap_err());
            }
        }
    }
}
