//! Runs whose supervisor, keeper, or both are killed.

use super::*;

/// Starts a run and kills its supervisor. The script counts until the file `go` exists, then ends with its contents.
pub(super) fn orphaned(sandbox: &Sandbox, flags: &str) -> String {
    let script = "echo $$ > pid; i=0; while [ ! -s go ]; do i=$((i+1)); echo step $i; sleep 0.01; done; echo over; \
                  exit $(cat go)";
    let mut child = spawn(sandbox, flags, script);
    let pid = written_pid(sandbox, "pid");
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    pid
}

#[test]
fn a_killed_supervisor_leaves_a_run_that_can_be_found() {
    let sandbox = Sandbox::new();
    let pid = orphaned(&sandbox, "--max-restarts 0");
    let run = &listed(&sandbox, "")[0];
    assert_eq!((&run["state"], &run["workers"][0]["pid"].to_string()), (&"orphaned".into(), &pid));
    // Its output is kept while it has no supervisor.
    let count = || sandbox.text("runs/it/output.log").lines().count();
    let before = count();
    until("its output is kept", || count() > before + 3);
    let run = &listed(&sandbox, "--adopt")[0];
    assert!(run["state"] == "orphaned" && run["adopted_by"].is_u64(), "{run}");
    assert_eq!(listed(&sandbox, "")[0]["state"], "running");
    sandbox.write("go", "7\n");
    let attached = sandbox.run("attach it -n 1000000");
    assert_eq!(attached.code, Some(7), "{}", attached.stderr);
    let lines = attached.stdout_text().lines().collect::<Vec<_>>();
    let steps = (1..lines.len()).map(|step| format!("step {step}")).collect::<Vec<_>>();
    assert_eq!(
        (&lines[..lines.len() - 1], lines.last()),
        (&steps.iter().map(String::as_str).collect::<Vec<_>>()[..], Some(&"over"))
    );
    assert_eq!((&report(&sandbox)["status"], &report(&sandbox)["code"]), (&"failed".into(), &7.into()));
}

#[test]
fn a_program_that_ends_without_a_supervisor_has_a_known_exit_code() {
    let sandbox = Sandbox::new();
    for code in [0, 7] {
        orphaned(&sandbox, "");
        sandbox.write("go", format!("{code}\n"));
        until("it ends", || listed(&sandbox, "--all")[0]["state"] == "ended");
        assert_eq!(listed(&sandbox, "--all")[0]["exit_code"], code);
        let attached = sandbox.run("attach it");
        assert!(attached.code == Some(code) && attached.stdout_text().ends_with("over\n"), "{attached:?}");
        fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
        ["go", "pid"].iter().for_each(|name| fs::remove_file(sandbox.path(name)).expect("it was there"));
    }
}

/// More output than any pipe holds: a command whose supervisor was killed must not block.
#[test]
fn a_command_without_a_supervisor_keeps_printing() {
    let sandbox = Sandbox::new();
    let script = "echo $$ > pid; until [ -e go ]; do sleep 0.01; done; head -c 20000000 /dev/zero; touch done; \
                  until [ -e end ]; do sleep 0.01; done; exit 3";
    let mut child = spawn(&sandbox, "--max-restarts 0", script);
    written_pid(&sandbox, "pid");
    child.kill().and_then(|()| child.wait()).expect("it runs");
    sandbox.write("go", "");
    until("all output is printed", || sandbox.path("done").exists());
    sandbox.write("end", "");
    until("it ends", || listed(&sandbox, "--all")[0]["exit_code"] == 3);
    assert_eq!(sandbox.read("runs/it/output.log").len(), 20_000_000);
}

