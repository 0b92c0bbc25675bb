//! Commands whose terminal or pipe is not read: they continue, handle signals, and lose only messages.

#![cfg(unix)]

use crate::interrupt::{INTERRUPTED, signal, steps_logged, wait_until};
use crate::support::Sandbox;
use crate::support::pty::Terminal;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs;
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit for the end of a command that saves little, on a busy machine.
const A_FEW_SECONDS: Duration = Duration::from_secs(20);

/// A full pipe that no process reads.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("its flags");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("set");
    for size in [4096, 1] {
        while writer.write(&vec![b'.'; size]).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
    }
    fcntl_setfl(&writer, flags).expect("set");
    (reader, writer)
}

/// Starts a command with both streams connected to a pipe.
fn spawn_into(mut command: Command, pipe: &PipeWriter) -> Child {
    let end = || pipe.try_clone().expect("a descriptor");
    command.stdout(end()).stderr(end()).spawn().expect("the binary runs")
}

/// Ends a command with a signal, within a few seconds: its exit code, or 128 plus the signal that killed it.
fn end_by(child: &mut Child, name: &str) -> i32 {
    signal(child, name);
    let status = end_of(child);
    status.code().or(status.signal().map(|signal| 128 + signal)).expect("one of the two")
}

/// Exit status of a command that ends within a few seconds.
fn end_of(child: &mut Child) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        if begun.elapsed() > A_FEW_SECONDS {
            let _ = child.kill();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the run of `train` has made more steps.
fn wait_for_steps(sandbox: &Sandbox, child: &mut Child, more: usize) {
    let journal = sandbox.path("runs/it/journal.jsonl");
    let before = steps_logged(&journal);
    assert!(wait_until(child, || steps_logged(&journal) >= before + more), "it ended");
}

const ENDLESS: &str = "--name it --max-steps 1000000 --checkpoint-every 0 --log-every 1";

#[test]
fn an_unread_pipe_delays_neither_steps_nor_a_stop() {
    for name in ["TERM", "INT", "USR1"] {
        let sandbox = Sandbox::new();
        let (_reader, writer) = full_pipe();
        let arguments = Sandbox::train_arguments(&format!("{ENDLESS} --json"));
        let mut child = spawn_into(sandbox.command(arguments), &writer);
        wait_for_steps(&sandbox, &mut child, 200);
        assert_eq!(end_by(&mut child, name), INTERRUPTED, "{name}");
        sandbox.tensors("runs/it", steps_logged(&sandbox.path("runs/it/journal.jsonl")) as u64);
        assert_eq!(sandbox.json("runs/it/report.json")["status"], "interrupted");
    }
}

#[test]
fn a_finished_run_ends_although_its_output_is_not_read() {
    let sandbox = Sandbox::new();
    let (_reader, writer) = full_pipe();
    let mut child = sandbox.command(Sandbox::train_arguments("--name it")).stderr(writer).spawn().expect("it runs");
    assert_eq!(end_of(&mut child).code(), Some(0));
    // Data waits for its reader until the command receives a signal.
    let (reader, writer) = full_pipe();
    let mut child = spawn_into(sandbox.command(Sandbox::train_arguments("--name other --json")), &writer);
    assert!(wait_until(&mut child, || sandbox.path("runs/other/report.json").exists()), "the command must wait");
    assert_eq!(end_by(&mut child, "TERM"), 5, "its data was lost");
    drop((reader, writer));
}

/// Of all commands: those that run steps or wait, those that only print, and refused arguments.
#[test]
fn commands_end_with_their_code_although_their_messages_are_not_read() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name trained --max-steps 1");
    let bench = "bench --model tiny --seq-len 16 --micro-batch 1 --vram 0.1 --steps 2 --warmup 1";
    let commands = [
        (bench, 0),
        ("plan --model tiny --vram 12", 0),
        ("generate --checkpoint runs/trained --max-tokens 1 --prompt line --vram 0.1", 0),
        ("train --detach --data missing.txt --model tiny --cache-dir cache", 4),
        ("train --no-such-flag", 2),
        ("run --max-restarts 0 --name it -- false", 1),
        ("notify test --notify webhook", 4),
    ];
    let (_reader, writer) = full_pipe();
    let start = |(arguments, code): (&'static str, i32)| {
        let mut command = sandbox.command(arguments.split(' '));
        command.stdout(Stdio::null()).stderr(writer.try_clone().expect("a descriptor"));
        (arguments, code, command.spawn().expect("the binary runs"))
    };
    for (arguments, code, mut child) in commands.map(start) {
        assert_eq!(end_of(&mut child).code(), Some(code), "{arguments}");
    }
}

