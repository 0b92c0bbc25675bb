//! Faults of a card, its driver and its memory, as a user sees them: at the start, while other processes take memory,
//! and during a run.

use crate::support::{Said, Sandbox, tiny_config};
use serde_json::{Value, json};

/// UUID of the stand-in's first card.
const UUID: &str = "GPU-66616b65-2d63-7564-612d-636172642d30";

/// Few short steps, each saved.
const RUN: &str = "--device cuda --vram 2 --global-batch 2 --seq-len 8 --checkpoint-every 1 \
                   --eval-samples 2 --precision fp32";

/// Trains as if nothing had failed before, since that changes the settings (`limits.rs`).
fn train(sandbox: &Sandbox, card: &str, given: &str) -> Said {
    assert_eq!(sandbox.run("limits --forget").code, Some(0));
    let mut command = sandbox.command_on_card(card, Sandbox::train_arguments(given));
    Said::of(command.output().expect("the binary runs"))
}

fn assert_says(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    for words in words {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}

/// The command in a failure's hint.
fn printed_command(said: &Said) -> Vec<String> {
    let line = said.stderr.lines().find_map(|line| line.strip_prefix("hint: to continue from it, run: plimsoll "));
    let line = line.unwrap_or_else(|| panic!("no command: {}", said.stderr));
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn invalid_drivers_are_refused_without_a_crash() {
    let sandbox = Sandbox::new();
    let whole = std::fs::read(plimsoll_fake_cuda::library()).expect("the stand-in");
    for (folder, contents, words) in [
        ("empty", &b""[..], "file too short"),
        (
            "text",
            b"these are words, and there are more of them than a library's header has bytes",
            "invalid ELF header",
        ),
        ("header", &whole[..64], "is cut off"),
        ("page", &whole[..4096], "is cut off"),
        ("half", &whole[..200_000], "is cut off"),
        ("folder", b"", "is not a regular file"),
        ("pipe", b"", "is not a regular file"),
        ("other", &std::fs::read(plimsoll_fake_nvml::library()).expect("a library"), "it has no cuCtxSetCurrent"),
    ] {
        for name in ["libcuda.so.1", "libcuda.so"] {
            let name = format!("{folder}/{name}");
            match folder {
                "folder" => sandbox.write(&format!("{name}/file"), ""),
                "pipe" => {
                    sandbox.write("pipe/file", "");
                    let made = std::process::Command::new("mkfifo").arg(sandbox.path(&name)).status();
                    assert!(made.is_ok_and(|made| made.success()), "a pipe");
                }
                _ => sandbox.write(&name, contents),
            }
        }
        let said_by = |arguments: &str, is_named: bool| {
            let mut command = sandbox.command(arguments.split_whitespace());
            match is_named {
                true => command.env("PLIMSOLL_CUDA", sandbox.path(folder).join("libcuda.so.1")),
                false => command.env_remove("PLIMSOLL_CUDA").env("LD_LIBRARY_PATH", sandbox.path(folder)),
            };
            Said::of(command.output().expect("the binary runs"))
        };
        for is_named in [true, false] {
            let said = said_by("plan --model nano --device cuda", is_named);
            assert_says(&said, 5, &[words, "hint: "]);
            let said = said_by("plan --model nano", is_named);
            assert_says(&said, 0, &["on the CPU: "]);
            assert_says(&said_by("doctor", is_named), 0, &[]);
        }
    }
}

#[test]
fn a_card_that_fails_during_a_run_names_the_checkpoint_and_the_command_to_resume() {
    let sandbox = Sandbox::new();
    let counted = train(&sandbox, "log=1", &format!("{RUN} --max-steps 4 --name whole"));
    assert_eq!(counted.code, Some(0), "{}", counted.stderr);
    for (index, (function, code, words)) in [
        ("cuGraphLaunch", 214, "its memory has errors"),
        ("cuGraphLaunch", 719, "a kernel failed"),
        ("cuStreamSynchronize", 999, "it no longer responds"),
        ("cuMemcpyHtoDAsync_v2", 702, "a kernel exceeded the time limit"),
        ("cuMemcpyDtoHAsync_v2", 46, "it no longer responds"),
    ]
    .into_iter()
    .enumerate()
    {
        let calls = counted.stderr.lines().filter(|line| line.strip_prefix("fake CUDA: ") == Some(function)).count();
        let card = format!("stick={function}:{}:{code}", calls * 3 / 4);
        let run = format!("runs/failed-{index}");
        let said = train(&sandbox, &card, &format!("{RUN} --max-steps 4 --name failed-{index}"));
        assert_says(&said, 5, &["error: the GPU failed, ", words, "the newest checkpoint on disk is "]);
        assert_eq!(said.stdout_text(), "", "{card}");
        let path =
            said.stderr.split("the newest checkpoint on disk is ").nth(1).and_then(|rest| rest.split(',').next());
        let path = path.expect("a path");
        assert!(path.starts_with(&format!("{run}/checkpoints/step-")), "{path}");
        assert!(sandbox.path(path).join("model.safetensors").exists(), "{path}");
        let mut resumed = sandbox.command_on_card("", printed_command(&said));
        assert_says(&Said::of(resumed.output().expect("the binary runs")), 0, &["resumed after step "]);
        sandbox.assert_same_run(&run, "runs/whole", 4);
    }
    // Before the first checkpoint.
    let said = train(&sandbox, "stick=cuGraphLaunch:1:719", &format!("{RUN} --max-steps 4 --name early"));
    assert_says(
        &said,
        5,
        &[
            "error: the GPU failed, a kernel failed",
            "hint: no checkpoint is on disk",
            "plimsoll train --resume auto --runs-dir runs --name early",
        ],
    );
}

#[test]
fn an_unusable_card_says_why_and_leaves_the_name_free() {
    let sandbox = Sandbox::new();
    for (card, code, words) in [
        ("mode=3;fail=cuDevicePrimaryCtxRetain:1:46", 5, "is in exclusive mode, and another process uses it"),
        ("mode=2", 5, "is in prohibited mode"),
        ("driver=11000", 5, "CUDA 11.4 is needed"),
        ("fail=cuModuleLoadDataEx:1:222", 5, "the driver refuses the kernels"),
        ("stick=cuDevicePrimaryCtxRetain:1:214", 5, "its memory has errors"),
        ("stick=cuMemCreate:1:999", 5, "it no longer responds"),
        ("fail=cuStreamCreate:1:9999", 5, "cuStreamCreate gives error 9999"),
        ("fail=cuMemCreate:1:2;fail=cuMemCreate:2:2;fail=cuMemCreate:3:2", 3, "of memory is needed"),
        ("cards=0", 5, "shows no GPU"),
        ("mig=", 5, "shows no GPU"),
    ] {
        let said = train(&sandbox, card, &format!("{RUN} --max-steps 1 --name again"));
        assert_says(&said, code, &[words, "hint: "]);
        assert_eq!(said.stdout_text(), "", "{card}");
    }
    assert_says(&train(&sandbox, "", &format!("{RUN} --max-steps 1 --name again")), 0, &[]);
}

#[test]
fn without_pinned_memory_it_trains_the_same_and_says_so() {
    let sandbox = Sandbox::new();
    let run = format!("{RUN} --max-steps 2 --optimizer-offload 1 --host-ram 1");
    assert_says(&train(&sandbox, "", &format!("{run} --name pinned")), 0, &[]);
    for (name, card, words) in [
        (
            "staging",
            "fail=cuMemHostAlloc:1:2",
            "note: no memory could be pinned, so each input is copied synchronously",
        ),
        ("arena", "registrable=0;fail=cuMemHostAlloc:1:2", "could not be pinned, so copies and kernels don't overlap"),
        // The arena is pinned in pieces, of which the third is refused.
        ("pieces", "registrable=70", "note: the driver pins 64.0 KiB of the "),
    ] {
        assert_says(&train(&sandbox, card, &format!("{run} --name {name}")), 0, &[words]);
        sandbox.assert_same_run(&format!("runs/{name}"), "runs/pinned", 2);
    }
}

#[test]
fn a_limit_of_pinned_memory_is_planned_for_and_remembered() {
    let sandbox = Sandbox::new();
    let train = |card: &str, name: &str| {
        let run = format!("{RUN} --max-steps 2 --optimizer-offload 1 --host-ram 1 --name {name}");
        let mut command = sandbox.command_on_card(card, Sandbox::train_arguments(&run));
        let said = Said::of(command.output().expect("the binary runs"));
        assert_says(&said, 0, &[]);
        said
    };
    train("", "pinned");
    let limited = "registrable=0";
    let first = train(limited, "first");
    assert_says(
        &first,
        0,
        &["note: the driver pins 0 B of the ", "planned for copies of which the driver pins 0 B of "],
    );
    assert!(sandbox.must("limits").contains("the driver pins 0 B of host memory"), "it is remembered");
    let second = train(limited, "second");
    assert_eq!(second.stderr.matches("planned for copies of which").count(), 1, "{}", second.stderr);
    for name in ["first", "second"] {
        sandbox.assert_same_run(&format!("runs/{name}"), "runs/pinned", 2);
    }
    // A driver that pins all again refutes it.
    train("", "again");
    let limits = sandbox.must("limits");
    assert!(limits.contains("no failures are remembered"), "{limits}");
}

#[test]
fn an_op_without_a_kernel_is_named_with_a_hint() {
    let sandbox = Sandbox::new();
    sandbox.write("wide/config.json", tiny_config(&json!({"n_embd": 512, "n_head": 1})));
    let said = train(&sandbox, "", &format!("{RUN} --model wide --name wide"));
    let words = ["GPUs cannot run `attention`: heads of 512 channels, GPUs support up to 256", "hint: `--device cpu`"];
    assert_says(&said, 5, &words);
}

/// A card whose driver uses no memory, so that the needed memory is known to the byte.
const SMALL: &str = "memory=20;others=0;context=0;module=0";

#[test]
fn memory_taken_after_planning_causes_a_smaller_plan() {
    let sandbox = Sandbox::new();
    let wide = json!({"vocab_size": 4096, "n_embd": 64, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0});
    sandbox.write("wide/config.json", tiny_config(&wide));
    let of_model = "--model wide --device cuda --vram-auto --vram-margin 0 --host-ram 1 --global-batch 2 --seq-len 8 \
                    --max-steps 2 --checkpoint-every 1 --eval-samples 1 --precision fp32 --tokenizer bytes --json";
    let run = |card: &str, given: &str| train(&sandbox, card, &format!("{of_model} {given}"));
    let bytes = |report: &Value, key: &str| report["plan"][key].as_u64().expect("bytes");
    let whole = run(SMALL, "--name whole");
    assert_says(&whole, 0, &[]);
    let whole = whole.json();
    // All modules are loaded and the plan is made: 4 MiB are left.
    let taken = format!("{SMALL};grab=cuMemAddressReserve:1:16");
    let said = run(&taken, "--name less");
    assert_says(&said, 0, &["less GPU memory is free than when the run was planned for 20.0 MiB; planned again for 4"]);
    let less = said.json();
    assert!(bytes(&less, "peak_bytes") <= 4 << 20 && 4 << 20 < bytes(&whole, "peak_bytes"), "{less}");
    assert_eq!(less["measured"]["touched_bytes"], less["plan"]["peak_bytes"]);
    assert_eq!(less["losses"], whole["losses"]);
    assert_eq!(sandbox.json("runs/less/plan.json")["peak_bytes"], less["plan"]["peak_bytes"]);

    // A resumed run, which keeps everything that determines the order of its sums.
    let last = sandbox.tensors("runs/whole", 2);
    std::fs::remove_dir_all(sandbox.path("runs/whole/checkpoints/step-000002")).expect("it is there");
    let mut resumed = sandbox.command_on_card(&taken, "train --resume runs/whole --json".split(' '));
    let resumed = Said::of(resumed.output().expect("the binary runs"));
    assert_says(&resumed, 0, &["planned again for 4"]);
    assert_eq!(resumed.json()["losses"], whole["losses"]);
    assert!(bytes(&resumed.json(), "peak_bytes") <= 4 << 20);
    assert!(sandbox.tensors("runs/whole", 2) == last, "other weights");

    // With an explicit budget the plan shrinks too.
    let named = train(&sandbox, &taken, &format!("{} --vram 20MiB --name named", of_model.replace("--vram-auto ", "")));
    assert_says(&named, 0, &["planned again for 4"]);
    assert_eq!(named.json()["losses"], whole["losses"]);

    // Nothing fits in what is left, even with an explicit budget, because memory keeps shrinking.
    let nvml = format!("NVIDIA GeForce RTX 3060,{UUID},20,0,16,holder=4194305/16");
    for (card, given, words) in [
        ("grab=cuMemAddressReserve:1:19", "", "wide needs "),
        ("grab=cuMemAddressReserve:1:20", "", "of memory is needed"),
        ("grab=cuMemAddressReserve:1:19", "--vram 20MiB", "wide needs "),
        ("grab=cuMemAddressReserve:1:15;grab=cuMemAddressReserve:2:1;grab=cuMemAddressReserve:3:1", "", " needed"),
    ] {
        let arguments = Sandbox::train_arguments(&format!("{of_model} {given} --name none"));
        let arguments = match given {
            "" => arguments,
            _ => arguments.into_iter().filter(|argument| argument != "--vram-auto").collect(),
        };
        let mut command = sandbox.command_on_card(&format!("{SMALL};{card}"), arguments);
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
        let said = Said::of(command.output().expect("the binary runs"));
        assert_says(&said, 3, &[words, "hint: of the GPU's memory, 16.0 MiB is held by a process (4194305)"]);
    }
}

#[test]
fn memory_of_other_processes_is_not_counted_as_the_runs() {
    let sandbox = Sandbox::new();
    let said = train(&sandbox, "grab=cuMemCreate:1:500", &format!("{RUN} --max-steps 1 --name mixed"));
    assert_says(&said, 0, &["measured of this process: - resident for the plan (another process's use of the GPU"]);
    assert_eq!(sandbox.json("runs/mixed/report.json")["measured"]["arena_resident_bytes"], Value::Null);
    let alone = train(&sandbox, "", &format!("{RUN} --max-steps 1 --name alone"));
    assert_says(&alone, 0, &["2.00 MiB resident for the plan, "]);
}

#[test]
fn a_benchmark_also_plans_again() {
    let sandbox = Sandbox::new();
    sandbox.write("wide/config.json", tiny_config(&json!({"vocab_size": 4096, "n_embd": 64})));
    let run = |card: &str, given: &str| {
        let command = format!(
            "bench --model wide --device cuda --vram-margin 0 --host-ram 1 --global-batch 2 --seq-len 8 --steps 1 \
             --warmup 0 --precision fp32 --json {given}"
        );
        Said::of(sandbox.command_on_card(card, command.split_whitespace()).output().expect("the binary runs"))
    };
    let whole = run(SMALL, "");
    assert_says(&whole, 0, &[]);
    let taken = format!("{SMALL};grab=cuMemAddressReserve:1:16");
    let less = run(&taken, "");
    assert_says(&less, 0, &["planned for 20.0 MiB; planned again for 4"]);
    let (whole, less) = (whole.json(), less.json());
    let bytes = |said: &Value| said["plan"]["peak_bytes"].as_u64().expect("bytes");
    assert!(bytes(&less) <= 4 << 20 && 4 << 20 < bytes(&whole), "{less}");
    assert_eq!(less["measured"]["touched_bytes"], less["plan"]["peak_bytes"]);
    assert_eq!(less["loss"], whole["loss"]);
    assert_says(&run(&taken, "--vram 20MiB"), 0, &["planned for 20.0 MiB; planned again for 4"]);
}

/// Memory of other processes is not a mistake in the command line.
#[test]
fn a_card_filled_by_other_processes_is_not_a_usage_error() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name made --max-steps 1");
    let train = "train --data a.txt --tokenizer bytes --name full --runs-dir runs --cache-dir cache --max-steps 1";
    let nvml = format!("NVIDIA GeForce RTX 3060,{UUID},12288,0,12200,holder=4194305/11800");
    let held = "hint: of the GPU's memory, 11.5 GiB is held by a process (4194305)";
    for command in [
        train,
        &format!("{train} --device cuda"),
        &format!("{train} --device cuda --vram 11"),
        &format!("{train} --device cuda --vram-auto --memory-fraction 0.5"),
        &format!("{train} --device cuda --vram-margin 1GiB"),
        "plan --model nano --device cuda",
        "plan --model nano --gpu auto",
        "bench --model nano --device cuda",
        "generate --checkpoint runs/made --device cuda",
    ] {
        let mut command = sandbox.command_on_card("card=rtx3060;others=11800", command.split(' '));
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
        let said = Said::of(command.output().expect("the binary runs"));
        assert_says(&said, 3, &["that other processes use", held, "hint: end the processes that use the memory"]);
    }
    // A margin as large as an unused card, and one as large as the free memory of the host.
    let said = |given: &str| train_on_card(&sandbox, "card=rtx3060;others=11800", &format!("{train} {given}"));
    assert_says(&said("--device cuda --vram-margin 13gb"), 2, &["hint: use a smaller `--vram-margin`"]);
    assert_says(&said("--device cpu --vram-margin 99999gb"), 3, &["hint: close other programs, or use a smaller"]);
}

fn train_on_card(sandbox: &Sandbox, card: &str, command: &str) -> Said {
    Said::of(sandbox.command_on_card(card, command.split(' ')).output().expect("the binary runs"))
}
