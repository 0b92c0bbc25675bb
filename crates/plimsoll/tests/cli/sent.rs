//! Activations offloaded to the host: on the stand-in's card, on the CPU, and in the output of `plan`.

use crate::support::{Said, Sandbox};
use serde_json::Value;

fn losses(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()["losses"].clone()
}

/// Wherever activations are stored, losses are equal to the bit, measured memory is planned memory, and a resumed run
/// offloads the same.
#[test]
fn invariant_5_levers_offloaded_activations_do_not_change_the_run() {
    let sandbox = Sandbox::new();
    let run =
        "--max-steps 2 --global-batch 2 --seq-len 8 --precision fp32 --recompute none --optimizer-offload 0 --json";
    for (device, card) in [("cuda", Some("execution=late")), ("cpu", None)] {
        let train = |name: &str, flags: &str| {
            let arguments = format!("{run} --device {device} --vram 2 --name {device}-{name} {flags}");
            let arguments = Sandbox::train_arguments(&arguments);
            let mut command = match card {
                Some(card) => sandbox.command_on_card(card, &arguments),
                None => sandbox.command(&arguments),
            };
            Said::of(command.output().expect("the binary runs"))
        };
        let (kept, sent) = (train("kept", "--activation-offload off"), train("sent", "--activation-offload blocks"));
        assert_eq!(losses(&sent), losses(&kept), "{device}");
        assert!(!losses(&sent).as_array().expect("losses").is_empty());
        let (kept, report) = (kept.json(), sent.json());
        let [host, touched] = [&report["plan"]["host_bytes"], &report["measured"]["host_touched_bytes"]];
        assert!(host.as_u64() > Some(0) && touched == host, "{device}: {touched} of {host}");
        assert_eq!(kept["plan"]["host_bytes"], 0, "{device}");
        // Memory in step events and planned memory cover the same arenas: both, if they share one memory.
        let [device_bytes, host_bytes] =
            [&report["plan"]["peak_bytes"], host].map(|bytes| bytes.as_u64().expect("bytes"));
        let resident = report["measured"]["arena_resident_bytes"].as_u64().expect("the system says");
        let (planned, held) = match device {
            "cpu" => (device_bytes + host_bytes, resident),
            _ => (device_bytes, resident - host_bytes.next_multiple_of(4096)),
        };
        let journal = sandbox.text(&format!("runs/{device}-sent/journal.jsonl"));
        let told = |event: &str, key: &str| {
            let lines = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
            let mut of_event = lines.filter(|line| line["event"] == event);
            of_event.next().expect("the event exists")[key].as_u64().expect("bytes")
        };
        assert_eq!((told("run_started", "planned_bytes"), told("step", "memory_bytes")), (planned, held), "{device}");
        assert!(sent.stderr.contains(", and ") && sent.stderr.contains(" of host memory"), "{}", sent.stderr);
        let note = "`--activation-offload` saves no memory on the CPU";
        assert_eq!(sent.stderr.contains(note), device == "cpu", "{}", sent.stderr);
        let config = sandbox.read(&format!("runs/{device}-sent/config.yaml"));
        assert!(String::from_utf8_lossy(&config).contains("activation_offload: blocks"), "{device}");
    }
}

#[test]
fn a_plan_shows_offloaded_activations_and_their_cost() {
    let sandbox = Sandbox::new();
    let plan =
        "plan --model gpt2-medium --gpu 4090 --global-batch 4 --micro-batch 4 --optimizer-offload 0 --recompute none";
    let said = sandbox.run(&format!("{plan} --activation-offload 0.5 --explain"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let text = said.stdout_text();
    for expected in ["12 of 24 blocks", "offloaded: linear ", " ms of transfers", "the link is too slow to hide all"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let off = sandbox.run(&format!("{plan} --activation-offload off --explain"));
    assert!(!off.stdout_text().contains("sent to the host:"), "{}", off.stdout_text());
    // Chosen if the budget requires it, and shown along the curve.
    let open =
        "plan --model gpt2-medium --gpu 4090 --global-batch 8 --optimizer-offload 0 --vram 7 --vram-margin 0 --json";
    let value = sandbox.run(&format!("{open} --curve")).json();
    let lever = |value: &Value| {
        let levers = value["levers"].as_array().expect("levers").clone();
        levers.into_iter().find(|lever| lever["name"] == "activation-offload").expect("one of them")
    };
    assert_eq!(lever(&value)["on"], true, "{}", lever(&value));
    let blocks = value["curve"].as_array().expect("points").iter().map(|point| &point["activation_offload_blocks"]);
    assert!(blocks.clone().any(|blocks| blocks.as_u64() > Some(0)), "{:?}", blocks.collect::<Vec<_>>());
    let cpu = sandbox.run("plan --model nano --device cpu --vram 1 --activation-offload blocks");
    assert!(cpu.stdout_text().contains("activation offload: it saves nothing here"), "{}", cpu.stdout_text());
}

#[test]
fn a_host_too_small_for_activations_is_reported_with_the_card() {
    let sandbox = Sandbox::new();
    let said = sandbox.run(
        "plan --model gpt2-medium --gpu 4090 --vram 7 --global-batch 4 --micro-batch 4 --optimizer-offload 0 --recompute none \
         --activation-offload blocks --host-ram 1",
    );
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let lines = said.stderr.lines().collect::<Vec<_>>();
    assert!(lines[1].contains(" of GPU memory, the budget is 6.00 GiB"), "{lines:?}");
    assert!(lines[2].contains(" of host memory, the budget is 1.00 GiB (short "), "{lines:?}");
    assert!(lines[3..].iter().any(|line| line.contains("--host-ram")), "{lines:?}");
}
