//! Plans for cards: by name and of this machine, in comparison, and the additional output of `plan`.

use crate::support::{Said, Sandbox};
use serde_json::Value;

const TWO_CARDS: &str =
    "NVIDIA GeForce RTX 3060,GPU-aaaa0000-0000,12288,350,1200;NVIDIA GeForce RTX 4090,GPU-bbbb0000-0000,24564,450,0";

fn json(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()
}

/// The setting of a lever in a plan.
fn setting(plan: &Value, lever: &str) -> Value {
    let levers = plan["levers"].as_array().expect("levers");
    levers.iter().find(|known| known["name"] == lever).expect("one of the levers")["setting"].clone()
}

#[test]
fn a_card_by_any_of_its_names_gives_the_same_plan() {
    let sandbox = Sandbox::new();
    let plan = |name: &str| {
        let value = json(&sandbox.run(&format!("plan --model gpt2-medium --json --host-ram 16 --gpu {name}")));
        assert_eq!(value["device"]["kind"], "cuda");
        assert!(value["predicted"]["tokens_per_s"].as_f64() > Some(100.0), "{value}");
        (value["device"]["name"].clone(), value["plan"].clone(), setting(&value, "precision"))
    };
    let first = plan("rtx-3060");
    assert_eq!((&first.0, &first.2), (&"RTX 3060 12GB".into(), &"bf16".into()));
    // 12 GiB minus the margin of 1 GiB.
    assert_eq!(first.1["budget_bytes"], 11u64 << 30);
    for name in ["3060", "RTX3060", "geforce-rtx-3060"] {
        assert_eq!(plan(name), first, "{name}");
    }
    assert_eq!(plan("t4").2, "fp16");
    assert_eq!(plan("1080ti").2, "fp32");
}

#[test]
fn without_a_card_vram_selects_one_with_that_much_memory() {
    let sandbox = Sandbox::new();
    let plan = |flags: &str| sandbox.run(&format!("plan --model gpt2 --global-batch 8 {flags}"));
    let said = plan("--vram 12 --json");
    assert!(said.stderr.contains("planning for an NVIDIA GPU with 12.0 GiB") && said.stderr.contains("`--device cpu`"));
    let value = json(&said);
    assert_eq!(
        (&value["device"]["kind"], &value["device"]["name"]),
        (&"cuda".into(), &"NVIDIA GPU with 12.0 GiB".into())
    );
    assert_eq!(value["plan"]["budget_bytes"], 11u64 << 30, "minus the margin");
    assert!(value["predicted"]["times"].as_str().is_some_and(|times| times.contains("RTX 3060 12GB")), "{value}");
    assert_eq!(value["plan"], json(&plan("--gpu 3060 --json"))["plan"]);
    let text = plan("--vram 12");
    let second = text.stdout_text().lines().nth(1).expect("a second line");
    assert!(
        second.starts_with("in bf16 on NVIDIA GPU with 12.0 GiB; times are estimates from the data sheet of RTX 3060"),
        "{second}"
    );
    // The CPU if asked for; less than any card has.
    for flags in ["--vram 12 --device cpu", "--vram 2"] {
        assert_eq!(json(&plan(&format!("{flags} --json")))["device"]["kind"], "cpu", "{flags}");
    }
    let here = |flags: &str| sandbox.run_on_card("", &format!("plan --model gpt2 --global-batch 8 {flags} --json"));
    let smaller = here("--vram 6");
    assert_eq!(json(&smaller)["device"]["name"], "NVIDIA GeForce RTX 3060", "{}", smaller.stderr);
    assert_eq!(json(&smaller)["plan"]["budget_bytes"], 5u64 << 30, "minus the margin only");
    assert!(!smaller.stderr.contains("planning for"), "{}", smaller.stderr);
    // More than this machine's card has selects another card, or the free memory of this one if asked for.
    let larger = here("--vram 24");
    assert_eq!(json(&larger)["device"]["name"], "NVIDIA GPU with 24.0 GiB");
    let words =
        "24.0 GiB: the GPU that `train` would use, NVIDIA GeForce RTX 3060, has 12.0 GiB; `--device cuda` plans";
    assert!(larger.stderr.contains(words), "{}", larger.stderr);
    let asked = here("--vram 24 --device cuda");
    assert_eq!(json(&asked)["plan"]["budget_bytes"], json(&here("--device cuda"))["plan"]["budget_bytes"]);
    let words = "`--vram` asks for 24.0 GiB, but NVIDIA GeForce RTX 3060 has 12.0 GiB: planning for the";
    assert!(asked.stderr.contains(words), "{}", asked.stderr);
}

