//! Appends samples to a history, and thins old records.

use super::reader::records;
use super::record::{CardName, RECORD, Readings, SampleRecord, card_record, system_record};
use super::thin::merged;
use super::{CARDS, FOLDER, Grain, HOUR_S, hours};
use crate::sample::{CardSample, Sample};
use plimsoll_files::{Disk, Log};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// A history open for writing.
pub struct History {
    folder: PathBuf,
    disk: Disk,
    /// The file of the current hour.
    current: Option<(u64, Log)>,
    cards: BTreeMap<u32, CardName>,
}

impl History {
    /// Opens the history in a run's folder; creates it if needed. Errors: the folder can't be created.
    pub fn open(run: &Path, disk: Disk) -> io::Result<Self> {
        let folder = run.join(FOLDER);
        let disk = disk.within(run);
        disk.create_folders(&folder)?;
        Ok(Self { folder, disk, current: None, cards: BTreeMap::new() })
    }

    /// Appends a sample. Errors: it could not be written; the next one may be.
    pub fn append(&mut self, sample: &Sample) -> io::Result<()> {
        self.name_cards(&sample.cards)?;
        let hour = (sample.time_s.max(0.0) / HOUR_S) as u64;
        let cards = sample.cards.iter().flat_map(|card| card_record(sample.time_s, 1, card));
        let bytes = cards.chain(system_record(sample.time_s, 1, &sample.system)).collect::<Vec<_>>();
        let written = self.log(hour)?.append(&bytes);
        if written.is_err() {
            // Reopening the file cuts off a partial record.
            self.current = None;
        }
        written
    }

    /// The file of an hour, positioned after its last complete record.
    fn log(&mut self, hour: u64) -> io::Result<&mut Log> {
        let (current, log) = match self.current.take() {
            Some((current, log)) if current == hour => (current, log),
            _ => {
                // If thinning fails, it is retried in the next hour.
                drop(self.thin(hour));
                let mut log = self.disk.open_log(&Grain::Seconds.file(&self.folder, hour))?;
                let bytes = log.file().metadata()?.len();
                let whole = bytes / RECORD as u64 * RECORD as u64;
                if whole < bytes {
                    log.truncate(whole)?;
                }
                (hour, log)
            }
        };
        Ok(&mut self.current.insert((current, log)).1)
    }

    /// Thins all hours that are old enough.
    fn thin(&self, now: u64) -> io::Result<()> {
        for (hour, grain) in hours(&self.folder) {
            let coarser = grain.next().filter(|(age, _)| now.saturating_sub(hour) >= *age);
            let Some((_, coarser)) = coarser else { continue };
            let (old, new) = (grain.file(&self.folder, hour), coarser.file(&self.folder, hour));
            let mut groups: BTreeMap<(u64, Option<u32>), Vec<SampleRecord>> = BTreeMap::new();
            for record in records(&old)? {
                let card = match &record.readings {
                    Readings::Card(card) => Some(card.index),
                    Readings::System(_) => None,
                };
                groups.entry(((record.time_s / coarser.seconds()) as u64, card)).or_default().push(record);
            }
            let bytes = groups.values().flat_map(|group| merged(group).encode()).collect::<Vec<_>>();
            self.disk.replace(&new, &bytes)?;
            self.disk.remove_if_there(&old)?;
        }
        Ok(())
    }

    /// Stores names and limits of new cards.
    fn name_cards(&mut self, cards: &[CardSample]) -> io::Result<()> {
        let is_known = |card: &CardSample| {
            let known = self.cards.get(&card.index);
            known.is_some_and(|known| known.uuid == card.uuid && known.name == card.name && known.limits == card.limits)
        };
        let new = cards.iter().filter(|card| card.lost.is_none() && !is_known(card));
        let new = new.map(|card| {
            let CardSample { uuid, name, limits, .. } = card;
            (card.index, CardName { uuid: uuid.clone(), name: name.clone(), limits: limits.clone() })
        });
        let new = new.collect::<Vec<_>>();
        if new.is_empty() {
            return Ok(());
        }
        self.cards.extend(new);
        let text = serde_json::to_vec_pretty(&self.cards).expect("plain data");
        self.disk.replace(&self.folder.join(CARDS), &text)
    }
}
