//! Each finding, from samples as a machine would give them: reported once when it begins and once when it ends, and not
//! at all for usual values.

use plimsoll_health::{Cause, Episode, Facts, Finding, Phase, Settings, Watcher};
use plimsoll_telemetry::{CardProcess, CardSample, Level, Sample, SystemSample, Throttling};
use plimsoll_units::{Bytes, Seconds};

fn healthy() -> CardSample {
    let mut card = CardSample {
        uuid: "GPU-a".to_owned(),
        name: "RTX 3060".to_owned(),
        busy_percent: Some(97),
        fan_percent: Some(70),
        throttling: Some(Throttling(4)),
        ecc_corrected: Some(3),
        ecc_uncorrected: Some(0),
        retired_pages: Some(0),
        remapped_rows: Some(1),
        pcie_replays: Some(7),
        pcie_generation: Some(4),
        pcie_lanes: Some(16),
        ..CardSample::default()
    };
    card.limits.pcie_generation_max = Some(4);
    card.limits.pcie_lanes_max = Some(16);
    card.processes = vec![process(1, "plimsoll")];
    card
}

fn process(pid: u32, name: &str) -> CardProcess {
    CardProcess { pid, name: Some(name.to_owned()), uid: None, used: None, computes: true }
}

fn system() -> SystemSample {
    SystemSample {
        memory_total: Some(Bytes::mib(1000)),
        memory_available: Some(Bytes::mib(500)),
        memory_pressure_percent: Some(0.0),
        disk_total: Some(Bytes::mib(100_000)),
        disk_free: Some(Bytes::mib(50_000)),
        ..SystemSample::default()
    }
}

/// Runs a watcher for `seconds` samples, one per second, each changed by `each`, for a run that makes a step per
/// second.
fn observed(
    seconds: u32,
    settings: Settings,
    mut each: impl FnMut(u32, &mut Sample, &mut Facts),
) -> Vec<(u32, Episode)> {
    let mut watcher = Watcher::new(settings);
    let mut reported = vec![];
    let mut facts = Facts { checkpoint: Some(Bytes::mib(1000)), ..Facts::default() };
    for second in 0..seconds {
        facts.steps += 1;
        let mut sample = Sample { time_s: 0.0, cards: vec![healthy()], system: system() };
        each(second, &mut sample, &mut facts);
        let episodes = watcher.observe(Seconds(f64::from(second)), &sample, Some(&facts));
        reported.extend(episodes.into_iter().map(|episode| (second, episode)));
    }
    reported
}

fn of_run() -> Settings {
    Settings {
        cards: Some(vec!["GPU-a".to_owned()]),
        is_guarded: false,
        own_pid: Some(1),
        offloads: false,
        takes_memory: false,
    }
}

/// Kind, second, and whether it begins.
fn kinds(reported: &[(u32, Episode)]) -> Vec<(&'static str, u32, bool)> {
    reported
        .iter()
        .map(|(second, reported)| (reported.finding.kind(), *second, reported.phase == Phase::Begins))
        .collect()
}

/// The findings of a card that `change` modifies from second 100 to 300, of 1,000.
fn card(change: impl Fn(u32, &mut CardSample)) -> Vec<(u32, Episode)> {
    observed(1000, of_run(), |second, sample, _| {
        if (100..300).contains(&second) {
            change(second, &mut sample.cards[0]);
        }
    })
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(observed(5000, of_run(), |_, _, _| {}), []);
    // Nor does a machine without readings.
    let silent = observed(1000, of_run(), |_, sample, _| {
        let card = CardSample { uuid: "GPU-a".to_owned(), ..CardSample::default() };
        *sample = Sample { cards: vec![card], ..Sample::default() };
    });
    assert_eq!(silent, []);
    assert_eq!(observed(1000, of_run(), |_, sample, _| *sample = Sample::default()), []);
}