/// One card is assumed for all sizes, without a card and next to one that has less.
#[test]
fn more_vram_never_means_a_slower_plan() {
    /// The search prefers a plan without transfers to one that is up to 0.4 % faster.
    const SAME: f64 = 0.995;
    let sandbox = Sandbox::new();
    for here in [None, Some("card=rtx4090")] {
        let mut fastest = 0.0;
        for vram in ["4", "6", "8", "10", "11", "13", "14", "16", "16.5", "24", "25", "40", "80", "96", "200", "400"] {
            let flags = format!("plan --model gpt2-medium --host-ram 64 --json --vram {vram}");
            let said = match here {
                None => sandbox.run(&flags),
                Some(card) => sandbox.run_on_card(card, &flags),
            };
            if said.code == Some(3) {
                assert_eq!(fastest, 0.0, "{vram} GiB are not enough, but less was");
                continue;
            }
            let speed = json(&said)["predicted"]["tokens_per_s"].as_f64().expect("a speed");
            assert!(speed >= SAME * fastest, "{here:?}: {speed} tokens/s with {vram} GiB, {fastest} with less");
            fastest = speed.max(fastest);
        }
        assert!(fastest > 0.0);
    }
}

/// Memory of other processes is subtracted from the card's memory, not from a budget that fits next to it, whichever
/// library reports it.
#[test]
fn a_cards_budget_does_not_depend_on_the_library_that_found_it() {
    let sandbox = Sandbox::new();
    let uuid = "GPU-66616b65-2d63-7564-612d-636172642d30";
    // Other processes use 1,700 MiB; this process's driver context uses 440.
    let plan = |flags: &str, nvml: &str| {
        let command = format!("plan --model gpt2 --global-batch 4 --host-ram 16 --json {flags}");
        let card = "card=rtx3060;others=1700;context=440;module=0";
        let mut command = sandbox.command_on_card(card, command.split_whitespace());
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
        command.env(plimsoll_fake_nvml::MACHINE, format!("NVIDIA GeForce RTX 3060,{uuid},12288,0,{nvml}"));
        let value = json(&Said::of(command.output().expect("the binary runs")));
        value["plan"]["budget_bytes"].as_u64().expect("bytes") >> 20
    };
    for (vram, expected) in
        [("", 12288 - 1700 - 1024), ("--vram 10000MiB", 10000 - 1024), ("--vram 12", 12288 - 1700 - 1024)]
    {
        assert_eq!(plan(&format!("--gpu auto {vram}"), "1700,holder=7/1700"), expected, "{vram}");
        assert_eq!(plan(&format!("--device cuda {vram}"), "2140,holder=7/1700,holder=0/440"), expected, "{vram}");
    }
    assert_eq!(plan("--device cuda", "2140,holder=7/1700"), 12288 - 2140 - 256, "without NVML");
}

/// A GPU in a slot of few lanes that drives a display: copies take longer, and more memory stays free, whichever library found
/// it.
#[test]
fn plans_know_a_gpus_slot_and_its_display() {
    let sandbox = Sandbox::new();
    let uuid = "GPU-66616b65-2d63-7564-612d-636172642d30";
    let plan = |flags: &str, display: u8, readings: &str| {
        std::fs::write(sandbox.path("readings"), readings).expect("a script");
        let command = format!("plan --model gpt2 --optimizer-offload 1 --host-ram 16 --json --device {flags}");
        let command = command.replace("--device --gpu", "--gpu");
        let mut command = sandbox.command_on_card(&format!("display={display}"), command.split_whitespace());
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
        command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("readings"));
        command.env(plimsoll_fake_nvml::MACHINE, format!("NVIDIA GeForce RTX 3060,{uuid},12288,0,600,holder=0/250"));
        let value = json(&Said::of(command.output().expect("the binary runs")));
        let predicted = &value["predicted"];
        let seconds = predicted["step_ms"].as_f64().expect("a time") / 1e3;
        (seconds, predicted["times"].as_str().expect("a source").to_owned(), value["plan"]["budget_bytes"].as_u64())
    };
    for flags in ["cuda", "--gpu auto"] {
        let (usual, times, budget) = plan(flags, 0, "0 0 pcie_generation_max 4\n0 0 pcie_lanes 16\n");
        assert!(!times.contains("its link"), "{times}");
        assert_eq!(plan(flags, 0, ""), (usual, times, budget), "{flags}");
        let in_slot = "0 0 pcie_generation_max 3\n0 0 pcie_lanes 4\n0 0 display_active 1\n";
        let (slow, times, less) = plan(flags, 1, in_slot);
        assert!(times.contains(", and its link, PCIe 3 with 4 lanes: "), "{times}");
        assert!(slow > usual + 0.01, "{flags}: {slow} s, {usual} s in the usual slot");
        assert_eq!(budget.zip(less).map(|(all, less)| all - less), Some(512 << 20), "{flags}");
    }
}

