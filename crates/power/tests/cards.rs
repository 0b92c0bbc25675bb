//! Cards by a library that stands in for the driver's. Each is asked by a process of its own: this file's test `process`.

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

/// The card with all that can be set.
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
    let (held, came, back) = held.expect("nobody has it");
    println!("came {came:?}");
    println!("back {back:?}");
    for knob in Knob::ALL {
        println!("now {knob:?} {:?}", card.get(knob));
    }
    println!("held");
    if env::var_os(LEAVES).is_some() {
        put_back_all();
        // Nothing is dropped.
        std::process::exit(0);
    }
    if env::var_os(WAIT).is_some() {
        // Until it is killed.
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
fn a_card_tells_its_bounds_takes_settings_and_gets_them_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = said(folder.path(), WHOLE, "140000,100,-200");
    assert_said(
        &said,
        &[
            "range PowerLimit Ok(Range { least: 100000, most: 212000, usual: Some(170000) })",
            "range ClockOffset Ok(Range { least: -500, most: 300, usual: Some(0) })",
            "range MemoryClockOffset Ok(Range { least: -1000, most: 2000, usual: Some(0) })",
            "came [(PowerLimit, Ok(140000)), (ClockOffset, Ok(100)), (MemoryClockOffset, Ok(-200))]",
            "now PowerLimit Ok(140000)",
            "now ClockOffset Ok(100)",
            "now MemoryClockOffset Ok(-200)",
            "after PowerLimit Ok(170000)",
            "after ClockOffset Ok(0)",
            "after MemoryClockOffset Ok(10)",
        ],
    );
}

/// Drivers before 555 have only the older functions; those of servers have none.
#[test]
fn older_drivers_and_cards_without_offsets() {
    let folder = tempfile::tempdir().expect("a folder");
    let older = format!("{WHOLE}0 0 error nvmlDeviceGetClockOffsets 13\n0 0 error nvmlDeviceSetClockOffsets 13\n");
    let with_older = said(folder.path(), &older, "140000,100,-200");
    assert_said(
        &with_older,
        &[
            "range ClockOffset Ok(Range { least: -500, most: 300, usual: Some(0) })",
            "came [(PowerLimit, Ok(140000)), (ClockOffset, Ok(100)), (MemoryClockOffset, Ok(-200))]",
            "after MemoryClockOffset Ok(10)",
        ],
    );
    let bare = "0 0 power_limit 300\n0 0 power_min 100\n0 0 power_max 300\n";
    let folder = tempfile::tempdir().expect("a folder");
    assert_said(
        &said(folder.path(), bare, "250000,100,-200"),
        &[
            "range PowerLimit Ok(Range { least: 100000, most: 300000, usual: None })",
            "range ClockOffset Err(NotSupported)",
            "came [(ClockOffset, Err(NotSupported)), (MemoryClockOffset, Err(NotSupported)), (PowerLimit, Ok(250000))]",
            "after PowerLimit Ok(300000)",
        ],
    );
}

#[test]
fn without_rights_it_is_said_and_nothing_is_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let script =
        format!("{WHOLE}0 0 error nvmlDeviceSetPowerManagementLimit 4\n0 0 error nvmlDeviceSetClockOffsets 4\n");
    assert_said(
        &said(folder.path(), &script, "140000,100,-200"),
        &[
            "came [(PowerLimit, Err(NoPermission)), (ClockOffset, Err(NoPermission)), (MemoryClockOffset, Err(NoPermission))]",
            "now PowerLimit Ok(170000)",
        ],
    );
    assert!(!folder.path().join("power/GPU-b.json").exists());
    assert!(!folder.path().join("state").exists());
}

/// A process that leaves without running destructors.
#[test]
fn who_leaves_in_haste_puts_it_back_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = command(folder.path(), WHOLE, "140000,100,-200").env(LEAVES, "1").output().expect("a process");
    assert!(output.status.success());
    let state = fs::read_to_string(folder.path().join("state")).expect("what was set");
    let last = |name: &str| state.lines().rfind(|line| line.contains(name)).map(str::to_owned);
    assert_eq!(last(" power_limit").as_deref(), Some("0 power_limit 170"), "{state}");
    assert_eq!(last(" memory_clock_offset").as_deref(), Some("0 memory_clock_offset 10"), "{state}");
    assert!(!folder.path().join("power/GPU-b.json").exists());
}

/// A process that is killed can put nothing back; the next one does, and keeps the card's own value.
#[cfg(target_os = "linux")]
#[test]
fn after_a_kill_the_next_start_puts_it_back() {
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
