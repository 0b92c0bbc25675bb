//! Missing space: a full disk, and more output than is kept.

use super::*;

/// A limit on file sizes makes writes fail as on a full disk.
#[test]
fn a_full_disk_does_not_stop_the_command() {
    let sandbox = Sandbox::new();
    let script = "i=0; while [ $i -lt 9000 ]; do echo some words in line $i; i=$((i+1)); done; exit 7";
    let limited = "trap '' XFSZ; ulimit -f 100; exec \"$0\" run --max-restarts 0 --name it -- sh -c \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_plimsoll"), script]);
    sandbox.confine(&mut command);
    let said = Said::of(command.output().expect("a shell"));
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    assert_eq!(said.stdout.split(|&b| b == b'\n').count(), 9001);
    assert_eq!(said.stderr.matches("can't save output").count(), 1, "{}", said.stderr);
    assert!(sandbox.text("runs/it/output.log").starts_with("some words in line 0\n"));
}

/// The run's folder is a file system of its own, if the system allows users to mount one.
#[test]
fn a_run_on_a_full_file_system_continues_and_is_restarted() {
    let sandbox = Sandbox::new();
    let inside = "mkdir -p runs && mount -t tmpfs -o size=1m none runs && shift && exec \"$@\"";
    let with = |command: &[&str]| {
        let mut shell = Command::new("unshare");
        shell.args(["-rm", "sh", "-c", inside, "sh", "-"]).args(command);
        sandbox.confine(&mut shell);
        shell
    };
    if !with(&["true"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: file systems cannot be mounted here");
        return;
    }
    let script = "echo x >> tries; head -c 3000000 /dev/zero; [ $(wc -l < tries) -ge 3 ] || exit 4";
    let plimsoll = env!("CARGO_BIN_EXE_plimsoll");
    let kept = "\"$0\" run --backoff 0 --name it -- sh -c \"$1\"; code=$?; cp -r runs kept; exit $code";
    let said = Said::of(with(&["sh", "-c", kept, plimsoll, script]).output().expect("it runs"));
    assert_eq!((said.code, said.stdout.len()), (Some(0), 9_000_000), "{}", said.stderr);
    assert_eq!(said.stderr.matches("can't save output").count(), 1, "{}", said.stderr);
    assert!(!said.stderr.contains("records are incomplete"), "output left no room for them: {}", said.stderr);
    assert_eq!(sandbox.json("kept/it/report.json")["attempts"].as_array().map(Vec::len), Some(3));
    let kept = fs::read(sandbox.path("kept/it/output.log")).expect("the bytes that fit");
    assert!(kept.len() > 500_000 && kept.len() <= 1 << 20, "{}", kept.len());
}