#[test]
fn the_budget_is_shown_line_by_line() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("plan --gpu 4090 --memory-fraction 0.9 --vram-margin 500");
    let lines = said.stdout_text().lines().skip(2).take(5).map(str::trim).collect::<Vec<_>>();
    assert_eq!(
        lines,
        [
            "budget:",
            "24.0 GiB  RTX 4090",
            "times 0.9, the memory fraction",
            "- 500 MiB  margin",
            "= 21.1 GiB  for the plan"
        ]
    );
}

#[test]
fn cards_of_this_machine_are_planned_separately() {
    let sandbox = Sandbox::new();
    let said = sandbox.run_with_cards(TWO_CARDS, "plan --model gpt2 --gpu auto --json --host-ram 16");
    let value = json(&said);
    let plans = value["plans"].as_array().expect("a plan for each card");
    let budgets = plans.iter().map(|p| p["plan"]["budget_bytes"].as_u64()).collect::<Vec<_>>();
    assert_eq!(budgets, [Some((12288 - 350 - 1200 - 1024) << 20), Some((24564 - 450 - 1024) << 20)]);
    let said = sandbox.run_with_cards(TWO_CARDS, "plan --model gpt2 --gpu auto --host-ram 16");
    assert!(said.stdout_text().contains("2 GPUs, one independent run each: "), "{}", said.stdout_text());
    assert!(said.stdout_text().contains("- 1.51 GiB  used by other processes"), "{}", said.stdout_text());

    let same = sandbox.run_with_cards(TWO_CARDS, "plan --model gpt2 --vram-auto --json --host-ram 16");
    assert_eq!(json(&same)["plans"][1]["plan"], value["plans"][1]["plan"]);
    let without = json(&sandbox.run("plan --model nano --vram-auto --json"));
    assert_eq!(without["device"]["kind"], "cpu");

    let said = sandbox.run_with_cards(TWO_CARDS, "gpus --json");
    let gpus = json(&said);
    assert_eq!(gpus["cards"][1]["name"], "NVIDIA GeForce RTX 4090");
    assert_eq!(gpus["cards"][0]["used_bytes"], 1200u64 << 20);
    let said = sandbox.run_with_cards(TWO_CARDS, "gpus");
    assert!(said.stdout_text().contains("2 GPUs, 36.0 GiB together"), "{}", said.stdout_text());
}

/// The driver reports the same name; they differ in memory and speed.
#[test]
fn cards_with_the_same_name_are_distinguished_by_memory() {
    let sandbox = Sandbox::new();
    let cards = "NVIDIA GeForce RTX 3060,GPU-aaaa,12288,350,0;NVIDIA GeForce RTX 3060,GPU-bbbb,8192,300,0";
    let value =
        json(&sandbox.run_with_cards(cards, "plan --model gpt2 --gpu auto --json --host-ram 16 --global-batch 4"));
    let speeds = value["plans"].as_array().expect("plans").iter().map(|p| p["predicted"]["tokens_per_s"].as_f64());
    let by_name = ["3060-12gb", "3060-8gb"].map(|name| {
        let value =
            json(&sandbox.run(&format!("plan --model gpt2 --gpu {name} --json --host-ram 16 --global-batch 4")));
        value["predicted"]["tokens_per_s"].as_f64()
    });
    assert_eq!(speeds.collect::<Vec<_>>(), by_name);
    assert!(by_name[0] > by_name[1], "the one with less memory has a slower one too: {by_name:?}");
}

#[test]
fn each_card_gets_a_picture_of_its_own() {
    let sandbox = Sandbox::new();
    let said = sandbox.run_with_cards(TWO_CARDS, "plan --gpu auto --host-ram 1 --html map.html --svg map");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for (file, card) in [("map-1.html", "RTX 3060"), ("map-2.html", "RTX 4090"), ("map-1", "RTX 3060")] {
        assert!(!sandbox.read(file).is_empty());
        assert!(said.stderr.contains(&format!("picture of NVIDIA GeForce {card}: {file}")), "{}", said.stderr);
    }
    assert!(!sandbox.path("map.html").exists());
}

