//! Settings of `plimsoll estimate` from a trainer's own files and from the command that starts it.

use super::{Sandbox, bytes, json, processes};
use serde_json::{Value, json};

const BEGUN: &str = "estimate --model tiny --seq-len 16 --vram 24";

/// The run as it was parsed. Panics if the command fails.
fn run_of(sandbox: &Sandbox, arguments: &str) -> Value {
    let said = sandbox.run(&format!("{arguments} --json"));
    assert!(matches!(said.code, Some(0 | 3)), "{arguments}: {}", said.stderr);
    json(&said)["run"].clone()
}

#[test]
fn unknown_keys_are_listed_with_near_spellings() {
    let sandbox = Sandbox::new();
    sandbox
        .write("args.yaml", "per_device_train_batch_size: 4\nper_device_train_batchsize: 8\noutput_dir: x\nzzz: 1\n");
    let said = sandbox.run(&format!("{BEGUN} --config args.yaml --json"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let nearest = "line 2: `per_device_train_batchsize` is unknown and not counted; did you mean \
                   `per_device_train_batch_size`?";
    assert!(said.stderr.contains(nearest), "{}", said.stderr);
    assert!(said.stderr.contains("line 4: `zzz` is unknown and not counted\n"), "{}", said.stderr);
    let value = json(&said);
    let unknown = json!([
        { "trainer": "Hugging Face's Trainer", "key": "per_device_train_batchsize", "line": 2,
          "near": "per_device_train_batch_size" },
        { "trainer": "Hugging Face's Trainer", "key": "zzz", "line": 4, "near": null },
    ]);
    assert_eq!((&value["settings"]["unknown"], &value["run"]["micro_batch"]), (&unknown, &json!(4)));
}

#[test]
fn an_invalid_file_is_an_error_that_names_it() {
    let sandbox = Sandbox::new();
    let whole = "{\"output_dir\": \"x\", \"per_device_train_batch_size\": 4}";
    sandbox.write("whole.json", whole);
    sandbox.write("truncated.json", &whole[..30]);
    sandbox.write("huge.yaml", format!("output_dir: x\n# {}\n", "x".repeat(1 << 20)));
    sandbox.write("foreign.yaml", "services:\n  web:\n    image: nginx\n");
    sandbox.write("picture.yaml", [0x89, b'P', b'N', b'G', 0xff, 0xfe, 0x00]);
    sandbox.write("empty.yaml", "");
    sandbox.write("list.yaml", "- output_dir\n- bf16\n");
    sandbox.write("folder.yaml/x", "");
    sandbox.write("twice.yaml", "output_dir: x\noutput_dir: y\n");
    sandbox.write("bad.yaml", "output_dir: x\nper_device_train_batch_size: few\nbf16: perhaps\n");
    assert_eq!(sandbox.run(&format!("{BEGUN} --config whole.json")).code, Some(0));
    for (file, expected) in [
        ("truncated.json", "not valid YAML"),
        ("huge.yaml", "1.00 MiB"),
        ("foreign.yaml", "no keys of a known trainer"),
        ("picture.yaml", ""),
        ("empty.yaml", "no keys of a known trainer"),
        ("list.yaml", "expected keys with values"),
        ("folder.yaml", ""),
        ("missing.yaml", ""),
        ("twice.yaml", "duplicate"),
        ("bad.yaml", "line 2: `per_device_train_batch_size`: `few` is not a whole number\n  line 3: `bf16`"),
    ] {
        let said = sandbox.run(&format!("{BEGUN} --config {file}"));
        assert_eq!((said.code, said.stdout_text()), (Some(4), ""), "{file}: {}", said.stderr);
        assert!(said.stderr.contains(file) && said.stderr.contains("hint: "), "{file}: {}", said.stderr);
        assert!(said.stderr.contains(expected) && said.stderr.len() < 3000, "{file}: {}", said.stderr);
    }
}

#[test]
fn a_trainer_has_one_file_and_accompanying_ones() {
    let sandbox = Sandbox::new();
    sandbox.write("args.yaml", "output_dir: x\nper_device_train_batch_size: 2\nmax_grad_norm: 1.0\nbf16: true\n");
    let own =
        json!({ "gradient_accumulation_steps": 5, "gradient_clipping": 0.0, "zero_optimization": { "stage": 0 } });
    sandbox.write("ds.json", own.to_string());
    sandbox.write("acc.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 1\n");
    for order in ["--config args.yaml --config ds.json", "--config ds.json --config args.yaml"] {
        let run = run_of(&sandbox, &format!("{BEGUN} {order} --config acc.yaml"));
        assert_eq!((bytes(&run, "micro_batch"), bytes(&run, "gradient_accumulation_steps")), (2, 5), "{order}");
        assert_eq!((&run["clip"], &run["precision"]), (&json!(false), &json!("amp-bf16")), "{order}");
    }
    // Flags override all of them.
    let run = run_of(&sandbox, &format!("{BEGUN} --config args.yaml --config ds.json --micro-batch 3 --clip on"));
    assert_eq!((bytes(&run, "micro_batch"), &run["clip"]), (3, &json!(true)));
    sandbox.write("axolotl.yml", "base_model: tiny\nmicro_batch_size: 1\n");
    let said = sandbox.run(&format!("{BEGUN} --config args.yaml --config axolotl.yml"));
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("args.yaml and axolotl.yml are both files of trainers"), "{}", said.stderr);
}

#[test]
fn a_command_combines_its_files_and_flags() {
    let sandbox = Sandbox::new();
    sandbox.write("a.yml", "base_model: tiny\nmicro_batch_size: 3\nsequence_len: 16\nbf16: false\n");
    let factory = "model_name_or_path: tiny\nstage: sft\nfinetuning_type: full\ncutoff_len: 16\n\
                   per_device_train_batch_size: 1\ndisable_gradient_checkpointing: true\n";
    sandbox.write("l.yaml", factory);
    sandbox.write("t.yaml", "batch_size: 1\ndtype: fp32\ntokenizer:\n  _component_: x.y\n  max_seq_len: 16\n");
    let factory_flags = "--model_name_or_path tiny --stage sft --template x --finetuning_type full --cutoff_len 16 \
                         --disable_gradient_checkpointing true --per_device_train_batch_size 3";
    let hugging_face = "--model_name_or_path tiny --output_dir x --per_device_train_batch_size 3 --max_length 16";
    for command in [
        format!("python train.py {hugging_face}"),
        format!("python3 -m my.train {}", hugging_face.replace('_', "-").replace("model-name", "model_name")),
        format!("accelerate launch train.py {hugging_face}"),
        format!("trl sft {hugging_face} --bf16 false --gradient_checkpointing false"),
        "axolotl train a.yml".to_owned(),
        "accelerate launch -m axolotl.cli.train a.yml --micro_batch_size 3".to_owned(),
        "llamafactory-cli train l.yaml per_device_train_batch_size=3".to_owned(),
        format!("llamafactory-cli train {factory_flags}"),
    ] {
        let said = sandbox.run(&format!("estimate --vram 24 --json -- {command}"));
        assert_eq!(said.code, Some(0), "{command}: {}", said.stderr);
        let run = &json(&said)["run"];
        let found =
            (bytes(run, "micro_batch"), bytes(run, "seq_len"), &run["precision"], &run["gradient_checkpointing"]);
        assert_eq!(found, (3, 16, &json!("fp32"), &json!("off")), "{command}");
    }
    let said = sandbox.run("estimate --model tiny --vram 24 --json -- tune run full --config t.yaml batch_size=3");
    assert_eq!((said.code, bytes(&json(&said)["run"], "micro_batch")), (Some(0), 3), "{}", said.stderr);
    for (command, code) in [
        ("ls -l", 2),
        ("python train.py", 2),
        ("axolotl train missing.yml", 4),
        ("python train.py --output_dir x --per_device_train_batch_size many", 4),
    ] {
        let said = sandbox.run(&format!("{BEGUN} -- {command}"));
        assert_eq!((said.code, said.stdout_text()), (Some(code), ""), "{command}: {}", said.stderr);
        assert!(said.stderr.contains("error: ") && said.stderr.contains("hint: "), "{command}: {}", said.stderr);
    }
    let both = sandbox.run(&format!("{BEGUN} --config a.yml -- axolotl train a.yml"));
    assert_eq!(both.code, Some(2), "{}", both.stderr);
}

#[test]
fn a_missing_length_is_assumed_with_a_note() {
    let sandbox = Sandbox::new();
    sandbox.write("args.yaml", "output_dir: x\n");
    let begun = "estimate --model flan-t5-small --vram 24 --config args.yaml --json";
    let said = sandbox.run(begun);
    assert!(said.stderr.contains("assuming 512 tokens per sample"), "{}", said.stderr);
    assert_eq!(bytes(&json(&said)["run"], "seq_len"), 512);
    let said = sandbox.run(&format!("{begun} --seq-len 32"));
    assert!(!said.stderr.contains("tokens per sample"), "{}", said.stderr);
}

#[test]
fn unsloth_is_accepted_with_its_own_loss() {
    let sandbox = Sandbox::new();
    let keywords = json!({ "model_name": "tiny", "full_finetuning": true, "max_seq_length": 16,
                           "per_device_train_batch_size": 1, "use_gradient_checkpointing": true });
    sandbox.write("unsloth.json", keywords.to_string());
    let said = sandbox.run("estimate --vram 24 --config unsloth.json --json");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!((&json(&said)["run"]["loss"], &json(&said)["run"]["precision"]), (&json!("plain"), &json!("pure-bf16")));
    assert!(said.stderr.contains("Unsloth's loss uses chunks"), "{}", said.stderr);
}
/// torchtune's recipe for Llama 3 8B on one card with 24 GB, for which its README reports 18.9 GiB.
const TORCHTUNE_8B: &str = "\
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  max_seq_len: null
model:
  _component_: torchtune.models.llama3.llama3_8b
batch_size: 2
optimizer:
  _component_: bitsandbytes.optim.PagedAdamW8bit
  lr: 1e-5
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
gradient_accumulation_steps: 1
optimizer_in_bwd: True
clip_grad_norm: null
enable_activation_checkpointing: True
dtype: bf16
";

#[test]
fn updates_in_the_backward_pass_need_no_gradients() {
    let sandbox = Sandbox::new();
    sandbox.write("8b.yaml", TORCHTUNE_8B);
    let said = sandbox.run("estimate --gpu 4090 --config 8b.yaml --json");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let value = json(&said);
    let measured = (18.9 * f64::from(1 << 30)) as u64;
    let [least, likely, most] = processes(&value);
    assert!(least < measured && measured < most, "{least} {most}");
    assert!(likely.abs_diff(measured) < measured / 10, "{likely}");
    assert_eq!((&value["verdict"], &value["fits"]), (&json!("fits"), &json!(true)), "{value}");
    // Gradients with the size of the weights, two bytes each, were counted in addition: 33.1 GiB.
    sandbox.write("kept.yaml", TORCHTUNE_8B.replace("optimizer_in_bwd: True", "optimizer_in_bwd: False"));
    let said = sandbox.run("estimate --gpu 4090 --config kept.yaml --json");
    assert_eq!((said.code, &json(&said)["verdict"]), (Some(3), &json!("does not fit")), "{}", said.stderr);
    let kept = json(&said);
    assert!(bytes(&kept, "process_bytes") - likely > 13 << 30, "{kept}");
    let exported = |name: &str| sandbox.run(&format!("estimate --gpu h100 --config 8b.yaml --export {name}"));
    assert!(exported("torchtune").stdout_text().contains("optimizer_in_bwd: True"));
    let without = exported("axolotl");
    assert!(without.stderr.contains("only torchtune updates in the backward pass"), "{}", without.stderr);
}

/// If newer versions have a kernel that older ones lack and the version is unknown, the result is a range.
#[test]
fn a_kernel_that_an_older_version_lacks_is_not_assumed() {
    let sandbox = Sandbox::new();
    let flags = "estimate --model flan-t5-small --precision pure-bf16 --micro-batch 16 --seq-len 1024 --vram 80 --vram-margin 0";
    let of = |more: &str| sandbox.run(&format!("{flags} {more} --json"));
    let [untold, told, eager] = ["", "--attention sdpa", "--attention eager"].map(|more| processes(&json(&of(more))));
    assert_eq!((untold[1], untold[2]), (told[1], eager[2]));
    assert!(eager[2] > told[2] + (1 << 30), "{told:?} {eager:?}");
    assert!(of("").stderr.contains("which transformers uses for T5 since 5.15"));
    assert!(!of("--attention sdpa").stderr.contains("since 5.15"));
    let between =
        sandbox.run(&format!("{flags} --json").replace("--vram 80", &format!("--vram {}b", eager[1] - (1 << 29))));
    assert_eq!(json(&between)["verdict"], "may fit");
    sandbox.write(
        "args.yaml",
        "model_name_or_path: gpt2-xl\noutput_dir: x\nmax_length: 64\nbf16: true\nper_device_train_batch_size: 1\n",
    );
    let [_, likely, most] = processes(&json(&sandbox.run("estimate --config args.yaml --vram 80 --json")));
    // A square root in single precision for each of 1.56 billion weights.
    assert!(most > likely + 5_000_000_000, "{likely} {most}");
    let said = sandbox.run("estimate --config args.yaml --vram 80");
    assert!(said.stderr.contains("the default since PyTorch 2.8"), "{}", said.stderr);
    assert!(
        said.stdout_text().contains("note: Estimated for transformers 5.24 and PyTorch 2.15"),
        "{}",
        said.stdout_text()
    );
}

/// A file of each trainer with an unmodeled setting, and its possible effect on the memory.
#[test]
fn unmodeled_settings_give_a_range_that_may_fit() {
    const LLAMA: &str = "unsloth/Llama-3.2-1B";
    let sandbox = Sandbox::new();
    let tuned = "model:\n  _component_: torchtune.models.llama3_2.llama3_2_1b\ntokenizer:\n  max_seq_len: 512\n\
                 batch_size: 16\ndtype: bf16\n";
    let axolotl =
        format!("base_model: {LLAMA}\nsequence_len: 512\nmicro_batch_size: 16\noptimizer: adamw_torch_fused\n");
    let factory = format!(
        "model_name_or_path: {LLAMA}\nstage: sft\nfinetuning_type: full\ncutoff_len: 512\npure_bf16: true\n\
         per_device_train_batch_size: 16\n"
    );
    let hugging_face = format!(
        "model_name_or_path: {LLAMA}\noutput_dir: x\nmax_length: 512\nper_device_train_batch_size: 16\nbf16: true\n"
    );
    let (less, more) = (true, true);
    for (begun, key, ends) in [
        (tuned, "enable_activation_offloading: true", [less, false]),
        (tuned, "ac_mode: selective\nenable_activation_checkpointing: true", [false, more]),
        (&axolotl, "gradient_checkpointing: offload\ncut_cross_entropy: true", [less, false]),
        (&axolotl, "activation_offloading: true", [less, false]),
        (&axolotl, "rl: dpo", [false, more]),
        (&axolotl, "optimizer: lion_8bit".replace("optimizer", "optim").as_str(), [less, more]),
        (&axolotl, "unfrozen_parameters: ['.*layers.15.*']", [less, false]),
        (&axolotl, "lora_modules_to_save: [embed_tokens]\nadapter: lora\nlora_target_linear: true", [false, more]),
        (&factory, "use_galore: true", [less, false]),
        (&factory, "neat_packing: true", [false, more]),
        (&hugging_face, "optim: galore_adamw", [less, false]),
        (&hugging_face, "neftune_noise_alpha: 5", [less, more]),
        (&hugging_face, "eval_strategy: steps\nper_device_eval_batch_size: 32\ndtype: bfloat16", [false, more]),
        (&hugging_face, "dtype: float32\noptim: adamw_torch_fused", [false, false]),
    ] {
        sandbox.write("run.yaml", format!("{begun}{key}\n"));
        let of =
            |memory: &str| sandbox.run(&format!("estimate --config run.yaml --json --vram-margin 0 --vram {memory}"));
        let value = json(&of("80"));
        let [least, likely, most] = processes(&value);
        // The uncertainty about CUDA's context is always part of the range.
        let context = 300 << 20;
        assert_eq!([likely - least > context, most - likely > context], ends, "{key}: {least} {likely} {most}");
        // The verdicts are similar, and searching for changes that fit takes seconds.
        if !key.starts_with("gradient_checkpointing") && key != "rl: dpo" {
            continue;
        }
        let between = of(&format!("{}b", (least + most) / 2));
        assert_eq!(between.code, Some(0), "{key}: {}", between.stderr);
        assert!(between.stderr.contains("warning: it may not fit"), "{key}: {}", between.stderr);
        let value = json(&between);
        assert_eq!((&value["verdict"], &value["fits"]), (&json!("may fit"), &Value::Null), "{key}");
        let needed = bytes(&value["least"], "peak_allocated_bytes") + bytes(&value["least"], "context_bytes");
        // Less than the difference of other cards in context and workspaces.
        let below = of(&format!("{}b", needed - (512 << 20)));
        assert_eq!((below.code, &json(&below)["verdict"]), (Some(3), &json!("does not fit")), "{key}");
    }
    let text = sandbox.run("estimate --config run.yaml --vram 80");
    assert!(!text.stdout_text().contains("\nrange "), "{}", text.stdout_text());
    sandbox.write("run.yaml", format!("{axolotl}rl: dpo\ngradient_checkpointing: offload\n"));
    let text = sandbox.run("estimate --config run.yaml --vram 80").stdout_text().to_owned();
    let range = "\nrange           the least is without saved activations; the most is with twice the weights, saved \
                 activations, temporaries, logits\n";
    assert!(text.contains(range), "{text}");
}

#[test]
fn runs_that_cannot_be_estimated_are_refused_in_a_line() {
    let sandbox = Sandbox::new();
    for file in [
        "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\nrl: grpo\ntrl:\n  use_vllm: true\n  beta: 0.1\n",
        "model_name_or_path: gpt2\nstage: ppo\nfinetuning_type: full\nreward_model: x\nppo_epochs: 4\n",
        "model:\n  _component_: torchtune.models.qwen2_5.qwen2_5_0_5b\nbatch_size: 1\nteacher_model:\n  _component_: x.y\n",
    ] {
        sandbox.write("run.yaml", file);
        let said = sandbox.run("estimate --config run.yaml --vram 24");
        assert_eq!((said.code, said.stdout_text()), (Some(4), ""), "{file}: {}", said.stderr);
        let lines = said.stderr.lines().collect::<Vec<_>>();
        assert!(lines.len() == 2 && lines[1].starts_with("hint: "), "{}", said.stderr);
        assert!(lines[0].contains("runs with generation or teacher models are not modeled"), "{}", said.stderr);
    }
}

/// Unsloth's notebooks and exported scripts give the same run as its keys in a file.
#[test]
fn a_notebook_is_a_file_of_settings() {
    let sandbox = Sandbox::new();
    let code = "max_seq_length = 2048\nmodel, tokenizer = FastLanguageModel.from_pretrained(\n    model_name = \"unsloth/Llama-3.2-1B-Instruct\",\n    \
                max_seq_length = max_seq_length,\n    load_in_4bit = True,\n)\nmodel = FastLanguageModel.get_peft_model(\n    model, r = 16,\n    \
                target_modules = [\"q_proj\", \"v_proj\"],\n    use_gradient_checkpointing = \"unsloth\",\n)\ntrainer = SFTTrainer(model = model, \
                args = SFTConfig(per_device_train_batch_size = 2, gradient_accumulation_steps = 4))\n";
    let keys = "model_name: unsloth/Llama-3.2-1B-Instruct\nmax_seq_length: 2048\nload_in_4bit: true\nr: 16\n\
                target_modules: [q_proj, v_proj]\nuse_gradient_checkpointing: unsloth\nper_device_train_batch_size: 2\n\
                gradient_accumulation_steps: 4\n";
    let cell = serde_json::json!({"cells": [{"cell_type": "code", "source": code}], "nbformat": 4});
    sandbox.write("keys.yml", keys);
    sandbox.write("run.py", code);
    sandbox.write("run.ipynb", cell.to_string());
    let reserved = |file: &str| {
        let said = sandbox.run(&format!("estimate --config {file} --gpu 4090 --json"));
        assert_eq!(said.code, Some(0), "{file}: {}", said.stderr);
        assert!(said.stderr.contains("has the shape of llama-3.2-1b"), "{}", said.stderr);
        said.json()["peak_reserved_bytes"].as_u64().expect("bytes")
    };
    let expected = reserved("keys.yml");
    assert_eq!([reserved("run.py"), reserved("run.ipynb")], [expected, expected]);
}

/// QLoRA without other settings has its trainers' defaults, with a note.
#[test]
fn qlora_has_the_defaults_of_its_trainers() {
    let sandbox = Sandbox::new();
    let reserved = |more: &str| {
        let said = sandbox.run(&format!("estimate --model llama-3.2-1b --method qlora --json {more}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        (said.json()["peak_reserved_bytes"].as_u64().expect("bytes"), said.stderr)
    };
    let (alone, said) = reserved("");
    let note =
        "note: QLoRA is estimated with `--precision amp-bf16`, `--gradient-checkpointing`, `--micro-batch 1`, as";
    assert!(said.contains(note), "{said}");
    let (same, said) = reserved("--precision amp-bf16 --gradient-checkpointing --micro-batch 1");
    assert!(same == alone && !said.contains("QLoRA is estimated"), "{said}");
    assert!(reserved("--micro-batch 8").0 > alone);
}

/// Peaks of allocated MiB of a run that a loop, a library's version or the scales of 4-bit weights change.
#[test]
fn loops_versions_and_scales_change_the_estimate() {
    let sandbox = Sandbox::new();
    let peak = |arguments: &str| {
        let said = sandbox.run(&format!("estimate --model llama-3.2-1b --micro-batch 1 --vram 80 {arguments} --json"));
        assert_eq!(said.code, Some(0), "{arguments}: {}", said.stderr);
        bytes(&json(&said), "peak_allocated_bytes") >> 20
    };
    let lora = "--method lora --precision pure-bf16 --gradient-checkpointing";
    // 1,024 rows of 128,256 logits in bf16.
    assert_eq!(peak(&format!("{lora} --loop outputs-until-step")) - peak(lora), (1024 * 128_256 * 2) >> 20);
    let older = "--transformers 4.57 --precision pure-bf16";
    assert!(peak(&format!("{older} --loop no-attention-mask")) > peak(older));
    assert_eq!(peak("--precision pure-bf16 --loop no-attention-mask"), peak("--precision pure-bf16"));
    assert!(peak("--method qlora --double-quant off") > peak("--method qlora"));
    for (arguments, code, expected) in [
        ("--transformers 4.40", 2, "the known versions are 4.54 to 4.57 and 5.0 to 5.24"),
        ("--torch 1.13", 2, "the known versions are 2.4 to 2.15"),
        ("--double-quant off", 2, "add `--method qlora`"),
    ] {
        let said = sandbox.run(&format!("{BEGUN} {arguments}"));
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(expected), "{arguments}: {}", said.stderr);
    }
    // A file's scales stay as they are if the method is named again.
    sandbox.write(
        "lf.yaml",
        "stage: sft\nmodel_name_or_path: x\nfinetuning_type: lora\nquantization_bit: 4\ndouble_quantization: false\n",
    );
    let of = |arguments: &str| peak(&format!("--config lf.yaml --seq-len 64 {arguments}"));
    assert_eq!(of("--method qlora"), of(""));
    assert!(of("--double-quant on") < of(""));
}