/// An adopting supervisor handles ends as the first would have: with its flags, folder, variables, and counts of
/// restarts and steps.
#[test]
fn an_adopted_run_is_restarted_and_keeps_its_counts() {
    let sandbox = Sandbox::new();
    let script = "echo $WORD >> tries; n=$(wc -l < tries); echo $$ > pid-$n; echo step $n/9; \
                  until [ -e go-$n ]; do sleep 0.01; done; exit 4";
    let mut command = command(&sandbox, "--max-restarts 3 --same-error 9", script);
    let mut child = command.env("WORD", "secret").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    written_pid(&sandbox, "pid-1");
    sandbox.write("go-1", "");
    written_pid(&sandbox, "pid-2");
    until("it is entered", || sandbox.json("runs/it/process.json")["restarts"] == 1);
    child.kill().and_then(|()| child.wait()).expect("it runs");
    // From another folder, and without the variable.
    let mut ps = sandbox.command(["ps", "--json", "--adopt"]);
    let said = Said::of(ps.current_dir("/").output().expect("the binary runs"));
    assert!(said.json()["runs"][0]["adopted_by"].is_u64(), "{}", said.stderr);
    ["go-2", "go-3", "go-4"].iter().for_each(|go| sandbox.write(go, ""));
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(4), "{}", attached.stderr);
    assert_eq!(sandbox.text("tries"), "secret\n".repeat(4), "three restarts, one of them before the adoption");
    let report = report(&sandbox);
    let attempts = report["attempts"].as_array().expect("a list");
    assert_eq!((attempts.len(), &report["restarts"], &report["code"]), (4, &3.into(), &4.into()), "{report}");
    assert!(attempts.iter().all(|attempt| attempt["kind"] == "exit_4"), "{report}");
    let written = fs::read(sandbox.path("runs/it/process.json")).expect("it is there");
    assert!(!String::from_utf8_lossy(&written).contains("secret"), "variables are not stored");
}

/// If the keeper is killed too, the supervisor continues without it; if both are killed, the output waits in the pipes
/// and the exit code is lost.
#[test]
fn a_killed_keeper_costs_the_exit_code_and_no_output() {
    for with_supervisor in [false, true] {
        let sandbox = Sandbox::new();
        let script = "echo $$ > pid; i=0; while [ ! -s go ]; do i=$((i+1)); echo step $i; sleep 0.01; done; echo over";
        let mut supervisor = Some(spawn(&sandbox, "", script));
        let pid = written_pid(&sandbox, "pid");
        let entry = || sandbox.json("runs/it/process.json");
        until("it is entered", || entry().pointer("/workers/0/keeper/pid").is_some());
        let keeper = entry().pointer("/workers/0/keeper/pid").expect("a keeper").to_string();
        if let Some(mut supervisor) = supervisor.take_if(|_| with_supervisor) {
            supervisor.kill().and_then(|()| supervisor.wait()).expect("it runs");
        }
        kill("KILL", &keeper);
        assert!(is_alive(&pid), "its pipes are closed, but it continues");
        if with_supervisor {
            let run = &listed(&sandbox, "--adopt")[0];
            assert!(run["state"] == "orphaned" && run["adopted_by"].is_u64(), "{run}");
        }
        let count = || sandbox.text("runs/it/output.log").lines().count();
        let before = count();
        until("its output is kept again", || count() > before + 3);
        sandbox.write("go", "0\n");
        until("it ends", || listed(&sandbox, "--all")[0]["state"] == "ended");
        let report = report(&sandbox);
        assert_eq!((&report["status"], &report["code"]), (&"unknown".into(), &Value::Null), "{report}");
        let log = sandbox.text("runs/it/output.log");
        let lines = log.lines().collect::<Vec<_>>();
        let steps = (1..lines.len()).map(|step| format!("step {step}")).collect::<Vec<_>>();
        assert_eq!(lines[..lines.len() - 1], steps.iter().map(String::as_str).collect::<Vec<_>>()[..]);
        if let Some(mut supervisor) = supervisor {
            assert_eq!(supervisor.wait().expect("it ends").code(), Some(1));
        }
    }
}

