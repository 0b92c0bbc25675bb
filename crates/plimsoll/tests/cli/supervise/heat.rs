//! Programs on a card that gets hot, with the NVML stand-in: they are throttled, paused, resumed, or ended, and none
//! stays stopped when a supervisor is killed. `plimsoll-heat` tests the decisions with simulated cards in simulated
//! time.

use super::*;

/// Counts inside and outside its process group; ends with exit code 0 on SIGINT.
const COUNTS: &str = "trap 'echo saved; exit 3' TERM; \
                      setsid sh -c 'echo $$ > outside; while :; do sleep 0.02; done' & echo $$ > pid; \
                      i=0; while :; do i=$((i+1)); echo step $i; sleep 0.02; done";

/// File of readings that the test changes and that override the script's.
const TOLD: &str = "told";

/// A run on a card of a script whose readings can be changed.
pub(super) fn on_card(sandbox: &Sandbox, script: &str, flags: &str, shell: &str) -> Command {
    let mut command = command(sandbox, flags, shell);
    add_card(&mut command, sandbox, script);
    command
}

/// Sets a command up to find the card of a script whose readings can be changed.
pub(super) fn add_card(command: &mut Command, sandbox: &Sandbox, script: &str) {
    sandbox.write("script", script);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
    command.env(plimsoll_fake_nvml::MACHINE, "NVIDIA GeForce RTX 3060,GPU-a,12288,350,1200");
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    command.env(plimsoll_fake_nvml::STATE, sandbox.path(TOLD));
}

fn start(sandbox: &Sandbox, script: &str, flags: &str, shell: &str) -> Child {
    let mut command = on_card(sandbox, script, flags, shell);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Changes a reading of the card.
pub(super) fn set_reading(sandbox: &Sandbox, name: &str, value: u32) {
    sandbox.write(TOLD, format!("0 {name} {value}\n"));
}

/// Events about the card in the run's journal.
fn heat(sandbox: &Sandbox) -> Vec<String> {
    let journal = fs::read_to_string(sandbox.path("runs/it/supervisor.jsonl")).unwrap_or_default();
    let events = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "heat").map(|event| event["what"].to_string()).collect()
}

fn has_event(sandbox: &Sandbox, words: &str) -> bool {
    heat(sandbox).iter().any(|what| what.contains(words))
}

/// Whether a process is stopped by a signal.
fn is_stopped(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// The pids of `COUNTS` inside and outside the group.
fn both(sandbox: &Sandbox) -> [String; 2] {
    ["pid", "outside"].map(|name| written_pid(sandbox, name))
}

fn steps(sandbox: &Sandbox) -> usize {
    sandbox.text("runs/it/output.log").lines().count()
}

/// The output of a run that ends by itself, with a time limit.
fn ended(mut child: Child) -> Said {
    until("it ends", || child.try_wait().expect("a child").is_some());
    end_of(child)
}

/// The same, after a signal.
fn ended_by(name: &str, child: Child) -> Said {
    signal(&child, name);
    ended(child)
}

#[test]
fn a_program_is_throttled_to_its_duty_and_does_not_count_as_hanging() {
    let sandbox = Sandbox::new();
    // Far below the maximum, and so far above the throttle temperature that the duty is one half.
    let flags = "--throttle-temp 78 --max-temp 110 --sample-every 0.05s --hang-timeout 1s --max-restarts 0";
    let shell = format!("sleep 600 & echo $! > other; kill -STOP $!; {COUNTS}");
    let child = start(&sandbox, "0 0 temperature 84\n", flags, &shell);
    let [pid, outside] = both(&sandbox);
    until("it is throttled", || has_event(&sandbox, "slowed to "));
    let told = heat(&sandbox);
    let percent = told[0].split("slowed to ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let part = percent.expect("a number") / 100.0;
    assert!((0.35..0.65).contains(&part), "{told:?}");
    // From the start of one period to that of the next but one.
    until("it runs", || !is_stopped(&pid));
    let mut times = vec![];
    for turn in [true, false, true] {
        until("it runs and stops in turn", || is_stopped(&pid) == turn);
        times.push((Instant::now(), steps(&sandbox)));
    }
    let [(first, before), (second, stopped), (third, ran)] = times[..] else { unreachable!("three") };
    let [stops, runs] = [second - first, third - second].map(|time| time.as_secs_f64());
    let measured = runs / (stops + runs);
    assert!((measured - part).abs() < 0.2, "{measured} of {part}");
    assert!(stops > 1.0 && runs > 1.0, "queued kernels continue: {stops} {runs}");
    // Output from just before may be stored just after.
    assert!(stopped - before < 10 && ran - stopped > 10, "{before} {stopped} {ran}");
    until("the process outside the group is stopped, too", || is_stopped(&outside));
    until("both continue", || !is_stopped(&pid) && !is_stopped(&outside));
    assert!(is_stopped(&written_pid(&sandbox, "other")), "heat control does not resume a process that a user stopped");
    until("both are stopped", || is_stopped(&pid) && is_stopped(&outside));
    let said = ended_by("TERM", child);
    assert_eq!(said.code, Some(3), "who is stopped hears what it is sent: {}", said.stderr);
    assert!(!said.stderr.contains("nothing computed") && said.stdout_text().contains("saved"), "{}", said.stderr);
    assert!(said.stderr.contains("GPU 0 (NVIDIA GeForce RTX 3060): slowed to "), "{}", said.stderr);
    assert!(!is_alive(&outside) && !sandbox.path("runs/it/held-0").exists());
}

/// Time in which the program is stopped does not count towards a hang, nor does it reset the time.
#[test]
fn a_hang_is_detected_while_the_program_is_throttled() {
    let sandbox = Sandbox::new();
    // Longer than one period of running.
    let flags =
        "--throttle-temp 78 --max-temp 110 --sample-every 0.05s --hang-timeout 3s --max-restarts 0 --grace 0.2s";
    let child = start(&sandbox, "0 0 temperature 84\n", flags, "echo $$ > pid; exec sleep 600");
    let pid = written_pid(&sandbox, "pid");
    until("it is throttled", || is_stopped(&pid));
    let start = Instant::now();
    let said = ended(child);
    assert!(start.elapsed() > Duration::from_secs(4), "it ran for less: {}", said.stderr);
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "hang": 1 }), "{}", said.stderr);
}