/// Hints of a misfit can be pasted: they fit, after the device's margin.
#[test]
fn hints_of_a_misfit_fit() {
    let sandbox = Sandbox::new();
    let command = "plan --model gpt2 --gpu 3090 --vram 2.4 --host-ram 0 --global-batch 2 --recompute none";
    let said = sandbox.run(command);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let hints = said.stderr.lines().filter_map(|line| line.strip_prefix("hint: `")?.split('`').next());
    let hints = hints.map(str::to_owned).collect::<Vec<_>>();
    assert!(hints.len() > 2 && hints[0].matches("--").count() > 1, "{}", said.stderr);
    for hint in hints {
        let words = command.split(' ').collect::<Vec<_>>();
        let kept = hint.split(' ').filter(|word| word.starts_with("--")).fold(words, |words, flag| {
            // The hint replaces the flag that the command has.
            match words.iter().position(|word| *word == flag) {
                Some(at) => [&words[..at], &words[at + 2..]].concat(),
                None => words,
            }
        });
        let said = sandbox.run(&format!("{} {hint}", kept.join(" ")));
        assert_eq!(said.code, Some(0), "{hint}: {}", said.stderr);
    }
}

#[test]
fn cards_are_compared() {
    let sandbox = Sandbox::new();
    let command =
        "plan --model gpt2-large --compare rtx-3060,rtx-3090,rtx-4090 --epochs 20 --tokens 100M --host-ram 32";
    let said = sandbox.run(command);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for part in ["RTX 3060 12GB", "RTX 3090", "RTX 4090", "2000M tokens"] {
        assert!(said.stdout_text().contains(part), "{part}: {}", said.stdout_text());
    }
    let value = json(&sandbox.run(&format!("{command} --json")));
    let speeds = value["plans"].as_array().expect("plans").iter().map(|p| p["predicted"]["tokens_per_s"].as_f64());
    assert!(speeds.collect::<Vec<_>>().is_sorted(), "{value}");
}

/// The largest answer fits, and the next larger does not.
#[test]
fn the_largest_that_fits_is_the_largest() {
    let sandbox = Sandbox::new();
    let found = |what: &str| {
        json(&sandbox.run(&format!("plan --model nano --vram 24MiB --json --find {what}")))["most_that_fits"].clone()
    };
    let longest = found("seq-len --global-batch 4").as_u64().expect("a length");
    let fits = |seq_len: u64| {
        let said = sandbox.run(&format!("plan --model nano --vram 24MiB --global-batch 4 --seq-len {seq_len}"));
        said.code == Some(0)
    };
    assert!(fits(longest) && !fits(longest + 64), "{longest}");
    let largest = found("micro-batch").as_u64().expect("a batch");
    let fits = |batch: u64| {
        let batches = format!("--global-batch {batch} --micro-batch {batch}");
        sandbox.run(&format!("plan --model nano --vram 24MiB {batches}")).code == Some(0)
    };
    assert!(fits(largest) && !fits(largest + 1), "{largest}");
    assert_eq!(found("model"), "nano");
}

/// The plan shown is the answer's, and `plan` with the answer's flags gives the same.
#[test]
fn the_answer_equals_plan_with_its_flags() {
    let sandbox = Sandbox::new();
    for (asked, what, positions) in [
        ("--model gpt2 --gpu 4090 --host-ram 16", "seq-len", Some(1024)),
        ("--model t5-nano --device cpu --vram 300MiB --global-batch 4", "seq-len", None),
        ("--model nano --vram 24MiB --global-batch 4", "seq-len", None),
        ("--model nano --vram 24MiB --optimizer-state 8bit", "micro-batch", None),
        ("--model gpt2-medium --gpu 3060 --host-ram 16", "micro-batch", None),
        ("--model t5-nano --device cpu --vram 300MiB --seq-len 64", "micro-batch", None),
        ("--model gpt2 --gpu 3060 --host-ram 16", "model", None),
        ("--model smollm2-135m --gpu 3060 --host-ram 32 --seq-len 20000", "model", None),
    ] {
        let found = json(&sandbox.run(&format!("plan {asked} --find {what} --json")));
        let answer = match &found["most_that_fits"] {
            Value::String(name) => name.clone(),
            Value::Number(number) => number.to_string(),
            other => panic!("{asked}: {other}"),
        };
        let flags = |answer: &str| match what {
            "micro-batch" => format!("--micro-batch {answer} --global-batch {answer}"),
            what => format!("--{what} {answer}"),
        };
        let words = sandbox.run(&format!("plan {asked} --find {what}"));
        let words = words.stdout_text();
        assert!(words.contains(&format!("that fits: {answer}")) && words.contains(&flags(&answer)), "{asked}: {words}");
        // The answer's flags replace the searched ones.
        let kept = asked.split(" --").filter(|flag| !flags(&answer).contains(flag.split(' ').next().expect("a word")));
        let kept = kept.map(|flag| format!("--{}", flag.trim_start_matches('-'))).collect::<Vec<_>>().join(" ");
        let planned = json(&sandbox.run(&format!("plan {kept} {} --json", flags(&answer))));
        assert_eq!((&found["plan"], &found["model"]), (&planned["plan"], &planned["model"]), "{asked} --find {what}");
        assert_eq!(planned["fits"], true, "{asked}");
        let Ok(number) = answer.parse::<u64>() else { continue };
        assert!(positions.is_none_or(|positions| positions == number), "{asked}: {number}");
        let next = number + if what == "seq-len" { 64 } else { 1 };
        let code = sandbox.run(&format!("plan {kept} {}", flags(&next.to_string()))).code;
        assert_eq!(code, Some(if positions.is_some() { 2 } else { 3 }), "{asked}: {next} does not fit");
    }
}