/// Whenever a supervisor is killed, its program is listed and can be adopted and stopped.
#[test]
fn a_supervisor_killed_at_any_moment_leaves_only_listed_orphans() {
    let sandbox = Sandbox::new();
    // Until the kill, each command ends immediately and is restarted, so that most moments are near a start.
    let script = "touch begun; if [ -e stay ]; then exec sleep 600; fi; exit 1";
    let rounds = std::env::var("PLIMSOLL_KILLS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(20_u32);
    let start = || {
        let mut command = command(&sandbox, "--same-error 100000 --max-restarts 100000", script);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs")
    };
    let began = Instant::now();
    let mut first = start();
    until("it begins", || sandbox.path("begun").exists());
    let startup = began.elapsed();
    first.kill().and_then(|()| first.wait()).expect("it runs");
    until("it is over", || processes(&sandbox, |process| is_marked(process) || is_keeper(process)).is_empty());
    fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
    let mut orphans = 0;
    for round in 0..rounds {
        let mut child = start();
        // Spread the kills over the first attempts, in steps that do not divide an attempt's duration.
        std::thread::sleep(startup * (30 + round * 37 % 200) / 100);
        sandbox.write("stay", "");
        std::thread::sleep(startup * (round * 23 % 50) / 100);
        child.kill().and_then(|()| child.wait()).expect("it runs");
        // A keeper that received its command starts it; another one ends.
        let marked = || processes(&sandbox, is_marked);
        until("keepers start or end", || processes(&sandbox, is_keeper).is_empty() || !marked().is_empty());
        // During exec a process counts as neither.
        let is_shown = || listed(&sandbox, "").iter().any(|run| run["state"] == "orphaned");
        until("the list matches the processes", || is_shown() != marked().is_empty());
        if !marked().is_empty() {
            orphans += 1;
            let run = &listed(&sandbox, "--adopt")[0];
            assert!(run["adopted_by"].is_u64(), "{round}: {run}");
            let said = sandbox.run("stop it");
            assert_eq!(said.code, Some(0), "{round}: {}", said.stderr);
            assert_eq!(processes(&sandbox, is_marked), Vec::<String>::new(), "{round}: {}", said.stderr);
        }
        let _ = fs::remove_dir_all(sandbox.path("runs"));
        fs::remove_file(sandbox.path("stay")).expect("it was there");
    }
    eprintln!("{orphans} of {rounds} left an orphan");
    assert!(orphans > 0, "no kill was late enough to leave an orphan");
}

/// Processes whose working folder is in a sandbox, of one kind.
fn processes(sandbox: &Sandbox, is_meant: impl Fn(&Path) -> bool) -> Vec<String> {
    let place = sandbox.path("").canonicalize().expect("it is there");
    let all = fs::read_dir("/proc").expect("a table").flatten().map(|entry| entry.path());
    let works_there = |process: &Path| fs::read_link(process.join("cwd")).is_ok_and(|folder| folder == place);
    let names = all.filter(|process| works_there(process) && is_meant(process));
    let names = names.filter_map(|process| Some(process.file_name()?.to_str()?.to_owned()));
    names.filter(|pid| is_alive(pid)).collect()
}

/// Whether a process has a run's mark in its environment.
fn is_marked(process: &Path) -> bool {
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|word| word.starts_with(b"PLIMSOLL_RUN_"))
}

/// Whether a process is a keeper, or about to become one.
fn is_keeper(process: &Path) -> bool {
    let words = fs::read(process.join("cmdline")).unwrap_or_default();
    words.split(|&byte| byte == 0).any(|word| word == b"--keep")
}

