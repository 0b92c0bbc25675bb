//! The ladder on command lines and files of every known trainer, without processes.

use super::*;
use crate::ends::{AllocatorSizes, CardAllocator, HostShortage};
use plimsoll_files::Disk;
use std::fs;
use std::path::Path;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

fn line(argv: &[OsString]) -> String {
    argv.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

fn card() -> Cause {
    Cause::CardMemory { by: CardAllocator::PyTorch, sizes: AllocatorSizes::default() }
}

/// Takes all steps. Returns their names, the last configuration, and all notes.
fn climb(ladder: &Ladder, argv: &[OsString], cause: &Cause) -> (Vec<String>, Configuration, Vec<String>) {
    let (mut names, mut configuration, mut notes) = (Vec::new(), Configuration::new(argv), Vec::new());
    while let Ok(taken) = ladder.next(&configuration, cause, &names, &BTreeSet::new()) {
        assert!(taken.configuration != configuration, "{} changed nothing", taken.name);
        assert!(names.len() < 40, "it never ends: {names:?}");
        names.push(taken.name);
        notes.extend(taken.notes);
        configuration = taken.configuration;
    }
    (names, configuration, notes)
}

#[test]
fn steps_follow_the_usual_order_and_keep_the_effective_batch() {
    let argv = words(
        "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
         --optim adamw_torch --output_dir out --block_size 512 --per_device_eval_batch_size 8",
    );
    let (names, last, notes) = climb(&Ladder::new(true, ""), &argv, &card());
    let expected =
        ["allocator", "micro-batch", "micro-batch", "checkpointing", "optimizer", "shorter", "shorter", "minimum"];
    assert_eq!(names, expected);
    assert_eq!(last.env["PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True");
    let said = line(&last.argv);
    for flag in [
        "--per_device_train_batch_size 1",
        "--gradient_accumulation_steps 8",
        "--gradient_checkpointing",
        "--optim paged_adamw_8bit",
        "--block_size 128",
        "--per_device_eval_batch_size 1",
    ] {
        assert!(said.contains(flag), "{flag} is not in {said}");
    }
    assert_eq!(notes[1], "micro-batch 4 → 2, gradient accumulation 2 → 4: the effective batch per GPU stays 8");
    let (names, ..) = climb(&Ladder::new(false, "expandable_segments:True"), &argv, &card());
    assert!(!names.contains(&"shorter".to_owned()) && !names.contains(&"allocator".to_owned()), "{names:?}");
}

#[test]
fn each_trainers_file_is_rewritten_in_a_copy() {
    for (command, text, keys) in [
        (
            "axolotl train FILE",
            "base_model: gpt2\nmicro_batch_size: 4\ngradient_accumulation_steps: 1\noptimizer: adamw_torch\nsequence_len: 512\n",
            ["micro_batch_size: 1", "gradient_accumulation_steps: 4", "gradient_checkpointing: true"],
        ),
        (
            "llamafactory-cli train FILE",
            "stage: sft\nfinetuning_type: full\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 1\n\
             disable_gradient_checkpointing: true\ncutoff_len: 512\n",
            [
                "per_device_train_batch_size: 1",
                "gradient_accumulation_steps: 4",
                "disable_gradient_checkpointing: false",
            ],
        ),
        (
            "tune run full_finetune_single_device --config FILE",
            "batch_size: 4\ngradient_accumulation_steps: 1\nenable_activation_checkpointing: false\nmodel:\n  _component_: x\n\
             optimizer:\n  _component_: torch.optim.AdamW\ntokenizer:\n  _component_: y\n  max_seq_len: 512\n",
            ["batch_size: 1", "gradient_accumulation_steps: 4", "enable_activation_checkpointing: true"],
        ),
        (
            "python train.py FILE",
            "{\"per_device_train_batch_size\": 4, \"output_dir\": \"out\", \"gradient_accumulation_steps\": 1}",
            [
                "\"per_device_train_batch_size\": 1",
                "\"gradient_accumulation_steps\": 4",
                "\"gradient_checkpointing\": true",
            ],
        ),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let extension = if text.starts_with('{') { "json" } else { "yaml" };
        let path = folder.path().join(format!("config.{extension}"));
        fs::write(&path, text).expect("written");
        let argv = words(&command.replace("FILE", path.to_str().expect("text")));
        let (names, last, _) = climb(&Ladder::new(false, ""), &argv, &card());
        assert!(
            names.starts_with(&["allocator", "micro-batch", "micro-batch", "checkpointing"].map(str::to_owned)),
            "{command}: {names:?}"
        );
        let written = last.write(&Disk::default(), &folder.path().join("copies")).expect("written");
        let copy = written.iter().find(|word| Path::new(word).starts_with(folder.path())).expect("a copy is named");
        assert_ne!(copy, path.as_os_str());
        let copied = fs::read_to_string(copy).expect("text");
        for key in keys {
            assert!(copied.contains(key), "{command}: {key} is not in\n{copied}");
        }
        assert_eq!(fs::read_to_string(&path).expect("text"), text, "the original is never written");
    }
}

#[test]
fn deepspeeds_file_is_rewritten_and_offloads_the_optimizer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [config, layer] = ["axolotl.yaml", "ds.json"].map(|name| folder.path().join(name));
    let deepspeed = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": \"auto\", \"zero_optimization\": {\"stage\": 2}}";
    fs::write(&layer, deepspeed).expect("written");
    let text = format!("base_model: gpt2\nmicro_batch_size: 2\ndeepspeed: {}\n", layer.display());
    fs::write(&config, &text).expect("written");
    let argv = words(&format!("axolotl train {}", config.display()));
    let (names, last, notes) = climb(&Ladder::new(false, "expandable_segments:True"), &argv, &card());
    assert_eq!(names, ["micro-batch", "checkpointing", "optimizer"]);
    assert!(notes.iter().any(|note| note == "the optimizer state is offloaded to host memory"), "{notes:?}");
    let argv = last.write(&Disk::default(), &folder.path().join("copies")).expect("written");
    let copied = fs::read_to_string(&argv[2]).expect("text");
    let named =
        copied.lines().find_map(|line| line.strip_prefix("deepspeed: ")).expect("named").trim_matches('"').to_owned();
    assert_ne!(named, layer.to_string_lossy());
    let layered = fs::read_to_string(named).expect("text");
    for part in ["\"train_micro_batch_size_per_gpu\": 1", "\"auto\"", "\"device\": \"cpu\""] {
        assert!(layered.contains(part), "{part} is not in {layered}");
    }
    assert_eq!(fs::read_to_string(&layer).expect("text"), deepspeed);
}

#[test]
fn running_out_of_host_memory_has_its_own_steps() {
    let argv = words("python run_clm.py --per_device_train_batch_size 2 --output_dir out --dataloader_num_workers 2");
    let ladder = Ladder::new(false, "");
    let (names, last, _) = climb(&ladder, &argv, &Cause::HostMemory(HostShortage::Killed));
    assert_eq!(names, ["workers", "workers", "micro-batch", "checkpointing"]);
    assert!(last.env.is_empty() && line(&last.argv).contains("--dataloader_num_workers 0"));
    let pinned = climb(&ladder, &argv, &Cause::HostMemory(HostShortage::Pinned));
    assert_eq!(pinned.0[0], "unpinned");
    assert!(line(&pinned.1.argv).contains("--dataloader_pin_memory false"), "{}", line(&pinned.1.argv));
}

#[test]
fn only_the_environment_of_an_unknown_program_is_changed() {
    let ladder = Ladder::new(true, "");
    for command in ["./a.out --batch 8", "python train.py --epochs 3", "tune run x --config llama3/8B_full"] {
        let argv = words(command);
        let (names, last, _) = climb(&ladder, &argv, &card());
        assert_eq!((names.as_slice(), last.argv), (&["allocator".to_owned()][..], argv), "{command}");
        let none = ladder.next(&Configuration::new(&words(command)), &card(), &[], &["allocator".to_owned()].into());
        assert!(none.expect_err("an unknown trainer").contains("unknown trainer"));
    }
}

/// Notes claim only what was read from the command line and written back.
#[test]
fn a_scripts_own_flags_are_rewritten_only_if_present() {
    let ladder = Ladder::new(true, "expandable_segments:True");
    for (flags, last, note) in [
        (
            "--batch_size 3 --gradient_accumulation_steps 4 --use_cpu_offload --cpu_offload_fraction 0.5",
            "--batch_size 1 --gradient_accumulation_steps 12 --use_cpu_offload --cpu_offload_fraction 1",
            "--batch_size 3 → 1, --gradient_accumulation_steps 4 → 12: the effective batch per process stays 12",
        ),
        (
            "--batch-size=2 --grad-accum-steps=1 --no_rdrop",
            "--batch-size=1 --grad-accum-steps=2 --no_rdrop",
            "--batch-size 2 → 1, --grad-accum-steps 1 → 2: the effective batch per process stays 2",
        ),
        (
            "--batch_size 2 --output_dir out --bf16",
            "--batch_size 1 --output_dir out --bf16",
            "--batch_size 2 → 1: the effective batch changes, since no flag for gradient accumulation is set",
        ),
        (
            "--micro_batch_size 2 --batch_size 128 --gradient_accumulation_steps 4",
            "--micro_batch_size 1 --batch_size 128 --gradient_accumulation_steps 4",
            "--micro_batch_size 2 → 1: --batch_size is also set, so the effective batch is unknown",
        ),
        (
            "--max_length 300 --output_dir out",
            "--max_length 128 --output_dir out",
            "--max_length 300 → 150: results differ",
        ),
    ] {
        let argv = words(&format!("python3 train.py {flags}"));
        let (_, configuration, notes) = climb(&ladder, &argv, &card());
        assert_eq!(line(&configuration.argv), format!("python3 train.py {last}"));
        assert_eq!(notes[0], note);
    }
    let argv = words("python train.py --batch_size 1 --num_workers 2 --cpu_offload_fraction 0.5");
    let (names, configuration, _) = climb(&ladder, &argv, &Cause::HostMemory(HostShortage::Killed));
    assert_eq!(names, ["workers", "workers"], "offload moves memory to the host");
    assert_eq!(line(&configuration.argv), "python train.py --batch_size 1 --num_workers 0 --cpu_offload_fraction 0.5");
}

#[test]
fn steps_are_retaken_by_name() {
    let argv = words("python run_clm.py --per_device_train_batch_size 8 --output_dir out");
    let ladder = Ladder::new(false, "");
    let (names, last, _) = climb(&ladder, &argv, &card());
    let mut again = Configuration::new(&argv);
    for name in &names {
        again = ladder.again(name, &again).unwrap_or_else(|| panic!("{name}")).configuration;
    }
    assert_eq!(again, last);
    assert_eq!(ladder.again("nonsense", &again), None);
}

#[test]
fn a_rejected_step_is_skipped() {
    let configuration =
        Configuration::new(&words("python run_clm.py --per_device_train_batch_size 8 --output_dir out"));
    let refused = ["allocator".to_owned(), "micro-batch".to_owned()].into();
    let taken = Ladder::new(false, "").next(&configuration, &card(), &[], &refused).expect("a step");
    assert_eq!(taken.name, "checkpointing");
}

#[test]
fn a_trainer_resumes_from_its_newest_complete_checkpoint() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let argv = words(&format!("python run_clm.py --per_device_train_batch_size 8 --output_dir {}", out.display()));
    let none = resumed(&Configuration::new(&argv));
    assert!(none.note.contains("has no complete checkpoint") && none.configuration.argv == argv, "{}", none.note);
    let checkpoint = out.join("checkpoint-40");
    fs::create_dir_all(&checkpoint).expect("made");
    fs::write(checkpoint.join("trainer_state.json"), "{\"global_step\": 40}").expect("written");
    fs::write(checkpoint.join("pytorch_model.bin"), "old pickle").expect("written");
    fs::write(checkpoint.join("optimizer.pt"), "old pickle").expect("written");
    fs::create_dir(out.join("checkpoint-60")).expect("made");
    let found = resumed(&Configuration::new(&argv));
    assert!(line(&found.configuration.argv).ends_with(&format!("--resume_from_checkpoint {}", checkpoint.display())));
    assert!(found.note.contains("checkpoint-60 is incomplete: trainer_state.json"), "{}", found.note);
    // A second call replaces the key instead of adding it again.
    assert_eq!(resumed(&found.configuration).configuration.argv, found.configuration.argv);
    let unknown = resumed(&Configuration::new(&words("./a.out")));
    assert!(unknown.note.contains("unknown trainer"), "{}", unknown.note);
}
