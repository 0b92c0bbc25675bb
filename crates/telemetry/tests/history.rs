//! Histories of samples: written samples read back, damaged files lose only damaged records, and old hours are thinned.

use plimsoll_files::Disk;
use plimsoll_telemetry::{CardLimits, CardSample, History, Sample, SystemSample, Throttling, history, history_span};
use plimsoll_units::Bytes;
use std::fs;
use std::path::Path;

/// The start of a full hour.
const START: f64 = 1_764_000_000.0;

/// A sample with every stored reading, in values that a record can represent.
fn sample(second: u64, cards: u32) -> Sample {
    let card = |index: u32| CardSample {
        index,
        uuid: format!("GPU-{index}"),
        name: "NVIDIA GeForce RTX 4090".to_owned(),
        temperature_c: Some(40.0 + (second % 400) as f64 / 10.0),
        memory_temperature_c: Some(70.0),
        hotspot_temperature_c: None,
        limits: CardLimits { slowdown_c: Some(89.0), ..CardLimits::default() },
        power_w: Some(300.5),
        power_limit_w: Some(450.0),
        energy_j: Some(second as f64 * 300.0),
        sm_clock_mhz: Some(2520),
        memory_clock_mhz: Some(10_501),
        throttling: Some(Throttling(0x44)),
        performance_state: Some(2),
        fan_percent: Some(64),
        busy_percent: Some(98),
        memory_busy_percent: Some(45),
        encoder_percent: Some(0),
        decoder_percent: Some(0),
        total: Some(Bytes::mib(24_564)),
        used: Some(Bytes::mib(20_000)),
        free: Some(Bytes::mib(4_164)),
        reserved: Some(Bytes::mib(400)),
        pcie_generation: Some(4),
        pcie_lanes: Some(16),
        pcie_received_bytes_per_s: Some(1_024_000.0),
        pcie_sent_bytes_per_s: Some(512_000.0),
        pcie_replays: Some(3),
        ecc_corrected: Some(7),
        ecc_uncorrected: Some(0),
        retired_pages: None,
        remapped_rows: Some(5),
        xids: vec![79],
        ..CardSample::default()
    };
    let system = SystemSample {
        cpu_percent: Some(12.5),
        cores: Some(16),
        memory_total: Some(Bytes::gib(64)),
        memory_pressure_percent: Some(0.25),
        disk_free: Some(Bytes::gib(500)),
        ..SystemSample::default()
    };
    Sample { time_s: START + second as f64, cards: (0..cards).map(card).collect(), system }
}

fn opened(run: &Path) -> History {
    History::open(run, Disk::default()).expect("a folder")
}

fn size(run: &Path) -> u64 {
    fs::read_dir(run.join("samples")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn written_samples_read_back() {
    let run = tempfile::tempdir().unwrap();
    assert_eq!(history(run.path(), 0.0..f64::MAX).unwrap(), []);
    assert_eq!(history_span(run.path()), None);
    let written = (0..5).map(|second| sample(second, 2)).collect::<Vec<_>>();
    let mut store = opened(run.path());
    written.iter().for_each(|sample| store.append(sample).unwrap());
    assert_eq!(history(run.path(), 0.0..f64::MAX).unwrap(), written);
    assert_eq!(history(run.path(), START + 1.0..START + 3.0).unwrap(), written[1..3]);
    assert_eq!(history_span(run.path()), Some(START..START + 3600.0));
    // A machine without a card, and one without readings.
    let empty = Sample { time_s: START + 9.0, ..Sample::default() };
    store.append(&empty).unwrap();
    assert_eq!(history(run.path(), START + 9.0..START + 10.0).unwrap(), [empty]);
}

#[test]
fn a_truncated_file_keeps_all_records_before_the_cut() {
    let run = tempfile::tempdir().unwrap();
    let written = (0..3).map(|second| sample(second, 1)).collect::<Vec<_>>();
    let mut store = opened(run.path());
    written.iter().for_each(|sample| store.append(sample).unwrap());
    drop(store);
    let file = fs::read_dir(run.path().join("samples")).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|file| file.extension().is_some_and(|e| e == "bin")).unwrap();
    let whole = fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        fs::write(&file, &whole[..cut]).unwrap();
        let read = history(run.path(), 0.0..f64::MAX).unwrap();
        // Two records per sample: the card's and the system's.
        let complete = cut / 192;
        assert_eq!(read[..complete], written[..complete], "cut at {cut}");
        assert!(read.len() <= complete + 1);
        // The next record is complete again.
        let next = sample(100, 1);
        opened(run.path()).append(&next).unwrap();
        assert_eq!(history(run.path(), START + 50.0..f64::MAX).unwrap(), [next], "cut at {cut}");
    }
}

