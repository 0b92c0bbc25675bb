//! What a machine's failures mean for later runs: less memory to begin with, safe settings, and `plimsoll limits`.

use crate::support::{Said, Sandbox, tiny_config};
use serde_json::{Value, json};

const RUN: &str = "--device cuda --vram 2 --global-batch 2 --seq-len 8 --max-steps 2 --checkpoint-every 1 --eval-samples 2 \
                   --sample-tokens 0";

/// Where the sandbox's user has the file.
const FILE: &str = ".local/state/plimsoll/limits.json";

fn train(sandbox: &Sandbox, card: &str, given: &str) -> Said {
    let mut command = sandbox.command_on_card(card, Sandbox::train_arguments(given));
    Said::of(command.output().expect("the binary runs"))
}

fn known(sandbox: &Sandbox) -> Value {
    sandbox.run("limits --json").json()
}

fn event(sandbox: &Sandbox, run: &str, kind: &str) -> Option<Value> {
    let journal = sandbox.text(&format!("runs/{run}/journal.jsonl"));
    let mut events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    events.find(|event| event["event"] == kind)
}

#[test]
fn a_gpu_that_failed_twice_gets_safe_settings_which_each_finished_run_undoes() {
    let sandbox = Sandbox::new();
    assert!(sandbox.run("limits").stdout_text().contains("no failures are remembered"));
    for (name, count) in [("one", 1), ("two", 2)] {
        let failed = train(&sandbox, "stick=cuGraphLaunch:2:719", &format!("{RUN} --name {name}"));
        assert_eq!(failed.code, Some(5), "{}", failed.stderr);
        assert!(!failed.stderr.contains("safe settings"), "{}", failed.stderr);
        let failure = &known(&sandbox)["failures"][0];
        assert_eq!((&failure["kind"], failure["count"].as_u64()), (&json!("device"), Some(count)), "{failure}");
    }
    let listed = sandbox.run("limits").stdout_text().to_owned();
    for words in ["the GPU failed with ", ", 2 times, last ", "runs have safe settings (fp32 unless", "limits --forget"]
    {
        assert!(listed.contains(words), "{words}: {listed}");
    }
    // The fault is in a call that safe settings do not make.
    let mut levels = Vec::new();
    for number in 0..5 {
        let said = train(&sandbox, "stick=cuGraphLaunch:1:719", &format!("{RUN} --name safe-{number}"));
        let Some(level) = known(&sandbox)["safe"].get(0).map(|safe| safe["level"].clone()) else { break };
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        levels.push(level);
    }
    assert_eq!(levels, ["less_memory", "no_library", "no_capture"]);
    let what = "fp32 unless `--precision` is set, 70 % of the memory, built-in matrix products, no launches of whole steps, \
                because 2 times the GPU failed, last: the GPU failed, ";
    let told = event(&sandbox, "safe-0", "safe_settings").expect("an event");
    assert!(told["what"].as_str().is_some_and(|told| told.starts_with(what)), "{told}");
    let report = sandbox.json("runs/safe-0/report.json");
    assert_eq!(report["safe_settings"], told["what"]);
    // A resumed run has the settings of its user.
    let settings = sandbox.text("runs/safe-0/config.yaml");
    for line in [r#"cuda_graph: "on""#, "cublas: auto", r#"memory_fraction: "1""#] {
        assert!(settings.lines().any(|setting| setting == line), "{line}: {settings}");
    }
    let usual = train(&sandbox, "", &format!("{RUN} --name usual"));
    assert_eq!((usual.code, event(&sandbox, "usual", "safe_settings")), (Some(0), None), "{}", usual.stderr);
    assert_eq!(sandbox.json("runs/usual/report.json")["safe_settings"], Value::Null);
}

