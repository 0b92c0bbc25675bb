//! Any command line and any settings file is accepted or refused, never a panic.

use crate::support::{Said, Sandbox, tiny_config};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use std::collections::BTreeMap;

/// Values of flags: valid, invalid, and ones that break careless parsers.
const VALUES: &str = "\
    0 1 2 3 4 7 16 32 64 1024 -1 -0 0.0 0.1 1.5 1e3 1e-3 1e400 1_000 20k 1.5M 100B 4294967296 9007199254740993 \
    18446744073709551615 18446744073709551616 nan inf -inf NaN . .. / - -- --json true false auto none cheap null \
    nano gpt2 gpt-2 GPT2_medium gpt2-xl tiny tiny/config.json bytes text.txt runs *.txt 12gb 600MiB 1b 9e18b 90s \
    1h30m 5m5 ü a/b [ {} %s $HOME ' = , 99999999999999999999999999";
const ODD_VALUES: &[&str] = &["", "12 parsecs", "\u{202e}", "a b", "\n", "\""];

/// Flags of `plan`, and some that it does not have.
const FLAGS: &str = "\
    --model --model-size --model_size --tokenizer --vram --vram-auto --vram_auto --vram-margin --vram-safety-margin \
    --threads --seq-len --seq_len --global-batch --micro-batch --dropout --recompute --json --help --version -h -V \
    -- - --nosuch --__ ---";

const SIZES: &str = "1 2 3 6 7 16 17 32 33 64 100 1000 1024 20k 1M 16777216 268435456 4294967296 1.5B 9007199254740992";
const BUDGETS: &str = "0 1b 100KiB 200KiB 300KiB 1MiB 50MiB 1 2.5 12 8000t";
const MODELS: &str = "tiny tiny/config.json nano gpt2 gpt2 gpt2_medium GPT2-XL";

/// Flags of `plan` with values that are valid individually.
const SENSIBLE: &[(&str, &str)] = &[
    ("--model", MODELS),
    ("--vram", BUDGETS),
    ("--vram-margin", BUDGETS),
    ("--seq-len", SIZES),
    ("--global-batch", SIZES),
    ("--micro-batch", SIZES),
    ("--dropout", "0 0.1 0.999"),
    ("--recompute", "none cheap"),
    ("--tokenizer", "bytes gpt2"),
    ("--threads", "1 2 3"),
];

/// Keys of settings files.
const KEYS: &str = "\
    model base_model seq_len block_size max_seq_length global_batch batch_size micro_batch \
    per_device_train_batch_size gradient_accumulation_steps max_steps num_train_epochs duration learning_rate lr \
    warmup_steps weight_decay beta1 adam_beta2 adam_eps grad_clip dropout seed eval_every checkpoint_every \
    keep_checkpoints sample_tokens vram vram_auto vram_margin threads tokenizer text_field recompute bf16 optim \
    gradient_checkpointing init nosuch";

/// A word of a list.
fn word(list: &'static str) -> impl Strategy<Value = String> {
    select(list.split_whitespace().collect::<Vec<_>>()).prop_map(str::to_owned)
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => word(VALUES),
        1 => select(ODD_VALUES).prop_map(str::to_owned),
        1 => any::<f64>().prop_map(|x| x.to_string()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => "\\PC{0,12}",
    ]
}

/// A flag with its value separate, joined, or missing; or a value without a flag.
fn argument() -> impl Strategy<Value = Vec<String>> {
    prop_oneof![
        6 => (word(FLAGS), value()).prop_map(|(flag, value)| vec![flag, value]),
        3 => (word(FLAGS), value()).prop_map(|(flag, value)| vec![format!("{flag}={value}")]),
        1 => word(FLAGS).prop_map(|flag| vec![flag]),
        1 => value().prop_map(|value| vec![value]),
    ]
}

/// A line of YAML whose value is plain, quoted, or a collection.
fn line() -> impl Strategy<Value = String> {
    (word(KEYS), value(), 0..5).prop_map(|(key, value, style)| match style {
        0 | 1 => format!("{key}: {value}\n"),
        2 => format!("{key}: {value:?}\n"),
        3 => format!("{key}: [{value}, 1]\n"),
        _ => format!("{key}:\n  {value}: 1\n"),
    })
}

/// Runs random cases of a strategy, with a fixed seed.
fn for_each<S: Strategy>(cases: u32, strategy: S, check: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config.clone(),
        proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm),
    );
    runner.run(&strategy, check).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Runs a command; its exit code must be one of these, and every failure must have a message.
fn done_or_refused(sandbox: &Sandbox, arguments: &[String], codes: &[i32]) -> Result<(), TestCaseError> {
    let said = Said::of(sandbox.command(arguments).output().expect("the binary runs"));
    let code = said.code.filter(|code| codes.contains(code));
    prop_assert!(code.is_some(), "{:?}: {}", said.code, said.stderr);
    let is_data = code == Some(0) || said.stdout.starts_with(b"{");
    prop_assert!(is_data || said.stderr.contains("error: "), "{}", said.stderr);
    prop_assert!(code == Some(0) || said.stdout.is_empty() || said.json()["fits"] == false);
    Ok(())
}

