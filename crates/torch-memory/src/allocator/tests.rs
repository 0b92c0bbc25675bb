//! The behavior of PyTorch's allocator, derived by hand from its source: the block for each request, and the calls to
//! the driver. Recordings of simulated programs can't show that the simulation matches PyTorch; these can.
//!
//! A script is a line of requests `name=MiB` (or `name=bytes b`), `name=MiB/stream`, frees `-name` and `empty`. Its
//! result: `name S1+3` is a block at 3 MiB in the second segment, `[4]` is its size, `+20` and `-20` are MiB allocated
//! from and returned to the driver.

use super::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// A size in MiB, plus bytes for the remainder.
fn size(bytes: u64) -> String {
    match (bytes / MIB, bytes % MIB) {
        (mib, 0) => mib.to_string(),
        (0, bytes) => format!("{bytes}b"),
        (mib, bytes) => format!("{mib}.{bytes}b"),
    }
}

fn played(conf: &str, capacity: u64, allowed: Option<u64>, script: &str) -> String {
    let mut settings = AllocatorSettings::default();
    assert_eq!(settings.set(conf), []);
    let mut card = Card::new(capacity * MIB);
    let mut allocator = Allocator::new(settings, allowed.map(|mib| mib * MIB));
    let mut blocks = BTreeMap::new();
    let mut segments: Vec<u64> = vec![];
    let mut results = vec![];
    for step in script.split_whitespace() {
        let mut made = None;
        if step == "empty" {
            allocator.release_cached(&mut card);
        } else if let Some(name) = step.strip_prefix('-') {
            allocator.free(blocks.remove(name).expect("it is in use"));
        } else {
            let (name, rest) = step.split_once('=').expect("a request");
            let (bytes, stream) =
                rest.split_once('/').map_or((rest, 0), |(bytes, stream)| (bytes, stream.parse().unwrap()));
            let bytes = match bytes.strip_suffix('b') {
                Some(bytes) => bytes.parse().unwrap(),
                None => bytes.parse::<u64>().unwrap() * MIB,
            };
            let block = allocator.allocate(Request { bytes, stream, pool: (0, 0) }, &mut card);
            made = Some((name, block));
        }
        for DriverEvent { kind, address, bytes, .. } in allocator.take_driver_events() {
            let is_new = !segments.iter().any(|known| address >= *known && address < known + (1 << 40));
            match kind {
                DriverEventKind::Take => segments.push(address),
                DriverEventKind::Map if is_new => segments.push(address),
                _ => {}
            }
            let sign = if matches!(kind, DriverEventKind::Take | DriverEventKind::Map) { '+' } else { '-' };
            results.push(format!("{sign}{}", size(bytes)));
        }
        match made {
            None => {}
            Some((name, Err(OutOfMemory))) => results.push(format!("{name} none")),
            Some((name, Ok(block))) => {
                let address = allocator.address(block);
                let (index, segment) = segments.iter().enumerate().rfind(|(_, begin)| **begin <= address).unwrap();
                results.push(format!("{name} S{index}+{}[{}]", size(address - segment), size(allocator.bytes(block))));
                blocks.insert(name, block);
            }
        }
    }
    results.join(" ")
}

#[track_caller]
fn check(conf: &str, script: &str, expected: &str) {
    assert_eq!(played(conf, 1000, None, script), expected);
}

#[test]
fn small_requests_share_segments_of_2_mib_and_large_ones_of_20() {
    check(
        "",
        "a=1b b=513b c=1 d=1048577b e=2",
        "+2 a S0+0[512b] b S0+512b[1024b] c S0+1536b[1] +20 d S1+0[1.512b] e S1+1.512b[2]",
    );
}

/// From 10 MiB on, a segment is as large as the request, in multiples of 2 MiB. A rest of up to 1 MiB stays in its
/// block; a larger one is split off.
#[test]
fn segments_of_their_own_and_rests() {
    check("", "a=10485759b b=11 c=11533825b", "+10 a S0+0[10] +12 b S1+0[12] +12 c S2+0[12]");
    check("", "a=10485761b b=1048577b", "+12 a S0+0[10.512b] b S0+10.512b[1.1048064b]");
    check("", "a=19922433b -a b=9437185b", "+20 a S0+0[20] b S0+0[9.512b]");
}

/// The smallest block that fits wins, of equal ones the lowest; free neighbors are merged.
#[test]
fn best_fit_and_merging() {
    check(
        "",
        "a=40 b=30 c=50 -a -c -b d=25 e=38 f=5",
        "+40 a S0+0[40] +30 b S1+0[30] +50 c S2+0[50] d S1+0[25] e S0+0[38] f S1+25[5]",
    );
    check(
        "",
        "a=4 b=4 c=4 d=4 -b -c e=7 -a -e f=12",
        "+20 a S0+0[4] b S0+4[4] c S0+8[4] d S0+12[4] e S0+4[8] f S0+0[12]",
    );
    check("", "a=30 b=30 -b -a c=30", "+30 a S0+0[30] +30 b S1+0[30] c S0+0[30]");
}