#[test]
fn above_the_maximum_a_program_is_ended_and_not_restarted() {
    let sandbox = Sandbox::new();
    // Of two workers, the second has not started yet.
    let flags = "--max-temp 83 --sample-every 0.02s --workers 2 --stagger-time 10m";
    let child = start(&sandbox, "0 0 temperature 60\n", flags, COUNTS);
    let [pid, outside] = both(&sandbox);
    set_reading(&sandbox, "temperature", 81);
    until("it is paused", || {
        has_event(&sandbox, "paused: its core is at 81 °C, the run ends above 83") && is_stopped(&pid)
    });
    set_reading(&sandbox, "temperature", 90);
    let said = ended(child);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    assert!(said.stdout_text().contains("saved"), "{}", said.stderr);
    for words in ["its core is at 90 °C, above 83: ending the run", "SIGTERM: its GPU is too hot"] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    assert!(said.stderr.contains("stopped for heat (exit code 6)"), "{}", said.stderr);
    let report = report(&sandbox);
    assert_eq!((&report["status"], &report["code"], &report["restarts"]), (&"too_hot".into(), &6.into(), &0.into()));
    assert_eq!(report["attempts"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!((&report["attempts"][0]["kind"], &report["failures"]), (&"too_hot".into(), &serde_json::json!({})));
    let run = &listed(&sandbox, "--all")[0];
    assert_eq!((&run["status"], &run["exit_code"]), (&"too_hot".into(), &6.into()));
    assert!(!is_alive(&pid) && !is_alive(&outside));
}

#[test]
fn a_program_whose_sensor_fails_is_throttled_with_a_message() {
    let sandbox = Sandbox::new();
    let script = "0 0 temperature 60\n20 0 error nvmlDeviceGetTemperature 15\n";
    let child = start(&sandbox, script, "--memory-temp 95 --sample-every 0.05s", COUNTS);
    let [pid, _] = both(&sandbox);
    until("it is stopped", || is_stopped(&pid));
    for words in ["tells no temperature any more; last 60 °C", "no sensor is believed: slowed to 50 % of the time"] {
        assert!(has_event(&sandbox, words), "{words}: {:?}", heat(&sandbox));
    }
    assert_eq!(ended_by("TERM", child).code, Some(3));
}

/// Without the flags heat is not controlled; without a card, there is a message.
#[test]
fn heat_control_needs_the_flags_and_a_card() {
    let sandbox = Sandbox::new();
    let watched = |sandbox: &Sandbox, script: &str, flags: &str| {
        let said = Said::of(on_card(sandbox, script, flags, "sleep 0.5").output().expect("the binary runs"));
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        let told = heat(sandbox);
        fs::remove_dir_all(sandbox.path("runs")).expect("it was there");
        told
    };
    assert_eq!(watched(&sandbox, "0 0 temperature 99\n", "--sample-every 0.02s"), Vec::<String>::new());
    let told = watched(&sandbox, "0 0 error nvmlDeviceGetTemperature 3\n", "--max-temp 83 --sample-every 0.02s");
    assert_eq!(told, ["\"tells no temperature: heat is not watched\""]);
    let said = run(&sandbox, "--max-temp 83", "exit 0");
    assert!(
        said.code == Some(0) && said.stderr.contains("GPUs: found none that the command may use"),
        "{}",
        said.stderr
    );
    for (flags, words) in [("--max-temp 75", "must be at least"), ("--resume-temp NaN", "is not between")] {
        let said = run(&sandbox, &format!("{flags} --runs-dir none"), "exit 0");
        assert!(said.code == Some(2) && said.stderr.contains(words), "{flags}: {}", said.stderr);
        assert!(!sandbox.path("none").exists());
    }
}

/// A user's pause is independent of heat: heat control does not end it, and a user cannot resume what heat control
/// stopped.
#[test]
fn a_users_pause_outlasts_a_pause_for_heat() {
    let sandbox = Sandbox::new();
    let child = start(&sandbox, "0 0 temperature 60\n", "--max-temp 83 --sample-every 0.8s", COUNTS);
    let [pid, outside] = both(&sandbox);
    // The user pauses first, then the card gets hot.
    kill("STOP", &outside);
    let script = || sandbox.write(TOLD, "0 temperature 81\n");
    script();
    until("heat stops it", || is_stopped(&pid));
    assert!(sandbox.run("resume it").stderr.contains("it is not paused"), "the user did not pause it");
    signal(&child, "CONT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stopped(&pid), "a stray SIGCONT does not end a pause for heat");
    assert_eq!(sandbox.run("pause it").code, Some(0));
    until("its supervisor is stopped", || is_stopped(&child.id().to_string()));
    assert!(!sandbox.path("runs/it/held-0").exists(), "the pause is the user's now");
    set_reading(&sandbox, "temperature", 60);
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stopped(&pid) && is_stopped(&outside));
    assert_eq!(sandbox.run("resume it").code, Some(0));
    assert_eq!(ended_by("TERM", child).code, Some(3));
}

/// The supervisor is killed while a program is stopped for heat: its keeper resumes it. If the keeper was killed as
/// well, the kernel resumes orphaned process groups after SIGHUP, and the next supervisor resumes the rest.
#[test]
fn a_killed_supervisor_leaves_no_program_stopped() {
    for with_keeper in [false, true] {
        let sandbox = Sandbox::new();
        let shell = format!("trap '' HUP; {COUNTS}");
        let mut child = start(&sandbox, "0 0 temperature 81\n", "--max-temp 83 --sample-every 0.05s", &shell);
        let [pid, outside] = both(&sandbox);
        until("both are stopped", || is_stopped(&pid) && is_stopped(&outside));
        let entry = sandbox.json("runs/it/process.json");
        let keeper = entry.pointer("/workers/0/keeper/pid").expect("a keeper").to_string();
        // Cool from now on, for the next supervisor.
        set_reading(&sandbox, "temperature", 60);
        if with_keeper {
            kill("KILL", &keeper);
            until("it is gone", || !is_alive(&keeper));
        }
        child.kill().and_then(|()| child.wait()).expect("it runs");
        if with_keeper {
            assert!(is_stopped(&outside), "no process is left to resume it");
            assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
        }
        until("both continue", || !is_stopped(&pid) && !is_stopped(&outside));
        until("it is no longer listed", || !sandbox.path("runs/it/held-0").exists());
        if !with_keeper {
            assert_eq!(listed(&sandbox, "")[0]["state"], "orphaned");
        }
        let said = sandbox.run("stop it --grace 0.5s");
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert!(!is_alive(&pid) && !is_alive(&outside));
    }
}

/// The adopting supervisor controls heat as the first one did.
#[test]
fn an_adopted_run_keeps_its_heat_control() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, "0 0 temperature 60\n", "--max-temp 83 --sample-every 0.05s", COUNTS);
    let [pid, _] = both(&sandbox);
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
    set_reading(&sandbox, "temperature", 81);
    until("it is paused", || has_event(&sandbox, "paused: ") && is_stopped(&pid));
    set_reading(&sandbox, "temperature", 90);
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(6), "{}", attached.stderr);
    assert_eq!(report(&sandbox)["status"], "too_hot");
}

#[test]
fn a_program_that_is_continued_from_outside_is_stopped_again() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, "0 0 temperature 60\n", "--max-temp 83 --sample-every 0.05s", COUNTS);
    let pids = both(&sandbox);
    set_reading(&sandbox, "temperature", 81);
    until("it is paused", || pids.iter().all(|pid| is_stopped(pid)));
    assert!(Command::new("kill").arg("-CONT").args(&pids).status().expect("a command").success());
    until("it is stopped again", || pids.iter().all(|pid| is_stopped(pid)));
    set_reading(&sandbox, "temperature", 60);
    until("it is continued", || pids.iter().all(|pid| !is_stopped(pid)));
    set_reading(&sandbox, "temperature", 90);
    assert_eq!(child.wait().expect("it ends").code(), Some(6));
}
