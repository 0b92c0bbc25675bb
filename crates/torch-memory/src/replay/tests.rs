//! Records random programs on the simulated allocator, under all settings and on cards that are too small; the
//! recordings are written, read and cut, and must replay without a difference. Planted differences must be detected.

use super::*;
use crate::allocator::{BlockId, Request};
use crate::record::{Recorder, write};
use crate::snapshot::{Action, AllocatorSettings, Snapshot};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// A step of a program.
#[derive(Debug, Clone)]
enum Step {
    /// Sometimes from the pool of a CUDA graph.
    Allocate {
        bytes: u64,
        stream: u64,
        of_graph: bool,
    },
    /// Frees one of the blocks in use.
    Free(prop::sample::Index),
    /// Frees one that another stream still uses.
    GiveBack(prop::sample::Index),
    /// Other streams have finished using all freed blocks.
    Synchronize,
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => 1..4096u64,
        3 => 4096..MIB,
        3 => MIB..12 * MIB,
        2 => 12 * MIB..90 * MIB,
        // Sizes recur in training.
        4 => prop::sample::select(vec![512, 2048, 300_000, MIB, 2 * MIB, 5 * MIB, 16 * MIB, 40 * MIB]),
    ];
    prop_oneof![
        10 => (bytes, 0..2u64, prop::bool::weighted(0.1)).prop_map(|(bytes, stream, of_graph)| Step::Allocate { bytes, stream, of_graph }),
        8 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
        1 => Just(Step::Synchronize),
        1 => Just(Step::EmptyCache),
    ]
}

/// Records a program. Allocations that run out of memory are skipped.
fn record(settings: &AllocatorSettings, capacity: u64, steps: &[Step]) -> Recorder {
    // A limit below the card's memory, if garbage is collected above a fraction of it.
    let allowed = (settings.garbage_collection_threshold > 0.0).then_some(capacity);
    let mut recorder = Recorder::new(settings.clone(), 2 * capacity, allowed);
    if allowed.is_none() {
        recorder = Recorder::new(settings.clone(), capacity, None);
    }
    let stack = recorder.stack(&[("forward", "model.py", 12), ("main", "train.py", 90)]);
    let (mut used, mut pending): (Vec<BlockId>, Vec<BlockId>) = (vec![], vec![]);
    for step in steps {
        match step {
            Step::Allocate { bytes, stream, of_graph } => {
                // With a split limit, a pool's segments may be freed, and their pool is not recorded.
                let of_graph = *of_graph && settings.max_split_bytes.is_none();
                let request = Request { bytes: *bytes, stream: *stream, pool: (0, u64::from(of_graph)) };
                used.extend(recorder.allocate(request, stack));
            }
            Step::Free(index) if !used.is_empty() => recorder.free(used.swap_remove(index.index(used.len()))),
            Step::GiveBack(index) if !used.is_empty() => {
                let block = used.swap_remove(index.index(used.len()));
                recorder.give_back(block);
                pending.push(block);
            }
            Step::Synchronize => pending.drain(..).for_each(|block| recorder.complete(block)),
            Step::EmptyCache => recorder.empty_cache(stack),
            Step::Free(_) | Step::GiveBack(_) => {}
        }
    }
    recorder
}

fn settings(conf: &str) -> AllocatorSettings {
    let mut settings = AllocatorSettings::default();
    assert_eq!(settings.set(conf), []);
    settings
}

/// Settings whose effects depend only on recorded data.
const CONFS: &[&str] = &[
    "",
    "max_split_size_mb:32",
    "max_split_size_mb:64,roundup_power2_divisions:4",
    "roundup_power2_divisions:[2:1,4:2,>:8]",
    "large_segment_size_mb:40",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:2",
];

/// With garbage collection, ages count from the start of the recording, and the reason for returned memory is not
/// recorded.
const CONFS_FROM_THE_BEGINNING: &[&str] =
    &["garbage_collection_threshold:0.6", "garbage_collection_threshold:0.3,max_split_size_mb:40"];

