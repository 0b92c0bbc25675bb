//! Output for users and scripts: JSON with stable keys, run folders with stable files, tables, help, text, settings.

use crate::support::{Said, Sandbox};
use expect_test::{Expect, expect};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One line per key: its path and type, in order. Arrays are described by the type of their elements.
fn shape(value: &Value) -> String {
    fn lines(path: &str, value: &Value, into: &mut BTreeSet<String>) {
        let leaf = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(n) if n.is_u64() => "count",
            Value::Number(_) => "number",
            Value::String(_) => "text",
            Value::Array(items) => {
                return items.iter().for_each(|item| lines(&format!("{path}[]"), item, into));
            }
            Value::Object(map) => {
                let dot = if path.is_empty() { "" } else { "." };
                return map.iter().for_each(|(key, value)| lines(&format!("{path}{dot}{key}"), value, into));
            }
        };
        into.insert(format!("{path}: {leaf}\n"));
    }
    let mut found = BTreeSet::new();
    lines("", value, &mut found);
    found.into_iter().collect()
}

fn check_shape(value: &Value, expected: Expect) {
    expected.assert_eq(&shape(value));
}

/// Invariant 3: the memory resident for a run is the planned size, rounded up to pages; and the device used exactly the
/// planned bytes.
fn assert_exact(value: &Value) {
    let (plan, measured) = (&value["plan"], &value["measured"]);
    assert!(plan["peak_bytes"].as_u64() > Some(0), "{value}");
    assert_eq!(measured["touched_bytes"], plan["peak_bytes"]);
    assert_eq!(measured["device_allocations_after_first_step"], 0);
    let pages = ["peak_bytes", "host_bytes"].map(|key| plan[key].as_u64().expect("bytes").next_multiple_of(4096));
    match measured["arena_resident_bytes"].as_u64() {
        // Other systems may have larger pages.
        Some(resident) if cfg!(target_arch = "x86_64") => assert_eq!(resident, pages.iter().sum::<u64>(), "{value}"),
        _ => eprintln!("SKIPPED: this system does not tell which pages are in memory"),
    }
    assert_eq!(measured["arena_resident_peak_bytes"], measured["arena_resident_bytes"]);
}

fn must(said: Said) -> Said {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said
}

/// The note of `--device auto` without a driver.
const ON_CPU: &str = "on the CPU: no NVIDIA driver was found\n";

