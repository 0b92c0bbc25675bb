//! A history that is read. What is damaged in it is left out.

use super::record::{Of, RECORD, Record};
use super::writer::Named;
use super::{CARDS, FOLDER, Grain, HOUR_S, hours};
use crate::sample::Sample;
use plimsoll_files::{open_inside, read_text_inside};
use plimsoll_units::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

/// An hour of seconds with a thousand cards is smaller.
const MOST_BYTES: u64 = 512 << 20;

/// Names of cards are shorter.
const MOST_NAMES: Bytes = Bytes::mib(1);

/// The whole records of a file, in their order.
pub(super) fn records(file: &Path) -> io::Result<Vec<Record>> {
    let mut bytes = vec![];
    open_inside(file, 2)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let (whole, _) = bytes.as_chunks::<RECORD>();
    Ok(whole.iter().filter_map(Record::decode).collect())
}

/// The samples of a run between two times, in seconds since 1970, the oldest first. Processes are not kept. One that is older
/// stands for ten seconds or a minute: temperatures are the most of these, rates the mean.
/// Errors: a file can't be read. A run without a history has none.
pub fn history(run: &Path, times: Range<f64>) -> io::Result<Vec<Sample>> {
    let folder = run.join(FOLDER);
    let names = read_text_inside(&folder.join(CARDS), 2, MOST_NAMES).unwrap_or_default();
    let names: BTreeMap<u32, Named> = serde_json::from_str(&names).unwrap_or_default();
    let mut samples: Vec<Sample> = vec![];
    for (hour, grain) in hours(&folder) {
        let start = hour as f64 * HOUR_S;
        if start >= times.end || start + HOUR_S < times.start {
            continue;
        }
        for Record { time_s, of, .. } in records(&grain.file(&folder, hour))? {
            if !times.contains(&time_s) {
                continue;
            }
            // What was sampled at once is told at once; of coarser records, what was put together.
            let moment = |time_s: f64| match grain {
                Grain::Seconds => time_s,
                coarser => (time_s / coarser.seconds()).floor(),
            };
            if samples.last().is_none_or(|last| moment(last.time_s) != moment(time_s)) {
                samples.push(Sample { time_s, ..Sample::default() });
            }
            let Some(sample) = samples.last_mut() else { continue };
            match of {
                Of::System(system) => sample.system = system,
                Of::Card(mut card) => {
                    if let Some(Named { uuid, name, limits }) = names.get(&card.index) {
                        (card.uuid, card.name, card.limits) = (uuid.clone(), name.clone(), limits.clone());
                    }
                    sample.cards.push(*card);
                }
            }
        }
    }
    Ok(samples)
}

/// From the beginning of the first hour that a run's history has to the end of its last, in seconds since 1970.
pub fn history_span(run: &Path) -> Option<Range<f64>> {
    let hours = hours(&run.join(FOLDER));
    let (first, last) = (hours.first()?.0, hours.last()?.0);
    Some(first as f64 * HOUR_S..(last + 1) as f64 * HOUR_S)
}
