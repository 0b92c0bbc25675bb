//! `plimsoll stress` on the processor, and with the CUDA and NVML stand-ins: a correct device passes, and planted faults fail
//! the metric that they concern, each with its exit code.

use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;

/// The stand-in's first card, for the driver and for NVML.
const CARD: &str = "NVIDIA GeForce RTX 3060,GPU-66616b65-2d63-7564-612d-636172642d30,12288,350,100";

/// A short test of a card with 8 MiB in addition to the margin, because each instruction of each thread is interpreted.
const ON_CARD: &str =
    "stress --device cuda --vram 1032MiB --phase 1 --duration 1s --sample-every 0.01s --cublas off --json";

fn on_card(sandbox: &Sandbox, card: &str, script: &str) -> Said {
    fs::write(sandbox.path("script"), script).expect("written");
    let mut command = sandbox.command_on_card(card, ON_CARD.split_whitespace());
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARD);
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    Said::of(command.output().expect("the binary runs"))
}

/// The metrics with this outcome.
fn with_outcome(report: &Value, outcome: &str) -> Vec<String> {
    let verdicts = report["verdicts"].as_array().expect("a list").iter();
    let metrics = verdicts.filter(|verdict| verdict["outcome"] == outcome).map(|verdict| &verdict["metric"]);
    metrics.map(|metric| metric.as_str().expect("a name").to_owned()).collect()
}

fn failed(said: &Said) -> Vec<String> {
    with_outcome(&said.json(), "fail")
}

const COOL: &str = "0 0 temperature 55\n0 0 power 120\n0 0 ecc_corrected 3\n0 0 ecc_uncorrected 1\n";