#[test]
fn workers_share_a_card_and_rules_of_thumb_are_listed() {
    let sandbox = Sandbox::new();
    let value = json(&sandbox.run("plan --model gpt2 --gpu 3090 --workers auto --rules --json --host-ram 16"));
    let workers = value["workers"]["count"].as_u64().expect("a number");
    assert!(workers > 3, "{value}");
    assert_eq!(value["workers"]["budget_bytes"].as_u64(), Some((23u64 << 30) / workers));
    assert!(value["plan"]["peak_bytes"].as_u64() <= value["workers"]["budget_bytes"].as_u64());
    // Two workers have half the speed each, unless memory limits them.
    let flags = "plan --model gpt2 --gpu h200 --global-batch 8 --json --host-ram 64";
    let speed = |value: &Value| value["predicted"]["tokens_per_s"].as_f64().expect("a number");
    let (one, two) = (json(&sandbox.run(flags)), json(&sandbox.run(&format!("{flags} --workers 2@20GiB"))));
    assert!((speed(&one) / speed(&two) - 2.0).abs() < 0.01, "{} and {}", speed(&one), speed(&two));
    assert_eq!((&two["workers"]["count"], &two["workers"]["budget_bytes"]), (&2.into(), &(20u64 << 30).into()));
    let together = two["workers"]["tokens_per_s_together"].as_f64().expect("a number");
    assert!((together / speed(&two) - 2.0).abs() < 1e-6, "{together}");
    let said = sandbox.run("plan --model gpt2 --gpu 3090 --global-batch 8 --workers 7@3.33GiB");
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    for words in
        ["7 runs with 3.33 GiB each need 23.3 GiB, but the budget of the device is 23.0 GiB", "`--workers 6@3.33GiB`"]
    {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    let said = sandbox.run("plan --model gpt2 --gpu 3090 --global-batch 8 --workers 6@3.33GiB");
    assert!(said.stdout_text().contains("6 runs share the device's 23.0 GiB, each with 3.33 GiB"), "{}", said.stderr);
    let rule = &value["rule_of_thumb"];
    assert_eq!((&rule["micro_batch"], &rule["seq_len"], &rule["accumulation"]), (&4.into(), &1024.into(), &4.into()));
}

/// An interrupted calibration keeps its measurements, and the next one continues after them.
#[test]
fn a_calibration_continues_after_an_interrupt() {
    let sandbox = Sandbox::new();
    let calibrate = || sandbox.run("calibrate --device cpu --threads 2 --duration 0s --out here.json --json");
    let (first, second) = (calibrate(), calibrate());
    assert!(first.stderr.contains("`plimsoll calibrate` continues an interrupted calibration"), "{}", first.stderr);
    assert!(first.stderr.contains("measuring: 1 of 36 runs, about "), "{}", first.stderr);
    assert!(second.stderr.contains("continuing after run 1 of the calibration in here.json"), "{}", second.stderr);
    assert!(second.stderr.contains("measuring: 2 of 36 runs, about "), "{}", second.stderr);
    assert!(json(&second)["samples"].as_u64() > json(&first)["samples"].as_u64());
    let plan = json(&sandbox.run("plan --model nano --device cpu --threads 2 --vram 1 --machine here.json --json"));
    let times = "times from here.json, 2 of 36 runs; `plimsoll calibrate` measures the rest";
    assert_eq!(plan["predicted"]["times"], times);
}

/// The memory of PyTorch next to the plan's is that of `estimate` with the same settings.
#[test]
fn a_plan_is_compared_with_pytorch() {
    let sandbox = Sandbox::new();
    for (flags, of_estimate) in [
        ("--model gpt2 --precision bf16", "--model gpt2 --precision amp-bf16"),
        (
            "--model smollm2-135m --method qlora --lora-rank 8 --lora-targets q_proj,v_proj",
            "--model smollm2-135m --method qlora --lora-rank 8 --lora-targets q_proj,v_proj",
        ),
    ] {
        let size = "--micro-batch 2 --seq-len 512";
        let plan = json(
            &sandbox
                .run(&format!("plan {flags} {size} --global-batch 4 --gpu 3060 --host-ram 16 --beside pytorch --json")),
        );
        let estimate = json(&sandbox.run(&format!(
            "estimate {of_estimate} {size} --gradient-accumulation-steps 2 --gradient-checkpointing=non-reentrant --gpu 3060 --json"
        )));
        let compared = &plan["pytorch"];
        let keys =
            [("likely_bytes", &estimate), ("least_bytes", &estimate["least"]), ("most_bytes", &estimate["most"])];
        for (key, of) in keys {
            assert_eq!(compared[key], of["process_bytes"], "{flags}: {key}");
        }
        let with_margin = plan["plan"]["peak_bytes"].as_u64().expect("bytes") + (1 << 30);
        assert_eq!(compared["plan_bytes"], with_margin, "{flags}");
    }
    let said = sandbox.run("plan --model smollm2-135m --method qlora --base-weights int8 --gpu 3060 --beside pytorch");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("does not know a base in int8"), "{}", said.stderr);
}

