//! A run on a card, with the CUDA stand-in: it trains as on the CPU, evaluates, samples, saves checkpoints, and resumes
//! to the bit; and measured memory equals planned memory.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// Few short steps, because each instruction of each thread is interpreted.
const RUN: &str = "--max-steps 4 --global-batch 2 --seq-len 8 --checkpoint-every 2 --eval-every 4 --eval-samples 2 \
                   --precision fp32 --json";

fn on_card(sandbox: &Sandbox, arguments: &[String]) -> Said {
    let mut command = sandbox.command(arguments);
    command.env("PLIMSOLL_CUDA", plimsoll_fake_cuda::library()).env(plimsoll_fake_cuda::MACHINE, "execution=late");
    Said::of(command.output().expect("the binary runs"))
}

fn report(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()
}

fn losses(report: &Value) -> Vec<f64> {
    let losses = report["losses"].as_array().expect("losses");
    losses.iter().map(|loss| loss.as_f64().expect("a number")).collect()
}

#[test]
fn invariant_7_a_run_on_a_card_trains_as_on_the_cpu_and_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let card = Sandbox::train_arguments(&format!("{RUN} --name card --device cuda --vram 2 --sample-tokens 2"));
    let said = on_card(&sandbox, &card);
    let whole = report(&said);
    assert!(said.stderr.contains("a sample, after held-out text"), "{}", said.stderr);
    let processor = report(&sandbox.must_train(&format!("{RUN} --name processor --device cpu")));
    assert_eq!(losses(&whole).len(), 4);
    for (a, b) in losses(&whole).iter().zip(losses(&processor)) {
        assert!((a - b).abs() < 1e-4, "{a} on the GPU, {b} on the processor");
    }
    // Kernels and copies touched exactly the planned bytes, and the driver has that much less, in multiples of 2 MiB.
    let (plan, measured) = (&whole["plan"], &whole["measured"]);
    assert_eq!(measured["touched_bytes"], plan["peak_bytes"]);
    assert_eq!(measured["device_allocations_after_first_step"], 0);
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    let pieces = bytes(&plan["peak_bytes"]).next_multiple_of(2 << 20);
    let host = bytes(&plan["host_bytes"]).next_multiple_of(4096);
    assert_eq!(bytes(&measured["arena_resident_bytes"]), pieces + host);

    let last = "runs/card/checkpoints/step-000004";
    let weights = sandbox.read(&format!("{last}/model.safetensors"));
    std::fs::remove_dir_all(sandbox.path(last)).expect("it is there");
    let resumed = on_card(&sandbox, &["train", "--resume", "runs/card", "--json"].map(str::to_owned));
    assert_eq!(losses(&report(&resumed)), losses(&whole));
    assert!(sandbox.read(&format!("{last}/model.safetensors")) == weights, "other weights");

    let text = on_card(
        &sandbox,
        &"generate --checkpoint runs/card --max-tokens 3".split(' ').map(str::to_owned).collect::<Vec<_>>(),
    );
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    assert!(text.stderr.contains("on NVIDIA GeForce RTX 3060"), "{}", text.stderr);
}

/// TF32 is a setting of the run: resumed without the flag, the run keeps it.
#[test]
fn invariant_7_a_run_in_tf32_resumes_in_tf32_to_the_bit() {
    let sandbox = Sandbox::new();
    let card = format!("{RUN} --name card --device cuda --vram 2 --sample-tokens 0 --tf32 on");
    let whole = report(&on_card(&sandbox, &Sandbox::train_arguments(&card)));
    let last = "runs/card/checkpoints/step-000004";
    let weights = sandbox.read(&format!("{last}/model.safetensors"));
    for (flags, is_equal) in [("", true), (" --tf32 off", false)] {
        std::fs::remove_dir_all(sandbox.path(last)).expect("it is there");
        let arguments = format!("train --resume runs/card --json{flags}");
        let resumed = on_card(&sandbox, &arguments.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(losses(&report(&resumed)) == losses(&whole), is_equal, "{flags}");
        assert_eq!(sandbox.read(&format!("{last}/model.safetensors")) == weights, is_equal, "{flags}");
    }
}

#[test]
fn tf32_on_a_card_without_it_is_refused() {
    let sandbox = Sandbox::new();
    let run = |machine: &str, arguments: &str| {
        let mut command = sandbox.command(arguments.split(' '));
        command.env("PLIMSOLL_CUDA", plimsoll_fake_cuda::library()).env(plimsoll_fake_cuda::MACHINE, machine);
        Said::of(command.output().expect("the binary runs"))
    };
    for (machine, arguments, words) in [
        ("", "plan --model nano --device cpu --tf32 on", "`--tf32 on` is for GPUs, but this runs on the CPU"),
        ("cards=0", "plan --model nano --tf32 on", "`--tf32 on` is for GPUs, but this runs on the CPU"),
        ("capability=7.5", "plan --model nano --tf32 on --host-ram 4", "its compute capability is 7.5"),
        ("", "plan --model nano --gpu 2080 --tf32 on --host-ram 4", "RTX 2080 has no TF32"),
    ] {
        let said = run(machine, arguments);
        assert_eq!((said.code, said.stdout_text()), (Some(2), ""), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words) && said.stderr.contains("hint: `--tf32 off`"), "{}", said.stderr);
    }
}