#[test]
fn damaged_records_are_skipped() {
    let run = tempfile::tempdir().unwrap();
    let mut store = opened(run.path());
    (0..3).for_each(|second| store.append(&sample(second, 1)).unwrap());
    let file = run.path().join("samples").join(format!("s-{:08}.bin", (START / 3600.0) as u64));
    let whole = fs::read(&file).unwrap();
    for at in 192..384 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&file, bytes).unwrap();
        let read = history(run.path(), 0.0..f64::MAX).unwrap();
        assert_eq!((&read[0], read.last()), (&sample(0, 1), Some(&sample(2, 1))), "byte {at}");
        let damaged = read.iter().find(|sample| sample.time_s == START + 1.0).expect("the other record of the second");
        assert!(damaged.cards.is_empty() || damaged.system == SystemSample::default(), "byte {at}");
    }
}

#[test]
fn foreign_files_in_the_folder_are_left_alone() {
    let run = tempfile::tempdir().unwrap();
    let mut store = opened(run.path());
    store.append(&sample(0, 1)).unwrap();
    for name in ["s-1.bin", "x-00490000.bin", "s-0049000é.bin", "s-+0490000.bin", "notes.txt"] {
        fs::write(run.path().join("samples").join(name), "of others").unwrap();
    }
    store.append(&sample(90_000, 1)).unwrap();
    assert_eq!(history(run.path(), 0.0..f64::MAX).unwrap().len(), 2);
    assert_eq!(fs::read_dir(run.path().join("samples")).unwrap().count(), 8);
}

/// A week of one-second samples of four cards is under 50 MB, and its peaks are kept.
#[test]
fn a_week_of_four_cards_is_small_and_keeps_its_peaks() {
    const WEEK_S: u64 = 7 * 86_400;
    let run = tempfile::tempdir().unwrap();
    let mut store = opened(run.path());
    let mut largest = 0;
    let mut now = sample(0, 4);
    for second in 0..WEEK_S {
        now.time_s = START + second as f64;
        now.cards[2].temperature_c = Some(if second == 1000 { 99.5 } else { 40.0 + (second % 400) as f64 / 10.0 });
        store.append(&now).unwrap();
        if second % 3600 == 0 {
            largest = largest.max(size(run.path()));
        }
    }
    assert!(largest.max(size(run.path())) < 50_000_000, "{largest} bytes");
    let all = history(run.path(), 0.0..f64::MAX).unwrap();
    let times = all.iter().map(|sample| sample.time_s).collect::<Vec<_>>();
    assert!(times.is_sorted() && all.iter().all(|sample| sample.cards.len() == 4), "each moment has its four GPUs");
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.clone().all(|gap| gap <= 61.0), "{:?}", gaps.fold(0.0, f64::max));
    let peak = all.iter().map(|sample| sample.cards[2].temperature_c.unwrap()).fold(0.0, f64::max);
    assert_eq!(peak, 99.5);
    // The last hours have a resolution of seconds, older ones of ten seconds, then of minutes.
    let within =
        |hours: f64| all.iter().filter(|sample| sample.time_s >= START + WEEK_S as f64 - 3600.0 * hours).count();
    assert_eq!(within(5.0), 5 * 3600);
    assert_eq!(within(20.0) - within(10.0), 3600);
    assert_eq!(within(60.0) - within(50.0), 600);
    let minute = &all[10].cards[0];
    assert_eq!(
        (minute.power_w, minute.busy_percent, minute.throttling),
        (Some(300.5), Some(98), Some(Throttling(0x44)))
    );
}

/// After a crash between writing the coarser file and removing the finer one, nothing counts twice.
#[test]
fn the_finer_of_two_files_of_an_hour_is_read() {
    let run = tempfile::tempdir().unwrap();
    let mut store = opened(run.path());
    (0..60).for_each(|second| store.append(&sample(second, 1)).unwrap());
    let folder = run.path().join("samples");
    let fine = folder.join(format!("s-{:08}.bin", (START / 3600.0) as u64));
    let kept = fs::read(&fine).unwrap();
    store.append(&sample(7 * 3600, 1)).unwrap();
    assert!(!fine.exists());
    assert_eq!(history(run.path(), START..START + 3600.0).unwrap().len(), 6);
    fs::write(&fine, kept).unwrap();
    assert_eq!(history(run.path(), START..START + 3600.0).unwrap().len(), 60);
    opened(run.path()).append(&sample(8 * 3600, 1)).unwrap();
    assert!(!fine.exists());
    assert_eq!(history(run.path(), START..START + 3600.0).unwrap().len(), 6);
}
