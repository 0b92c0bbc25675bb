//! Runs in folders that other users control: their commands are not run, and processes that they name are not signaled.

use super::adoption::orphaned;
use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;

/// Uid of a user that does not exist on this machine.
const OTHER: u32 = 54_321;

fn set_mode(sandbox: &Sandbox, name: &str, mode: u32) {
    fs::set_permissions(sandbox.path(name), fs::Permissions::from_mode(mode)).expect("it is this user's");
}

fn set_owner(sandbox: &Sandbox, name: &str, uid: u32) {
    chown(sandbox.path(name), Some(uid), None).expect("root has the permission");
}

/// Only root can give files to another user, or start processes as another user.
fn is_root(sandbox: &Sandbox) -> bool {
    let is_root = fs::metadata(sandbox.root()).expect("it is there").uid() == 0;
    if !is_root {
        eprintln!("SKIPPED: only root can act for two users");
    }
    is_root
}

/// The run's supervisor, as `ps` lists it.
fn supervisor(sandbox: &Sandbox) -> Value {
    sandbox.json("runs/it/process.json")["process"].clone()
}

#[test]
fn read_only_commands_start_nothing() {
    let sandbox = Sandbox::new();
    orphaned(&sandbox, "");
    let before = supervisor(&sandbox);
    for command in ["ps", "ps --all", "ps --json", "logs it"] {
        let said = sandbox.run(command);
        assert_eq!(said.code, Some(0), "{command}: {}", said.stderr);
        assert_eq!(listed(&sandbox, "")[0]["state"], "orphaned", "{command} gave it a supervisor");
        let names_a_way = said.stderr.contains("hint: `plimsoll attach it`");
        assert_eq!(names_a_way, matches!(command, "ps" | "ps --all"), "{command}: {}", said.stderr);
    }
    assert_eq!(supervisor(&sandbox), before);
    // A folder that belongs to its user again is trusted again.
    assert!(listed(&sandbox, "--adopt")[0]["adopted_by"].is_u64());
    sandbox.write("go", "0\n");
    assert_eq!(sandbox.run("attach it").code, Some(0));
}

/// The folder is shared, and another user created the run's files or can replace them, with an orphan's command of
/// theirs.
#[test]
fn runs_that_another_user_controls_run_no_command_and_signal_no_process() {
    let sandbox = Sandbox::new();
    let pid = orphaned(&sandbox, "--max-restarts 0");
    let before = supervisor(&sandbox);
    let is_root = is_root(&sandbox);
    let by_mode = [("runs", 0o777, 0o755), ("runs/it", 0o777, 0o700), ("runs/it/process.json", 0o666, 0o600)];
    let by_owner = ["runs", "runs/it", "runs/it/process.json"].into_iter().filter(|_| is_root);
    let refused = |what: &str| {
        for command in
            ["attach it", "run --adopt it", "run --adopt it --detach", "stop it --now", "pause it", "resume it"]
        {
            let said = sandbox.run(command);
            assert_eq!(said.code, Some(4), "{what}, {command}: {}", said.stderr);
            let has_event = said.stderr.contains("may belong to another user") && said.stderr.contains("hint: ");
            assert!(has_event, "{what}, {command}: {}", said.stderr);
        }
        let said = sandbox.run("ps --adopt");
        assert!(said.stderr.contains("still has no supervisor: it may belong to another user"), "{}", said.stderr);
        assert!(is_alive(&pid) && supervisor(&sandbox) == before, "{what}");
    };
    for (name, open, closed) in by_mode {
        set_mode(&sandbox, name, open);
        refused(&format!("{name} of mode {open:o}"));
        set_mode(&sandbox, name, closed);
    }
    for name in by_owner {
        set_owner(&sandbox, name, OTHER);
        refused(&format!("{name} of another user"));
        let owner = &listed(&sandbox, "")[0]["other_owner_uid"];
        assert_eq!(owner == OTHER, name == "runs/it", "{name}: {owner}");
        set_owner(&sandbox, name, 0);
    }
    // A folder that users share on purpose: the sticky bit prevents them from replacing files of others.
    set_mode(&sandbox, "runs", 0o1777);
    assert_eq!(sandbox.run("stop it --now").code, Some(0));
    assert!(!is_alive(&pid));
}

