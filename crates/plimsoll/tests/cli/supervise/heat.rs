//! Programs on a card that gets hot, through the stand-in for NVML: they are slowed, paused, let go on, or asked to end; and
//! none is left stopped, whoever is killed. When what is ordered is tested with simulated cards, in their time (`plimsoll-heat`).

use super::*;

/// Counts, in the group and outside of it, and ends with what it saved where it is asked to.
const COUNTS: &str = "trap 'echo saved; exit 3' TERM; \
                      setsid sh -c 'echo $$ > outside; while :; do sleep 0.02; done' & echo $$ > pid; \
                      i=0; while :; do i=$((i+1)); echo step $i; sleep 0.02; done";

/// Where the card says what the test writes there, whatever its script says.
const TOLD: &str = "told";

/// A run on a card of a script whose temperature can be set meanwhile.
pub(super) fn on_card(sandbox: &Sandbox, script: &str, flags: &str, shell: &str) -> Command {
    sandbox.write("script", script);
    let mut command = command(sandbox, flags, shell);
    command.env("PLIMSOLL_NVML", plimsoll_fake_nvml::library());
    command.env(plimsoll_fake_nvml::MACHINE, "NVIDIA GeForce RTX 3060,GPU-a,12288,350,1200");
    command.env(plimsoll_fake_nvml::SCRIPT, sandbox.path("script"));
    command.env(plimsoll_fake_nvml::STATE, sandbox.path(TOLD));
    command
}

fn start(sandbox: &Sandbox, script: &str, flags: &str, shell: &str) -> Child {
    let mut command = on_card(sandbox, script, flags, shell);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

/// Lets the card say something else from now on.
pub(super) fn set_told(sandbox: &Sandbox, name: &str, value: u32) {
    sandbox.write(TOLD, format!("0 {name} {value}\n"));
}

/// What happened to the card, by the run's journal.
fn heat(sandbox: &Sandbox) -> Vec<String> {
    let journal = fs::read_to_string(sandbox.path("runs/it/supervisor.jsonl")).unwrap_or_default();
    let events = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "heat").map(|event| event["what"].to_string()).collect()
}

fn is_told(sandbox: &Sandbox, words: &str) -> bool {
    heat(sandbox).iter().any(|what| what.contains(words))
}