#[test]
fn a_correct_processor_passes_and_gets_a_page() {
    let sandbox = Sandbox::new();
    let flags = "stress --device cpu --vram 8MiB --threads 1 --duration 1s";
    let said = sandbox.run(&format!("{flags} --json --html page.html"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let report = said.json();
    assert_eq!((&report["passed"], &report["ending"]), (&true.into(), &"finished".into()), "{report}");
    assert_eq!(with_outcome(&report, "pass"), ["memory_use", "wrong_bits", "uninterrupted"], "{report}");
    for verdict in report["verdicts"].as_array().expect("a list") {
        assert_eq!(verdict["reason"].is_null(), verdict["outcome"] != "not_judged", "{verdict}");
    }
    let memory = &report["memory"];
    let bytes = |key: &str| memory[key].as_u64().expect("bytes");
    assert!(bytes("used_bytes") * 10 > bytes("of_bytes") * 9 && bytes("used_bytes") <= 8 << 20, "{memory}");
    let page = sandbox.text("page.html");
    assert!(page.contains("Stress test: CPU") && page.contains("wrong bits"), "{page}");
    let text = sandbox.run(&format!("{flags} --phase 1")).stdout_text().to_owned();
    for words in ["product, bf16", "memory in use", "not judged: the device has no matrix units", "\npassed"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_correct_card_passes() {
    let said = on_card(&Sandbox::new(), "", COOL);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let report = said.json();
    let expected = ["memory_use", "temperature", "wrong_bits", "gpu_errors", "uninterrupted"];
    assert_eq!(with_outcome(&report, "pass"), expected, "{report}");
    assert_eq!((&report["stand_in"], &report["memory"]["of_gpu"]), (&true.into(), &false.into()));
    let readings = &report["readings"];
    assert_eq!((&readings["sustained_c"], &readings["power_max_w"]), (&55.0.into(), &120.0.into()), "{readings}");
    let workloads = report["workloads"].as_array().expect("a list");
    assert!(workloads.iter().any(|workload| workload["workload"] == "product, tf32"), "{workloads:?}");
}

#[test]
fn a_kernel_that_computes_wrongly_fails_wrong_bits() {
    let sandbox = Sandbox::new();
    for (kernel, workload) in [("product_nn_bf16_64", "product, bf16"), ("scale_f32", "memory, patterns")] {
        let said = on_card(&sandbox, &format!("wrong={kernel}"), COOL);
        assert_eq!((said.code, failed(&said)), (Some(5), vec!["wrong_bits".to_owned()]), "{kernel}: {}", said.stderr);
        let words = "error: the device failed the stress test: wrong bits\nhint: do not train on this device";
        assert!(said.stderr.contains(words), "{}", said.stderr);
        let wrong = said.json()["wrong"].clone();
        assert!(wrong["bits"].as_u64() > Some(0) && wrong["checks"].as_u64() > Some(0), "{wrong}");
        let first = wrong["first"].as_array().expect("a list");
        let of_workload = first.iter().filter(|mismatch| mismatch["workload"] == workload).collect::<Vec<_>>();
        assert!(!of_workload.is_empty(), "{kernel}: {wrong}");
        assert!(of_workload.iter().any(|mismatch| mismatch["differing"].as_u64() > Some(0)), "{wrong}");
    }
}

#[test]
fn a_new_memory_error_fails_gpu_errors() {
    let sandbox = Sandbox::new();
    for (error, key) in [("ecc_corrected 4", "ecc_corrected"), ("ecc_uncorrected 2", "ecc_uncorrected")] {
        let said = on_card(&sandbox, "", &format!("{COOL}3 0 {error}\n"));
        assert_eq!((said.code, failed(&said)), (Some(5), vec!["gpu_errors".to_owned()]), "{error}: {}", said.stderr);
        assert_eq!(said.json()["readings"][key], 1, "{error}");
        assert!(said.stderr.contains("the stress test: memory and driver errors\n"), "{}", said.stderr);
    }
}

#[test]
fn a_hot_card_fails_temperature() {
    let sandbox = Sandbox::new();
    // Below the maximum the work is slowed or paused, and the test ends with all other verdicts.
    let warm = on_card(&sandbox, "", &format!("{COOL}0 0 temperature 81\n"));
    assert_eq!((warm.code, failed(&warm)), (Some(6), vec!["temperature".to_owned()]), "{}", warm.stderr);
    assert!(warm.stderr.contains("slowed to ") || warm.stderr.contains("paused: "), "{}", warm.stderr);
    // Above the maximum the test ends.
    let hot = on_card(&sandbox, "", &format!("{COOL}0 0 temperature 95\n"));
    assert_eq!((hot.code, &hot.json()["ending"]), (Some(6), &"too_hot".into()), "{}", hot.stderr);
    assert_eq!(failed(&hot), ["temperature", "uninterrupted"]);
    assert!(hot.stderr.contains("its core is at 95 °C, above 83: the test ends"), "{}", hot.stderr);
}

#[test]
fn a_card_that_fails_ends_the_test_with_its_error() {
    let said = on_card(&Sandbox::new(), "stick=cuGraphLaunch:60:719", COOL);
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    for words in ["error: the GPU failed, a kernel failed", "hint: "] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_test_prints_its_verdicts() {
    use crate::interrupt::{INTERRUPTED, end_of, signal};
    use std::io::{BufRead, BufReader, Read};
    let sandbox = Sandbox::new();
    let flags = "stress --device cpu --vram 8MiB --threads 1 --duration 1h --json";
    let mut command = sandbox.command(flags.split_whitespace());
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.starts_with("phase 1") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("text") > 0, "no phase began");
    }
    signal(&child, "INT");
    let rest = std::thread::spawn(move || stderr.read_to_string(&mut String::new()));
    let said = end_of(child);
    rest.join().expect("it reads").expect("text");
    assert_eq!(said.code, Some(INTERRUPTED));
    let report = said.json();
    assert_eq!((&report["ending"], &report["passed"]), (&"interrupted".into(), &false.into()), "{report}");
    assert_eq!(with_outcome(&report, "pass"), ["memory_use", "wrong_bits"], "{report}");
}

#[test]
fn bad_flags_and_too_little_memory_are_refused() {
    let sandbox = Sandbox::new();
    for (flags, code, words) in [
        ("--phase 4", 2, "phases are 1 to 3"),
        ("--phase 2..1", 2, "write `2` or `1..2`"),
        ("--duration 0s", 2, "from 1s to 30d"),
        ("--duration 5", 2, "has no unit of time"),
        ("--max-temp 75", 2, "must be at least"),
        ("--cublas /nowhere.so", 2, "is for GPUs"),
        ("--vram 64KiB", 3, "the smallest workloads need"),
        ("--vram 900000", 2, "did you mean"),
        ("--html nowhere/page.html --vram 8MiB --phase 1 --duration 1s", 5, "nowhere/page.html"),
    ] {
        let said = sandbox.run(&format!("stress --device cpu --threads 1 {flags}"));
        assert_eq!(said.code, Some(code), "{flags}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{flags}: {}", said.stderr);
    }
    // The hint is enough.
    let said = sandbox.run("stress --device cpu --threads 1 --vram 64KiB");
    let vram = said.stderr.split("`--vram ").nth(1).and_then(|rest| rest.split('`').next()).expect("a hint");
    let said = sandbox.run(&format!("stress --device cpu --threads 1 --phase 1 --duration 1s --vram {vram}"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}