#[test]
fn an_orphan_is_stopped_or_attached_to_without_a_supervisor() {
    let sandbox = Sandbox::new();
    let pid = orphaned(&sandbox, "");
    let said = sandbox.run("stop it --grace 30s");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!is_alive(&pid));
    // The adopting supervisor may still be exiting.
    until("its folder can be deleted", || fs::remove_dir_all(sandbox.path("runs")).is_ok());
    fs::remove_file(sandbox.path("pid")).expect("it was there");
    let pid = orphaned(&sandbox, "");
    let adopting =
        sandbox.command(["run", "--adopt", "it"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    until("it is adopted", || listed(&sandbox, "")[0]["state"] == "running");
    signal(&adopting, "TERM");
    let said = end_of(adopting);
    assert!(said.code == Some(143) && said.stderr.contains("supervising process group"), "{said:?}");
    assert!(!is_alive(&pid));
}

/// Pids are reused.
#[test]
fn a_process_with_a_reused_pid_is_left_alone() {
    let sandbox = Sandbox::new();
    orphaned(&sandbox, "");
    let mut other = Command::new("sleep").arg("600").spawn().expect("a process");
    let path = "runs/it/process.json";
    let mut entry = sandbox.json(path);
    for process in ["/process/pid", "/workers/0/leader/pid"] {
        *entry.pointer_mut(process).expect("it is there") = other.id().into();
    }
    sandbox.write("go", "0\n");
    sandbox.write(path, entry.to_string());
    until("the run's own processes end", || listed(&sandbox, "--all")[0]["state"] == "ended");
    let said = sandbox.run("stop it --now");
    assert!(said.code == Some(0) && said.stderr.contains("had already ended"), "{}", said.stderr);
    assert!(other.try_wait().expect("a child").is_none(), "the process must not be ended");
    other.kill().and_then(|()| other.wait()).expect("it runs");
}

/// Another supervisor continues the ladder after the step that the first one took.
#[test]
fn an_adopted_run_takes_the_next_step_of_its_ladder() {
    let sandbox = Sandbox::new();
    let command = super::repairs::trainer(&sandbox, "until [ -e go-$n ]; do sleep 0.01; done");
    let arguments = ["run", "--backoff", "0", "--name", "it", "--ladder", "ladder.yaml", "--"];
    let mut child = sandbox
        .command(arguments.into_iter().chain(command))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    sandbox.write("go-1", "");
    until("the first step is taken", || sandbox.path("begun-2").exists());
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
    ["go-2", "go-3", "go-4"].iter().for_each(|go| sandbox.write(go, ""));
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(0), "{}", attached.stderr);
    assert_eq!(sandbox.text("seen"), "--batch-size 8 \n--batch-size 4 \n--batch-size 2 w\n");
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "card_memory": 2 }));
}

/// Output from before the adoption also explains why a program ended.
#[test]
fn an_adopted_run_is_judged_by_its_earlier_output() {
    let sandbox = Sandbox::new();
    super::repairs::trainer(&sandbox, ":");
    let script = "[ -e printed ] && exit 0; printf 'Traceback (most recent call last):\\n  File \"a.py\", line 1\\n\
                  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\n'; touch printed; \
                  until [ -e go ]; do sleep 0.01; done; exit 1";
    sandbox.write("once.sh", script);
    let arguments = ["run", "--name", "it", "--ladder", "ladder.yaml", "--", "sh", "once.sh", "--batch-size", "8"];
    let mut child = sandbox.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    until("it printed", || sandbox.path("printed").exists());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
    sandbox.write("go", "");
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(0), "{}", attached.stderr);
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "card_memory": 1 }));
}

/// The adopting supervisor may come after program and keeper have ended.
#[test]
fn a_run_that_ends_before_its_adoption_is_judged_by_its_output() {
    let sandbox = Sandbox::new();
    super::repairs::trainer(&sandbox, ":");
    let script = "[ -e go ] && exit 0; printf 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate \
                  2.00 GiB.\n'; touch printed; until [ -e go ]; do sleep 0.01; done; exit 1";
    sandbox.write("once.sh", script);
    let arguments = ["run", "--name", "it", "--ladder", "ladder.yaml", "--", "sh", "once.sh", "--batch-size", "8"];
    let mut child = sandbox.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    until("it printed", || sandbox.path("printed").exists());
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    let adopter = listed(&sandbox, "--adopt")[0]["adopted_by"].as_u64().expect("a process").to_string();
    let signal = |name: &str| Command::new("kill").args([name, &adopter]).status().expect("a command");
    signal("-STOP");
    sandbox.write("go", "");
    until("its end is written", || sandbox.path("runs/it/end-0.json").exists());
    signal("-CONT");
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(0), "{}", attached.stderr);
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "card_memory": 1 }));
}
