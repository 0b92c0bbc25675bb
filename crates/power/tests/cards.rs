//! Cards of a stand-in for the driver's library. The test `process` of this file runs in a separate process for each of
//! them.

use plimsoll_power::{Knob, Knobs, NvmlCard, Store, Wish, hold, put_back_all};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

const CARD: &str = "NVIDIA GeForce RTX 3060,GPU-b,12288,350,100";
const STORE: &str = "PLIMSOLL_TEST_STORE";
const WISHES: &str = "PLIMSOLL_TEST_WISHES";
const WAIT: &str = "PLIMSOLL_TEST_WAIT";
const LEAVES: &str = "PLIMSOLL_TEST_LEAVES";

/// A card with all settings.
const WHOLE: &str = "\
0 0 power_limit 170
0 0 power_default 170
0 0 power_min 100
0 0 power_max 212
0 0 clock_offset 0
0 0 clock_offset_min -500
0 0 clock_offset_max 300
0 0 memory_clock_offset 10
0 0 memory_clock_offset_min -1000
0 0 memory_clock_offset_max 2000
";

#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn process() {
    let Some(folder) = env::var_os(STORE) else { return };
    let card = NvmlCard::new("GPU-b").expect("the card");
    for knob in Knob::ALL {
        println!("range {knob:?} {:?}", card.range(knob));
        println!("get {knob:?} {:?}", card.get(knob));
    }
    let words = env::var(WISHES).expect("wishes");
    let numbers = words.split(',').map(|number| number.parse::<i64>().expect("a number"));
    let wishes = Knob::ALL.into_iter().zip(numbers).map(|(knob, value)| Wish { knob, value }).collect::<Vec<_>>();
    let held = hold(&Store::new(folder), "GPU-b", Box::new(card.clone()), "a test", &wishes);
    let (held, outcomes, back) = held.expect("it is free");
    println!("outcomes {outcomes:?}");
    println!("back {back:?}");
    for knob in Knob::ALL {
        println!("now {knob:?} {:?}", card.get(knob));
    }
    println!("held");
    if env::var_os(LEAVES).is_some() {
        put_back_all();
        // `exit` runs no destructors.
        std::process::exit(0);
    }
    if env::var_os(WAIT).is_some() {
        // Wait until this process is killed.
        let _ = std::io::stdin().read(&mut [0]);
    }
    drop(held);
    for knob in Knob::ALL {
        println!("after {knob:?} {:?}", card.get(knob));
    }
}

fn command(folder: &Path, script: &str, wishes: &str) -> Command {
    fs::write(folder.join("script"), script).expect("written");
    let mut command = Command::new(env::current_exe().expect("a path"));
    command
        .args(["--ignored", "--exact", "process", "--nocapture"])
        .env("PLIMSOLL_NVML", plimsoll_fake_nvml::library())
        .env(plimsoll_fake_nvml::MACHINE, CARD)
        .env(plimsoll_fake_nvml::SCRIPT, folder.join("script"))
        .env(plimsoll_fake_nvml::STATE, folder.join("state"))
        .env(STORE, folder.join("power"))
        .env(WISHES, wishes);
    command
}

fn said(folder: &Path, script: &str, wishes: &str) -> String {
    let output = command(folder, script, wishes).output().expect("a process");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

fn assert_said(said: &str, lines: &[&str]) {
    for line in lines {
        assert!(said.lines().any(|other| other == *line), "{line}\n{said}");
    }
}

#[test]
fn settings_of_a_card_are_changed_within_its_bounds_and_restored() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = said(folder.path(), WHOLE, "140000,100,-200");
    assert_said(
        &said,
        &[
            "range PowerLimit Ok(Range { min: 100000, max: 212000, default: Some(170000) })",
            "range ClockOffset Ok(Range { min: -500, max: 300, default: Some(0) })",
            "range MemoryClockOffset Ok(Range { min: -1000, max: 2000, default: Some(0) })",
            "outcomes [(PowerLimit, Ok(140000)), (ClockOffset, Ok(100)), (MemoryClockOffset, Ok(-200))]",
            "now PowerLimit Ok(140000)",
            "now ClockOffset Ok(100)",
            "now MemoryClockOffset Ok(-200)",
            "after PowerLimit Ok(170000)",
            "after ClockOffset Ok(0)",
            "after MemoryClockOffset Ok(10)",
        ],
    );
}

