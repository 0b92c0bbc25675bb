//! `--cublas`: products by cuBLASLt, which NVIDIA's stand-in includes; the run's stored algorithms; and libraries that
//! are invalid or fail.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// Few short steps, each saved.
const RUN: &str = "--device cuda --vram 2 --global-batch 2 --seq-len 8 --checkpoint-every 1 --eval-samples 2 \
                   --sample-tokens 0 --precision fp32 --json";

/// The flag with the stand-in's library.
fn library() -> String {
    format!("--cublas {}", plimsoll_fake_cuda::library().display())
}

fn train(sandbox: &Sandbox, card: &str, given: &str) -> Said {
    let mut command = sandbox.command_on_card(card, Sandbox::train_arguments(given));
    Said::of(command.output().expect("the binary runs"))
}

fn losses(said: &Said) -> Value {
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said.json()["losses"].clone()
}

fn assert_says(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    for words in words {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}

/// The fastest algorithms are not the recommended ones, and round differently: a resumed run uses those that it stored,
/// even if another choice would be made now.
#[test]
fn invariant_7_a_run_with_a_library_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let said = train(&sandbox, "", &format!("{RUN} {} --autotune --max-steps 3 --name tuned", library()));
    let (whole, report) = (losses(&said), said.json());
    assert_eq!(report["measured"]["touched_bytes"], report["plan"]["peak_bytes"]);
    assert_eq!(report["measured"]["device_allocations_after_first_step"], 0);
    assert!(said.stderr.contains("matrix products by cuBLASLt"), "{}", said.stderr);
    let (last, products) = ("runs/tuned/checkpoints/step-000003", "runs/tuned/products.json");
    let weights = sandbox.read(&format!("{last}/model.safetensors"));
    let kept = sandbox.read(products);
    for is_kept in [true, false] {
        std::fs::remove_dir_all(sandbox.path(last)).expect("it is there");
        if !is_kept {
            std::fs::remove_file(sandbox.path(products)).expect("it is there");
        }
        let again = format!("train --resume runs/tuned --autotune=false --json {}", library());
        let said = sandbox.run_on_card("", &again);
        let is_equal = losses(&said) == whole && sandbox.read(&format!("{last}/model.safetensors")) == weights;
        assert_eq!(is_equal, is_kept, "{}", said.stderr);
        assert_eq!(sandbox.read(products) == kept, is_kept);
    }
}

#[test]
fn a_resumed_run_reports_a_different_library() {
    let sandbox = Sandbox::new();
    losses(&train(&sandbox, "", &format!("{RUN} {} --max-steps 1 --name run", library())));
    let again = |flags: &str| sandbox.run_on_card("", &format!("train --resume runs/run --json {flags}"));
    // The folder may come from another user, and a library is code.
    let said = again("--max-steps 2");
    assert_says(&said, 0, &["runs/run/config.yaml names a cuBLASLt, which only the command line may"]);
    assert_says(
        &said,
        0,
        &["products were computed by cuBLASLt until now", "the built-in kernels may round differently"],
    );
    let said = again(&format!("{} --max-steps 3", library()));
    assert!(!said.stderr.contains("names a cuBLASLt"), "{}", said.stderr);
    std::fs::write(sandbox.path("runs/run/products.json"), "{").expect("written");
    let said = again(&format!("{} --max-steps 4", library()));
    assert_says(&said, 0, &["warning: ignoring runs/run/products.json", "the file is damaged"]);
    std::fs::remove_file(sandbox.path("runs/run/products.json")).expect("it is there");
    let said = again(&format!("{} --max-steps 5", library()));
    assert_says(
        &said,
        0,
        &["products were computed by the built-in kernels until now", "`--cublas off` continues with these"],
    );
}

#[test]
#[cfg(target_os = "linux")]
fn invalid_libraries_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("text.so", "these are words");
    sandbox.write("folder/file", "");
    let whole = std::fs::read(plimsoll_fake_cuda::library()).expect("the stand-in");
    sandbox.write("half.so", &whole[..200_000]);
    let other = plimsoll_fake_nvml::library().display().to_string();
    for (path, words) in [
        ("nowhere.so", "nowhere.so does not exist"),
        ("text.so", "text.so"),
        ("folder", "is not a regular file"),
        ("half.so", "is cut off"),
        (&*other, "is not cuBLASLt: it has no cublasLtGetVersion"),
    ] {
        let path = if path.starts_with('/') { path.to_owned() } else { sandbox.path(path).display().to_string() };
        for command in
            ["plan --model nano --host-ram 4", "plan --model nano --gpu 3060 --host-ram 4", "bench --model nano"]
        {
            let said = sandbox.run_on_card("", &format!("{command} --cublas {path}"));
            assert_says(&said, 2, &[words, "hint: `--cublas` takes the path of libcublasLt 11.0 or newer"]);
        }
    }
    // A bare name that exists in the current folder.
    let said = sandbox.run_on_card("", "bench --model nano --cublas half.so");
    assert_says(&said, 2, &["half.so is cut off"]);
    let said = sandbox.run_on_card("", "bench --model nano --cublas=");
    assert_says(&said, 2, &["`auto`, `off` or the path of a library"]);
    let said = sandbox.run(&format!("plan --model nano --device cpu {}", library()));
    assert_says(&said, 2, &["`--cublas PATH` is for GPUs, but this runs on the CPU", "hint: `--blas PATH`"]);
}