#[test]
fn streams_do_not_share() {
    check("", "a=30/1 -a b=30/2 c=30/1", "+30 a S0+0[30] +30 b S1+0[30] c S0+0[30]");
}

/// With a limit, larger blocks are not split, and only serve requests at most 20 MiB smaller.
#[test]
fn oversize_blocks_are_kept_whole() {
    let conf = "max_split_size_mb:32";
    check(conf, "a=40 -a b=30 c=33", "+40 a S0+0[40] +30 b S1+0[30] c S0+0[40]");
    check(conf, "a=60 -a b=41 -b c=40", "+60 a S0+0[60] b S0+0[60] +40 c S1+0[40]");
    check("", "a=60 -a b=40", "+60 a S0+0[60] b S0+0[40]");
}

/// A refused request frees cached blocks: only as many oversize blocks as it needs, otherwise all free segments.
#[test]
fn cached_memory_is_freed_when_the_driver_refuses() {
    let played = |conf, script| played(conf, 100, None, script);
    assert_eq!(
        played("", "x=1 a=40 b=30 c=5 -c -a -b d=60 e=60"),
        "+2 x S0+0[1] +40 a S1+0[40] +30 b S2+0[30] +20 c S3+0[5] -20 -30 -40 +60 d S4+0[60] e none"
    );
    assert_eq!(
        played("max_split_size_mb:32", "a=34 b=50 -a -b c=33 d=60"),
        "+34 a S0+0[34] +50 b S1+0[50] c S0+0[34] -50 +60 d S2+0[60]"
    );
}

#[test]
fn sizes_are_rounded_up_to_divisions() {
    check("roundup_power2_divisions:4", "a=33 b=41", "+40 a S0+0[40] +48 b S1+0[48]");
}

/// Memory is mapped in units of 2 and 20 MiB, after the free block at the end; rests of any size are split off. With
/// both settings, PyTorch applies the limit of `max_split_size_mb` when it searches for a free block, but not when it
/// splits one (`get_free_block`, `should_split`; pytorch/pytorch#123548). So a large free block between blocks in use
/// serves no request that is too small for it, and the segment grows instead, until the card refuses and free memory is
/// returned.
#[test]
fn expandable_segments_with_a_limit_for_splits_grow_until_the_card_is_full() {
    let script = "a=100 k=2 -a b=10 c=80 d=70";
    let grown = "+100 a S0+0[100] +20 k S0+100[2] b S0+102[10] +80 c S0+112[80]";
    let both = "expandable_segments:True,max_split_size_mb:64";
    assert_eq!(played(both, 1000, None, script), format!("{grown} +80 d S0+192[70]"));
    assert_eq!(played(both, 200, None, script), format!("{grown} -100 +80 d S0+0[70]"));
    // Rounding changes the sizes of requests (100 MiB to 100, 70 to 72 with 16 parts), but not the blocks that serve
    // them.
    let all = "expandable_segments:True,max_split_size_mb:64,roundup_power2_divisions:16";
    assert_eq!(played(all, 200, None, script), format!("{grown} -100 +80 d S0+0[72]"));
    let expandable = "+100 a S0+0[100] +20 k S0+100[2] b S0+0[10] c S0+10[80] +60 d S0+102[70]";
    check("expandable_segments:True", script, expandable);
    assert!(["", "expandable_segments:True", "max_split_size_mb:64"].iter().all(|conf| !fills_cards(conf)));
    assert!(fills_cards(both) && fills_cards(all));
}

fn fills_cards(conf: &str) -> bool {
    let mut settings = AllocatorSettings::default();
    settings.set(conf);
    settings.fills_cards()
}

#[test]
fn expandable_segments_grow() {
    let conf = "expandable_segments:True";
    check(
        conf,
        "a=1b b=30 c=30 -b d=10 e=21",
        "+2 a S0+0[512b] +40 b S1+0[30] +20 c S1+30[30] d S1+0[10] +40 e S1+60[21]",
    );
    // Memory that can't grow is used first, even if the block at the end is smaller.
    check(conf, "a=30 b=25 -a c=4", "+40 a S0+0[30] +20 b S0+30[25] c S0+0[4]");
    // Whole units are unmapped, and holes are filled from the lowest address.
    check(conf, "a=30 b=30 c=30 -b empty d=25", "+40 a S0+0[30] +20 b S0+30[30] +40 c S0+60[30] -20 +20 d S0+30[25]");
}

/// Above the threshold, free segments of at least the average age are returned.
#[test]
fn garbage_is_collected_by_age() {
    assert_eq!(
        played("garbage_collection_threshold:0.3", 1000, Some(100), "a=20 -a b=22 -b c=24"),
        "+20 a S0+0[20] +22 b S1+0[22] -20 +24 c S2+0[24]"
    );
    assert_eq!(
        played("garbage_collection_threshold:0.3", 1000, Some(100), "a=20 -a b=32 c=24"),
        "+20 a S0+0[20] +32 b S1+0[32] -20 +24 c S2+0[24]"
    );
    assert_eq!(played("garbage_collection_threshold:0.3", 1000, Some(50), "a=30 b=30"), "+30 a S0+0[30] b none");
}