/// A rule of thumb does not price settings that other flags or the model exclude.
#[test]
fn a_rule_of_thumb_is_a_possible_run() {
    let sandbox = Sandbox::new();
    let flags =
        "plan --model gpt2 --gpu 3060 --rules --update-in-backward on --global-batch 1 --grad-clip 0 --host-ram 16";
    let said = sandbox.run(flags);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let words = "accumulation 8, recompute: refused: update-in-backward can't be used";
    assert!(said.stdout_text().contains(words), "{}", said.stdout_text());
    let longest = json(&sandbox.run("plan --model gpt2 --gpu h200 --rules --global-batch 4 --json --host-ram 16"));
    assert_eq!(longest["rule_of_thumb"]["seq_len"], 1024, "gpt2 has no more positions");
}

#[test]
fn the_time_of_a_whole_training_is_shown() {
    let sandbox = Sandbox::new();
    let flags = "plan --model gpt2 --gpu 3060 --global-batch 8 --host-ram 16 --epochs 20";
    let of = |data: &str| json(&sandbox.run(&format!("{flags} {data} --json")));
    let (tokens, records) = (of("--tokens 9M"), of("--records 55k"));
    // 20 times nine million tokens in steps of 8 x 1024, and 20 times 55,000 samples in steps of 8.
    assert_eq!((&tokens["training"]["steps"], &records["training"]["steps"]), (&21_973.into(), &137_500.into()));
    let step_s = tokens["predicted"]["step_ms"].as_f64().expect("a number") / 1e3;
    let ratio = tokens["training"]["seconds"].as_f64().expect("a number") / (21_973.0 * step_s);
    assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
    let said = sandbox.run(&format!("{flags} --records 55k"));
    assert!(said.stdout_text().contains("20 epochs of 55,000 records: 137,500 steps, "), "{}", said.stdout_text());
}

/// The longest power of two that fits, up to the model's positions.
#[test]
fn the_longest_samples_are_found_for_plans_and_runs() {
    let sandbox = Sandbox::new();
    let plan = |seq_len: &str| {
        sandbox.run(&format!("plan --model nano --vram 24MiB --global-batch 4 --json --seq-len {seq_len}"))
    };
    let found = json(&plan("auto"))["plan"]["seq_len"].as_u64().expect("a length");
    assert!(found.is_power_of_two() && plan(&(2 * found).to_string()).code == Some(3), "{found}");
    let all = json(&sandbox.run("plan --model gpt2 --gpu h200 --global-batch 4 --host-ram 16 --json --seq-len auto"));
    assert_eq!(all["plan"]["seq_len"], 1024, "gpt2 has no more positions");
    let said = sandbox.run("plan --model nano --vram 60KiB --global-batch 4 --seq-len auto");
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stderr.contains("sequences of 16"), "{}", said.stderr);
    sandbox.must_train("--name found --seq-len auto --max-steps 1 --vram 1 --global-batch 1");
    assert_eq!(sandbox.json("runs/found/plan.json")["seq_len"], 32, "the number of positions of tiny");
    assert_eq!(sandbox.run("bench --model nano --seq-len auto").code, Some(2));
}

#[test]
fn the_largest_micro_batch_divides_the_requested_step() {
    let sandbox = Sandbox::new();
    for (given, steps) in [("--global-batch 24", None), ("--gradient-accumulation-steps 3", Some(3))] {
        let found = json(&sandbox.run(&format!("plan --model nano --vram 24MiB --json --find micro-batch {given}")));
        let micro = found["most_that_fits"].as_u64().expect("a batch");
        let global = found["plan"]["global_batch"].as_u64().expect("a batch");
        assert_eq!(global, steps.map_or(24, |steps| steps * micro), "{given}: {micro}");
        assert_eq!(found["plan"]["micro_batch"], micro, "{given}");
    }
}

