//! Runs on preferences: their plan, their resume, their rewards, and what is refused. Values are compared with TRL's by the
//! crate `train`.

use crate::support::Sandbox;
use serde_json::{Value, json};
use std::fs;

const FLAGS: &str = "--data p.jsonl --init runs/base/model --objective dpo --method lora --lora-rank 2 --seq-len 48 --bucket 16 \
                     --global-batch 4 --sample-tokens 0 --eval-samples 2 --device cpu --cache-dir cache --scheduler constant";

fn lines(row: impl Fn(usize) -> Value) -> String {
    (0..40).map(|n| format!("{}\n", row(n))).collect()
}

/// A sandbox with preferences, and weights to adapt in `runs/base/model`.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    let row =
        |n| json!({"prompt": format!("{n} + 1 ="), "chosen": format!(" {}", n + 1), "rejected": " I do not know."});
    sandbox.write("p.jsonl", lines(row));
    sandbox.write("text.txt", "ships are loaded to their line. ".repeat(60));
    sandbox.must(
        "train --data text.txt --seq-len 48 --global-batch 4 --max-steps 2 --sample-tokens 0 --name base --device cpu",
    );
    sandbox
}

#[test]
fn invariant_7_a_resumed_run_on_preferences_is_the_run() {
    let sandbox = sandbox();
    let more = "--learning-rate 0.02 --lora-dropout 0.1";
    let whole = sandbox.run(&format!("train {FLAGS} --name whole --max-steps 4 {more}"));
    assert!(whole.stderr.contains("data: preferences of"), "{}", whole.stderr);
    assert!(whole.stderr.contains("held-out rewards") && whole.stderr.contains("over 1 examples"), "{}", whole.stderr);
    sandbox.must(&format!("train {FLAGS} --name parts --max-steps 2 {more}"));
    sandbox.must("train --resume runs/parts --max-steps 4");
    for name in ["adapter_model.safetensors", "optimizer.safetensors"] {
        let of = |run| fs::read(sandbox.path(&format!("runs/{run}/checkpoints/step-000004/{name}"))).expect(name);
        assert!(of("whole") == of("parts"), "{name}");
    }
    let journal = fs::read_to_string(sandbox.path("runs/whole/journal.jsonl")).expect("a journal");
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
    let rewards = events.filter(|event| event["event"] == "rewards").collect::<Vec<_>>();
    let of_steps = rewards.iter().filter(|event| event["held_out"] == false).collect::<Vec<_>>();
    assert_eq!((of_steps.len(), &of_steps[0]["chosen"]), (4, &json!(0.0)), "new adapters change nothing: {rewards:?}");
    assert!(of_steps[3]["chosen"].as_f64() > of_steps[3]["rejected"].as_f64(), "{rewards:?}");
    assert_eq!(rewards.len(), 5, "those of the evaluation at the end: {rewards:?}");
}

/// Rewards are those of liked and of disliked answers, and a resumed run keeps its objective.
#[test]
fn judged_answers_are_trained_on() {
    let sandbox = sandbox();
    let row = |n| json!({"prompt": format!("{n} + 1 ="), "completion": format!(" {}", n % 3), "label": n % 3 == 0});
    sandbox.write("p.jsonl", lines(row));
    let flags = FLAGS.replace("--objective dpo", "--objective kto --kto-desirable-weight 2");
    sandbox.must(&format!("train {flags} --name whole --max-steps 4 --learning-rate 0.02"));
    sandbox.must(&format!("train {flags} --name parts --max-steps 2 --learning-rate 0.02"));
    sandbox.must("train --resume runs/parts --max-steps 4");
    let of = |run| {
        let file = format!("runs/{run}/checkpoints/step-000004/adapter_model.safetensors");
        fs::read(sandbox.path(&file)).expect("adapters")
    };
    assert!(of("whole") == of("parts"));
    let journal = fs::read_to_string(sandbox.path("runs/whole/journal.jsonl")).expect("a journal");
    let events = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
    let rewards = events.filter(|event| event["event"] == "rewards").collect::<Vec<_>>();
    assert!(!rewards.is_empty() && rewards.iter().all(|event| event["accuracy"].is_null()), "{rewards:?}");
    assert!(rewards.iter().any(|event| event["chosen"].as_f64() > event["rejected"].as_f64()), "{rewards:?}");
}

/// ORPO trains all weights, and a resumed run keeps its objective.
#[test]
fn odds_need_no_reference_and_train_all_weights() {
    let sandbox = sandbox();
    let flags = FLAGS.replace("--objective dpo --method lora --lora-rank 2", "--objective orpo");
    let whole = sandbox.run(&format!("train {flags} --name whole --max-steps 4 --learning-rate 0.001"));
    assert!(whole.stderr.contains("held-out rewards"), "{}", whole.stderr);
    assert!(!whole.stderr.contains("nats per token"), "losses of preferences have no unit: {}", whole.stderr);
    sandbox.must(&format!("train {flags} --name parts --max-steps 2 --learning-rate 0.001"));
    sandbox.must("train --resume runs/parts --max-steps 4");
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let of = |run| fs::read(sandbox.path(&format!("runs/{run}/checkpoints/step-000004/{name}"))).expect(name);
        assert!(of("whole") == of("parts"), "{name}");
    }
    let report = sandbox.must("report runs/whole --md");
    assert!(report.contains("mean of examples"), "{report}");
}