#[test]
fn fp8_is_refused_where_it_has_no_effect() {
    let sandbox = Sandbox::new();
    for (machine, arguments, words) in [
        ("", "train --data text --precision fp8 --device cuda", "RTX 3060 has no fp8: its compute capability is 8.6"),
        ("capability=8.0", "plan --model nano --precision fp8 --host-ram 4", "fp8 needs 8.9 or newer"),
        ("", "plan --model nano --gpu a100 --precision fp8 --host-ram 4", "A100"),
        (
            "",
            "plan --model nano --gpu 4090 --precision fp8 --method qlora --host-ram 4",
            "excludes base weights in nf4",
        ),
    ] {
        sandbox.write("text", "a line of text\n".repeat(200));
        let mut command = sandbox.command(arguments.split(' '));
        command.env("PLIMSOLL_CUDA", plimsoll_fake_cuda::library()).env(plimsoll_fake_cuda::MACHINE, machine);
        let said = Said::of(command.output().expect("the binary runs"));
        assert_eq!((said.code, said.stdout_text()), (Some(2), ""), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{}", said.stderr);
        assert!(said.stderr.contains("hint: use `--precision bf16`"), "{}", said.stderr);
    }
}

/// A plan in bf16 says what fp8 would take, which is what the same plan in fp8 takes; nothing uses it unasked.
#[test]
fn a_plan_in_bf16_offers_fp8_where_it_is_faster() {
    let sandbox = Sandbox::new();
    let planned = |flags: &str| {
        let said = sandbox.run(&format!("plan --model llama-3.2-1b --host-ram 32 --seq-len 1024 --json {flags}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.json()
    };
    let step = |plan: &Value| plan["step_ms"].as_f64().expect("a time");
    let ways = "--gpu 5090 --global-batch 16 --micro-batch 4 --recompute blocks --optimizer-offload 0 --weight-offload off \
                --activation-offload off";
    let (half, rounded) = (planned(ways), planned(&format!("{ways} --precision fp8")));
    let levers = half["levers"].as_array().expect("levers");
    assert!(levers.iter().any(|lever| lever["name"] == "precision" && lever["setting"] == "bf16"), "{levers:?}");
    assert!(step(&half["fp8"]) < 0.9 * step(&half["predicted"]), "{}", half["fp8"]);
    assert_eq!(step(&half["fp8"]), step(&rounded["predicted"]));
    assert_eq!(half["fp8"]["peak_bytes"], rounded["plan"]["peak_bytes"]);
    for flags in ["--gpu 3090", "--gpu 5090 --precision fp8", "--gpu 5090 --precision bf16-pure"] {
        assert!(planned(flags)["fp8"].is_null(), "{flags}");
    }
    let words = sandbox.run(&format!("plan --model llama-3.2-1b --host-ram 32 --seq-len 1024 {ways}"));
    assert!(words.stdout_text().contains("`--precision fp8`: "), "{}", words.stdout_text());
}

/// In single precision a product is further below the data sheet's peak than in TF32.
#[test]
fn plans_predict_the_speed_of_tf32() {
    let sandbox = Sandbox::new();
    let step = |flags: &str| {
        let said = sandbox.run(&format!("plan --model gpt2 --json --host-ram 8 --micro-batch 4 {flags}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.json()["predicted"]["step_ms"].as_f64().expect("a time")
    };
    for (card, at_most) in [("4090", 0.9), ("a100", 0.5)] {
        let [single, tf32] = ["", " --tf32 on"].map(|on| step(&format!("--gpu {card} --precision fp32{on}")));
        assert!(tf32 < at_most * single, "{card}: {tf32} ms in TF32, {single} ms without");
    }
    let [half, with] = ["", " --tf32 on"].map(|on| step(&format!("--gpu 4090 --precision bf16{on}")));
    assert_eq!(half, with, "half precision does not change");
}

#[test]
fn a_calibrated_card_is_planned_with_its_measurements() {
    let sandbox = Sandbox::new();
    let run = |arguments: &str| on_card(&sandbox, &arguments.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let plan = "plan --model nano --json --host-ram 4";
    let times = |said: &Said| report(said)["predicted"]["times"].as_str().expect("a sentence").to_owned();
    let before = run(plan);
    assert!(times(&before).contains("run `plimsoll calibrate` to measure the GPU"), "{}", times(&before));
    // The first, small run only.
    let measured = report(&run("calibrate --duration 0s --threads 2 --json"));
    assert_eq!(measured["device"], "NVIDIA GeForce RTX 3060");
    let file = measured["file"].as_str().expect("a path");
    let text = std::fs::read_to_string(file).expect("the file is there");
    let samples = serde_json::from_str::<Value>(&text).expect("JSON")["samples"].as_array().expect("samples").clone();
    let of = |op: &str| samples.iter().filter(|sample| sample["op"] == op && sample["device"] == "cuda").count();
    for op in ["linear", "linear_input_grad", "linear_weight_grad", "attention", "attention_grad", "head_loss_grad"] {
        assert!(of(op) > 0, "no {op} among {samples:?}");
    }
    let after = run(plan);
    let of_one_run = "1 of 23 runs; `plimsoll calibrate` measures the rest";
    assert_eq!(times(&after), format!("times from {file}, {of_one_run}"));
    assert_ne!(report(&after)["predicted"]["step_ms"], report(&before)["predicted"]["step_ms"]);
    // The same card, reported by NVML.
    let present = |arguments: &str| {
        report(&sandbox.run_with_cards("NVIDIA GeForce RTX 3060,GPU-aaaa,12288,350,0", arguments))["predicted"].clone()
    };
    let predicted = present("plan --model nano --json --host-ram 4 --gpu auto");
    assert_eq!(predicted["times"], format!("times from {file}, {of_one_run}"));
    assert_eq!(predicted["step_ms"], report(&after)["predicted"]["step_ms"]);
    std::fs::copy(file, sandbox.path("kept.json")).expect("a copy");
    let named = present("plan --model nano --json --host-ram 4 --gpu auto --machine kept.json");
    assert_eq!(named["times"], format!("times from kept.json, {of_one_run}"));
    // Impossible times.
    for seconds in ["0.0", "-1e308"] {
        let mut broken = serde_json::from_str::<Value>(&text).expect("JSON");
        broken["samples"][0]["seconds"] = seconds.parse::<f64>().expect("a number").into();
        std::fs::write(sandbox.path("broken.json"), broken.to_string()).expect("a file");
        let refused = run("plan --model nano --host-ram 4 --machine broken.json");
        assert_eq!(refused.code, Some(4), "{seconds}");
        assert!(refused.stderr.contains("can't use broken.json: it is damaged: "), "{}", refused.stderr);
    }
    // A card's measurements are not used for the CPU.
    let refused = run(&format!("plan --model nano --device cpu --machine {file}"));
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("measured on NVIDIA GeForce RTX 3060, not on the CPU"), "{}", refused.stderr);
}

#[test]
fn a_profile_on_a_card_is_compared_with_its_data_sheet() {
    let sandbox = Sandbox::new();
    let flags = "bench --model nano --layers 1 --hidden 32 --heads 1 --vocab-size 64 --seq-len 8 --micro-batch 1 --steps 1 \
                 --warmup 0 --profile --threads 2 --host-ram 1";
    let run = |more: &str| {
        let arguments = format!("{flags}{more}");
        on_card(&sandbox, &arguments.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let said = run("");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let text = said.stdout_text();
    for words in [" linear_weight_grad", " attention_grad", "the data sheet of RTX 3060"] {
        assert!(text.contains(words), "{text}");
    }
    // From plan/data/cards.csv: rates of tensor cores in bf16, and of CUDA cores in single precision.
    for (more, flops_per_s) in [(" --json", 25.5e12), (" --precision fp32 --json", 12.7e12)] {
        let ceilings = report(&run(more))["profile"]["ceilings"].clone();
        let found = ceilings["flops_per_s"].as_f64().expect("a number");
        assert!((found / flops_per_s - 1.0).abs() < 0.02, "{ceilings}");
    }
}
