//! NVIDIA cards, read from stand-ins for the driver's library. Environment variables describe a machine, so each is
//! read in a separate process: the test `reader` of this file.

use plimsoll_telemetry::{CardPlace, GpuError, Gpus, PcieLink, card_place, gpus, gpus_from};
use serde_json::{Value, json};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

const ANSWER: &str = "PLIMSOLL_TEST_ANSWER";
const RTX_3060: &str = "NVIDIA GeForce RTX 3060,GPU-aaaa0000-0000,12288,350,1200";
const RTX_3060_TWIN: &str = "NVIDIA GeForce RTX 3060,GPU-bbbb0000-0000,12288,350,0";
const RTX_4090: &str = "NVIDIA GeForce RTX 4090,GPU-cccc0000-0000,24564,400,0";
const MIB: u64 = 1 << 20;

#[test]
#[ignore = "run by the other tests, in a separate process"]
fn reader() {
    if let Some(answer) = env::var_os(ANSWER) {
        let read = gpus().map_err(|error| error.to_string());
        fs::write(answer, serde_json::to_string(&read).expect("plain data")).expect("written");
    }
}

#[test]
#[ignore = "run by the other tests, in a separate process"]
fn placer() {
    if let Some(answer) = env::var_os(ANSWER) {
        let places = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"].map(card_place);
        fs::write(answer, format!("{places:?}")).expect("written");
    }
}

/// An idle card lowers its generation, not the one that the slot allows.
#[test]
fn the_place_of_a_card_is_its_link_and_its_display() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [answer, script] = ["answer", "script"].map(|name| folder.path().join(name));
    let readings = [
        "0 0 pcie_generation 1",
        "0 0 pcie_generation_max 3",
        "0 0 pcie_lanes 8",
        "0 0 pcie_lanes_max 16",
        "0 0 display_active 1",
        "0 1 pcie_generation_max 4",
        "0 1 pcie_lanes 16",
        "0 1 display_active 0",
        "0 2 pcie_generation_max 300",
        "0 2 pcie_lanes 16",
    ];
    fs::write(&script, readings.join("\n") + "\n").expect("written");
    let cards = ["a", "b", "c"].map(|name| format!("NVIDIA GeForce RTX 3060,GPU-{name},12288,350,0"));
    let status = Command::new(env::current_exe().expect("a path"))
        .args(["--ignored", "--exact", "placer"])
        .env("PLIMSOLL_NVML", plimsoll_fake_nvml::library())
        .env(plimsoll_fake_nvml::MACHINE, cards.join(";"))
        .env(plimsoll_fake_nvml::SCRIPT, &script)
        .env(ANSWER, &answer)
        .status();
    assert!(status.expect("a process").success());
    let place = |link: Option<(u8, u8)>, drives_display| CardPlace {
        link: link.map(|(generation, lanes)| PcieLink { generation, lanes }),
        drives_display,
    };
    let expected = [place(Some((3, 8)), true), place(Some((4, 16)), false), place(None, false), place(None, false)];
    assert_eq!(fs::read_to_string(answer).expect("an answer"), format!("{expected:?}"));
}

/// Reads a machine in a process with these variables.
fn read(machine: impl Into<OsString>, variables: &[(&str, &str)]) -> Result<Gpus, String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let answer = folder.path().join("answer.json");
    let output = Command::new(env::current_exe().expect("a path"))
        .args(["--ignored", "--exact", "reader"])
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_DEVICE_ORDER")
        .env("PLIMSOLL_NVML", plimsoll_fake_nvml::library())
        .env(plimsoll_fake_nvml::MACHINE, machine.into())
        .env(ANSWER, &answer)
        .envs(variables.iter().copied())
        .output()
        .expect("a process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(&answer).expect("an answer")).expect("what the reader wrote")
}

fn cuda_indices(gpus: &Gpus) -> Vec<Option<usize>> {
    gpus.cards.iter().map(|card| card.cuda_index).collect()
}