#[test]
fn a_plan_has_two_rows_for_a_sample() {
    let sandbox = Sandbox::new();
    let activations = |flags: &str| {
        let common = "plan --model llama-3.2-1b --gpu 4090 --seq-len 256 --global-batch 8 --micro-batch 4 --json";
        let plan: Value = serde_json::from_str(&sandbox.must(&format!("{common} {flags}"))).expect("JSON");
        plan["breakdown"]["activations_bytes"].as_u64().unwrap_or_else(|| panic!("{plan}"))
    };
    let [sft, dpo] = ["--method lora", "--method lora --objective dpo"].map(activations);
    assert!(dpo > sft * 3 / 2, "{sft} {dpo}");
}

/// A step of `apo_zero_unpaired` has two forward passes and one of gradients, about as long each; one of `kto` has two more.
#[test]
fn a_plan_counts_the_passes_that_estimate_a_reference_point() {
    let sandbox = Sandbox::new();
    let step = |loss: &str| {
        let common = "plan --model llama-3.2-1b --gpu 4090 --seq-len 256 --global-batch 8 --micro-batch 4 --recompute none --json";
        let said = sandbox.must(&format!("{common} --method lora --objective kto --kto-loss {loss}"));
        let plan: Value = serde_json::from_str(&said).expect("JSON");
        plan["predicted"]["step_ms"].as_f64().unwrap_or_else(|| panic!("{plan}"))
    };
    let [kto, apo] = ["kto", "apo_zero_unpaired"].map(step);
    assert!((1.5..1.9).contains(&(kto / apo)), "{kto} {apo}");
}

#[test]
fn what_is_not_for_preferences_is_refused_with_a_way_out() {
    let sandbox = sandbox();
    sandbox.write("same.jsonl", r#"{"prompt":"a","chosen":"b","rejected":"b"}"#);
    sandbox.write("kto.jsonl", r#"{"prompt":"a","completion":"b","label":true}"#);
    let judged = |n| json!({"prompt": "a", "completion": format!("{n}"), "label": n % 2 == 0});
    sandbox.write("judged.jsonl", lines(judged));
    sandbox.write("number.jsonl", r#"{"prompt":"a","completion":"b","label":1}"#);
    let kto = "--init runs/base/model --objective kto --method lora --device cpu --cache-dir cache";
    let dpo = "--init runs/base/model --objective dpo --method lora --device cpu --cache-dir cache";
    for (flags, code, words, hint) in [
        (format!("{dpo} --data same.jsonl"), 4, "same.jsonl line 1", "`chosen` and `rejected`"),
        (format!("{dpo} --data kto.jsonl"), 4, "it has one answer with a `label`", "drop"),
        (format!("{kto} --data kto.jsonl"), 4, "the label of all rows is true", "either label"),
        (format!("{kto} --data p.jsonl"), 4, "it has `chosen`, not one answer", "`--objective dpo`"),
        (format!("{kto} --data number.jsonl"), 4, "its `label` is not true or false", "`label` that is true or false"),
        (format!("{kto} --data judged.jsonl --kto-loss kto_pair"), 2, "invalid value", "apo_zero_unpaired"),
        (format!("{} --data judged.jsonl", kto.replace("--method lora", "")), 2, "needs a reference", "--method lora"),
        (format!("{dpo} --data p.jsonl --kto-desirable-weight 2"), 2, "is a setting of KTO", "--objective kto"),
        (format!("{dpo} --data text.txt"), 4, "text.txt is a text file", "omit `--objective`"),
        (format!("{dpo} --data p.jsonl --packing"), 2, "`--packing` is not for preferences", "omit `--packing`"),
        (format!("{dpo} --data p.jsonl --r-drop 1"), 2, "`--r-drop`", "omit `--r-drop`"),
        (format!("{dpo} --data p.jsonl --train-on all"), 2, "`--train-on` is not for preferences", "omit `--train-on`"),
        (
            format!("{dpo} --data p.jsonl --lora-modules-to-save ln_f"),
            2,
            "there is no reference",
            "--lora-modules-to-save",
        ),
        ("--objective dpo".to_owned(), 2, "none without `--data`", "use `--data`"),
        ("--init runs/base/model --data p.jsonl --objective dpo".to_owned(), 2, "needs a reference", "`--method lora`"),
        (
            "--init runs/base/model --data p.jsonl --beta 0.2".to_owned(),
            2,
            "`--beta` is a setting of losses of preferences",
            "--objective dpo",
        ),
        (
            "--init runs/base/model --data p.jsonl --objective orpo --dpo-loss ipo".to_owned(),
            2,
            "`--dpo-loss` is a setting of DPO",
            "omit it",
        ),
        (
            "--init runs/base/model --data p.jsonl --objective orpo --label-smoothing 0.1".to_owned(),
            2,
            "`--label-smoothing` is not for ORPO",
            "omit `--label-smoothing`",
        ),
        (
            "--init runs/base/model --data p.jsonl".to_owned(),
            4,
            "is a preference file",
            "`--objective dpo --method lora`",
        ),
        ("--model t5-nano --data p.jsonl --objective dpo --method lora".to_owned(), 2, "", ""),
        ("--objective simpo --data p.jsonl".to_owned(), 2, "does not train with simpo", "dpo"),
    ] {
        let said = sandbox.run(&format!("train {flags}"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains(hint), "{flags}: {}", said.stderr);
    }
}
