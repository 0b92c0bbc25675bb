//! Cards on the command line, with the CUDA stand-in: which device is used and why, the output of `doctor`, and how
//! unusable cards are refused.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// UUID of the stand-in's first card, in NVML's format.
const UUID: &str = "GPU-66616b65-2d63-7564-612d-636172642d30";

fn json(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()
}

#[test]
fn without_a_driver_the_cpu_is_used_with_a_note() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("plan --model nano --json");
    assert!(said.stderr.contains("on the CPU: no NVIDIA driver was found"), "{}", said.stderr);
    assert_eq!(json(&said)["device"]["kind"], "cpu");
    let said = sandbox.run("plan --model nano --device cuda");
    assert_eq!(said.code, Some(5));
    for words in ["no NVIDIA driver was found", "no-driver.so", "hint: ", "`--device cpu`"] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
}

/// Variables that PyTorch's users set are obeyed, or explained in a line.
#[test]
fn variables_of_openmp_and_nvidia_are_obeyed_or_explained() {
    let sandbox = Sandbox::new();
    let threads = |value: &str, flags: &str| {
        let mut command = sandbox.command(format!("plan --model nano --json {flags}").split_whitespace());
        json(&Said::of(command.env("OMP_NUM_THREADS", value).output().expect("the binary runs")))["device"]["threads"]
            .clone()
    };
    assert_eq!((threads("3", ""), threads("4,2", ""), threads("3", "--threads 2")), (3.into(), 4.into(), 2.into()));
    for (card, flags, value, words) in [
        ("", "--host-ram 4 --tf32 on", "0", "note: NVIDIA_TF32_OVERRIDE=0 turns `--tf32 on` off"),
        ("", "--host-ram 4", "0", "note: NVIDIA_TF32_OVERRIDE=0 changes nothing: TF32 is off without `--tf32 on`"),
        ("", "--host-ram 4", "1", "note: NVIDIA_TF32_OVERRIDE=1 affects only NVIDIA's libraries"),
        ("cards=0", "--device cpu", "0", "note: NVIDIA_TF32_OVERRIDE=0 changes nothing: the CPU has no TF32"),
        // The card has no TF32, so the variable changes nothing.
        ("capability=7.5", "--host-ram 4 --tf32 on", "0", "turns `--tf32 on` off"),
    ] {
        let arguments = format!("plan --model nano {flags}");
        let mut command = sandbox.command_on_card(card, arguments.split_whitespace());
        let said = Said::of(command.env("NVIDIA_TF32_OVERRIDE", value).output().expect("the binary runs"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
}

#[test]
fn a_card_is_used_with_its_free_memory() {
    let sandbox = Sandbox::new();
    let arguments = "plan --model gpt2 --host-ram 16 --json";
    let said = sandbox.run_on_card("", arguments);
    assert!(said.stderr.contains("on NVIDIA GeForce RTX 3060"), "{}", said.stderr);
    let value = json(&said);
    assert_eq!(value["device"]["kind"], "cuda");
    // It is unknown how much of the 600 MiB in use is this context's: up to three quarters of the margin of 1 GiB.
    assert_eq!(value["plan"]["budget_bytes"], (12_288u64 - 1024) << 20);
    let value = json(&sandbox.run_on_card("cards=2", &format!("{arguments} --device cuda:1 --precision fp32")));
    assert_eq!(value["device"]["name"], "NVIDIA GeForce RTX 3060");
    let value = json(&sandbox.run_on_card("", "plan --model nano --json --device cpu"));
    assert_eq!(value["device"]["kind"], "cpu");
    // An unlisted card is planned like a listed one of the same architecture.
    let said = sandbox.run_on_card("name=NVIDIA Something;capability=8.9", arguments);
    assert!(json(&said)["predicted"]["times"].as_str().is_none_or(|times| !times.is_empty()));
}

#[test]
fn an_unusable_card_says_why_with_a_hint() {
    let sandbox = Sandbox::new();
    for (card, code, words) in [
        ("cards=0", 5, "shows no GPU"),
        ("driver=11000", 5, "CUDA 11.4 is needed"),
        ("capability=6.1", 5, "compute capability 6.1"),
        ("mode=2", 5, "prohibited mode"),
        ("mode=3;fail=cuDevicePrimaryCtxRetain:1:46", 5, "another process uses it"),
        ("others=12200", 3, "no room for the driver's own memory"),
        ("fail=cuInit:1:999", 5, "no longer responds"),
        ("fail=cuInit:1:9999", 5, "cuInit gives error 9999"),
        ("mig=", 5, "shows no GPU"),
    ] {
        let said = sandbox.run_on_card(card, "plan --model nano --device cuda");
        assert_eq!(said.code, Some(code), "{card}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: "), "{card}: {}", said.stderr);
        let said = sandbox.run_on_card(card, "plan --model nano --json");
        assert!(said.stderr.contains("on the CPU: "), "{card}: {}", said.stderr);
        assert_eq!(json(&said)["device"]["kind"], "cpu", "{card}");
    }
    let said = sandbox.run_on_card("cards=2", "plan --model nano --device cuda:2");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("there is no GPU 2") && said.stderr.contains("cuda:1"), "{}", said.stderr);
    for wrong in ["gpu", "cuda:", "cuda:x", "cuda1"] {
        let said = sandbox.run(&format!("plan --model nano --device {wrong}"));
        assert_eq!(said.code, Some(2), "{wrong}");
    }
    assert_eq!(sandbox.run("plan --model nano --device cpu --gpu 3060").code, Some(2), "two devices");
}

#[test]
fn doctor_lists_memory_its_holders_and_what_is_missing() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("doctor");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for words in ["driver    none", "hint      ", "cuBLASLt  ", "`--device auto` uses the CPU"] {
        assert!(said.stdout_text().contains(words), "{}", said.stdout_text());
    }
    doctor_names_libraries_folders_and_measurements(&sandbox);
    let nvml = format!("NVIDIA GeForce RTX 3060,{UUID},12288,0,350,holder=4194305/350");
    let doctor = |card: &str, arguments: &str| {
        let mut command = sandbox.command_on_card(card, arguments.split_whitespace());
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
        Said::of(command.output().expect("the binary runs"))
    };
    let text = doctor("", "doctor");
    for words in
        ["CUDA 12.8", "compute capability 8.6, 11.4 GiB of 12.0 GiB free", "350 MiB is held by a process (4194305)"]
    {
        assert!(text.stdout_text().contains(words), "{}", text.stdout_text());
    }
    assert!(text.stdout_text().ends_with("`--device auto` uses GPU 0, NVIDIA GeForce RTX 3060\n"));
    let value = json(&doctor("cards=2", "doctor --json"));
    assert_eq!(value["cards"][0]["free_bytes"], (12_288u64 - 350 - 250) << 20);
    assert_eq!((&value["cards"][0]["uuid"], &value["cards"][0]["problem"]), (&UUID.into(), &Value::Null));
    assert_eq!(value["cards"][0]["holders"][0]["used_bytes"], 350u64 << 20);
    assert_eq!(value["cards"][1]["holders"], Value::Array(vec![]));
    let old = json(&doctor("capability=6.1", "doctor --json"));
    assert!(old["cards"][0]["problem"].as_str().is_some_and(|problem| problem.contains("7.5")), "{old}");
    let none = json(&doctor("cards=0", "doctor --json"));
    assert!(none["driver"]["cuda"] == "12.8" && none["problem"].is_string() && none["advice"][0].is_string(), "{none}");
}