#[test]
fn a_library_that_fails_is_reported_with_a_hint() {
    let sandbox = Sandbox::new();
    let plan = format!("plan --model nano --host-ram 4 {}", library());
    for (card, words) in [
        ("cublas=10300", "is too old: it is version 10.3, 11.0 is needed"),
        ("fail=cublasLtCreate:1:1", "cublasLtCreate gives CUBLAS_STATUS_NOT_INITIALIZED"),
    ] {
        assert_says(&sandbox.run_on_card(card, &plan), 5, &[words, "`--cublas off` uses the built-in kernels"]);
    }
    // During a run whose products are launched one by one.
    let run = format!("{RUN} {} --cuda-graph off --max-steps 4", library());
    let counted = train(&sandbox, "log=1", &format!("{run} --name whole"));
    assert_eq!(counted.code, Some(0), "{}", counted.stderr);
    let calls = counted.stderr.lines().filter(|line| *line == "fake CUDA: cublasLtMatmul").count();
    let said = train(&sandbox, &format!("fail=cublasLtMatmul:{}:13", calls * 3 / 4), &format!("{run} --name failed"));
    assert_says(
        &said,
        5,
        &[
            "cublasLtMatmul gives CUBLAS_STATUS_EXECUTION_FAILED, for the product",
            "hint: `--cublas off` uses the built-in kernels",
            "runs/failed/checkpoints/step-00000",
            "to continue from it, run: plimsoll train --resume",
        ],
    );
    // No memory for the library next to other processes.
    let said = train(&sandbox, "others=12034", &format!("{run} --name none"));
    assert_says(&said, 5, &["cublasLtCreate gives CUBLAS_STATUS_ALLOC_FAILED"]);
}

#[test]
fn a_product_without_an_algorithm_is_reported() {
    let sandbox = Sandbox::new();
    let run = format!("{RUN} {} --max-steps 1 --name run", library());
    let said = train(&sandbox, "fail=cublasLtMatmulAlgoGetHeuristic:2:15", &run);
    assert_says(&said, 0, &["note: cuBLASLt has no algorithm for products of", "the built-in kernels compute them"]);
}

/// A library that is found is used by default, and `doctor` says so; one that fails is skipped.
#[test]
fn a_library_that_is_found_is_used_by_default() {
    let sandbox = Sandbox::new();
    let run = |card: &str, arguments: &str| {
        let mut command = sandbox.command_on_card(card, arguments.split(' '));
        command.env("PLIMSOLL_CUBLAS", plimsoll_fake_cuda::library());
        Said::of(command.output().expect("the binary runs"))
    };
    let plan = "plan --model nano --host-ram 4 --device cuda";
    for (card, flags, products, words) in [
        ("", "", "by cuBLASLt", "matrix products use cuBLASLt 13.1.0"),
        ("fail=cublasLtCreate:1:1", "", "by the built-in kernels", ": cuBLASLt failed: cublasLtCreate gives"),
        ("cublas=10300", "", "by the built-in kernels", "skipping "),
        ("", " --cublas off", "by the built-in kernels", ""),
    ] {
        let said = run(card, &format!("{plan}{flags}"));
        assert_says(&said, 0, &[words]);
        assert!(said.stdout_text().contains(&format!("matrix products {products}")), "{}", said.stdout_text());
    }
    let found = run("", "doctor --json").json();
    assert_eq!(found["cards"][0]["cublas_lt"]["version"], "13.1.0");
    assert_eq!(
        found["cards"][0]["free_bytes"],
        (12_288u64 - 350 - 250 - 8) << 20,
        "the library uses memory of its own"
    );
    let text = run("", "doctor");
    assert!(text.stdout_text().contains("cuBLASLt  13.1.0, "), "{}", text.stdout_text());
    let of_no_use = run("cublas=10300", "doctor");
    assert!(of_no_use.stdout_text().contains("unusable here: the built-in kernels"), "{}", of_no_use.stdout_text());
}

/// A card of another machine is planned like this machine's.
#[test]
fn plans_name_the_library_and_include_its_workspace() {
    let sandbox = Sandbox::new();
    let plan = |given: &str| {
        let said = sandbox.run_on_card("", &format!("plan --model nano --host-ram 4 --json --micro-batch 2 {given}"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.json()
    };
    for (flags, products) in [("--cublas off", "kernels"), ("", "kernels"), (&*library(), "cublas_lt")] {
        for card in ["--gpu 3060", "--device cuda"] {
            let found = plan(&format!("{card} {flags}"));
            assert_eq!(found["device"]["products"], products, "{card} {flags}");
        }
    }
    let peak = |flags: &str| plan(&format!("--gpu 3060 {flags}"))["plan"]["peak_bytes"].as_u64().expect("bytes");
    let (without, with) = (peak("--cublas off"), peak(&library()));
    assert!(without < with && with <= without + (8 << 20), "{without} without a workspace, {with} with it");
    let text = sandbox.run(&format!("plan --model nano --gpu h100 --host-ram 4 {}", library()));
    assert!(text.stdout_text().contains("matrix products by cuBLASLt"), "{}", text.stdout_text());
}
