//! Memory over time by owner, and the memory map at a moment, for charts.

use super::owners::Owners;
use crate::replay::{Lifetime, Replay};
use crate::snapshot::{Action, CardRecord};
use std::collections::BTreeMap;

/// Memory in a period, at its moment of peak use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// The moment, as a number of events.
    pub moment: usize,
    /// Bytes reserved from the driver.
    pub reserved: u64,
    /// Bytes in use, by group.
    pub owned: Vec<u64>,
}

/// Memory in at most `most` periods with equal numbers of events. `group` maps an owner to one of `groups`.
pub fn over_time(
    replay: &Replay,
    owners: &Owners,
    most: usize,
    groups: usize,
    group: impl Fn(usize) -> usize,
) -> Vec<Stretch> {
    let moments = replay.memory.len();
    let mut changes: Vec<Vec<(usize, i64)>> = vec![vec![]; moments + 1];
    for life in &replay.lives {
        let group = group(owners.index(life.stack));
        let (from, until) = life.moments(moments);
        changes[from].push((group, life.bytes as i64));
        changes[until].push((group, -(life.bytes as i64)));
    }
    let stretches = moments.min(most);
    let mut now = vec![0u64; groups];
    let mut over_time: Vec<Stretch> = vec![];
    let mut highest = None;
    for (moment, changes) in changes.iter().take(moments).enumerate() {
        for (group, bytes) in changes {
            now[*group] = now[*group].saturating_add_signed(*bytes);
        }
        let stretch = moment * stretches / moments;
        let in_use = replay.memory[moment].in_use;
        let found = Stretch { moment, reserved: replay.memory[moment].reserved, owned: now.clone() };
        if over_time.len() <= stretch {
            over_time.push(found);
            highest = Some(in_use);
        } else if Some(in_use) > highest {
            *over_time.last_mut().expect("it is not empty") = found;
            highest = Some(in_use);
        }
    }
    over_time
}

/// A mapped range at a moment, and its blocks in use, by address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped<'a> {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Blocks in use.
    pub used: Vec<&'a Lifetime>,
}

/// Segments and mapped ranges of expandable ones at a moment, by address, as recorded.
pub fn mapped_at<'a>(record: &CardRecord, replay: &'a Replay, moment: usize) -> Vec<Mapped<'a>> {
    let mut ranges = BTreeMap::from_iter(replay.start.ranges.iter().map(|range| (range.address, range.bytes)));
    for event in &record.events[..moment.min(record.events.len())] {
        let (address, bytes) = (event.address, event.bytes);
        match event.action {
            Action::SegmentAlloc => {
                ranges.insert(address, bytes);
            }
            Action::SegmentMap => join(&mut ranges, address, bytes),
            Action::SegmentFree => {
                ranges.remove(&address);
            }
            Action::SegmentUnmap => cut(&mut ranges, address, address + bytes),
            _ => {}
        }
    }
    let mut used = replay.lives.iter().filter(|life| life.is_there(moment)).collect::<Vec<_>>();
    used.sort_by_key(|life| life.address);
    let mut used = used.into_iter().peekable();
    let mapped = ranges.into_iter().map(|(address, bytes)| {
        while used.next_if(|life| life.address < address).is_some() {}
        let mut mapped = Mapped { address, bytes, used: vec![] };
        while let Some(life) = used.next_if(|life| life.address < address + bytes) {
            mapped.used.push(life);
        }
        mapped
    });
    mapped.collect()
}

/// Adds a range of an expandable segment; blocks may span adjacent ranges.
fn join(ranges: &mut BTreeMap<u64, u64>, address: u64, bytes: u64) {
    let (mut address, mut bytes) = (address, bytes);
    bytes += ranges.remove(&(address + bytes)).unwrap_or(0);
    if let Some((before, known)) = ranges.range(..address).next_back().map(|(before, known)| (*before, *known))
        && before + known == address
    {
        (address, bytes) = (before, known + bytes);
    }
    ranges.insert(address, bytes);
}

/// Removes a range of addresses from the mapped ranges, of which several may overlap it.
fn cut(ranges: &mut BTreeMap<u64, u64>, from: u64, until: u64) {
    let touched = ranges.range(..until).rev().take_while(|(address, bytes)| **address + **bytes > from);
    for (address, bytes) in touched.map(|(address, bytes)| (*address, *bytes)).collect::<Vec<_>>() {
        ranges.remove(&address);
        if address < from {
            ranges.insert(address, from - address);
        }
        if address + bytes > until {
            ranges.insert(until, address + bytes - until);
        }
    }
}