fn doctor_names_libraries_folders_and_measurements(sandbox: &Sandbox) {
    let found = json(&sandbox.run("doctor --json"));
    let free = |value: &Value| value.as_u64().is_some_and(|bytes| bytes > 0);
    assert!(free(&found["host_bytes"]) && free(&found["free_host_bytes"]) && found["blas"].is_array(), "{found}");
    assert_eq!(found["measurements"], Value::Array(vec![]));
    let holds = |found: &Value| {
        let folders = found["folders"].as_array().expect("folders").iter();
        folders.map(|folder| (folder["holds"].clone(), folder["used_bytes"].clone())).collect::<Vec<_>>()
    };
    let none = [("cache", Value::Null), ("hub cache", Value::Null), ("runs", Value::Null)];
    assert_eq!(holds(&found), none.clone().map(|(name, size)| (name.into(), size)));
    assert!(found["folders"].as_array().expect("folders").iter().all(|folder| free(&folder["free_bytes"])), "{found}");
    sandbox.write(".cache/plimsoll/machine-2-threads.json", "{}");
    sandbox.write(".cache/plimsoll/below/tokens", [0; 998]);
    let found = json(&sandbox.run("doctor --json"));
    assert_eq!(holds(&found)[0], ("cache".into(), 1000.into()));
    let text = sandbox.run("doctor");
    for words in ["times     measured: ", "machine-2-threads.json", "cache     ", "1000 B, ", "free on its disk"] {
        assert!(text.stdout_text().contains(words), "{words}: {}", text.stdout_text());
    }
}

#[test]
fn processes_that_take_memory_after_planning_are_named() {
    let sandbox = Sandbox::new();
    let nvml = format!("NVIDIA GeForce RTX 3060,{UUID},12288,0,11000,holder=4194305/11000");
    let train = |card: &str| {
        let arguments = Sandbox::train_arguments(
            "--device cuda --vram 12 --max-steps 1 --global-batch 2 --seq-len 8 --precision fp32",
        );
        let mut command = sandbox.command_on_card(card, arguments);
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
        Said::of(command.output().expect("the binary runs"))
    };
    // Between the plan and its arena, and before the driver's context exists.
    for (card, words) in
        [("others=11000;growth=150", "of memory is needed"), ("others=12288", "the driver's own memory")]
    {
        let said = train(card);
        assert_eq!(said.code, Some(3), "{card}: {}", said.stderr);
        for words in [words, "hint: of the GPU's memory, 10.7 GiB is held by a process (4194305)"] {
            assert!(said.stderr.contains(words), "{card}: {}", said.stderr);
        }
    }
}