/// Writes and reads the snapshot, as for a user's file.
fn read_back(snapshot: &Snapshot) -> Snapshot {
    let read = Snapshot::read(&write(snapshot)).expect("a written snapshot is valid");
    assert_eq!(read.unknown, [] as [String; 0]);
    let segments = |snapshot: &Snapshot| snapshot.cards.iter().map(|card| card.segments.len()).sum::<usize>();
    assert_eq!(segments(&read), segments(snapshot));
    read
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    #[test]
    fn a_recording_from_the_beginning_is_replayed(
        conf in prop::sample::select([CONFS, CONFS_FROM_THE_BEGINNING].concat()),
        capacity in 100..600u64,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let settings = settings(conf);
        let snapshot = read_back(&record(&settings, capacity * MIB, &steps).snapshot(usize::MAX));
        prop_assert_eq!(&snapshot.settings, &settings);
        for card in &snapshot.cards {
            let replay = replay(card, &settings);
            prop_assert!(replay.agreement.is_whole(), "{:?}", replay.agreement);
            prop_assert!(replay.start.ranges.is_empty(), "the recording starts empty");
            prop_assert_eq!(replay.memory.len(), card.events.len() + 1);
        }
    }

    /// The ring has lost the first events: the state there is inferred.
    #[test]
    fn a_recording_from_the_middle_is_replayed(
        conf in prop::sample::select(CONFS), capacity in 100..600u64, steps in prop::collection::vec(step(), 20..150),
        kept in any::<prop::sample::Index>(),
    ) {
        let settings = settings(conf);
        let recorder = record(&settings, capacity * MIB, &steps);
        let all = recorder.snapshot(usize::MAX);
        let Some(events) = all.cards.first().map(|card| card.events.len()).filter(|events| *events > 0) else { return Ok(()) };
        let snapshot = read_back(&recorder.snapshot(kept.index(events) + 1));
        let replay = replay(&snapshot.cards[0], &settings);
        prop_assert!(replay.agreement.is_whole(), "{:?}\n{:#?}\n{:#?}", replay.agreement, replay.start, snapshot.cards[0].events);
    }
}

/// A block received all of a free block of 11 MiB, although it was rounded to 10 MiB, before the recording started. The
/// first allocation after it in its segment reveals this; one in the next segment in memory does not.
#[test]
fn a_blocks_size_is_inferred_from_its_own_segment() {
    let mut recorder = Recorder::new(settings("roundup_power2_divisions:[2:1,4:2,>:8]"), 372 * MIB, None);
    let stack = recorder.stack(&[("forward", "model.py", 12)]);
    let allocate = |recorder: &mut Recorder, bytes| {
        recorder.allocate(Request { bytes, stream: 0, pool: (0, 0) }, stack).expect("there is room")
    };
    let segment = allocate(&mut recorder, 36 * MIB);
    recorder.free(segment);
    let first = allocate(&mut recorder, 11 * MIB);
    let rest = allocate(&mut recorder, 5 * MIB);
    recorder.free(first);
    let block = allocate(&mut recorder, 10_187_056);
    recorder.free(rest);
    let small = allocate(&mut recorder, 1000);
    recorder.free(small);
    let before = recorder.snapshot(usize::MAX).cards[0].events.len();
    // The small segment follows in memory.
    allocate(&mut recorder, 281_280);
    allocate(&mut recorder, 3_342_314);
    recorder.free(block);
    let all = recorder.snapshot(usize::MAX).cards[0].events.len();
    let snapshot = read_back(&recorder.snapshot(all - before));
    let replay = replay(&snapshot.cards[0], &snapshot.settings);
    assert!(replay.agreement.is_whole(), "{:?}", replay.agreement);
    let part = replay.start.blocks.iter().find(|block| block.requested == 10_187_056).expect("it was there");
    assert_eq!(part.bytes, 11 * MIB);
}

/// A program with blocks of all kinds, recorded under `conf`.
fn small_recording(conf: &str) -> Snapshot {
    let mut recorder = Recorder::new(settings(conf), 800 * MIB, None);
    let stack = recorder.stack(&[("forward", "model.py", 12)]);
    let allocate = |recorder: &mut Recorder, bytes| {
        recorder.allocate(Request { bytes, stream: 0, pool: (0, 0) }, stack).expect("there is room")
    };
    let weights = [40 * MIB, 40 * MIB, 3 * MIB, 1000].map(|bytes| allocate(&mut recorder, bytes));
    for bytes in [5 * MIB, 50 * MIB, 60 * MIB, 200_000] {
        let blocks = [bytes, 2 * bytes, bytes].map(|bytes| allocate(&mut recorder, bytes));
        blocks.into_iter().for_each(|block| recorder.free(block));
    }
    recorder.free(weights[0]);
    recorder.empty_cache(stack);
    allocate(&mut recorder, 30 * MIB);
    recorder.snapshot(usize::MAX)
}

#[track_caller]
fn agreement_of(snapshot: &Snapshot) -> Agreement {
    replay(&snapshot.cards[0], &snapshot.settings).agreement
}