#[test]
fn a_throttled_card_is_reported_once_with_its_reasons() {
    let reported = card(|_, card| card.throttling = Some(Throttling(0x80)));
    assert_eq!(kinds(&reported), [("throttled", 105, true), ("throttled", 360, false)]);
    assert_eq!(reported[0].1.finding, Finding::Throttled { reasons: Throttling(0x80) });
    assert_eq!(reported[1].1.phase, Phase::Ends(Seconds(200.0)));
    // An intermittent condition is one episode; a single moment does not count; a power limit is usual.
    let fits = card(|second, card| card.throttling = Some(Throttling(if second % 20 < 10 { 0x40 } else { 4 })));
    assert_eq!(kinds(&fits), [("throttled", 105, true), ("throttled", 350, false)]);
    assert_eq!(card(|second, card| card.throttling = Some(Throttling(u64::from(second == 200) * 0x40))), []);
    // If the heat guard reports heat, the watcher does not.
    let guarded = observed(100, Settings { is_guarded: true, ..of_run() }, |_, sample, _| {
        sample.cards[0].throttling = Some(Throttling(0x40));
    });
    assert_eq!(guarded, []);
}

#[test]
fn unusual_memory_and_link_errors_are_reported() {
    let corrected = observed(8000, of_run(), |second, sample, _| {
        sample.cards[0].ecc_corrected = Some(3 + u64::from(second.clamp(100, 120) - 100));
    });
    let [(begins, first), (ends, _)] = &corrected[..] else { panic!("{corrected:?}") };
    assert!(matches!(first.finding, Finding::EccCorrected { more: 10, .. }) && *begins == 110, "{first:?}");
    assert!((3700..3900).contains(ends), "{ends}");
    let few =
        observed(8000, of_run(), |second, sample, _| sample.cards[0].ecc_corrected = Some(u64::from(second / 1000)));
    assert_eq!(few, [], "one every 1,000 s");
    let one = observed(500, of_run(), |second, sample, _| {
        sample.cards[0].ecc_uncorrected = Some(u64::from(second >= 200) + u64::from(second >= 300));
    });
    assert_eq!(kinds(&one), [("ecc", 200, true), ("ecc", 300, true)]);
    assert_eq!(one[0].1.finding.level(), Level::Error);
    let replays = card(|second, card| card.pcie_replays = Some(7 + u64::from(second - 99)));
    assert_eq!(kinds(&replays)[0], ("pcie_replays", 199, true), "{replays:?}");
    let rows =
        observed(500, of_run(), |second, sample, _| sample.cards[0].remapped_rows = Some(1 + u64::from(second >= 200)));
    assert_eq!(kinds(&rows), [("rows", 200, true)]);
    assert!(matches!(rows[0].1.finding, Finding::RowsReplaced { count: 2, more: 1 }));
}

/// A reloaded driver counts from zero, which is not a rise.
#[test]
fn counters_that_are_reset_are_not_errors() {
    let reported = observed(2000, of_run(), |second, sample, _| {
        let count = Some(if second < 1000 { 100_000 } else { 0 });
        let card = &mut sample.cards[0];
        (card.ecc_corrected, card.ecc_uncorrected, card.pcie_replays) = (count, count, count);
        (card.retired_pages, card.remapped_rows) = (count, count);
    });
    assert_eq!(reported, []);
}

#[test]
fn xid_errors_are_reported_per_number_and_rate_limited() {
    let reported = card(|second, card| card.xids = if second == 150 { vec![79, 31] } else { vec![] });
    assert_eq!(kinds(&reported), [("xid", 150, true), ("xid", 150, true)]);
    assert_eq!((reported[0].1.finding.level(), reported[1].1.finding.level()), (Level::Error, Level::Warn));
    let flood = card(|_, card| card.xids = vec![31; 16]);
    let times = flood.iter().map(|(_, reported)| match reported.finding {
        Finding::Xid { number: 31, times } => times,
        _ => panic!("{reported:?}"),
    });
    assert_eq!(times.collect::<Vec<_>>(), [1, 10, 100, 1000]);
    let many = card(|second, card| card.xids = (0..16).map(|n| u64::from(second) * 16 + n).collect());
    assert!(many.len() <= 64, "{}", many.len());
}

#[test]
fn fans_at_full_and_a_narrow_link() {
    assert_eq!(kinds(&card(|_, card| card.fan_percent = Some(100))), [("fans", 160, true), ("fans", 360, false)]);
    assert_eq!(kinds(&card(|s, card| card.fan_percent = Some(if s % 30 == 0 { 80 } else { 100 }))), []);
    let narrow = card(|_, card| card.pcie_lanes = Some(4));
    assert_eq!(kinds(&narrow), [("pcie_narrow", 130, true), ("pcie_narrow", 330, false)]);
    assert_eq!(narrow[0].1.finding, Finding::PcieNarrow { generation: (4, 4), lanes: (4, 16) });
    // An idle card lowers its link speed to save power.
    let idle = observed(1000, Settings::default(), |_, sample, facts| {
        (sample.cards[0].busy_percent, sample.cards[0].pcie_generation) = (Some(0), Some(1));
        facts.steps = 0;
    });
    assert_eq!(idle, []);
}