fn notes(gpus: &Gpus) -> Vec<String> {
    gpus.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_card_is_read_with_units_in_its_keys() {
    let gpus = read(RTX_3060, &[]).expect("a card");
    assert_eq!(gpus.by_cuda_index(0).map(|card| card.index), Some(0));
    assert_eq!(gpus.by_cuda_index(1), None);
    let expected = json!({
        "driver": "580.95.05",
        "cards": [{
            "index": 0,
            "cuda_index": 0,
            "name": "NVIDIA GeForce RTX 3060",
            "uuid": "GPU-aaaa0000-0000",
            "total_bytes": 12288 * MIB,
            "reserved_bytes": 350 * MIB,
            "used_bytes": 1200 * MIB,
            "free_bytes": (12288 - 350 - 1200) * MIB,
            "temperature_c": 50,
            "power_limit_w": 170.0,
        }],
        "notes": [],
    });
    assert_eq!(serde_json::to_value(&gpus).expect("plain data"), expected);
}

#[test]
fn cuda_visible_devices_numbers_and_hides_cards() {
    let alike = format!("{RTX_3060};{RTX_3060_TWIN}");
    let seen = |value| read(&alike, &[("CUDA_VISIBLE_DEVICES", value)]).expect("cards");
    assert_eq!(cuda_indices(&read(&alike, &[]).expect("cards")), [Some(0), Some(1)]);
    assert_eq!(cuda_indices(&seen("1,0")), [Some(1), Some(0)]);
    assert_eq!(cuda_indices(&seen("GPU-bbbb")), [None, Some(0)]);
    assert_eq!((cuda_indices(&seen("")), notes(&seen(""))), (vec![None, None], vec![]));
    for (value, expected) in [
        ("0,2", "`2` matches no GPU"),
        ("MIG-aaaa/1/0", "is a MIG instance, which is not listed"),
        ("0,0", "hides all GPUs"),
    ] {
        let notes = notes(&seen(value));
        assert!(notes.len() == 1 && notes[0].contains(expected), "{value}: {notes:?}");
    }
}

/// Programs see an instance of it, whose memory NVML does not report here.
#[test]
fn a_card_in_mig_mode_has_no_number_in_cuda() {
    let gpus = read(format!("{RTX_3060},mig=1;{RTX_3060_TWIN}"), &[]).expect("cards");
    assert_eq!(cuda_indices(&gpus), [None, Some(1)]);
    assert_eq!(notes(&gpus), ["GPU 0 is in MIG mode; CUDA shows an instance of it, which is not listed here"]);
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn a_truncated_library_is_not_a_driver() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("libnvidia-ml.so.1");
    let whole = fs::read(plimsoll_fake_nvml::library()).expect("the stand-in");
    fs::write(&file, &whole[..4096]).expect("written");
    let error = gpus_from(&file).expect_err("no library");
    assert!(error.to_string().contains("is cut off"), "{error}");
}

#[test]
fn numbers_of_different_models_are_doubtful_unless_the_order_is_known() {
    let unlike = format!("{RTX_3060};{RTX_4090}");
    let doubts = |variables| notes(&read(&unlike, variables).expect("cards")).len();
    assert_eq!(doubts(&[]), 1);
    assert_eq!(doubts(&[("CUDA_VISIBLE_DEVICES", "1")]), 1);
    assert_eq!(doubts(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]), 1);
    assert_eq!(doubts(&[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]), 0);
    assert_eq!(doubts(&[("CUDA_VISIBLE_DEVICES", "GPU-cccc,GPU-aaaa")]), 0);
    assert_eq!(doubts(&[("CUDA_VISIBLE_DEVICES", "")]), 0);
}

#[test]
fn without_the_second_memory_call_used_includes_reserved() {
    for code in ["13", "25", "999"] {
        let gpus = read(format!("{RTX_3060},memory_v2={code}"), &[]).expect("a card");
        let card = &gpus.cards[0];
        assert_eq!((card.reserved, card.used.0, card.free.0), (None, 1550 * MIB, 10738 * MIB), "{code}");
    }
}

