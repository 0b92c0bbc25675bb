//! `CUDA_VISIBLE_DEVICES` and MIG slices: the device, `doctor`, `gpus` and `plan --gpu auto` agree.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// UUIDs of the stand-in's first two cards, and its slices.
const UUIDS: [&str; 2] = ["GPU-66616b65-2d63-7564-612d-636172642d30", "GPU-66616b65-2d63-7564-612d-636172642d31"];
const SECOND_SLICE: &str = "MIG-66616b65-2d63-7564-612d-6d69672d3031";

/// Runs the binary on a machine whose cards NVML also reports, with this variable if it is set.
fn see(sandbox: &Sandbox, card: &str, variable: Option<&str>, arguments: &str) -> Said {
    let mut command = sandbox.command_on_card(card, arguments.split_whitespace());
    let nvml = UUIDS.map(|uuid| format!("NVIDIA GeForce RTX 3060,{uuid},12288,350,0")).join(";");
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, nvml);
    command.envs(variable.map(|variable| ("CUDA_VISIBLE_DEVICES", variable)));
    Said::of(command.output().expect("the binary runs"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// UUIDs of the cards in the order in which `gpus` numbers them.
fn numbered_by_gpus(said: &Said) -> Vec<String> {
    let found = said.json();
    let mut cards = list(&found["cards"]).iter().filter(|card| !card["cuda_index"].is_null()).collect::<Vec<_>>();
    cards.sort_by_key(|card| card["cuda_index"].as_u64());
    cards.into_iter().map(|card| text(&card["uuid"]).to_owned()).collect()
}

#[test]
fn hidden_and_numbered_cards_are_the_same_for_every_command() {
    let sandbox = Sandbox::new();
    let [first, second] = UUIDS;
    for (variable, expected) in [
        (None, &[first, second][..]),
        (Some("1,0"), &[second, first]),
        (Some("1"), &[second]),
        (Some(second), &[second]),
        (Some("GPU-66616b65-2d63-7564-612d-636172642d3"), &[]),
        (Some("GPU-00000000-0000-0000-0000-000000000000"), &[]),
        (Some(""), &[]),
        (Some("-1"), &[]),
        (Some("0,0"), &[]),
        (Some("0,7,1"), &[first]),
    ] {
        let about = format!("CUDA_VISIBLE_DEVICES={variable:?}");
        let see = |arguments: &str| see(&sandbox, "cards=2", variable, arguments);
        let doctor = see("doctor --json").json();
        let shown = list(&doctor["cards"]).iter().map(|card| text(&card["uuid"]).to_owned()).collect::<Vec<_>>();
        assert_eq!(shown, expected, "{about}: doctor");
        assert_eq!(numbered_by_gpus(&see("gpus --json")), expected, "{about}: gpus");
        let planned = see("plan --model nano --gpu auto --json --host-ram 4");
        let opened = see("plan --model nano --device cuda --json --host-ram 4");
        let guessed = see("plan --model nano --json");
        let kind = |said: &Said| said.json()["device"]["kind"].clone();
        if expected.is_empty() {
            assert_eq!((planned.code, opened.code), (Some(2), Some(5)), "{about}: {}", opened.stderr);
            assert!(planned.stderr.contains("check CUDA_VISIBLE_DEVICES"), "{about}: {}", planned.stderr);
            let value = variable.expect("no card is visible");
            for words in [&*format!("shows no GPU; CUDA_VISIBLE_DEVICES is `{value}`"), "hint: unset CUDA_VISIBLE_"] {
                assert!(opened.stderr.contains(words), "{about}: {}", opened.stderr);
            }
            assert!(guessed.stderr.contains("on the CPU: "), "{about}: {}", guessed.stderr);
            assert_eq!(kind(&guessed), "cpu", "{about}");
            assert!(text(&doctor["problem"]).contains("CUDA_VISIBLE_DEVICES"), "{about}: {doctor}");
            continue;
        }
        let plans = planned.json();
        let count = plans["plans"].as_array().map_or(1, Vec::len);
        assert_eq!((count, planned.code), (expected.len(), Some(0)), "{about}: {}", planned.stderr);
        assert_eq!((kind(&opened), kind(&guessed)), ("cuda".into(), "cuda".into()), "{about}");
        let beyond = see(&format!("plan --model nano --device cuda:{}", expected.len()));
        assert_eq!(beyond.code, Some(2), "{about}: {}", beyond.stderr);
        assert!(beyond.stderr.contains(&format!("`--device cuda:{}` is the last", expected.len() - 1)), "{about}");
    }
}

#[test]
fn a_slice_of_a_card_is_a_device_with_its_own_memory() {
    let sandbox = Sandbox::new();
    let card = "card=a100;mig=1g.5gb:4864,2g.10gb:9728";
    let nvml = format!("NVIDIA A100-SXM4-40GB,{},40960,600,0,holder=4194305/350,mig=1", UUIDS[0]);
    let see = |variable: Option<&str>, arguments: &str| {
        let mut command = sandbox.command_on_card(card, arguments.split_whitespace());
        command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, &nvml);
        command.envs(variable.map(|variable| ("CUDA_VISIBLE_DEVICES", variable)));
        Said::of(command.output().expect("the binary runs"))
    };
    for (variable, name, mib) in [
        (None, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
        (Some("0"), "NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
        (Some(SECOND_SLICE), "NVIDIA A100-SXM4-40GB MIG 2g.10gb", 9728u64),
    ] {
        let doctor = see(variable, "doctor --json").json();
        let [slice] = list(&doctor["cards"]) else { panic!("{doctor}") };
        assert_eq!((text(&slice["name"]), slice["free_bytes"].as_u64()), (name, Some((mib - 350 - 250) << 20)));
        assert!(text(&slice["uuid"]).starts_with("MIG-66616b65-") && slice["problem"].is_null(), "{slice}");
        assert!(see(variable, "doctor").stdout_text().contains(&format!("`--device auto` uses GPU 0, {name}")));
        let plan = see(variable, "plan --model nano --device cuda --json --host-ram 4").json();
        assert_eq!(plan["plan"]["budget_bytes"].as_u64(), Some((mib - 1024) << 20));
        assert_eq!(plan["device"]["name"], name);
        // NVML reports the whole card, which no process can use.
        assert!(numbered_by_gpus(&see(variable, "gpus --json")).is_empty());
        let whole = see(variable, "plan --model nano --gpu auto");
        assert_eq!(whole.code, Some(2), "{}", whole.stderr);
        for words in ["MIG", "hint: `--device cuda` plans for the MIG instance"] {
            assert!(whole.stderr.contains(words), "{}", whole.stderr);
        }
    }
    let short =
        Sandbox::train_arguments("--device cuda --vram 2 --max-steps 1 --global-batch 2 --seq-len 8 --eval-samples 1");
    let trained = Said::of(sandbox.command_on_card(card, short).output().expect("the binary runs"));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let none = Said::of(sandbox.command_on_card("mig=", ["plan", "--device", "cuda"]).output().expect("runs"));
    assert_eq!(none.code, Some(5), "{}", none.stderr);
    assert!(none.stderr.contains("one in MIG mode needs a slice first"), "{}", none.stderr);
}
