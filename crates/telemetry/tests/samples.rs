//! Samples of scripted cards, from a stand-in for the driver's library. Each script runs in a separate process: the
//! test `sampler` of this file.

use plimsoll_telemetry::{CardSample, Sample, Sampler, SamplerOptions};
use plimsoll_units::Bytes;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

const ANSWER: &str = "PLIMSOLL_TEST_ANSWER";
const COUNT: &str = "PLIMSOLL_TEST_COUNT";
const CARDS: &str = "NVIDIA GeForce RTX 4090,GPU-a,24564,400,0;NVIDIA GeForce RTX 3060,GPU-b,12288,350,100";

#[test]
#[ignore = "run by the other tests, in a separate process"]
fn sampler() {
    let Some(answer) = env::var_os(ANSWER) else { return };
    let count: usize = env::var(COUNT).expect("a count").parse().expect("a number");
    let (send, samples) = mpsc::channel();
    let options = SamplerOptions { every: Duration::ZERO, folder: Some(env::temp_dir()) };
    let sampler = Sampler::start(options, move |sample| drop(send.send(sample.clone()))).expect("a thread");
    let samples = samples.iter().take(count).map(|sample| (*sample).clone()).collect::<Vec<_>>();
    assert!(sampler.latest().is_some());
    drop(sampler);
    fs::write(answer, serde_json::to_string(&samples).expect("plain data")).expect("written");
}

/// Takes `count` samples of a script, one second of script time apart.
fn samples(script: &str, count: usize) -> Vec<Sample> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, answer) = (folder.path().join("script"), folder.path().join("answer.json"));
    fs::write(&file, script).expect("written");
    let output = Command::new(env::current_exe().expect("a path"))
        .args(["--ignored", "--exact", "sampler"])
        .env("PLIMSOLL_NVML", plimsoll_fake_nvml::library())
        .env(plimsoll_fake_nvml::MACHINE, CARDS)
        .env(plimsoll_fake_nvml::SCRIPT, &file)
        .env(ANSWER, &answer)
        .env(COUNT, count.to_string())
        .output()
        .expect("a process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(&answer).expect("an answer")).expect("what the sampler wrote")
}

/// All readings that a card can give.
const WHOLE: &str = "\
0 0 temperature 61
0 0 memory_temperature 74
0 0 slowdown 89
0 0 shutdown 94
0 0 operating 83
0 0 memory_slowdown 105
0 0 power 312.5
0 0 power_limit 450
0 0 power_default 450
0 0 power_min 150
0 0 power_max 600
0 0 energy 1234.5
0 0 sm_clock 2520
0 0 memory_clock 10501
0 0 sm_clock_max 3105
0 0 memory_clock_max 10501
0 0 throttling 4
0 0 performance_state 2
0 0 fans 2
0 0 fan 64
0 0 busy 98
0 0 memory_busy 45
0 0 encoder 1
0 0 decoder 2
0 0 used 20000
0 0 pcie_generation 4
0 0 pcie_lanes 16
0 0 pcie_generation_max 4
0 0 pcie_lanes_max 16
0 0 pcie_received 1000
0 0 pcie_sent 500
0 0 replays 3
0 0 ecc_corrected 7
0 0 ecc_uncorrected 1
0 0 retired 2
0 0 remapped 5
0 0 mig 0
0 0 compute_mode 0
0 0 process 4194304 300
";

/// Keys of a card's sample without a reading.
fn unknown(card: &CardSample) -> BTreeSet<String> {
    let object = serde_json::to_value(card).expect("plain data");
    let limits = object["limits"].as_object().expect("limits").clone();
    let all = object.as_object().expect("an object").clone().into_iter().chain(limits);
    all.filter(|(_, value)| value.is_null() || value.as_array().is_some_and(Vec::is_empty))
        .map(|(key, _)| key)
        .collect()
}

#[test]
fn all_readings_of_a_card_are_in_a_sample() {
    let seen = samples(WHOLE, 2).pop().expect("a sample");
    let [card, other] = &seen.cards[..] else { panic!("{} cards", seen.cards.len()) };
    // NVIDIA's drivers do not report the first; the others do not happen here.
    assert_eq!(unknown(card), ["hotspot_temperature_c", "lost", "xids"].map(str::to_owned).into());
    assert_eq!(card.pci_bus_id.as_deref(), Some("00000000:01:00.0"));
    assert_eq!((card.temperature_c, card.memory_temperature_c), (Some(61.0), Some(74.0)));
    assert_eq!((card.power_w, card.power_limit_w, card.energy_j), (Some(312.5), Some(450.0), Some(1234.5)));
    assert_eq!((card.total, card.used), (Some(Bytes::mib(24564)), Some(Bytes::mib(20000))));
    assert_eq!(card.free, Some(Bytes::mib(24564 - 400 - 20000)));
    assert_eq!((card.pcie_received_bytes_per_s, card.pcie_sent_bytes_per_s), (Some(1_024_000.0), Some(512_000.0)));
    assert_eq!((card.fan_percent, card.busy_percent, card.retired_pages), (Some(64), Some(98), Some(2)));
    assert_eq!((card.ecc_corrected, card.ecc_uncorrected, card.remapped_rows), (Some(7), Some(1), Some(5)));
    assert_eq!((card.limits.slowdown_c, card.limits.power_max_w), (Some(89.0), Some(600.0)));
    assert_eq!(
        card.processes.iter().map(|process| (process.pid, process.used)).collect::<Vec<_>>(),
        [(4_194_304, Some(Bytes::mib(300)))]
    );
    assert_eq!((other.temperature_c, other.power_w, other.fan_percent), (Some(50.0), None, None));
    assert!(seen.system.disk_free.is_some() && seen.time_s > 1e9);
}

