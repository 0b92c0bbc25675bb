//! Commands within a limit on threads, such as `ulimit -u` and a container's `pids.max`.

#![cfg(target_os = "linux")]

use crate::support::{Said, Sandbox};
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

/// A user without other processes, because the limit counts all threads of a user.
const UNUSED_UID: u32 = 2_047_483_001;

/// More threads than any of these commands uses.
const MANY: usize = 40;

/// Runs the binary with a limit on threads; `None` if this user cannot set one.
fn run_within(sandbox: &Sandbox, threads: usize, arguments: &[String]) -> Option<Said> {
    let mut command = Command::new("setpriv");
    let user = UNUSED_UID.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "prlimit"])
        .arg(format!("--nproc={threads}"))
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments);
    sandbox.confine(&mut command);
    let said = Said::of(command.output().ok()?);
    (!said.stderr.contains("setpriv: ") && !said.stderr.contains("prlimit: ")).then_some(said)
}

#[test]
fn threads_that_cannot_start_are_an_error_or_are_optional() {
    let sandbox = Sandbox::new();
    if chown(sandbox.root(), Some(UNUSED_UID), Some(UNUSED_UID)).is_err() {
        return eprintln!("SKIPPED: only root can act for another user");
    }
    let log_to = "--log-to jsonl --sample-every 0.1s --threads 3 --max-steps 2";
    let commands = [
        Sandbox::train_arguments(log_to),
        "plan --model nano --vram 1".split(' ').map(str::to_owned).collect(),
        "run --max-restarts 0 -- true".split(' ').map(str::to_owned).collect(),
        "tokenizer train --data text.txt --kind unigram --vocab-size 300 --threads 2 --output t.json"
            .split(' ')
            .map(str::to_owned)
            .collect(),
    ];
    for arguments in commands {
        let mut codes = Vec::new();
        while codes.last() != Some(&0) && codes.len() < MANY {
            let _ = fs::remove_dir_all(sandbox.path("runs"));
            let Some(said) = run_within(&sandbox, codes.len() + 1, &arguments) else {
                return eprintln!("SKIPPED: `setpriv` and `prlimit` can't limit a user's threads here");
            };
            let code = said.code.expect("no signal ends it");
            assert!(matches!(code, 0 | 5), "{arguments:?}, {} threads: {code}: {}", codes.len() + 1, said.stderr);
            let says_so = said.stderr.contains("error: ") && said.stderr.contains("`ulimit -u`");
            assert!(code != 5 || says_so, "{arguments:?}, {} threads: {}", codes.len() + 1, said.stderr);
            codes.push(code);
        }
        assert!(codes.last() == Some(&0), "{arguments:?}: {codes:?}");
    }
}