/// On a card a step has the usual number of tokens for training, so that cards are used as far as that is faster.
#[test]
fn a_step_on_a_card_has_the_usual_number_of_tokens() {
    let sandbox = Sandbox::new();
    sandbox.write("weights/config.json", crate::support::tiny_config(&serde_json::json!({"n_positions": 1024})));
    let samples = |flags: &str| json(&sandbox.run(&format!("plan --json {flags}")))["plan"]["global_batch"].clone();
    for (flags, expected) in [
        ("--model gpt2 --gpu 3060 --host-ram 16", 512),
        ("--model gpt2 --gpu 3060 --host-ram 16 --seq-len 256", 2048),
        ("--model gpt2 --gpu 3060 --host-ram 16 --seq-len 1000", 512),
        ("--init weights --gpu 3060 --host-ram 16", 64),
        ("--model t5-small --gpu 3060 --host-ram 16", 128),
        ("--model gpt2 --gpu 3060 --host-ram 16 --batch_size 3", 3),
        ("--model gpt2 --gpu 3060 --host-ram 16 --micro-batch 3", 513),
        ("--model gpt2 --device cpu --vram 16", 4),
        ("--model nano --gpu 3060 --host-ram 16", 32),
    ] {
        assert_eq!(samples(flags), expected, "{flags}");
    }
    let plans = json(&sandbox.run("plan --model gpt2-large --compare 3060,4090 --host-ram 64 --json"));
    let of = |card: usize, key: &str| plans["plans"][card]["plan"][key].as_u64().expect("a number");
    let offloads = |card: usize| setting(&plans["plans"][card], "optimizer-offload") != "0 %";
    assert!(offloads(0) && !offloads(1), "the smaller GPU keeps its optimizer on the host");
    assert!((0..2).all(|card| 10 * of(card, "peak_bytes") > 8 * of(card, "budget_bytes")), "both are filled");
}

/// The host's memory is assumed, with a note, unless it is given or is this machine's.
#[test]
fn the_host_memory_of_another_machine_is_assumed() {
    let sandbox = Sandbox::new();
    let words = "+ 24.0 GiB  of host memory, assumed for a GPU in another machine";
    let budget = |flags: &str| {
        let said = sandbox.run_with_cards(TWO_CARDS, &format!("plan --model gpt2 --global-batch 4 {flags}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.stdout_text().contains(words)
    };
    assert!(budget("--gpu 3060"));
    assert!(!budget("--gpu 3060 --host-ram 24") && !budget("--gpu auto") && !budget("--device cpu --vram 8"));
    // A plan that needs more host memory than assumed.
    let said = sandbox.run("plan --model gpt2-xl --gpu 3050 --vram 5 --optimizer-offload 1 --global-batch 1");
    assert!(said.stderr.contains(" of host memory, the budget is 16.0 GiB (short"), "{}", said.stderr);
    let said = sandbox.run("plan --model gpt2 --compare 3060,4090 --global-batch 4");
    assert!(said.stdout_text().contains("each host is assumed to have twice"), "{}", said.stdout_text());
}

/// Each memory has its own budget, and similar tensors share a line.
#[test]
fn two_memories_are_shown_separately_and_blocks_are_counted() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(
        "plan --model gpt2 --gpu 3060 --vram 2 --global-batch 1 --micro-batch 1 --optimizer-offload 1 --host-ram 500MiB",
    );
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let lines = said.stderr.lines().collect::<Vec<_>>();
    let (card, host) = (lines[1], lines[2]);
    assert!(lines[0].starts_with("error: gpt2 with a micro-batch of 1 ") && lines[0].ends_with(" needs"), "{lines:?}");
    assert!(card.contains(" of GPU memory, the budget is 1.00 GiB") && !card.contains("short"), "{card}");
    assert!(host.contains(" of host memory, the budget is 500 MiB (short "), "{host}");
    let said = sandbox.run("plan --model gpt2 --gpu 3060 --explain --host-ram 16 --global-batch 1");
    let weights = "12 × transformer.h.*.mlp.c_fc.weight.exp_avg";
    assert!(said.stdout_text().contains(weights), "{}", said.stdout_text());
}

#[test]
fn missing_cards_and_models_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    for (arguments, code, expected) in [
        ("plan --gpu 3006", 2, &["unknown GPU `3006`", "did you mean `RTX 3060", "`--vram 12`"][..]),
        ("plan --gpu auto", 2, &["no NVIDIA driver", "`--gpu NAME`", "`--vram`"]),
        ("gpus", 0, &["no NVIDIA driver", "hint: `plimsoll doctor`"]),
        (
            "plan --gpu 3060 --vram 16",
            2,
            &["`--vram` asks for 16.0 GiB, but the RTX 3060 12GB has 12.0 GiB", "omit `--vram`"],
        ),
        (
            "plan --model llama-3.2-3b --gpu 3060",
            3,
            &["hint: `--precision bf16-pure --optimizer-state 8bit` fits", "`--host-ram ", "hint: `--gpu rtx-"],
        ),
        (
            "plan --model llama-3.1-8b --gpu 3060",
            3,
            &["hint: `--host-ram 128GiB` fits in ", "hint: `--method lora` fits in "],
        ),
        ("plan --model llama-3.1-8b --gpu 3060 --weight-offload off", 3, &["hint: `--method qlora` fits in "]),
        ("plan --model llama-3.1-8b --gpu 4090 --host-ram 32GiB", 3, &["hint: `--method lora` fits in 16."]),
        ("plan --compare 3060,nothing", 2, &["unknown GPU `nothing`"]),
        ("plan --gpu 3060 --vram-margin 13gb", 2, &["nothing is left of 12.0 GiB after a margin of 13.0 GiB"]),
        ("plan --memory-fraction 0", 2, &["must be above 0 and at most 1"]),
        ("plan --compare 3060 --tokens 2", 2, &["--epochs"]),
        ("plan --find everything", 2, &["[possible values: seq-len, micro-batch, model]"]),
        ("plan --workers 0", 2, &["must be at least 1"]),
        ("plan --workers 100000000000000", 2, &["the maximum is 1024", "`--workers auto`"]),
        ("plan --host-ram 4", 2, &["share one memory", "`--vram` is the budget for all of it"]),
        ("plan --machine missing.json", 4, &["can't use missing.json", "`plimsoll calibrate --out FILE`"]),
        ("plan --vram 12 --machine missing.json", 4, &["can't use missing.json"]),
        ("plan --gpu 3060 --machine missing.json", 2, &["plans for another machine", "data sheet"]),
        ("calibrate --threads 0", 2, &["must be at least 1"]),
        (
            "plan --model gpt2-large --gpu 1060 --optimizer-offload 0",
            3,
            &["gpt2-large needs", "`--optimizer-offload 1`"],
        ),
    ] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        for part in expected {
            assert!(said.stderr.contains(part), "{arguments} lacks `{part}`: {}", said.stderr);
        }
    }
    let said = sandbox.run_with_cards("NVIDIA GeForce RTX 3060,GPU-aaaa,12288,350,12000", "plan --gpu auto");
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stderr.contains("12.0 GiB that other processes use"), "{}", said.stderr);
}