/// Drivers before 555 have only the older functions, and servers' cards have no offsets.
#[test]
fn older_drivers_and_cards_without_offsets_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let older = format!("{WHOLE}0 0 error nvmlDeviceGetClockOffsets 13\n0 0 error nvmlDeviceSetClockOffsets 13\n");
    let with_older = said(folder.path(), &older, "140000,100,-200");
    assert_said(
        &with_older,
        &[
            "range ClockOffset Ok(Range { min: -500, max: 300, default: Some(0) })",
            "outcomes [(PowerLimit, Ok(140000)), (ClockOffset, Ok(100)), (MemoryClockOffset, Ok(-200))]",
            "after MemoryClockOffset Ok(10)",
        ],
    );
    let bare = "0 0 power_limit 300\n0 0 power_min 100\n0 0 power_max 300\n";
    let folder = tempfile::tempdir().expect("a folder");
    assert_said(
        &said(folder.path(), bare, "250000,100,-200"),
        &[
            "range PowerLimit Ok(Range { min: 100000, max: 300000, default: None })",
            "range ClockOffset Err(NotSupported)",
            "outcomes [(ClockOffset, Err(NotSupported)), (MemoryClockOffset, Err(NotSupported)), (PowerLimit, Ok(250000))]",
            "after PowerLimit Ok(300000)",
        ],
    );
}

#[test]
fn missing_rights_are_reported_and_nothing_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let script =
        format!("{WHOLE}0 0 error nvmlDeviceSetPowerManagementLimit 4\n0 0 error nvmlDeviceSetClockOffsets 4\n");
    assert_said(
        &said(folder.path(), &script, "140000,100,-200"),
        &[
            "outcomes [(PowerLimit, Err(NoPermission)), (ClockOffset, Err(NoPermission)), (MemoryClockOffset, Err(NoPermission))]",
            "now PowerLimit Ok(170000)",
        ],
    );
    assert!(!folder.path().join("power/GPU-b.json").exists());
    assert!(!folder.path().join("state").exists());
}

/// A process that exits without running destructors.
#[test]
fn an_exit_without_destructors_restores_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path(), WHOLE, "140000,100,-200").env(LEAVES, "1").output().expect("a process");
    assert!(output.status.success());
    let state = fs::read_to_string(folder.path().join("state")).expect("what was set");
    let last = |name: &str| state.lines().rfind(|line| line.contains(name)).map(str::to_owned);
    assert_eq!(last(" power_limit").as_deref(), Some("0 power_limit 170"), "{state}");
    assert_eq!(last(" memory_clock_offset").as_deref(), Some("0 memory_clock_offset 10"), "{state}");
    assert!(!folder.path().join("power/GPU-b.json").exists());
}

/// A killed process can't restore anything. The next one does, and records the card's original value.
#[cfg(target_os = "linux")]
#[test]
fn the_next_start_restores_after_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = command(folder.path(), WHOLE, "140000,100,-200")
        .env(WAIT, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "held"));
    child.kill().expect("SIGKILL");
    child.wait().expect("it ended");
    let state = fs::read_to_string(folder.path().join("state")).expect("what was set");
    assert!(state.lines().any(|line| line == "0 power_limit 140"), "{state}");
    let said = said(folder.path(), WHOLE, "150000,0,0");
    assert_said(&said, &["get PowerLimit Ok(140000)", "now PowerLimit Ok(150000)", "after PowerLimit Ok(170000)"]);
    assert!(said.contains("Done { knob: PowerLimit, value: 170000 }"), "{said}");
    assert!(said.contains("Done { knob: MemoryClockOffset, value: 10 }"), "{said}");
}
