//! Samples of a run's time, kept in its folder: seconds of the last hours, tens of seconds of the last day, minutes before.
//! Not here: what is sampled (`sample/`), events (`journal.rs`).
//!
//! ```text
//!   RUN/samples/cards.json        names and limits of the cards, by number
//!               s-00482113.bin    records of an hour, a second each      ─┐ 6 hours old
//!               t-00482101.bin    the same in tens of seconds           ◄─┘ ─┐ a day old
//!               m-00482086.bin    the same in minutes                      ◄─┘
//! ```
//!
//! Files of an hour are numbered by hours since 1970. They grow by whole records, each with a checksum: what a crash or a full
//! disk leaves of the last one is cut off. An hour is thinned into a new file before its old one is deleted; where both are
//! there, the finer counts.

mod reader;
mod record;
mod thin;
mod writer;

pub use reader::{history, history_span};
pub use writer::History;

use std::path::{Path, PathBuf};

/// The folder in a run's folder.
const FOLDER: &str = "samples";

/// Names and limits of cards.
const CARDS: &str = "cards.json";

const HOUR_S: f64 = 3600.0;

/// How fine the records of an hour are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grain {
    Seconds,
    Tens,
    Minutes,
}

impl Grain {
    /// The finest first.
    const ALL: [Self; 3] = [Self::Seconds, Self::Tens, Self::Minutes];

    fn letter(self) -> char {
        match self {
            Self::Seconds => 's',
            Self::Tens => 't',
            Self::Minutes => 'm',
        }
    }

    /// The time that a record stands for.
    fn seconds(self) -> f64 {
        match self {
            Self::Seconds => 1.0,
            Self::Tens => 10.0,
            Self::Minutes => 60.0,
        }
    }

    /// Hours after which records are made coarser, and into what.
    fn next(self) -> Option<(u64, Self)> {
        match self {
            Self::Seconds => Some((6, Self::Tens)),
            Self::Tens => Some((24, Self::Minutes)),
            Self::Minutes => None,
        }
    }

    fn file(self, folder: &Path, hour: u64) -> PathBuf {
        folder.join(format!("{}-{hour:08}.bin", self.letter()))
    }
}

/// Grain and hour of a file's name.
fn parsed(name: &str) -> Option<(Grain, u64)> {
    let (letter, hour) = name.strip_suffix(".bin")?.split_once('-')?;
    let grain = Grain::ALL.into_iter().find(|grain| letter.chars().eq([grain.letter()]))?;
    let hour = hour.parse().ok().filter(|_| hour.len() == 8 && hour.bytes().all(|digit| digit.is_ascii_digit()))?;
    Some((grain, hour))
}

/// The files of a folder, the oldest first; of an hour with several the finest.
fn hours(folder: &Path) -> Vec<(u64, Grain)> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut found =
        names.filter_map(|name| parsed(name.to_str()?)).map(|(grain, hour)| (hour, grain)).collect::<Vec<_>>();
    found.sort_unstable();
    found.dedup_by_key(|(hour, _)| *hour);
    found
}