/// The comparison distinguishes a recording under one setting from another.
#[test]
fn other_settings_are_detected() {
    for recorded in ["", "max_split_size_mb:32", "expandable_segments:True", "roundup_power2_divisions:2"] {
        for claimed in ["", "max_split_size_mb:32", "expandable_segments:True", "roundup_power2_divisions:2"] {
            let mut snapshot = small_recording(recorded);
            snapshot.settings = settings(claimed);
            assert_eq!(agreement_of(&snapshot).is_whole(), recorded == claimed, "{recorded:?} as {claimed:?}");
        }
    }
}

/// Each change of a recording is detected, and counted in the right place.
#[test]
fn planted_differences_are_detected() {
    let whole = small_recording("");
    let events = &whole.cards[0].events;
    let of_action = |action| events.iter().rposition(|event| event.action == action).expect("the program has all");
    let change = |edit: &dyn Fn(&mut Vec<crate::snapshot::TraceEvent>)| {
        let mut snapshot = whole.clone();
        edit(&mut snapshot.cards[0].events);
        agreement_of(&snapshot)
    };
    assert!(change(&|_| {}).is_whole());
    // The driver receives one segment less, or a different one.
    let released = of_action(Action::SegmentFree);
    let without = |index: usize| {
        change(&|events| {
            events.remove(index);
        })
    };
    let agreement = without(released);
    assert!(!agreement.is_whole(), "{agreement:?}");
    let agreement = change(&|events| events[released].bytes += 2 * MIB);
    assert_eq!(agreement.segment_events.equal, agreement.segment_events.recorded - 1, "{agreement:?}");
    // A segment is larger than PyTorch's request.
    let taken = of_action(Action::SegmentAlloc);
    let agreement = change(&|events| events[taken].bytes += 2 * MIB);
    assert_eq!(agreement.segment_events.equal, agreement.segment_events.recorded - 1, "{agreement:?}");
    assert!(matches!(&agreement.first[0], Difference::Segments { .. }));
    // A block has another address, in free memory, so that only the address is inconsistent.
    let allocated = events.iter().position(|event| event.action == Action::Alloc && event.bytes == 120 * MIB);
    let (allocated, moved) = (allocated.expect("one of them"), 1 << 50);
    let at = events[allocated].address;
    let until =
        events[allocated..].iter().position(|event| event.action == Action::FreeCompleted && event.address == at);
    let agreement = change(&|events| {
        let theirs = events[allocated..=allocated + until.expect("it is freed")].iter_mut();
        theirs
            .filter(|event| event.address == at && event.action != Action::SegmentAlloc)
            .for_each(|event| event.address = moved);
    });
    assert_eq!(agreement.addresses.equal, agreement.addresses.events - 1, "{agreement:?}");
    assert_eq!(agreement.contradictions, 0);
    let differs = Difference::Address { event: allocated, recorded: moved, simulated: at };
    assert!(agreement.first.contains(&differs), "{agreement:?}");
    // An event is missing.
    let freed = of_action(Action::FreeCompleted);
    let agreement = without(freed);
    assert!(!agreement.is_whole(), "{agreement:?}");
    let first = of_action(Action::Alloc);
    let agreement = without(first);
    assert!(!agreement.is_whole(), "{agreement:?}");
}

/// A snapshot with contradictions only loses agreement.
#[test]
fn events_without_memory_are_counted() {
    let mut snapshot = small_recording("");
    snapshot.cards[0].segments.clear();
    assert!(agreement_of(&snapshot).contradictions > 0);
    let mut snapshot = small_recording("expandable_segments:True");
    snapshot.cards[0].events.reverse();
    assert!(agreement_of(&snapshot).contradictions > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 2))]

    /// Any file is replayed or refused.
    #[test]
    fn no_recording_causes_a_panic(
        conf in prop::sample::select(CONFS),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        moves in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4u8), 0..8),
    ) {
        let mut snapshot = small_recording(conf);
        for (a, b, kind) in moves {
            let events = &mut snapshot.cards[0].events;
            let (a, b) = (a.index(events.len()), b.index(events.len()));
            match kind {
                0 => events.swap(a, b),
                1 => events[a].address = events[b].address,
                2 => events[a].bytes = events[b].bytes,
                _ => events[a].action = events[b].action,
            }
        }
        for card in &snapshot.cards {
            replay(card, &snapshot.settings);
        }
        let mut bytes = write(&snapshot);
        for (place, byte) in edits {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Ok(snapshot) = Snapshot::read(&bytes) {
            for card in &snapshot.cards {
                replay(card, &snapshot.settings);
            }
        }
    }
}
