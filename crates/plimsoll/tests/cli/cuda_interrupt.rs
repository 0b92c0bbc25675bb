//! Runs on a card that are stopped, share it, or run out of disk, with the CUDA stand-in.

#![cfg(unix)]

use crate::interrupt::{INTERRUPTED, end_of, from_shell, printed_command, signal, steps_logged, wait_until};
use crate::support::{Said, Sandbox, tiny_config};
use serde_json::json;
use std::process::{Child, Stdio};

/// A run that takes some seconds, because each instruction of each thread is interpreted.
const RUN: &str = "--device cuda --vram 2 --global-batch 2 --seq-len 16 --checkpoint-every 0 \
                   --eval-samples 2 --precision fp32";

fn spawn(sandbox: &Sandbox, given: &str) -> Child {
    let mut command =
        sandbox.command_on_card("execution=late", Sandbox::train_arguments(&format!("{RUN} --max-steps 8 {given}")));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// With all of the state on the host, which updates it while the next step begins.
const STREAMED: &str = "--optimizer-offload 1 --weight-offload 1";

#[test]
fn a_stopped_run_on_a_card_saves_its_last_step_and_resumes_to_the_bit() {
    let sandbox = Sandbox::new();
    let whole = spawn(&sandbox, "--name whole");
    // At the same time as the first: two runs share a card.
    let shared = spawn(&sandbox, &format!("--name shared {STREAMED}"));
    for run in [whole, shared] {
        let said = end_of(run);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    }
    sandbox.assert_same_run("runs/shared", "runs/whole", 8);
    for (name, levers) in [("INT", ""), ("TERM", STREAMED)] {
        let journal = sandbox.path(&format!("runs/{name}/journal.jsonl"));
        let mut child = spawn(&sandbox, &format!("--name {name} {levers}"));
        assert!(wait_until(&mut child, || steps_logged(&journal) >= 2), "{}", end_of(child).stderr);
        signal(&child, name);
        let said = end_of(child);
        assert_eq!((said.code, said.stdout_text()), (Some(INTERRUPTED), ""), "{}", said.stderr);
        let last = steps_logged(&journal) as u64;
        assert!(last < 8, "the run ended before it was stopped");
        sandbox.tensors(&format!("runs/{name}"), last);
        let command = printed_command(&said);
        let arguments = command.strip_prefix("plimsoll ").expect("a command").split(' ');
        let resumed = Said::of(sandbox.command_on_card("", arguments).output().expect("the binary runs"));
        assert_eq!(resumed.code, Some(0), "{command}: {}", resumed.stderr);
        sandbox.assert_same_run(&format!("runs/{name}"), "runs/whole", 8);
    }
}

#[test]
fn a_run_on_a_card_with_a_full_disk_loses_checkpoints_and_says_so() {
    let sandbox = Sandbox::new();
    sandbox.write("wide/config.json", tiny_config(&json!({"n_embd": 48})));
    // The tokens fit, at most 80 KB; the weights, 160 KB, do not.
    let limit = "ulimit -f 120 && trap '' XFSZ";
    let run = format!("{RUN} --model wide --max-steps 1 --name full");
    let mut command = from_shell(limit, &Sandbox::train_arguments(&run));
    sandbox.confine(&mut command);
    Sandbox::with_card(&mut command, "");
    let said = Said::of(command.output().expect("bash"));
    assert_eq!((said.code, said.stdout_text()), (Some(5), ""), "{}", said.stderr);
    for words in ["the state after step 1 is not on disk: ", "no checkpoint is on disk", "free disk space"] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}