/// A speed file of another machine or thread count, and an invalid one, are detected.
#[test]
fn a_foreign_speed_file_is_detected() {
    let sandbox = Sandbox::new();
    // The format of earlier versions, without the number of operands.
    let sample = r#"{"device":"cpu","op":"add","dtype":"f32","flops":1,"bytes":1,"seconds":0.001}"#;
    let of_sample = |sample: &str, processor: &str, threads: u32, version: u32| {
        let text = format!(
            r#"{{"version":{version},"program":"{}","processor":"{processor}","threads":{threads},"samples":[{sample}]}}"#,
            env!("CARGO_PKG_VERSION")
        );
        sandbox.write("machine.json", text);
        sandbox.run("plan --threads 1 --machine machine.json")
    };
    let file = |processor: &str, threads: u32, version: u32| of_sample(sample, processor, threads, version);
    let other = file("an abacus", 1, 3);
    assert_eq!(other.code, Some(4));
    assert!(other.stderr.contains("another machine, an abacus"), "{}", other.stderr);
    for version in [1, 2, 99] {
        assert!(file("an abacus", 1, version).stderr.contains("another version of this program"));
    }
    // Speeds with which a plan would take forever, or no time.
    for (operands, seconds) in [("1", "1e308"), ("1", "-1"), ("1", "1e-320"), ("9223372036854775808", "0.001")] {
        let damaged = sample.replace("0.001", &format!("{seconds},\"operands\":{operands}"));
        let said = of_sample(&damaged, "an abacus", 1, 3);
        assert_eq!(said.code, Some(4), "{}", said.stderr);
        let words = format!("it is damaged: a sample of add has operands: {operands}, ");
        assert!(said.stderr.contains(&words), "{}", said.stderr);
    }
    sandbox.write("machine.json", "{");
    assert!(sandbox.run("plan --machine machine.json").stderr.contains("it is damaged"));
    // The stored file is ignored, with a note.
    sandbox.write(".cache/plimsoll/machine-1-threads.json", "{");
    let said = sandbox.run("plan --threads 1");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout_text().contains("times are estimates: "), "{}", said.stdout_text());
}