#[test]
fn plan_as_json() {
    let sandbox = Sandbox::new();
    let said = must(sandbox.run_without_half("plan --model tiny --vram 1 --global-batch 8 --micro-batch 2 --json"));
    assert_eq!(said.stderr, ON_CPU);
    let plan = said.json();
    check_shape(
        &plan,
        expect![[r#"
            bf16.arithmetic: null
            bf16.fits: bool
            bf16.micro_batch: count
            bf16.peak_bytes: count
            bf16.step_ms: number
            bf16.tokens_per_s: number
            bound: text
            breakdown.activations_bytes: count
            breakdown.gradients_bytes: count
            breakdown.optimizer_bytes: count
            breakdown.scratch_bytes: count
            breakdown.staging_bytes: count
            breakdown.unused_bytes: count
            breakdown.weights_bytes: count
            device.kind: text
            device.name: text
            device.products: null
            device.threads: count
            fits: bool
            host_short_by_bytes: count
            levers[].added_time: number
            levers[].host_bytes: count
            levers[].name: text
            levers[].note: null
            levers[].note: text
            levers[].on: bool
            levers[].saved_bytes: count
            levers[].setting: text
            milliseconds: number
            model.name: text
            model.parameters: count
            model.trained_parameters: count
            next_larger.micro_batch: count
            next_larger.peak_bytes: count
            peak_moment: null
            plan.accumulation: count
            plan.budget_bytes: count
            plan.global_batch: count
            plan.host_bytes: count
            plan.lower_bound_bytes: count
            plan.micro_batch: count
            plan.peak_bytes: count
            plan.seq_len: count
            plan.target_len: null
            predicted.step_ms: number
            predicted.times: text
            predicted.tokens_per_s: number
            saved_activations_bytes: count
            search.candidates: count
            search.milliseconds: number
            short_by_bytes: count
        "#]],
    );
    assert_eq!((&plan["fits"], &plan["short_by_bytes"]), (&true.into(), &0.into()));
    let parts = plan["breakdown"].as_object().expect("an object").values().filter_map(Value::as_u64);
    assert_eq!(Some(parts.sum::<u64>()), plan["plan"]["peak_bytes"].as_u64(), "the parts make up the peak");
    assert!(plan["plan"]["lower_bound_bytes"].as_u64() <= plan["plan"]["peak_bytes"].as_u64());
    assert_eq!(plan["plan"]["accumulation"], 4);

    let said = sandbox.run("plan --model gpt2 --vram 1.2 --json");
    assert_eq!((said.code, said.stderr.as_str()), (Some(3), ON_CPU));
    let misfit = said.json();
    assert_eq!(misfit["fits"], false);
    let of = |key: &str| misfit["plan"][key].as_u64().expect("a count");
    assert_eq!(misfit["short_by_bytes"].as_u64(), Some(of("peak_bytes") - of("budget_bytes")));
    let nearest = &misfit["nearest"][0];
    assert!(nearest["flags"].is_string() && nearest["peak_bytes"].is_u64(), "{nearest}");
    assert!(nearest["step_ms"].is_f64() && nearest["added_time"].is_f64(), "{nearest}");
}

#[test]
fn invariant_3_exact_bench_as_json() {
    let sandbox = Sandbox::new();
    let sizes = "--layers 2 --hidden 32 --heads 4 --vocab-size 300 --bias false --seq-len 24 --micro-batch 2";
    let said = must(sandbox.run(&format!("bench --model gpt2 {sizes} --vram 0.1 --steps 3 --threads 1 --json")));
    assert_eq!(said.stderr, ON_CPU);
    let bench = said.json();
    check_shape(
        &bench,
        expect![[r#"
            loss: number
            measured.arena_resident_bytes: count
            measured.arena_resident_peak_bytes: count
            measured.blas: null
            measured.device_allocations_after_first_step: count
            measured.host_touched_bytes: count
            measured.outside_plan_bytes: count
            measured.peak_rss_before_load_bytes: count
            measured.peak_rss_bytes: count
            measured.planned_bytes_of_what_ran: count
            measured.step_ms_min: number
            measured.step_ms_p50: number
            measured.tokens_per_s: number
            measured.touched_bytes: count
            model.name: text
            model.parameters: count
            plan.accumulation: count
            plan.budget_bytes: count
            plan.global_batch: count
            plan.host_bytes: count
            plan.lower_bound_bytes: count
            plan.micro_batch: count
            plan.peak_bytes: count
            plan.seq_len: count
            plan.target_len: null
            predicted.step_ms: number
            predicted.times: text
            products: null
            profile: null
            saved_activations_bytes: count
            step_ms[]: number
            threads: count
        "#]],
    );
    assert_exact(&bench);
    // Embedding tables, and without biases: norms, attention's two products, the MLP's two.
    let parameters = (300 + 24) * 32 + 2 * (2 * 32 + 4 * 32 * 32 + 8 * 32 * 32) + 32;
    assert_eq!(bench["model"]["parameters"], parameters);
    let near_chance = bench["loss"].as_f64().expect("a number") - 300f64.ln();
    assert!(near_chance.abs() < 0.5, "random tokens cannot be learned");
}

#[test]
fn invariant_3_exact_a_run_leaves_a_folder_and_a_report() {
    let sandbox = Sandbox::new();
    let said = sandbox.must_train("--name run --eval-every 10 --json");
    let report = said.json();
    check_shape(
        &report,
        expect![[r#"
            attempts.count: count
            attempts.success_rate: number
            branch: count
            energy: null
            energy_j_per_token: null
            eval[].average_loss: null
            eval[].loss: number
            eval[].step: count
            journal_events_lost: count
            losses[]: number
            measured.arena_resident_bytes: count
            measured.arena_resident_peak_bytes: count
            measured.blas: null
            measured.device_allocations_after_first_step: count
            measured.host_touched_bytes: count
            measured.outside_plan_bytes: count
            measured.peak_rss_before_load_bytes: count
            measured.peak_rss_bytes: count
            measured.planned_bytes_of_what_ran: count
            measured.step_ms_min: number
            measured.step_ms_p50: number
            measured.tokens_per_s: number
            measured.touched_bytes: count
            memory[].memory_bytes: count
            memory[].step: count
            name: text
            padding_tokens: count
            plan.accumulation: count
            plan.budget_bytes: count
            plan.global_batch: count
            plan.host_bytes: count
            plan.lower_bound_bytes: count
            plan.micro_batch: count
            plan.peak_bytes: count
            plan.seq_len: count
            plan.target_len: null
            safe_settings: null
            saved_step: count
            seconds: number
            status: text
            target_tokens: count
            tokens_seen: count
            truncated_samples: count
            updates_skipped: count
        "#]],
    );
    assert_exact(&report);
    let memory = report["memory"].as_array().expect("a list");
    assert_eq!(memory.iter().map(|at| at["step"].as_u64()).collect::<Vec<_>>(), [1, 10, 20].map(Some));
    if cfg!(target_os = "linux") {
        let held = &report["measured"]["arena_resident_bytes"];
        assert!(memory.iter().all(|at| at["memory_bytes"] == *held), "a flat line: {memory:?}");
    }
    assert_eq!(report, sandbox.json("runs/run/report.json"));
    assert_eq!((&report["name"], &report["status"]), (&"run".into(), &"finished".into()));
    assert_eq!(report["losses"].as_array().map(Vec::len), Some(20));
    assert_eq!(report["tokens_seen"], 20 * 4 * 16);
    assert_eq!((&report["eval"][0]["step"], &report["eval"][1]["step"]), (&10.into(), &20.into()));

    let root = sandbox.path("runs/run");
    let files = sandbox
        .tree("runs/run")
        .into_keys()
        .map(|path| path.strip_prefix(&root).expect("it was found there").to_string_lossy().replace('\\', "/"));
    let files = files.filter(|file| !file.contains("000015") && !file.contains("000020"));
    // One file of samples per hour.
    let named = |file: String| if file.starts_with("samples/s-") { "samples/s-HOUR.bin".to_owned() } else { file };
    let mut files = files.map(named).collect::<Vec<_>>();
    files.dedup();
    expect![[r#"
        checkpoints/step-000010/config.json
        checkpoints/step-000010/model.safetensors
        checkpoints/step-000010/optimizer.safetensors
        checkpoints/step-000010/state.json
        checkpoints/step-000010/tokenizer.json
        checkpoints/step-000010/tokenizer_config.json
        config.json
        config.yaml
        journal.jsonl
        lock
        orders.jsonl
        plan.json
        process.json
        report.html
        report.json
        samples/s-HOUR.bin"#]]
    .assert_eq(&files.join("\n"));

    let plan = sandbox.json("runs/run/plan.json");
    assert_eq!(plan["peak_bytes"], report["plan"]["peak_bytes"]);
    for line in sandbox.text("runs/run/journal.jsonl").lines() {
        let event = serde_json::from_str::<Value>(line).expect("a line is JSON");
        assert!(event["v"] == 1 && event["event"].is_string() && event["time_s"].is_f64(), "{line}");
    }
    for words in
        ["20 steps", "checkpoint runs/run/checkpoints/step-000020", "runs/run/report.json", "planned", "measured"]
    {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}

/// Evaluation and sampling are part of the same plan, and print nothing to stdout.
#[test]
fn invariant_4_whole_a_sample_at_the_end_needs_no_more_memory() {
    let sandbox = Sandbox::new();
    let said = sandbox.must_train("--name run --sample-tokens 64 --max-steps 3");
    assert_eq!(said.stdout_text(), "");
    assert!(said.stderr.contains("a sample, after held-out text:"), "{}", said.stderr);
    assert_exact(&sandbox.json("runs/run/report.json"));
    let report = sandbox.must_train("--name again --sample-tokens 64 --max-steps 3 --json").json();
    assert_exact(&report);
}

/// For text, documents in rows, and pairs; a resumed run keeps it.
#[test]
fn the_held_out_part_can_be_set() {
    let sandbox = Sandbox::new();
    sandbox.write("pairs.tsv", (0..300).map(|n| format!("number {n}\tthe {n}th\n")).collect::<String>());
    let held_out = |flags: &str| {
        let said = sandbox.must_train(&format!("--max-steps 1 --eval-every 0 {flags}"));
        let line = said.stderr.lines().find(|line| line.starts_with("data: ")).expect("a line of data").to_owned();
        let counts = line.split("; ").find(|part| part.contains("training samples")).expect("counts").to_owned();
        let mut numbers = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u64>().ok());
        (numbers.next().expect("a count"), numbers.next().expect("a count"))
    };
    let pairs = "--model t5-nano --tokenizer bytes --data pairs.tsv --source-len 16 --target-len 16 --vram 1";
    let (usual, half) = (held_out(""), held_out("--held-out 0.5"));
    assert!(usual.1 * 19 <= usual.0 + 19 && half.0.abs_diff(half.1) <= 2, "{usual:?}, {half:?}");
    assert_eq!(held_out("--held-out 0").1, 0);
    assert_eq!(held_out(pairs), (297, 3));
    assert_eq!(held_out(&format!("{pairs} --held-out 0.1")), (270, 30));
    sandbox.write("theirs.yaml", "val_set_size: 0.5\n");
    assert_eq!(held_out("--config theirs.yaml --name half"), half);
    assert_eq!(held_out("--resume runs/half"), half, "the first session's");
    // A number of samples, which axolotl and LLaMA-Factory also accept, is not a share: the default share is held out.
    sandbox.write("theirs.yaml", "val_set_size: 200\n");
    assert_eq!(held_out("--config theirs.yaml --name counted"), usual);
    for wrong in ["0.6", "-0.1", "some", "200"] {
        assert_eq!(sandbox.train(&format!("--held-out={wrong}")).code, Some(2), "{wrong}");
    }
}

#[test]
fn a_run_without_a_name_takes_the_next_number() {
    let sandbox = Sandbox::new();
    for number in 1..=3 {
        sandbox.must_train("--max-steps 1");
        assert!(sandbox.path(&format!("runs/tiny-{number}/report.json")).exists(), "run {number}");
    }
    // `--resume auto` continues the run that was written last, not a refused one.
    assert_eq!(sandbox.train("--name refused --init nothing").code, Some(4));
    let said = sandbox.must_train("--max-steps 2 --resume auto");
    assert!(said.stderr.contains("resumed after step 1 from runs/tiny-3/"), "{}", said.stderr);
}

#[test]
fn the_plan_as_a_table() {
    let sandbox = Sandbox::new();
    let flags = "plan --model gpt2 --vram 8 --device cpu --global-batch 4 --threads 2";
    let said = must(sandbox.run_without_half(flags));
    assert_eq!(said.stderr, "");
    let (table, in_half) = said.stdout_text().split_once("`--precision bf16`: ").expect("the gain of bf16");
    for part in [" per step, ", " x the time; peak ", " instead of 3.93 GiB\n", "no bf16 arithmetic"] {
        assert!(in_half.contains(part), "{in_half}");
    }
    expect![[r#"
        gpt2: 124,439,808 parameters; a step is 4 samples of 1024 tokens
        in fp32 on the CPU; times are estimates: nothing is measured yet; run `plimsoll calibrate` to measure this machine
        budget: 8.00 GiB (requested)
        ┌──────────────────────────────────────────────────────────┐
        │ at the peak           size           bytes   of the peak │
        ╞══════════════════════════════════════════════════════════╡
        │ weights            475 MiB     497,759,232        11.8 % │
        │ gradients          147 MiB     154,389,504         3.7 % │
        │ optimizer state    949 MiB     995,518,464        23.6 % │
        │ activations       2.29 GiB   2,456,846,336        58.3 % │
        │ scratch            105 MiB     110,470,272         2.6 % │
        │ staging           32.8 KiB          33,536         0.0 % │
        │ unused               128 B             128         0.0 % │
        │ peak              3.93 GiB   4,215,017,472       100.0 % │
        │ lower bound       3.93 GiB   4,215,017,217       100.0 % │
        │ budget            8.00 GiB   8,589,934,592             - │
        └──────────────────────────────────────────────────────────┘
        the whole global batch fits at once
        not limited by memory: these are the fastest settings
        predicted: 11 s per step, 358 tokens/s
        ┌───────────────────────────────────────────────────────────────────────┐
        │ lever                      setting              saves   host     time │
        ╞═══════════════════════════════════════════════════════════════════════╡
        │ recompute            off   -                        -      -        - │
        │ sequence tile        off   -                        -      -        - │
        │ activation offload   off   -                        -      -        - │
        │ optimizer offload    off   -                        -      -        - │
        │ weight offload       off   -                        -      -        - │
        │ precision            off   -                        -      -        - │
        │ base weights         off   -                        -      -        - │
        │ optimizer state      off   -                        -      -        - │
        │ gradient precision   off   -                        -      -        - │
        │ update in backward   off   -                        -      -        - │
        │ head chunk           on    528 of 4096 rows   685 MiB      -   +0.0 % │
        │ attention rows       on    64 of 1024               -      -   +0.0 % │
        │ moving average       off   -                        -      -        - │
        └───────────────────────────────────────────────────────────────────────┘
        update in backward is off: clipping needs the norm of all gradients before the first update
    "#]]
    .assert_eq(table);
    assert!(said.stdout_text().lines().skip(2).all(|line| line.chars().count() < 100));
}

#[test]
fn a_plan_for_the_cpu_shows_the_gain_of_bf16() {
    let sandbox = Sandbox::new();
    let flags = "plan --model gpt2 --vram 8 --device cpu --global-batch 4 --seq-len 256 --threads 2";
    for run in [Sandbox::run, Sandbox::run_without_half] {
        let planned = |more: &str| must(run(&sandbox, &format!("{flags} {more} --json"))).json();
        let (single, half) = (planned(""), planned("--precision bf16"));
        let bf16 = &single["bf16"];
        assert_eq!(bf16["fits"], true);
        assert_eq!(bf16["peak_bytes"], half["plan"]["peak_bytes"]);
        assert_eq!(bf16["micro_batch"], half["plan"]["micro_batch"]);
        assert_eq!(bf16["step_ms"], half["predicted"]["step_ms"]);
        assert_eq!(bf16["tokens_per_s"], half["predicted"]["tokens_per_s"]);
        let time = |plan: &Value| plan["step_ms"].as_f64().expect("a number");
        let ratio = time(bf16) / time(&single["predicted"]);
        let words = must(run(&sandbox, &format!("{flags} --precision bf16"))).stdout_text().to_owned();
        let (expected, is_said) = match bf16["arithmetic"].as_str() {
            Some(_) => (0.3..0.9, false),
            None => (1.0..1.15, true),
        };
        assert!(expected.contains(&ratio), "{ratio}: {bf16}");
        assert_eq!(words.contains("this processor has no bf16 arithmetic"), is_said, "{words}");
        assert_eq!(half["bf16"].is_null(), !is_said, "{half}");
        assert!(planned("--precision fp16")["bf16"].is_null());
    }
    assert!(sandbox.run_without_half(&format!("{flags} --json")).json()["bf16"]["arithmetic"].is_null());
    let on_card = must(sandbox.run("plan --model gpt2 --gpu 3060 --precision fp32 --host-ram 8 --json")).json();
    assert!(on_card["bf16"].is_null(), "{on_card}");
}

#[test]
fn the_plan_as_a_page_and_as_a_picture() {
    let sandbox = Sandbox::new();
    for (budget, code) in [("0.1", 0), ("16KiB", 3)] {
        let said = sandbox.run(&format!("plan --model tiny --vram {budget} --html plan.html --svg plan.svg"));
        assert_eq!(said.code, Some(code), "{}", said.stderr);
        for (file, start) in [("plan.html", "<!DOCTYPE html>"), ("plan.svg", "<svg ")] {
            let text = sandbox.text(file);
            assert!(text.starts_with(start) && text.contains("tiny: peak"), "{file}");
        }
        // Next to the map is the terminal's text: levers and times, or the hints.
        let page = sandbox.text("plan.html").replace("<code>", "`").replace("</code>", "`");
        let hints = said.stderr.lines().filter_map(|line| line.strip_prefix("hint: ")).collect::<Vec<_>>();
        assert_eq!(hints.is_empty(), code == 0, "{}", said.stderr);
        hints.iter().for_each(|hint| assert!(page.contains(&format!("<p>{hint}</p>")), "the page lacks `{hint}`"));
        let predicted = said.stdout_text().lines().find(|line| line.starts_with("predicted: "));
        predicted.iter().for_each(|line| assert!(page.contains(&format!("<p>{line}</p>")), "the page lacks `{line}`"));
        assert_eq!(page.contains("<h2>Levers</h2>"), code == 0);
    }
    for flag in ["--html", "--svg"] {
        let said = sandbox.run(&format!("plan --model tiny --vram 0.1 {flag} no/such/folder/file"));
        assert_eq!(said.code, Some(5), "{}", said.stderr);
        assert!(said.stderr.starts_with(&format!("{ON_CPU}error: no/such/folder/file: ")), "{}", said.stderr);
    }
}

#[test]
fn a_misfit_and_its_hints() {
    let sandbox = Sandbox::new();
    let flags = "--micro-batch 4 --global-batch 4 --recompute none --optimizer-offload 0 --threads 2";
    let said = sandbox.run_without_half(&format!("plan --model gpt2 --vram 3 {flags}"));
    assert_eq!((said.code, said.stdout_text()), (Some(3), ""));
    expect![[r#"
        on the CPU: no NVIDIA driver was found
        error: gpt2 needs 3.83 GiB with a micro-batch of 4 and sequences of 1024, the budget is 3.00 GiB (short 846 MiB)
        hint: `--micro-batch 1` fits in 2.53 GiB
        hint: `--recompute attention` fits in 2.52 GiB, about 8 % slower
        hint: `--precision bf16-pure` fits in 2.55 GiB, about 8 % slower
        hint: `--vram 3918MiB` is enough
    "#]]
    .assert_eq(&said.stderr);
}

/// Every hint of a misfit fits.
#[test]
fn hints_of_a_misfit_are_true() {
    let sandbox = Sandbox::new();
    for flags in [
        "--model gpt2 --vram 3 --global-batch 4 --micro-batch 4 --recompute none --optimizer-offload 0",
        "--model gpt2 --vram 1000MiB --global-batch 8 --optimizer-offload 0",
        "--model gpt2 --vram 600MiB --global-batch 8",
        "--model gpt2-xl --vram 12 --global-batch 6 --micro-batch 6 --optimizer-offload 0",
        "--model gpt2-medium --vram 1 --seq-len 300",
        "--model nano --vram 4MiB --global-batch 12",
        "--model tiny --vram 150KiB --global-batch 4 --micro-batch 4 --recompute cheap --optimizer-offload 0",
        "--model gpt2-large --gpu 3060 --vram 6 --host-ram 1 --global-batch 4",
    ] {
        let said = sandbox.run(&format!("plan {flags}"));
        assert_eq!(said.code, Some(3), "{flags}: {}", said.stdout_text());
        let hints = said.stderr.lines().filter_map(|line| line.strip_prefix("hint: `")?.split('`').next());
        let mut ways = 0;
        for hint in hints {
            let mut settings = BTreeMap::new();
            for setting in [flags, hint] {
                let words = setting.split_whitespace().collect::<Vec<_>>();
                settings.extend(words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())));
            }
            let command = settings.iter().map(|(flag, value)| format!(" {flag} {value}")).collect::<String>();
            let said = sandbox.run(&format!("plan{command}"));
            assert_eq!(said.code, Some(0), "{flags}, {hint}: {}", said.stderr);
            ways += 1;
        }
        assert!(ways > 0, "{flags}: {}", said.stderr);
    }
}

#[test]
fn averaged_weights_generate_text_if_a_run_kept_them() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name with --ema 0.9 --ema-space host");
    sandbox.must_train("--name without");
    must(sandbox.run("generate --checkpoint runs/with --ema --max-tokens 5"));
    let said = sandbox.run("generate --checkpoint runs/without --ema --max-tokens 5");
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    for part in ["has no averaged weights", "train with `--ema 0.999`"] {
        assert!(said.stderr.contains(part), "{}", said.stderr);
    }
}

#[test]
fn a_profile_lists_every_op_of_a_step_and_the_machines_rates() {
    let sandbox = Sandbox::new();
    let flags = "--model nano --seq-len 16 --micro-batch 2 --vram 1 --steps 2 --warmup 0 --recompute cheap --threads 2";
    let said = must(sandbox.run(&format!("bench {flags} --profile")));
    let text = said.stdout_text();
    let rows = text.lines().filter_map(|line| line.strip_prefix('│')?.split_whitespace().next()).collect::<Vec<_>>();
    let place = |name: &str| rows.iter().position(|row| *row == name).unwrap_or_else(|| panic!("no {name} in {text}"));
    let parts = ["forward", "recompute", "backward", "update"].map(place);
    for (part, ops) in [
        vec!["linear", "attention", "embedding"],
        vec!["gelu", "layer_norm"],
        vec!["head_loss_grad", "linear_weight_grad", "attention_grad", "embedding_grad"],
        vec!["adamw", "grad_norm"],
    ]
    .into_iter()
    .enumerate()
    {
        let end = parts.get(part + 1).copied().unwrap_or(rows.len());
        for op in ops {
            assert!(rows[parts[part]..end].contains(&op), "{op}: {text}");
        }
    }
    for said in ["GEMM: part of ", "copy: part of ", "is not products"] {
        assert!(text.contains(said), "{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let bench = must(sandbox.run(&format!("bench {flags} --profile --json"))).json();
    let profile = &bench["profile"];
    check_shape(
        profile,
        expect![[r#"
            ceilings.bf16_flops_per_s: null
            ceilings.bytes_per_s: number
            ceilings.flops_per_s: number
            ops[].bytes_per_s: number
            ops[].flops_per_s: number
            ops[].nature: text
            ops[].nodes: count
            ops[].op: text
            ops[].part: text
            ops[].step_ms: number
            products[].columns: count
            products[].flops_per_s: number
            products[].nodes: count
            products[].op: text
            products[].part_of_ceiling: number
            products[].rows: count
            products[].step_ms: number
            products[].terms: count
            shares.attention: number
            shares.products: number
            shares.streaming: number
        "#]],
    );
    let shares = profile["shares"].as_object().expect("shares").values().map(|share| share.as_f64().expect("a part"));
    assert!((shares.sum::<f64>() - 1.0).abs() < 1e-9, "{profile}");
    let ops = profile["ops"].as_array().expect("ops");
    let nodes_of =
        |op: &str| ops.iter().filter(|o| o["op"] == op).map(|o| o["nodes"].as_u64().expect("a count")).sum::<u64>();
    // Four linear layers in each of nano's blocks, and the same number of gradients.
    let linear = nodes_of("linear");
    assert!(linear > 0 && linear % 4 == 0, "{profile}");
    assert_eq!((nodes_of("linear_input_grad"), nodes_of("linear_weight_grad")), (linear, linear));

    // By shape: gradients' products have the layer's extents in another order.
    let products = profile["products"].as_array().expect("products");
    let extents = |op: &str| {
        let of_op = products.iter().filter(|product| product["op"] == op);
        let extents =
            of_op.map(|product| ["rows", "terms", "columns"].map(|key| product[key].as_u64().expect("a count")));
        extents.collect::<BTreeSet<_>>()
    };
    let layers = extents("linear");
    assert_eq!(layers, [[32, 128, 384], [32, 128, 128], [32, 128, 512], [32, 512, 128]].into());
    assert_eq!(extents("linear_input_grad"), layers.iter().map(|&[rows, from, to]| [rows, to, from]).collect());
    assert_eq!(extents("linear_weight_grad"), layers.iter().map(|&[rows, from, to]| [from, rows, to]).collect());
    let shown = text.lines().filter(|line| line.split_whitespace().take(5).eq(["│", "linear", "32", "128", "384"]));
    assert_eq!(shown.count(), 1, "{text}");

    // Products in bf16 have a ceiling of their own.
    let profile =
        must(sandbox.run(&format!("bench {flags} --precision bf16 --profile --json"))).json()["profile"].clone();
    let ceiling = profile["ceilings"]["bf16_flops_per_s"].as_f64().expect("a number");
    for product in profile["products"].as_array().expect("products") {
        let [reached, part] = ["flops_per_s", "part_of_ceiling"].map(|key| product[key].as_f64().expect("a number"));
        assert!((reached / ceiling / part - 1.0).abs() < 1e-9, "{product}, {ceiling}");
    }
    let said = must(sandbox.run(&format!("bench {flags} --precision bf16 --profile")));
    assert!(said.stdout_text().contains(" GFLOP/s in bf16, of "), "{}", said.stdout_text());
}

#[test]
fn help_names_the_flags() {
    let sandbox = Sandbox::new();
    for (command, flags) in [
        (
            "train",
            "--data --tokenizer --model --init --vram --vram-auto --vram-margin --seq-len --global-batch --micro-batch \
             --max-steps --epochs --duration --learning-rate --warmup-steps --weight-decay --grad-clip --dropout --seed \
             --eval-every --checkpoint-every --keep-checkpoints --resume --name --threads --blas --recompute --activation-offload --optimizer-offload --weight-offload --host-ram --precision \
             --base-weights --optimizer-state --gradient-precision --update-in-backward --head-chunk --sequence-tile --attention-rows --ema --ema-space --loss-scale --config --runs-dir --cache-dir \
             --json",
        ),
        (
            "plan",
            "--model --vram --seq-len --global-batch --micro-batch --threads --recompute --activation-offload --optimizer-offload --weight-offload --host-ram \
             --precision --optimizer-state --gradient-precision --update-in-backward --head-chunk --sequence-tile --attention-rows --ema --explain --json --html --svg",
        ),
        (
            "bench",
            "--model --vram --layers --hidden --heads --vocab-size --bias --seq-len --micro-batch --steps --blas --json",
        ),
        ("generate", "--checkpoint --tokenizer --prompt --max-tokens --temperature --top-k --top-p --seed --vram"),
    ] {
        let said = must(sandbox.run(&format!("{command} --help")));
        assert_eq!(said.stderr, "");
        assert!(!said.stdout.contains(&0x1b), "an escape code outside a terminal");
        for flag in flags.split_whitespace() {
            let is_named = said.stdout_text().split([' ', '\n', '[', ',']).any(|word| word == flag);
            assert!(is_named, "`{command} --help` lacks {flag}");
        }
    }
    let help = must(sandbox.run("--help"));
    for command in ["train", "plan", "generate", "bench"] {
        assert!(help.stdout_text().contains(&format!("\n  {command} ")), "{}", help.stdout_text());
    }
    assert!(must(sandbox.run("--version")).stdout_text().starts_with("plimsoll "));
}

#[test]
fn flags_may_have_underscores() {
    let sandbox = Sandbox::new();
    let hyphens =
        must(sandbox.run("plan --model tiny --vram 1 --seq-len 16 --global-batch=6 --vram-safety-margin 100"));
    let underscores =
        must(sandbox.run("plan --model_size tiny --vram 1 --seq_len 16 --global_batch=6 --vram_margin 100"));
    assert_eq!(hyphens.stdout_text(), underscores.stdout_text());
    assert!(hyphens.stdout_text().contains("= 924 MiB  for the plan"), "{}", hyphens.stdout_text());
}

/// Flags and settings files, with our keys and other trainers', give the same run.
#[test]
fn settings_and_flags_give_the_same_run() {
    let sandbox = Sandbox::new();
    let rest = "--data text.txt --threads 1 --cache-dir cache --runs-dir runs";
    let flags = "--seq-len 16 --global-batch 4 --micro-batch 2 --max-steps 12 --learning-rate 1e-3 --warmup-steps 2 \
                 --weight-decay 0.2 --grad-clip 0.5 --beta2 0.99 --dropout 0.2 --seed 3 --eval-every 6 \
                 --checkpoint-every 4 --keep-checkpoints 1 --sample-tokens 0 --vram 200MiB --final-lr-part 0";
    must(sandbox.run(&format!("train {rest} --model tiny --name flags {flags}")));
    let ours = "model: tiny\nseq_len: 16\nglobal-batch: 4\nmicro_batch: 2\nmax_steps: 12\nlearning_rate: 0.001\n\
                warmup_steps: 2\nweight_decay: 0.2\ngrad_clip: 0.5\nbeta2: 0.99\ndropout: 0.2\nseed: 3\neval_every: 6\n\
                checkpoint_every: 4\nkeep_checkpoints: 1\nsample_tokens: 0\nvram: 200MiB\nfinal_lr_part: 0\n";
    let theirs = "model_name_or_path: tiny\nmax_seq_length: 16\nper_device_train_batch_size: 2\n\
                  gradient_accumulation_steps: 2\nmax_steps: 12\nlr: 1.0e-3\nwarmup_steps: 2\nweight_decay: 0.2\n\
                  max_grad_norm: 0.5\nadam_beta2: 0.99\ndropout: 0.2\nseed: 3\neval_steps: 6\nsave_steps: 4\n\
                  save_total_limit: 1\nsample-tokens: 0\nvram: 0.1953125\n\
                  # Supported settings, written out.\n\
                  bf16: false\nfp16: false\ngradient_checkpointing: false\noptim: adamw\nlr_scheduler_type: cosine\n\
                  resume_from_checkpoint: false\nrun_name: null\n";
    let data_too = format!("{ours}data: [text.txt]\nthreads: 1\ncache_dir: cache\nruns_dir: runs\nname: all\n");
    sandbox.write("ours.yaml", ours);
    sandbox.write("theirs.yaml", theirs);
    sandbox.write("all.yaml", data_too);
    must(sandbox.run(&format!("train --config ours.yaml {rest} --name ours")));
    must(sandbox.run(&format!("train --config theirs.yaml {rest} --name theirs")));
    must(sandbox.run("train --config all.yaml"));
    for name in ["ours", "theirs", "all"] {
        let run = format!("runs/{name}");
        sandbox.assert_same_run(&run, "runs/flags", 12);
        let resolved = sandbox.text(&format!("{run}/config.yaml")).replace(&format!("runs/{name}"), "runs/flags");
        let resolved = resolved.replace(&format!("name: {name}\n"), "name: flags\n");
        assert_eq!(resolved, sandbox.text("runs/flags/config.yaml"), "{name}");
    }
    // A run's stored settings start the same run again.
    must(sandbox.run("train --config runs/flags/config.yaml --name again --runs-dir runs"));
    sandbox.assert_same_run("runs/again", "runs/flags", 12);
}

/// Settings as guides and other trainers write them, next to the same with our keys.
#[test]
fn keys_of_other_trainers_give_the_same_run() {
    let sandbox = Sandbox::new();
    let train = |name: &str, flags: &str| {
        let said = sandbox.run(&format!(
            "train --model tiny --data text.txt --threads 1 --cache-dir cache --runs-dir runs --seq-len 16 --max-steps 6 \
             --checkpoint-every 3 --sample-tokens 0 --vram 200MiB --name {name} {flags}"
        ));
        must(said).stderr
    };
    train(
        "ours",
        "--micro-batch 3 --gradient-accumulation-steps 2 --recompute blocks --scheduler linear --final-lr-part 0",
    );
    let said = train(
        "theirs",
        "--batch_size 3 --gradient_accumulation_steps=2 --gradient_checkpointing --lr_scheduler_type linear --fp16 false \
         --no_rdrop --dataloader-num-workers 2 --disable-compilation --use_cpu_offload --cpu_offload_fraction 0",
    );
    assert!(said.contains("`--disable-compilation` changes nothing: "), "{said}");
    sandbox.assert_same_run("runs/theirs", "runs/ours", 6);
    // A plan accepts the same file.
    let said = must(sandbox.run(
        "plan --model tiny --batch_size 3 --gradient_accumulation_steps=2 --gradient_checkpointing --max-steps 6 --data a b \
         --learning-rate 1e-3 --name theirs --seq-len 16 --json",
    ));
    assert!(
        said.stderr.contains("`--data`, `--learning-rate`, `--max-steps`, `--name`: only for `plimsoll train`"),
        "{}",
        said.stderr
    );
    let (plan, run) = (said.json(), sandbox.json("runs/ours/plan.json"));
    assert_eq!(
        (&plan["plan"]["micro_batch"], &plan["plan"]["global_batch"]),
        (&run["micro_batch"], &run["global_batch"])
    );
}

/// A plan, a bench and a sample accept a run's settings, check all of them, and use those that apply.
#[test]
fn all_commands_accept_a_runs_settings() {
    let sandbox = Sandbox::new();
    let settings = "model_name_or_path: tiny\nmax_seq_length: 16\nper_device_train_batch_size: 2\n\
                    gradient_accumulation_steps: 3\nlearning_rate: 1e-3\nwarmup_ratio: 0.1\nadam_beta2: 0.98\n\
                    adam_epsilon: 1e-6\nlr_scheduler_type: linear\ngradient_checkpointing: true\nlogging_steps: 5\ndisable_tqdm: true\n\
                    data: [text.txt]\nmax_steps: 4\nrun_name: run\nseed: 5\n";
    sandbox.write("run.yaml", settings);
    let places = "--cache-dir cache --runs-dir runs --threads 1 --vram 200MiB";
    let run = must(sandbox.run(&format!("train --config run.yaml {places} --sample-tokens 0")));
    assert!(run.stderr.contains("run.yaml: changes nothing: `disable_tqdm` (progress"), "{}", run.stderr);
    let trained = sandbox.json("runs/run/plan.json");
    for plan in ["plan --config run.yaml", "plan --resume runs/run", "plan --resume auto --name run"] {
        let planned = must(sandbox.run(&format!("{plan} {places} --sample-tokens 0 --json"))).json();
        for key in ["micro_batch", "global_batch", "seq_len", "peak_bytes"] {
            assert_eq!(planned["plan"][key], trained[key], "{key} of {plan}");
        }
    }
    let bench = must(sandbox.run(&format!("bench --config run.yaml {places} --steps 1 --warmup 0 --json"))).json();
    assert_eq!(bench["plan"]["global_batch"], 6);
    let text = "generate --checkpoint runs/run --max-tokens 3 --ema 0.9 --config run.yaml";
    let failure = sandbox.run(text).stderr;
    assert!(failure.contains("has no averaged weights"), "{failure}");
    must(sandbox.run("generate --checkpoint runs/run --max-tokens 3 --config run.yaml --learning_rate 1e-3"));
    for command in ["plan --model tiny", "bench --model tiny", "generate --checkpoint runs/run"] {
        for (flags, expected) in [
            ("--warmup-ratio 2", "`2` must be from 0 to 1"),
            ("--warmup_steps 3 --warmup_ratio 0.1", "cannot be used with"),
            ("--learning-rate fast", "`fast` is not a number"),
            ("--adam-beta2 1", "`1` must be from 0 to below 1"),
            ("--adam-epsilon 0", "`0` must be above 0"),
            ("--lr_scheduler_type polynomial", "`--lr-scheduler-type: polynomial` is not supported"),
            ("--max-steps 0", "must be at least 1"),
            ("--config missing.yaml", "missing.yaml can't be read"),
        ] {
            let said = sandbox.run(&format!("{command} {flags}"));
            let is_refused = [Some(2), Some(4)].contains(&said.code) && said.stderr.contains(expected);
            assert!(is_refused, "{command} {flags}: {:?} {}", said.code, said.stderr);
        }
    }
    // A notebook, whose code is read but not run.
    let code = "model, t = F.from_pretrained(model_name = 'tiny', full_finetuning = True, max_seq_length = 16)\\n\
                a = SFTConfig(per_device_train_batch_size = 2, gradient_accumulation_steps = 3, max_steps = 4)";
    let notebook = format!("{{\"cells\": [{{\"cell_type\": \"code\", \"source\": \"{code}\"}}]}}");
    sandbox.write("run.ipynb", notebook);
    let said = sandbox.run(&format!("train --config run.ipynb {places}"));
    assert!(said.stderr.contains("run.ipynb, line 1: it names no data file"), "{}", said.stderr);
    must(sandbox.run(&format!("train --config run.ipynb {places} --data text.txt --name notebook")));
    assert_eq!(sandbox.json("runs/notebook/plan.json")["global_batch"], 6);
    // A file for this machine's device, planned for another card.
    sandbox.write("device.yaml", "model: tiny\ndevice: cpu\nvram: 4\n");
    let compared = must(sandbox.run("plan --config device.yaml --compare 3060,4090"));
    assert!(compared.stdout_text().contains("4090"), "{}", compared.stdout_text());
    must(sandbox.run("plan --config device.yaml --gpu 3060"));
    // Epochs without data to count them, and the length of a run by each of its names.
    must(sandbox.run("plan --model tiny --epochs 3"));
    for steps in ["--steps", "--num-steps", "--train-steps", "--max-train-steps", "--iterations", "--max_iters"] {
        let said = must(sandbox.run(&format!("plan --model tiny {steps} 10")));
        assert!(said.stderr.contains("`--max-steps`: only for `plimsoll train`"), "{steps}: {}", said.stderr);
    }
    assert!(sandbox.train("--max-steps=3 --steps 3").stderr.contains("cannot be used multiple times"));
}

#[test]
fn flags_win_over_settings() {
    let sandbox = Sandbox::new();
    sandbox
        .write("s.yaml", "max_steps: 9\nseed: 1\ngradient_accumulation_steps: 3\nvram_auto: true\nname: from-file\n");
    sandbox.must_train("--config s.yaml --seed 2 --name flags");
    sandbox.must_train("--seed 2 --name alone");
    sandbox.assert_same_run("runs/flags", "runs/alone", 20);
    // Another name for the length is overridden, too.
    let said = sandbox.must_train("--config s.yaml --epochs 0.01 --seed 2 --name short");
    assert!(said.stderr.contains(" 3 steps"), "{}", said.stderr);
}

/// The same command with `--resume auto` continues, however its batch, budget and length were given.
#[test]
fn a_command_continues_with_resume_auto() {
    let sandbox = Sandbox::new();
    sandbox
        .write("s.yaml", "gradient_accumulation_steps: 2\nmicro_batch: 2\nnum_train_epochs: 0.02\nvram_auto: true\n");
    let usual = Sandbox::train_arguments;
    for (run, command) in [
        ("accumulating", usual("--gradient-accumulation-steps 2 --micro-batch 2 --max-steps 6")),
        ("automatic", usual("--vram-auto --micro-batch auto --max-steps 6")),
        ("epochs", usual("--epochs 0.02")),
        (
            "settings",
            vec!["train --config s.yaml --data text.txt --model tiny --seq-len 16 --cache-dir cache".to_owned()],
        ),
    ] {
        let command = format!("{} --name {run} --resume auto", command.join(" "));
        let first = must(sandbox.run(&command));
        assert!(first.stderr.contains("starting the run"), "{}", first.stderr);
        let second = must(sandbox.run(&command));
        assert!(second.stderr.contains("resumed after step 6 from"), "{command}: {}", second.stderr);
    }
}

/// The run that a settings file names provides the underlying settings.
#[test]
fn resuming_by_a_file_of_settings() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name one --learning-rate 1e-3");
    sandbox.must_train("--name other --seed 5 --model tiny --seq-len 8 --max-steps 1");
    sandbox.write("resume.yaml", "resume_from_checkpoint: true\nrun_name: one\nmax_steps: 22\n");
    let said = must(sandbox.run("train --config resume.yaml"));
    assert!(said.stderr.contains("resumed after step 20 from runs/one/"), "{}", said.stderr);
    let losses = sandbox.json("runs/one/report.json")["losses"].as_array().map(Vec::len);
    assert_eq!(losses, Some(22));
    assert!(sandbox.text("runs/one/config.yaml").contains("learning_rate: 0.001\n"));
}

#[test]
fn a_run_may_be_moved() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name old");
    sandbox.must_train("--name new --max-steps 25");
    std::fs::remove_dir_all(sandbox.path("tiny")).expect("it is there");
    std::fs::rename(sandbox.path("runs/old"), sandbox.path("moved")).expect("it is there");
    let said = must(sandbox.run("train --resume moved --max-steps 25"));
    assert!(said.stderr.contains("resumed after step 20 from moved/"), "{}", said.stderr);
    assert_eq!(sandbox.tensors("moved", 25)[0].len(), sandbox.tensors("runs/new", 25)[0].len());
}

/// A refused start changes neither the settings nor the name of the run.
#[test]
fn a_refused_start_leaves_a_run_as_it_is() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run");
    let before = sandbox.tree("runs/run");
    for flags in ["--seed 2", "--global-batch 8", "--seq-len 8", "--learning-rate nan"] {
        assert_ne!(sandbox.run(&format!("train --resume runs/run {flags}")).code, Some(0), "{flags}");
        assert!(sandbox.tree("runs/run") == before, "{flags}");
    }
    assert_eq!(sandbox.train("--name new --data missing.txt").code, Some(4));
    sandbox.must_train("--name new");
}

#[test]
fn a_run_that_diverges_says_so() {
    let sandbox = Sandbox::new();
    let said = sandbox.train("--learning-rate 1e30 --warmup-steps 0 --grad-clip 0 --name wild --json");
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert!(said.stderr.contains("error: the loss, a gradient or a weight is not finite"), "{}", said.stderr);
    // No checkpoint was saved, so the error names none.
    assert!(
        said.stderr.contains("hint: use a lower `--learning-rate`") && !said.stderr.contains("--resume"),
        "{}",
        said.stderr
    );
    assert_eq!(said.json()["status"], "diverged");
    sandbox.must_train("--name fast");
    let said = sandbox.train("--name fast --resume auto --max-steps 40 --learning-rate 1e30 --grad-clip 0");
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    let hint = said
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("hint: resume from the last checkpoint at a lower rate: plimsoll "));
    let command = hint.unwrap_or_else(|| panic!("{}", said.stderr)).to_owned();
    must(sandbox.run(&format!("{command} --learning-rate 1e-3").replace("--learning-rate 5e29 ", "")));
}

#[test]
fn weights_to_start_from_give_their_loss() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name first --max-steps 60 --learning-rate 1e-2 --dropout 0");
    let last =
        |run: &str| sandbox.json(&format!("runs/{run}/report.json"))["eval"][0]["loss"].as_f64().expect("a loss");
    let checkpoint = "runs/first/checkpoints/step-000060";
    // A step with a learning rate of zero.
    let still = "--max-steps 1 --learning-rate 1e-30 --dropout 0 --weight-decay 0";
    sandbox.must_train(&format!("{still} --name still --model {checkpoint} --init {checkpoint}"));
    assert!(last("first") < 5.0, "the model must learn");
    assert_eq!(last("still").to_bits(), last("first").to_bits());
    // A folder as `transformers` saves it: without state, and with names without prefix.
    let weights = sandbox.read(&format!("{checkpoint}/model.safetensors"));
    sandbox.write("hf/model.safetensors", weights);
    sandbox.write("hf/config.json", sandbox.read(&format!("{checkpoint}/config.json")));
    let said = sandbox.must_train(&format!("{still} --name hf --model gpt2 --init hf")).stderr;
    assert!(said.contains("`--model gpt2` gives the family; using the sizes of hf/config.json"), "{said}");
    assert_eq!(last("hf").to_bits(), last("first").to_bits());
    // The hub's cache of such a folder: its files are links to blobs.
    let model = ".cache/huggingface/hub/models--org--tiny";
    sandbox.write(&format!("{model}/refs/main"), "abc");
    for file in ["model.safetensors", "config.json"] {
        sandbox.write(&format!("{model}/blobs/{file}"), sandbox.read(&format!("hf/{file}")));
        sandbox.write(&format!("{model}/snapshots/abc/.keep"), "");
        let blob = sandbox.path(&format!("{model}/blobs/{file}"));
        std::os::unix::fs::symlink(blob, sandbox.path(&format!("{model}/snapshots/abc/{file}"))).expect("a link");
    }
    let arguments = Sandbox::train_arguments(&format!("{still} --name hub --pretrained-model org/tiny"));
    let model_is_given = arguments.iter().position(|argument| argument == "--model").expect("a usual flag");
    let arguments = [&arguments[..model_is_given], &arguments[model_is_given + 2..]].concat();
    let said = must(Said::of(sandbox.command(arguments).output().expect("the binary runs"))).stderr;
    assert!(said.contains("snapshots/abc\n"), "{said}");
    assert_eq!(last("hub").to_bits(), last("first").to_bits());
    let plan = |flags: &str| must(sandbox.run(&format!("plan --vram 1 --seq-len 16 --json {flags}"))).json();
    assert_eq!(
        plan("--init org/tiny --global-batch 4")["plan"]["peak_bytes"],
        plan("--model hf")["plan"]["peak_bytes"]
    );
    must(sandbox.run("generate --checkpoint org/tiny --tokenizer bytes --max-tokens 2 --vram 0.1"));
    let said = sandbox.run("plan --init google/flan-t5-small");
    assert_eq!(said.code, Some(4));
    assert!(said.stderr.contains("the weights of google/flan-t5-small are not in "), "{}", said.stderr);
    assert!(said.stderr.contains("hint: `--download` downloads them"), "{}", said.stderr);
}

#[test]
fn sizes_larger_than_requested_are_reported() {
    let sandbox = Sandbox::new();
    let said = sandbox
        .run("train --model gpt2 --tokenizer bytes --data text.txt --vram 200MiB --vram-margin 0 --runs-dir runs");
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(
        said.stderr.contains("note: gpt2 is built for the tokenizer's 256 ids instead of its own 50257"),
        "{}",
        said.stderr
    );
    let arguments = Sandbox::train_arguments("--max-steps 100000000000 --name long");
    let mut run = sandbox.command(arguments).stderr(std::process::Stdio::piped()).spawn().expect("the binary runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(run.stderr.take().expect("a pipe")));
    let warned = lines
        .by_ref()
        .map_while(Result::ok)
        .take_while(|line| !line.starts_with("step "))
        .any(|line| line.starts_with("warning: the run is predicted to take ") && line.contains(" d"));
    run.kill().expect("it runs");
    run.wait().expect("it ends");
    assert!(warned);
}

#[test]
fn binary_data_causes_a_warning() {
    let sandbox = Sandbox::new();
    sandbox.write("pictures/a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".repeat(40));
    sandbox.write("pictures/b.txt", "words, and words\n".repeat(40));
    sandbox.write("pictures/c.txt", [0; 400]);
    let said = sandbox.must_train("--data pictures --max-steps 1").stderr;
    assert!(said.contains("warning: pictures/a.txt and another file look binary, not like text"), "{said}");
    assert!(!sandbox.must_train("--max-steps 1").stderr.contains("binary"));
}

#[test]
fn presets_are_listed() {
    let sandbox = Sandbox::new();
    let listed = must(sandbox.run("models --json")).json();
    let listed = listed["models"].as_array().expect("a list");
    for model in listed {
        let least = ["full", "lora", "qlora"].map(|method| model[method]["least_bytes"].as_u64());
        // A base in bf16, at least; it is smaller in 4 bits, which GPT-2's layout excludes.
        let in_bf16 = Some(model["parameters"].as_u64().expect("a number") * 2);
        assert!(least[1] > in_bf16 && least[2] < least[1], "{model}");
    }
    // In full, weights wait in host memory; a base in 4 bits is a quarter.
    let of = |name: &str| listed.iter().find(|model| model["name"] == name).expect("it is known");
    let cards = ["full", "lora", "qlora"].map(|method| of("qwen3-8b")[method]["card"].as_str().expect("a card"));
    assert_eq!(cards, ["RTX A2000 6GB", "RTX A4500", "RTX 5050"]);

    let small = of("gpt2");
    let gib = small["full"]["least_bytes"].as_u64().expect("bytes") as f64 / f64::from(1 << 30);
    let plan = |vram: f64| {
        let flags = "--seq-len 1024 --global-batch 1 --precision bf16 --vram-margin 0 --host-ram 64";
        sandbox.run(&format!("plan --model openai-community/gpt2 --gpu a100 --vram {vram} {flags}")).code
    };
    assert_eq!((plan(gib * 1.001), plan(gib * 0.7)), (Some(0), Some(3)), "{gib} GiB");
}

fn generate(sandbox: &Sandbox, flags: &[&str]) -> Vec<u8> {
    let arguments = ["generate", "--checkpoint", "runs/run", "--threads", "1", "--vram", "0.1"];
    let said = must(Said::of(sandbox.command(arguments.iter().chain(flags)).output().expect("the binary runs")));
    let rest = said.stderr.strip_prefix(ON_CPU).unwrap_or_default();
    let of_length = ["warning: a prompt of ", "hint: use a shorter prompt or fewer `--max-tokens`"];
    let rest = rest.lines().filter(|line| !of_length.iter().any(|start| line.starts_with(start))).collect::<Vec<_>>();
    assert!(rest.len() == 1 && rest[0].starts_with("measured of this process: "), "{}", said.stderr);
    said.stdout
}

#[test]
fn text_from_a_checkpoint() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name run --max-steps 300 --learning-rate 1e-2 --checkpoint-every 100 --dropout 0");
    let write = |flags: &[&str]| generate(&sandbox, &[&["--prompt", "line 1", "--max-tokens", "40"], flags].concat());
    let text = write(&["--seed", "1"]);
    assert!(text.starts_with(b"line 1") && text.ends_with(b"\n") && text.len() > 10, "{text:?}");
    assert_eq!(text, write(&["--seed", "1"]), "the same seed, the same text");
    assert_eq!(
        text,
        write(&["--seed", "1", "--top-p", "1", "--temperature", "0.8"]),
        "the explicit values are the defaults"
    );
    let seeds = ["2", "3", "4"].map(|seed| write(&["--seed", seed, "--temperature", "1.5"]));
    assert!(seeds[0] != seeds[1] || seeds[1] != seeds[2], "different seeds give different text");
    let greedy = write(&["--temperature", "0", "--seed", "1"]);
    assert_eq!(greedy, write(&["--temperature", "0", "--seed", "2"]), "temperature 0 does not sample");
    assert_eq!(greedy, write(&["--top-k", "1", "--seed", "3"]), "there is one candidate");
    assert_eq!(greedy, write(&["--top-p", "1e-9", "--seed", "3"]), "only the likeliest token is kept");
    assert_eq!(
        greedy,
        write(&["--temperature", "0", "--threads=2"].map(|f| if f == "--threads=2" { "--seed=9" } else { f }))
    );

    let one = generate(&sandbox, &["--prompt", "line 1", "--max-tokens", "1", "--temperature", "0"]);
    assert_eq!(one, [&greedy[..7], b"\n"].concat(), "one token is one byte here");
    // A prompt longer than the model's 32 positions, and a continuation beyond them.
    let prompt = "line 1 has 1 in it\n".repeat(20);
    let long = generate(&sandbox, &["--prompt", &prompt, "--max-tokens", "100", "--temperature", "0"]);
    assert!(
        long.starts_with(prompt.as_bytes()) && long.len() > prompt.len() + 50,
        "{}",
        String::from_utf8_lossy(&long)
    );
    // No prompt: start of a document.
    generate(&sandbox, &["--max-tokens", "5"]);
    generate(&sandbox, &["--prompt", "ü→", "--max-tokens", "5"]);

    let checkpoint = "runs/run/checkpoints/step-000300";
    let by_checkpoint = sandbox.run(&format!("generate --checkpoint {checkpoint} --max-tokens 30 --seed 1"));
    let by_run = sandbox.run("generate --checkpoint runs/run --max-tokens 30 --seed 1");
    assert_eq!(must(by_checkpoint).stdout, must(by_run).stdout);
}

/// Gradients that overflow at a scale of 2^40 also overflow at 2^36, which five steps reach.
#[test]
fn skipped_updates_are_reported_and_a_run_without_updates_fails() {
    let sandbox = Sandbox::new();
    let flags = "--precision fp16 --loss-scale 1099511627776 --sample-tokens 0 --name";
    let said = sandbox.train(&format!("{flags} none --max-steps 5"));
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert!(
        said.stderr.contains("nothing was trained: the gradients of all 5 steps overflowed in fp16"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("hint: `--precision bf16` does not overflow"), "{}", said.stderr);
    assert_eq!(sandbox.json("runs/none/report.json")["status"], "diverged");
    let said = sandbox.train(&format!("{flags} some --max-steps 40"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let skipped = sandbox.json("runs/some/report.json")["updates_skipped"].as_u64().expect("a count");
    let warning = format!("warning: {skipped} of 40 updates were skipped, since gradients overflowed in fp16");
    assert!(skipped > 4 && said.stderr.contains(&warning), "{}", said.stderr);
    let said = sandbox.train("--precision fp16 --name all --max-steps 3 --loss-scale 1 --sample-tokens 0");
    assert!(said.code == Some(0) && !said.stderr.contains("were skipped"), "{}", said.stderr);
}

/// Ten samples in steps of four: half of the third step's samples are from the second epoch.
#[test]
fn a_note_says_that_the_next_epoch_completes_a_batch() {
    let sandbox = Sandbox::new();
    sandbox.write("ten.txt", "0123456789abcdef".repeat(10));
    let flags = "train --model tiny --tokenizer bytes --data ten.txt --held-out 0 --seq-len 16 --sample-tokens 0 --micro-batch 2";
    let said = sandbox.run(&format!("{flags} --global-batch 4 --epochs 3 --name uneven"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let note = "note: 3 epochs of 10 samples are 8 steps of 4: an incomplete batch at the end of an epoch is filled from the next epoch";
    assert!(said.stderr.contains(note) && said.stderr.contains("9 steps in all"), "{}", said.stderr);
    let said = sandbox.run(&format!("{flags} --global-batch 2 --epochs 1 --name even"));
    assert!(said.code == Some(0) && !said.stderr.contains("an incomplete batch"), "{}", said.stderr);
}