#[test]
fn any_flags_of_plan_are_accepted_or_refused() {
    let sandbox = Sandbox::new();
    for_each(200, prop::collection::vec(argument(), 0..4), |given| {
        let arguments = [vec!["plan".to_owned()], given.concat()].concat();
        prop_assume!(!arguments.iter().any(|argument| argument.contains('\0')));
        done_or_refused(&sandbox, &arguments, &[0, 2, 3, 4])
    });
}

/// Sizes that are valid individually and may be absurd together: these reach the planner.
#[test]
fn any_sizes_of_plan_fit_or_do_not() {
    let sandbox = Sandbox::new();
    let flag = select(SENSIBLE).prop_flat_map(|(flag, values)| (Just(flag), word(values)));
    for_each(200, prop::collection::vec(flag, 0..6), |given| {
        let given = given.into_iter().collect::<BTreeMap<_, _>>();
        let flags = given.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let arguments = std::iter::once("plan".to_owned()).chain(flags).collect::<Vec<_>>();
        done_or_refused(&sandbox, &arguments, &[0, 2, 3, 4])
    });
}

/// For any budget: the largest answer fits, its plan is shown, `plan` with its flags gives the same, and more does not
/// fit.
#[test]
fn for_any_budget_the_answer_equals_plan_with_its_flags() {
    let sandbox = Sandbox::new();
    sandbox.write("long/config.json", tiny_config(&json!({ "n_positions": 512 })));
    let asked = (300_u64..4000, select(&["seq-len", "micro-batch"][..]), select(&["fp32", "bf16"][..]), 1..5_u64);
    for_each(24, asked, |(kib, what, precision, batch)| {
        let plan = |flags: &str| {
            let given = format!("--model long --device cpu --threads 1 --vram {kib}KiB --precision {precision}");
            sandbox.run(&format!("plan {given} {flags} --json"))
        };
        let (fixed, step) = match what {
            "seq-len" => (format!("--global-batch {batch}"), 64),
            _ => (format!("--seq-len {}", 64 * batch), 1),
        };
        let with = |number: u64| match what {
            "seq-len" => plan(&format!("{fixed} --seq-len {number}")),
            _ => plan(&format!("{fixed} --micro-batch {number} --global-batch {number}")),
        };
        let said = plan(&format!("{fixed} --find {what}"));
        let found = said.json();
        let Some(most) = found["most_that_fits"].as_u64() else {
            prop_assert_eq!(with(step).code, Some(3), "nothing fits: {}", found);
            return Ok(());
        };
        let planned = with(most);
        prop_assert_eq!((planned.code, &planned.json()["plan"]), (Some(0), &found["plan"]), "{}", most);
        // The model's number of positions, or one that does not fit.
        let more = if most + step > 512 && what == "seq-len" { 2 } else { 3 };
        prop_assert_eq!(with(most + step).code, Some(more), "{} fits, and {} does not", most, most + step);
        Ok(())
    });
}

#[test]
fn any_settings_are_accepted_or_refused() {
    let sandbox = Sandbox::new();
    let yaml = prop_oneof![
        8 => prop::collection::vec(line(), 0..4).prop_map(|lines| lines.concat()),
        1 => "\\PC{0,40}",
        1 => "[-:#&*!|>'\"%@`{}\\[\\], a1\n]{0,40}",
    ];
    for_each(200, yaml, |yaml| {
        sandbox.write("settings.yaml", yaml);
        // The text does not exist, so no run starts.
        let command = "train --config settings.yaml --data missing.txt --cache-dir cache --runs-dir runs --name run";
        let arguments = command.split(' ').map(str::to_owned).collect::<Vec<_>>();
        done_or_refused(&sandbox, &arguments, &[2, 3, 4])
    });
}

/// Weights or a config.json with any byte changed are used or refused.
#[test]
fn any_damage_to_a_checkpoint_is_survived() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run --max-steps 1");
    let checkpoint = "runs/run/checkpoints/step-000001";
    let files = ["model.safetensors", "config.json"].map(|file| (file, sandbox.read(&format!("{checkpoint}/{file}"))));
    // Without the checksums of state.json, as in a foreign folder.
    for (file, contents) in &files {
        sandbox.write(&format!("damaged/{file}"), contents);
    }
    let damage = (0..files.len(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>());
    for_each(150, damage, |(file, at, byte, cut)| {
        let (name, mut contents) = files[file].clone();
        // Damage to headers has the most effects.
        let at = at.index(contents.len().min(600));
        if cut {
            contents.truncate(at)
        } else {
            contents[at] = byte
        };
        sandbox.write(&format!("damaged/{name}"), contents);
        let command = "generate --checkpoint damaged --max-tokens 2 --vram 0.2 --threads 1 --tokenizer bytes";
        let arguments = command.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let said = Said::of(sandbox.command(&arguments).output().expect("the binary runs"));
        prop_assert!([Some(0), Some(3), Some(4)].contains(&said.code), "{:?}: {}", said.code, said.stderr);
        prop_assert!(said.code == Some(0) || (said.stdout.is_empty() && said.stderr.contains("error: ")));
        sandbox.write(&format!("damaged/{name}"), &files[file].1);
        Ok(())
    });
}
