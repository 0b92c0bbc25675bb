//! `plimsoll gpus`, once and repeatedly, with cards from a script.

use crate::support::{Said, Sandbox};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const CARDS: &str = "NVIDIA GeForce RTX 4090,GPU-a,24564,400,1200;NVIDIA GeForce RTX 3060,GPU-b,12288,350,0";

const SCRIPT: &str = "\
0..10 0 temperature 60..70
0 0 power 312.5
0 0 power_limit 450
0 0 throttling 4
0 0 fan 64
0 0 busy 98
0 0 performance_state 2
0 0 compute_mode 3
0 0 process 4194304 1200
3 1 gone
";

fn command(sandbox: &Sandbox, arguments: &str) -> Command {
    let script = sandbox.path("script");
    fs::write(&script, SCRIPT).expect("written");
    let mut command = sandbox.command(arguments.split_whitespace());
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library()).env(plimsoll_fake_nvml::MACHINE, CARDS);
    command.env(plimsoll_fake_nvml::SCRIPT, script);
    command
}

fn run(sandbox: &Sandbox, arguments: &str) -> Said {
    Said::of(command(sandbox, arguments).output().expect("the binary runs"))
}

/// An unknown reading is written as nvidia-smi writes it.
#[test]
fn csv_is_that_of_nvidia_smi() {
    let sandbox = Sandbox::new();
    let columns = "index,name,temperature.gpu,power.draw,memory.used,memory.total,pstate,compute_mode,fan.speed";
    let said = run(&sandbox, &format!("gpus --csv={columns}"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let expected = "\
index, name, temperature.gpu, power.draw [W], memory.used [MiB], memory.total [MiB], pstate, compute_mode, fan.speed [%]
0, NVIDIA GeForce RTX 4090, 61, 312.50 W, 1200 MiB, 24564 MiB, P2, Exclusive_Process, 64 %
1, NVIDIA GeForce RTX 3060, 50, [N/A], 0 MiB, 12288 MiB, [N/A], [N/A], [N/A]
";
    assert_eq!(said.stdout_text(), expected);
    let said = run(&sandbox, "gpus --csv=memory.used,uuid --no-header --no-units");
    assert_eq!(said.stdout_text(), "1200, GPU-a\n0, GPU-b\n");
    let said = run(&sandbox, "gpus --csv");
    let usual = said.stdout_text();
    assert!(usual.starts_with("timestamp, index, name, temperature.gpu, "), "{usual}");
    assert_eq!(usual.lines().count(), 3);
}

#[test]
fn invalid_queries_are_refused() {
    let sandbox = Sandbox::new();
    for (arguments, words) in [
        ("gpus --csv=temprature.gpu", "did you mean `temperature.gpu`?"),
        ("gpus --csv=index,", "columns are timestamp, "),
        ("gpus --watch --sample-every 0.001s", "from 0.01 seconds to 24h"),
        ("gpus --watch --once", "cannot be used with"),
        ("gpus --known --watch", "cannot be used with"),
        ("gpus --no-header", "--csv"),
    ] {
        let said = run(&sandbox, arguments);
        assert_eq!(said.code, Some(2), "{arguments}: {}", said.stderr);
        assert!(said.stderr.contains(words), "{arguments}: {}", said.stderr);
    }
    let said = sandbox.run("gpus --once");
    assert_eq!((said.code, said.stdout_text()), (Some(0), "no NVIDIA GPU\n"));
    assert!(said.stderr.contains("hint: `plimsoll doctor`"), "{}", said.stderr);
}

/// It ends when its reader closes the pipe.
#[test]
fn samples_repeat_until_the_reader_closes() {
    let sandbox = Sandbox::new();
    let mut child = command(&sandbox, "gpus --watch --json --sample-every 0.01s");
    let mut child = child.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().take(6);
    let samples = lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect::<Vec<Value>>();
    assert!(child.wait().expect("it ends").success());
    let of_first = |key: &str| samples.iter().map(|sample| sample["cards"][0][key].clone()).collect::<Vec<_>>();
    let degrees = of_first("temperature_c").iter().map(|value| value.as_f64().expect("degrees")).collect::<Vec<_>>();
    assert!(degrees.is_sorted() && degrees[0] < degrees[5] && degrees[5] <= 70.0, "{degrees:?}");
    assert!(of_first("used_bytes").iter().all(|used| *used == 1200u64 << 20));
    assert_eq!(samples[5]["cards"][0]["processes"][0]["pid"], 4_194_304);
    // The other card falls off the bus, and the first is still sampled.
    assert!(samples[0]["cards"][1]["lost"].is_null() && samples[5]["cards"][1]["lost"].is_string(), "{samples:?}");
    assert!(samples[5]["system"]["memory_total_bytes"].as_u64() > Some(0));
}

#[test]
fn the_table_lists_processes_and_reasons_for_throttling() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, "gpus --once");
    let shown = said.stdout_text();
    for words in ["312/450", "64 %", "98 %", "power limit", "GPU 0: a process (4194304) has 1.17 GiB"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}