#[test]
fn absent_sensors_are_none() {
    let gpus = read(format!("{RTX_3060},sensors=3"), &[]).expect("a card");
    assert_eq!((gpus.cards[0].temperature_c, gpus.cards[0].power_limit_w), (None, None));
}

#[test]
fn an_unreadable_card_is_skipped_with_a_note() {
    for (broken, what) in [
        ("A,GPU-d,1,0,0,error=15", "GPU 0 is skipped, its handle can't be read: device fell off the bus"),
        ("A,GPU-d,1,0,0,error=4242", "unexpected enum variant value: 4242"),
        ("A,GPU-d,0,0,0", "a total of 0 B"),
        ("A,GPU-d,1,0,2", "a total of 1.00 MiB with 2.00 MiB used"),
    ] {
        let gpus = read(format!("{broken};{RTX_3060}"), &[]).expect("the other card");
        assert_eq!(gpus.cards.iter().map(|card| card.index).collect::<Vec<_>>(), [1]);
        assert!(gpus.notes.len() == 1 && notes(&gpus)[0].contains(what), "{:?}", notes(&gpus));
    }
    let long = format!("{},GPU-d,1,0,0", "A".repeat(1000));
    assert!(
        notes(&read(long, &[]).expect("no card"))[0]
            .contains("its name can't be read: an input argument is not large enough")
    );
}

#[cfg(unix)]
#[test]
fn a_name_that_is_not_utf_8_is_reported() {
    use std::os::unix::ffi::OsStringExt;
    let gpus = read(OsString::from_vec(b"GeForce\xff,GPU-d,1,0,0".to_vec()), &[]).expect("no card");
    assert_eq!(gpus.cards, []);
    assert!(
        notes(&gpus)[0].contains("its name can't be read: could not interpret string as utf-8"),
        "{:?}",
        notes(&gpus)
    );
}

#[test]
fn a_machine_without_cards_has_none() {
    let none = json!({"driver": "580.95.05", "cards": [], "notes": []});
    assert_eq!(serde_json::to_value(read("", &[])).expect("plain data"), json!({"Ok": none}));
}

#[test]
fn a_driver_that_does_not_respond_is_an_error() {
    for (machine, expected) in [
        ("init=9", "no NVIDIA driver (NVIDIA driver is not loaded)"),
        ("init=18", "restart the machine"),
        ("init=4", "failed at starting: the current user does not have permission"),
        ("count=4294967295", "reports 4294967295 GPUs"),
    ] {
        let error = read(machine, &[]).expect_err("no answer");
        assert!(error.contains(expected), "{machine}: {error}");
    }
    let absent = read("", &[("PLIMSOLL_NVML", "/nowhere/libnvidia-ml.so.1")]).expect_err("no library");
    assert!(absent.contains("/nowhere/libnvidia-ml.so.1"), "{absent}");
}

#[test]
fn a_file_that_is_not_a_library_is_not_a_driver() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("libnvidia-ml.so.1");
    fs::write(&file, "not a library").expect("written");
    for path in [&file, Path::new("/nowhere/libnvidia-ml.so.1")] {
        assert!(matches!(gpus_from(path), Err(GpuError::NoDriver { .. })), "{}", path.display());
    }
}

/// The wrapper panics when it shuts down an NVML that lacks the function for it.
#[test]
fn a_library_that_lacks_functions_is_an_error_and_not_a_panic() {
    let error = gpus_from(plimsoll_fake_nvml::bare_library()).expect_err("no count");
    assert!(matches!(error, GpuError::Failed { what: "counting GPUs", .. }), "{error}");
}

#[test]
fn a_count_above_the_known_cards_is_noted_per_card() {
    let gpus: Value = serde_json::to_value(read(format!("count=2;{RTX_3060}"), &[]).expect("a card")).expect("data");
    assert_eq!(gpus["notes"][0]["note"], "unreadable");
    assert_eq!(gpus["notes"][0]["index"], 1);
}