/// The server takes messages and logs, and never answers.
#[test]
fn servers_that_hang_delay_neither_steps_nor_a_stop() {
    let sandbox = Sandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let flags = format!("{ENDLESS} --notify webhook,ntfy --log-to mlflow");
    let mut command = sandbox.command(Sandbox::train_arguments(&flags));
    command.env("PLIMSOLL_WEBHOOK_URL", &url).env("PLIMSOLL_NTFY_SERVER", &url).env("PLIMSOLL_NTFY_TOPIC", "it");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    wait_for_steps(&sandbox, &mut child, 200);
    let begun = Instant::now();
    assert_eq!(end_by(&mut child, "TERM"), INTERRUPTED);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    listener.set_nonblocking(true).expect("set");
    assert!(listener.accept().is_ok(), "no message was sent");
    sandbox.tensors("runs/it", steps_logged(&sandbox.path("runs/it/journal.jsonl")) as u64);
}

#[test]
fn a_terminal_stopped_by_ctrl_s_does_not_stop_the_run() {
    let sandbox = Sandbox::new();
    let (mut terminal, mut child) = Terminal::start(&mut sandbox.command(Sandbox::train_arguments(ENDLESS)), 80, 24);
    wait_for_steps(&sandbox, &mut child, 1);
    terminal.press("\u{13}");
    wait_for_steps(&sandbox, &mut child, 2000);
    assert_eq!(end_by(&mut child, "TERM"), INTERRUPTED);
    assert!(!terminal.shows("resume with:"), "the terminal was not stopped");
    sandbox.tensors("runs/it", steps_logged(&sandbox.path("runs/it/journal.jsonl")) as u64);
}

#[test]
fn a_reader_that_reads_on_before_the_end_gets_every_line_in_order() {
    let sandbox = Sandbox::new();
    let (mut reader, writer) = full_pipe();
    let mut child = spawn_into(sandbox.command(Sandbox::train_arguments(ENDLESS)), &writer);
    drop(writer);
    wait_for_steps(&sandbox, &mut child, 300);
    let reading = std::thread::spawn(move || {
        let mut said = String::new();
        reader.read_to_string(&mut said).expect("text");
        said
    });
    assert_eq!(end_by(&mut child, "TERM"), INTERRUPTED);
    let said = reading.join().expect("it is read");
    let steps =
        said.split('\n').filter_map(|line| line.strip_prefix("step ")?.split('/').next()?.parse::<usize>().ok());
    let last = steps_logged(&sandbox.path("runs/it/journal.jsonl"));
    assert_eq!(steps.collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
    assert!(said.contains("interrupted; resume with:\n"), "{said}");
}

/// A program prints far more than any buffer holds, and its supervisor still handles signals.
#[cfg(target_os = "linux")]
#[test]
fn a_supervised_program_logs_and_ends_although_its_output_is_not_read() {
    const MANY: u64 = 16 << 20;
    let sandbox = Sandbox::new();
    let (_reader, writer) = full_pipe();
    let mut child = spawn_into(sandbox.command(["run", "--name", "it", "--", "yes"]), &writer);
    let size = || fs::metadata(sandbox.path("runs/it/output.log")).map_or(0, |log| log.len());
    assert!(wait_until(&mut child, || size() > MANY), "it ended");
    assert_eq!(end_by(&mut child, "TERM"), 143);
    let report = sandbox.json("runs/it/report.json");
    assert_eq!((&report["status"], &report["code"]), (&"stopped".into(), &143.into()));
}

/// Whether a process handles SIGTERM.
#[cfg(target_os = "linux")]
fn handles_term(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << (15 - 1)) != 0)
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_and_a_screen_end_at_a_signal_although_their_terminal_is_not_read() {
    let sandbox = Sandbox::new();
    let (_reader, writer) = full_pipe();
    let mut child = spawn_into(sandbox.command(["serve", "--listen", "0", "--token", "token-of-a-test"]), &writer);
    let pid = child.id();
    assert!(wait_until(&mut child, || handles_term(pid)), "it ended");
    assert_eq!(end_by(&mut child, "TERM"), 5, "its link was lost");

    let (terminal, mut child) = Terminal::start(&mut sandbox.command(["top"]), 80, 24);
    terminal.wait_for("plimsoll", 0);
    terminal.stop();
    terminal.resize(120, 40);
    assert_eq!(end_by(&mut child, "TERM"), 143);
}