/// Calls, and the readings that are missing if they fail.
const CALLS: &[(&str, &[&str])] = &[
    ("nvmlDeviceGetTemperature", &["temperature_c"]),
    ("nvmlDeviceGetPowerUsage", &["power_w"]),
    ("nvmlDeviceGetEnforcedPowerLimit", &["power_limit_w"]),
    ("nvmlDeviceGetTotalEnergyConsumption", &["energy_j"]),
    ("nvmlDeviceGetClockInfo", &["memory_clock_mhz", "sm_clock_mhz"]),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", &["throttling"]),
    ("nvmlDeviceGetPerformanceState", &["performance_state"]),
    ("nvmlDeviceGetFanSpeed_v2", &["fan_percent"]),
    ("nvmlDeviceGetNumFans", &[]),
    ("nvmlDeviceGetUtilizationRates", &["busy_percent", "memory_busy_percent"]),
    ("nvmlDeviceGetEncoderUtilization", &["encoder_percent"]),
    ("nvmlDeviceGetDecoderUtilization", &["decoder_percent"]),
    ("nvmlDeviceGetFieldValues", &["memory_temperature_c", "remapped_rows", "retired_pages"]),
    ("nvmlDeviceGetCurrPcieLinkGeneration", &["pcie_generation"]),
    ("nvmlDeviceGetCurrPcieLinkWidth", &["pcie_lanes"]),
    ("nvmlDeviceGetPcieThroughput", &["pcie_received_bytes_per_s", "pcie_sent_bytes_per_s"]),
    ("nvmlDeviceGetPcieReplayCounter", &["pcie_replays"]),
    ("nvmlDeviceGetTotalEccErrors", &["ecc_corrected", "ecc_uncorrected"]),
    ("nvmlDeviceGetMigMode", &["mig"]),
    ("nvmlDeviceGetComputeMode", &["compute_mode"]),
    ("nvmlDeviceGetComputeRunningProcesses_v3", &["processes"]),
    ("nvmlDeviceGetGraphicsRunningProcesses_v3", &[]),
    // The first memory call replaces the second one, except for reserved memory.
    ("nvmlDeviceGetMemoryInfo_v2", &["reserved_bytes"]),
    ("nvmlDeviceGetMemoryInfo", &[]),
];

/// NVML's codes: all existing ones, and one that a later version may add.
const CODES: std::ops::RangeInclusive<u32> = 1..=32;

#[test]
fn each_call_fails_on_its_own_with_every_code() {
    let mut script = WHOLE.to_owned();
    let cases =
        CALLS.iter().flat_map(|(call, unknown)| CODES.map(move |code| (*call, code, *unknown))).collect::<Vec<_>>();
    for (at, (call, code, _)) in cases.iter().enumerate() {
        // The first count of the cards opens them, the second belongs to the first sample.
        script += &format!("{} 0 error {call} {code}\n{} 0 error {call} 0\n", at + 1, at + 2);
    }
    let seen = samples(&script, cases.len());
    let usual = ["hotspot_temperature_c", "lost", "xids"];
    for (sample, (call, code, missing)) in seen.iter().zip(&cases) {
        let expected = usual.iter().chain(*missing).map(|&key| key.to_owned()).collect::<BTreeSet<_>>();
        // A driver that has no list of compute processes reports none.
        assert_eq!(unknown(&sample.cards[0]), expected, "{call} fails with {code}");
        assert_eq!(sample.cards[1].temperature_c, Some(50.0));
    }
}

#[test]
fn cards_come_and_go() {
    let script = "0 0 power 100\n3 0 gone\n6 0 back\n8 count 1\n11 count 2\n";
    let seen = samples(script, 14);
    let states = seen.iter().map(|sample| {
        let power = |card: &CardSample| card.lost.as_ref().map_or(card.power_w.map_or("-", |_| "+"), |_| "lost");
        sample.cards.iter().map(power).collect::<Vec<_>>().join(" ")
    });
    let mut states = states.collect::<Vec<_>>();
    states.dedup();
    assert_eq!(states, ["+ -", "lost -", "+ -", "+", "+ -"]);
}

#[test]
fn reported_errors_are_returned_once() {
    let seen = samples("2 0 xid 79\n4 0 xid 31\n4 0 xid 13\n3 1 xid 48\n", 6);
    let reported = seen.iter().map(|sample| sample.cards.iter().map(|card| card.xids.clone()).collect::<Vec<_>>());
    let first = reported.clone().flat_map(|cards| cards[0].clone()).collect::<Vec<_>>();
    let second = reported.flat_map(|cards| cards[1].clone()).collect::<Vec<_>>();
    assert_eq!((first, second), (vec![79, 31, 13], vec![48]));
}