#[test]
fn a_process_that_a_forged_file_names_is_not_signaled() {
    let sandbox = Sandbox::new();
    assert_eq!(run(&sandbox, "", "true").code, Some(0));
    // As if from an archive: this user's file, about an unrelated process of this user.
    let mut child = Command::new("sleep").arg("600").spawn().expect("a child");
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let started = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19)).expect("a field");
    let mut entry = sandbox.json("runs/it/process.json");
    entry["process"] = serde_json::json!({ "pid": child.id(), "started": started });
    entry["ended"] = Value::Null;
    sandbox.write("runs/it/process.json", entry.to_string());
    for kind in ["supervised", "own"] {
        entry["kind"] = kind.into();
        sandbox.write("runs/it/process.json", entry.to_string());
        assert_eq!(listed(&sandbox, "")[0]["state"], "running", "{kind}: it is only shown");
        for command in ["stop it", "stop it --now", "pause it", "resume it"] {
            let said = sandbox.run(command);
            assert_eq!(said.code, Some(4), "{kind}, {command}: {}", said.stderr);
            let has_event = said.stderr.contains("does not have the run's lock open")
                || said.stderr.contains("nothing trains there");
            assert!(has_event, "{kind}, {command}: {}", said.stderr);
        }
        assert!(is_alive(&child.id().to_string()), "{kind}");
    }
    child.kill().and_then(|()| child.wait()).expect("it runs");
}

/// Any user can set any environment variable for a process, and root can read those of all processes.
#[test]
fn a_marked_process_of_another_user_is_not_the_runs() {
    let sandbox = Sandbox::new();
    if !is_root(&sandbox) {
        return;
    }
    assert_eq!(run(&sandbox, "", "true").code, Some(0));
    let mut entry = sandbox.json("runs/it/process.json");
    entry["ended"] = Value::Null;
    entry["workers"] = Value::Array(vec![]);
    sandbox.write("runs/it/process.json", entry.to_string());
    let mark = format!("PLIMSOLL_RUN_{}", entry["token"].as_str().expect("a token"));
    for (uid, state) in [(OTHER, "gone"), (0, "orphaned")] {
        let mut command = Command::new("sleep");
        let mut child = command.arg("600").env(&mark, "0").uid(uid).current_dir("/").spawn().expect("a child");
        assert_eq!(listed(&sandbox, "--all")[0]["state"], state, "a process of user {uid}");
        child.kill().and_then(|()| child.wait()).expect("it runs");
    }
}

#[test]
fn a_supervised_run_starts_only_where_no_other_user_can_replace_its_folder() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("runs")).expect("made");
    set_mode(&sandbox, "runs", 0o777);
    let said = run(&sandbox, "", "true");
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("other users can write to") && said.stderr.contains("chmod +t"), "{}", said.stderr);
    assert_eq!(fs::read_dir(sandbox.path("runs")).expect("runs").count(), 0, "no files remain");
    let mut trusting = command(&sandbox, "", "true");
    trusting
        .env("PLIMSOLL_TRUSTED_FOLDERS", std::env::join_paths([Path::new("/none"), sandbox.root()]).expect("a list"));
    let said = Said::of(trusting.output().expect("the binary runs"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    // A run of `train` executes nothing from its folder, so it says what is refused later.
    let said = sandbox.must_train("--name own --max-steps 1");
    assert!(said.stderr.contains("warning: other users can write to"), "{}", said.stderr);
    set_mode(&sandbox, "runs", 0o1777);
    let said = sandbox.must_train("--name ours --max-steps 1");
    assert!(!said.stderr.contains("other users"), "{}", said.stderr);
}