#[test]
fn a_lost_card_is_reported_and_so_is_its_return() {
    let reported = card(|_, card| card.lost = Some("GPU is lost".to_owned()));
    assert_eq!(kinds(&reported), [("lost", 102, true), ("lost", 305, false)]);
    assert_eq!(reported[0].1.card, Some((0, "RTX 3060".to_owned())));
    let unlisted = observed(500, of_run(), |second, sample, _| {
        if second >= 100 {
            sample.cards.clear();
        }
    });
    assert_eq!(kinds(&unlisted), [("lost", 102, true)]);
    // Cards that the run does not use are not watched.
    let others = observed(500, Settings { cards: Some(vec!["GPU-b".to_owned()]), ..of_run() }, |_, sample, _| {
        sample.cards[0].lost = Some("GPU is lost".to_owned());
    });
    assert_eq!(others, []);
}

#[test]
fn a_loader_that_starves_the_card() {
    let reported = observed(1000, of_run(), |second, sample, facts| {
        if second < 500 {
            facts.waited_for_data_s += 0.4;
            sample.cards[0].busy_percent = Some(55);
        }
    });
    let starved = reported.iter().filter(|(_, reported)| reported.finding.kind() == "starved").collect::<Vec<_>>();
    assert_eq!(starved.len(), 2, "{reported:?}");
    assert!(matches!(starved[0].1.finding, Finding::Starved { waited_percent } if (waited_percent - 40.0).abs() < 3.0));
    let under =
        reported.iter().find(|(_, reported)| reported.finding.kind() == "underused").expect("underused as well");
    assert!(matches!(under.1.finding, Finding::Underused { cause: Cause::Data, .. }));
    // Waiting that leaves the card busy does not starve it, nor does the time of an evaluation or a checkpoint.
    assert_eq!(observed(1000, of_run(), |_, _, facts| facts.waited_for_data_s += 0.05), []);
    let saving = observed(1000, of_run(), |_, sample, facts| {
        facts.steps = 5;
        facts.waited_for_data_s += 0.9;
        sample.cards[0].busy_percent = Some(0);
    });
    assert_eq!(saving, []);
}

#[test]
fn low_utilization_is_reported_with_its_cause() {
    let cause = |settings: Settings, change: &dyn Fn(&mut CardSample)| {
        let reported = observed(400, settings, |_, sample, _| {
            sample.cards[0].busy_percent = Some(60);
            change(&mut sample.cards[0]);
        });
        let found = reported.into_iter().find_map(|(second, reported)| match reported.finding {
            Finding::Underused { busy_percent, cause } => Some((second, busy_percent, cause)),
            _ => None,
        });
        let (second, busy, cause) = found.expect("underused");
        assert!((110..200).contains(&second) && (busy - 60.0).abs() < 1e-9, "{second} {busy}");
        cause
    };
    assert_eq!(cause(of_run(), &|_| {}), Cause::SmallBatches);
    assert_eq!(cause(of_run(), &|card| card.throttling = Some(Throttling(0x80))), Cause::Throttled);
    let offloads = Settings { offloads: true, ..of_run() };
    assert_eq!(cause(offloads.clone(), &|_| {}), Cause::Host);
    assert_eq!(cause(offloads, &|card| card.pcie_lanes = Some(4)), Cause::Pcie);
    let other = |card: &mut CardSample| card.processes.push(process(9, "python"));
    assert_eq!(cause(of_run(), &other), Cause::Others(vec!["python (9)".to_owned()]));
    // In a container, the process ID of the run is unknown.
    let container = Settings { own_pid: Some(77), ..of_run() };
    assert_eq!(cause(container.clone(), &|_| {}), Cause::SmallBatches);
    assert_eq!(cause(container, &other), Cause::Others(vec!["python (9)".to_owned()]));
    // A run that is slowed for heat is not judged.
    let held_back = observed(1000, of_run(), |_, sample, facts| {
        sample.cards[0].busy_percent = Some(40);
        facts.held_back_s += 0.6;
    });
    assert_eq!(held_back, []);
}

