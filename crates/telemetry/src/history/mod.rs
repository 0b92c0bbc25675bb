//! Samples of a run, stored in its folder: at seconds for the last hours, at ten seconds for the last day, at minutes
//! before that.
//! Not here: sampling (`sample/`), events (`journal.rs`).
//!
//! ```text
//!   RUN/samples/cards.json        names and limits of the cards, by number
//!               s-00482113.bin    records of an hour, one per second     ─┐ after 6 hours
//!               t-00482101.bin    the same, one per ten seconds         ◄─┘ ─┐ after a day
//!               m-00482086.bin    the same, one per minute                 ◄─┘
//! ```
//!
//! A file's number is its hour since 1970. Files grow by whole records, each with a checksum: a partial last record,
//! left by a crash or a full disk, is cut off. An hour is thinned into a new file before the old one is deleted; if
//! both exist, the finer one is used.

mod reader;
mod record;
mod thin;
mod writer;

pub use reader::{history, history_span};
pub use writer::History;

use std::path::{Path, PathBuf};

/// The folder inside the run's folder.
const FOLDER: &str = "samples";

/// The file with names and limits of the cards.
const CARDS: &str = "cards.json";

const HOUR_S: f64 = 3600.0;

/// The resolution of an hour's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Grain {
    Seconds,
    Tens,
    Minutes,
}

impl Grain {
    /// Finest first.
    const ALL: [Self; 3] = [Self::Seconds, Self::Tens, Self::Minutes];

    fn letter(self) -> char {
        match self {
            Self::Seconds => 's',
            Self::Tens => 't',
            Self::Minutes => 'm',
        }
    }

    /// The time span of a record.
    fn seconds(self) -> f64 {
        match self {
            Self::Seconds => 1.0,
            Self::Tens => 10.0,
            Self::Minutes => 60.0,
        }
    }

    /// The age in hours at which records are thinned, and their next resolution.
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

/// Parses resolution and hour from a file's name.
fn parsed(name: &str) -> Option<(Grain, u64)> {
    let (letter, hour) = name.strip_suffix(".bin")?.split_once('-')?;
    let grain = Grain::ALL.into_iter().find(|grain| letter.chars().eq([grain.letter()]))?;
    let hour = hour.parse().ok().filter(|_| hour.len() == 8 && hour.bytes().all(|digit| digit.is_ascii_digit()))?;
    Some((grain, hour))
}

/// The files of a folder, oldest first; if an hour has several, only the finest.
fn hours(folder: &Path) -> Vec<(u64, Grain)> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let mut found =
        names.filter_map(|name| parsed(name.to_str()?)).map(|(grain, hour)| (hour, grain)).collect::<Vec<_>>();
    found.sort_unstable();
    found.dedup_by_key(|(hour, _)| *hour);
    found
}