#[test]
fn the_run_after_a_refusal_begins_with_less_memory() {
    let sandbox = Sandbox::new();
    let wide = json!({"vocab_size": 4096, "n_embd": 64, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0});
    sandbox.write("wide/config.json", tiny_config(&wide));
    let of_model = "--model wide --device cuda --vram-auto --vram-margin 0 --host-ram 1 --global-batch 2 --seq-len 8 \
                    --max-steps 2 --checkpoint-every 1 --eval-samples 1 --precision fp32 --tokenizer bytes --json";
    let small = "memory=20;others=0;context=0;module=0";
    let run = |card: &str, given: &str| train(&sandbox, card, &format!("{of_model} {given}"));
    // Another process takes memory meanwhile: not a failure of the device.
    let less = run(&format!("{small};grab=cuMemAddressReserve:1:16"), "--name less");
    assert_eq!((less.code, &known(&sandbox)["failures"]), (Some(0), &json!([])), "{}", less.stderr);
    let refuses = "fail=cuMemCreate:1:2;fail=cuMemCreate:2:2;fail=cuMemCreate:3:2";
    let refused = run(&format!("{small};{refuses}"), "--name refused");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    let failure = known(&sandbox)["failures"][0].clone();
    let refused = failure["bytes"].as_u64().expect("bytes");
    assert_eq!((&failure["kind"], failure["count"].as_u64()), (&json!("refused"), Some(1)), "{failure}");
    let after = run(small, "--name after");
    assert_eq!(after.code, Some(0), "{}", after.stderr);
    assert!(
        after.stderr.contains("memory was refused with ") && after.stderr.contains("the budget begins below, with")
    );
    let report = after.json();
    assert_eq!(report["plan"]["budget_bytes"].as_u64(), Some(refused - refused / 16));
    assert_eq!(report["losses"], less.json()["losses"]);
    // A size that the user sets is obeyed.
    let flags = format!("{} --vram 20MiB --name named", of_model.replace("--vram-auto ", ""));
    let named = train(&sandbox, small, &flags);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    assert!(named.stderr.contains("note: memory was refused with "), "{}", named.stderr);
    assert_eq!(named.json()["plan"]["budget_bytes"], 20 << 20);
    // It held, so the failure is refuted.
    assert_eq!(known(&sandbox)["failures"], json!([]));
    let forgotten = sandbox.run("limits --forget");
    assert_eq!((forgotten.code, forgotten.stderr.trim()), (Some(0), "forgotten: 0"));
    let unknown = sandbox.run("limits --forget card");
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
}

#[test]
fn safe_settings_can_be_asked_for() {
    let sandbox = Sandbox::new();
    let said = sandbox.must_train("--safe --name it --max-steps 4");
    assert!(said.stderr.contains("safe settings: fp32 unless"), "{}", said.stderr);
    let report = sandbox.json("runs/it/report.json");
    assert!(report["safe_settings"].as_str().is_some_and(|what| what.ends_with("because `--safe` asks for it")));
    assert!(sandbox.text("runs/it/config.yaml").lines().any(|line| line == "safe: true"));
    let more = sandbox.run("train --resume runs/it --max-steps 6 --cache-dir cache");
    assert!(more.code == Some(0) && more.stderr.contains("safe settings: "), "{}", more.stderr);
}

#[test]
fn a_damaged_or_unwritable_file_stops_no_run() {
    let sandbox = Sandbox::new();
    sandbox.write(FILE, r#"{"v": 1, "failures": 7}"#);
    let said = sandbox.must_train("--name one --max-steps 1");
    assert!(said.stderr.contains("limits.json is ignored: "), "{}", said.stderr);
    let again = sandbox.must_train("--name two --max-steps 1");
    assert!(!again.stderr.contains("limits.json"), "it was replaced: {}", again.stderr);
    std::fs::remove_dir_all(sandbox.path(".local")).expect("it is there");
    sandbox.write(".local", "not a folder");
    let said = sandbox.must_train("--name three --max-steps 1");
    assert_eq!(said.stderr.matches("failures are not remembered").count(), 1, "{}", said.stderr);
}