#[test]
fn a_filling_disk_is_reported_before_it_is_full() {
    let nearly = observed(500, of_run(), |second, sample, _| {
        sample.system.disk_free = Some(Bytes::mib(if (100..300).contains(&second) { 1200 } else { 50_000 }));
    });
    assert_eq!(kinds(&nearly), [("disk", 100, true), ("disk", 360, false)]);
    assert!(matches!(nearly[0].1.finding, Finding::DiskNearlyFull { full_in: None, .. }));
    // Space for the next checkpoint is enough, since the previous one may be deleted after it is saved.
    let enough = observed(500, of_run(), |_, sample, _| sample.system.disk_free = Some(Bytes::mib(1400)));
    assert_eq!(enough, []);
    let full = observed(500, of_run(), |second, sample, _| {
        sample.system.disk_free = Some(Bytes::mib(if second < 100 { 50_000 } else { 900 }));
    });
    assert_eq!(kinds(&full), [("disk", 100, true)]);
    assert!(matches!(full[0].1.finding, Finding::DiskFull { .. }) && full[0].1.finding.level() == Level::Error);
    // At 10 MiB per second the disk will be full within the hour, which is known after ten minutes.
    let fills = observed(700, of_run(), |second, sample, _| {
        sample.system.disk_free = Some(Bytes::mib(30_000 - 10 * u64::from(second)));
    });
    assert_eq!(kinds(&fills), [("disk", 600, true)]);
    let Finding::DiskNearlyFull { full_in: Some(left), .. } = fills[0].1.finding else { panic!("{fills:?}") };
    assert!((left.0 - 2300.0).abs() < 30.0, "{left:?}");
}

#[test]
fn low_memory_is_reported_with_the_tightest_limit() {
    let during = |change: &dyn Fn(&mut SystemSample)| {
        observed(500, of_run(), |second, sample, _| {
            if (100..300).contains(&second) {
                change(&mut sample.system);
            }
        })
    };
    let short = during(&|system| system.memory_available = Some(Bytes::mib(20)));
    assert_eq!(kinds(&short), [("memory", 120, true), ("memory", 360, false)]);
    let waiting = during(&|system| system.memory_pressure_percent = Some(30.0));
    assert!(matches!(waiting[0].1.finding, Finding::MemoryShort { waiting_percent: Some(30.0), .. }));
    let group = during(&|system| {
        (system.group_limit, system.group_used) = (Some(Bytes::mib(100)), Some(Bytes::mib(99)));
    });
    let available = Some(Bytes::mib(1));
    assert!(
        matches!(group[0].1.finding, Finding::MemoryShort { is_group: true, available: left, .. } if left == available)
    );
    assert_eq!(during(&|system| system.memory_pressure_percent = Some(7.0)), []);
    // Memory that the run's plan uses does not count as a shortage; waiting for memory does.
    let of_processor = |waiting| {
        observed(500, Settings { takes_memory: true, ..of_run() }, |_, sample, _| {
            sample.system.memory_available = Some(Bytes::mib(1));
            sample.system.memory_pressure_percent = Some(waiting);
        })
    };
    assert_eq!((of_processor(0.0).len(), of_processor(50.0).len()), (0, 1));
}

/// Times that go back and absurd readings cause no panic and no flood of findings.
#[test]
fn absurd_samples_cause_no_panic_and_no_flood() {
    let mut watcher = Watcher::new(of_run());
    let mut count = 0;
    for second in 0..20_000_u64 {
        let wild = second.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut sample = Sample { time_s: 0.0, cards: vec![healthy()], system: system() };
        let card = &mut sample.cards[0];
        (card.busy_percent, card.fan_percent) = (Some(wild as u32), Some((wild >> 20) as u32 % 200));
        (card.ecc_corrected, card.remapped_rows) = (Some(wild), Some(wild >> 3));
        card.retired_pages = Some(wild >> 1);
        sample.system.memory_pressure_percent = Some(f64::from((wild >> 30) as u32));
        sample.system.disk_total = Some(Bytes(wild));
        let time = if second % 50 == 0 { f64::NAN } else { (wild % 100_000) as f64 - 50_000.0 };
        count += watcher.observe(Seconds(time), &sample, None).len();
    }
    assert!(count < 20_000, "{count}");
}