/// Whether a signal stopped a process.
fn is_stopped(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// The numbers of the processes of `COUNTS`, in the group and outside.
fn both(sandbox: &Sandbox) -> [String; 2] {
    ["pid", "outside"].map(|name| written_pid(sandbox, name))
}

fn steps(sandbox: &Sandbox) -> usize {
    sandbox.text("runs/it/output.log").lines().count()
}

/// What a run said, which ends by itself, or should.
fn ended(mut child: Child) -> Said {
    until("it ends", || child.try_wait().expect("a child").is_some());
    end_of(child)
}

/// The same, after a signal that asks it to end.
fn ended_by(name: &str, child: Child) -> Said {
    signal(&child, name);
    ended(child)
}

#[test]
fn a_program_is_slowed_to_its_part_of_the_time_and_does_not_hang_meanwhile() {
    let sandbox = Sandbox::new();
    // Far below the maximum, and as far above what is held as asks for half of the time.
    let flags = "--throttle-temp 78 --max-temp 110 --sample-every 0.05s --hang-timeout 1s --max-restarts 0";
    let shell = format!("sleep 600 & echo $! > other; kill -STOP $!; {COUNTS}");
    let child = start(&sandbox, "0 0 temperature 84\n", flags, &shell);
    let [pid, outside] = both(&sandbox);
    until("it is slowed", || is_told(&sandbox, "slowed to "));
    let told = heat(&sandbox);
    let percent = told[0].split("slowed to ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let part = percent.expect("a number") / 100.0;
    assert!((0.35..0.65).contains(&part), "{told:?}");
    // From the beginning of a turn to that of the next but one.
    until("it runs", || !is_stopped(&pid));
    let mut times = vec![];
    for turn in [true, false, true] {
        until("it takes turns", || is_stopped(&pid) == turn);
        times.push((Instant::now(), steps(&sandbox)));
    }
    let [(first, before), (second, stopped), (third, ran)] = times[..] else { unreachable!("three") };
    let [stops, runs] = [second - first, third - second].map(|time| time.as_secs_f64());
    let measured = runs / (stops + runs);
    assert!((measured - part).abs() < 0.2, "{measured} of {part}");
    assert!(stops > 1.0 && runs > 1.0, "kernels that are queued go on: {stops} {runs}");
    // What was printed just before may be kept just after.
    assert!(stopped - before < 10 && ran - stopped > 10, "{before} {stopped} {ran}");
    until("what left the group is stopped, too", || is_stopped(&outside));
    until("both go on", || !is_stopped(&pid) && !is_stopped(&outside));
    assert!(is_stopped(&written_pid(&sandbox, "other")), "what a person stopped is not let go on by heat");
    until("both are stopped", || is_stopped(&pid) && is_stopped(&outside));
    let said = ended_by("TERM", child);
    assert_eq!(said.code, Some(3), "who is stopped hears what it is sent: {}", said.stderr);
    assert!(!said.stderr.contains("nothing computed") && said.stdout_text().contains("saved"), "{}", said.stderr);
    assert!(said.stderr.contains("card 0 (NVIDIA GeForce RTX 3060): slowed to "), "{}", said.stderr);
    assert!(!is_alive(&outside) && !sandbox.path("runs/it/held-0").exists());
}

/// The time in which it is stopped neither counts as one in which it hangs, nor ends such a time.
#[test]
fn a_program_that_hangs_is_seen_while_it_is_slowed() {
    let sandbox = Sandbox::new();
    // Longer than it runs in one piece.
    let flags =
        "--throttle-temp 78 --max-temp 110 --sample-every 0.05s --hang-timeout 3s --max-restarts 0 --grace 0.2s";
    let child = start(&sandbox, "0 0 temperature 84\n", flags, "echo $$ > pid; exec sleep 600");
    let pid = written_pid(&sandbox, "pid");
    until("it is slowed", || is_stopped(&pid));
    let start = Instant::now();
    let said = ended(child);
    assert!(start.elapsed() > Duration::from_secs(4), "it ran for less: {}", said.stderr);
    assert_eq!(report(&sandbox)["failures"], serde_json::json!({ "hang": 1 }), "{}", said.stderr);
}

#[test]
fn above_the_maximum_a_program_is_asked_to_end_and_not_started_again() {
    let sandbox = Sandbox::new();
    // Of two workers, the second was not started yet.
    let flags = "--max-temp 83 --sample-every 0.02s --workers 2 --stagger-time 10m";
    let child = start(&sandbox, "0 0 temperature 60\n", flags, COUNTS);
    let [pid, outside] = both(&sandbox);
    set_told(&sandbox, "temperature", 81);
    until("it is paused", || {
        is_told(&sandbox, "paused: its core is at 81 °C, the run ends above 83") && is_stopped(&pid)
    });
    set_told(&sandbox, "temperature", 90);
    let said = ended(child);
    assert_eq!(said.code, Some(6), "{}", said.stderr);
    assert!(said.stdout_text().contains("saved"), "{}", said.stderr);
    for words in ["its core is at 90 °C, above 83: the run is asked to end", "SIGTERM: its card is too hot"] {
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
fn a_program_whose_card_tells_nothing_any_more_is_slowed_and_that_is_said() {
    let sandbox = Sandbox::new();
    let script = "0 0 temperature 60\n20 0 error nvmlDeviceGetTemperature 15\n";
    let child = start(&sandbox, script, "--memory-temp 95 --sample-every 0.05s", COUNTS);
    let [pid, _] = both(&sandbox);
    until("it is stopped", || is_stopped(&pid));
    for words in ["tells no temperature any more; last 60 °C", "no sensor is believed: slowed to 50 % of the time"] {
        assert!(is_told(&sandbox, words), "{words}: {:?}", heat(&sandbox));
    }
    assert_eq!(ended_by("TERM", child).code, Some(3));
}

/// Without the flags nothing is watched; without a card, that is said.
#[test]
fn heat_is_watched_only_where_it_is_asked_for_and_there_is_a_card() {
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
        said.code == Some(0) && said.stderr.contains("cards: none is known that the command may use"),
        "{}",
        said.stderr
    );
    for (flags, words) in [("--max-temp 75", "must be at least"), ("--resume-temp NaN", "is not between")] {
        let said = run(&sandbox, &format!("{flags} --runs-dir none"), "exit 0");
        assert!(said.code == Some(2) && said.stderr.contains(words), "{flags}: {}", said.stderr);
        assert!(!sandbox.path("none").exists());
    }
}

/// A person's pause is a person's: heat ends none of it, and what heat stopped a person does not let go on by mistake.
#[test]
fn a_pause_by_a_person_outlasts_one_for_heat() {
    let sandbox = Sandbox::new();
    let child = start(&sandbox, "0 0 temperature 60\n", "--max-temp 83 --sample-every 0.8s", COUNTS);
    let [pid, outside] = both(&sandbox);
    // By hand, before heat.
    kill("STOP", &outside);
    let script = || sandbox.write(TOLD, "0 temperature 81\n");
    script();
    until("heat stops it", || is_stopped(&pid));
    assert!(sandbox.run("resume it").stderr.contains("it is not paused"), "by a person it is not");
    signal(&child, "CONT");
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stopped(&pid), "a stray SIGCONT ends no pause for heat");
    assert_eq!(sandbox.run("pause it").code, Some(0));
    until("its supervisor is stopped", || is_stopped(&child.id().to_string()));
    assert!(!sandbox.path("runs/it/held-0").exists(), "it is a person's now");
    set_told(&sandbox, "temperature", 60);
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_stopped(&pid) && is_stopped(&outside));
    assert_eq!(sandbox.run("resume it").code, Some(0));
    assert_eq!(ended_by("TERM", child).code, Some(3));
}

/// Who supervises is killed while a program is stopped for heat: its keeper lets it go on. If that was killed as well, the kernel
/// lets go on what is in the group of a parent that is gone, after SIGHUP, and whoever comes next does so with the rest.
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
        set_told(&sandbox, "temperature", 60);
        if with_keeper {
            kill("KILL", &keeper);
            until("it is gone", || !is_alive(&keeper));
        }
        child.kill().and_then(|()| child.wait()).expect("it runs");
        if with_keeper {
            assert!(is_stopped(&outside), "nobody is left to let it go on");
            assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
        }
        until("both go on", || !is_stopped(&pid) && !is_stopped(&outside));
        until("it is forgotten", || !sandbox.path("runs/it/held-0").exists());
        if !with_keeper {
            assert_eq!(listed(&sandbox, "")[0]["state"], "orphaned");
        }
        let said = sandbox.run("stop it --grace 0.5s");
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        assert!(!is_alive(&pid) && !is_alive(&outside));
    }
}

/// The supervisor that comes next watches heat as the first one did.
#[test]
fn an_adopted_run_is_watched_as_before() {
    let sandbox = Sandbox::new();
    let mut child = start(&sandbox, "0 0 temperature 60\n", "--max-temp 83 --sample-every 0.05s", COUNTS);
    let [pid, _] = both(&sandbox);
    until("it is entered", || sandbox.json("runs/it/process.json").pointer("/workers/0/leader/pid").is_some());
    child.kill().and_then(|()| child.wait()).expect("it runs");
    assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
    set_told(&sandbox, "temperature", 81);
    until("it is paused", || is_told(&sandbox, "paused: ") && is_stopped(&pid));
    set_told(&sandbox, "temperature", 90);
    let attached = sandbox.run("attach it");
    assert_eq!(attached.code, Some(6), "{}", attached.stderr);
    assert_eq!(report(&sandbox)["status"], "too_hot");
}
