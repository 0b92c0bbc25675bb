//! The progress that `prepare` reports to its caller. The caller decides whether and how to show it.

use crate::Damage;
use plimsoll_units::Bytes;
use std::path::Path;

/// One report of `prepare`. Sizes are those of the files on disk, compressed or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The files are being hashed to find out whether their tokens are cached.
    Hashing {
        /// Read so far.
        done: Bytes,
        /// To read.
        total: Bytes,
    },
    /// The tokens are cached; nothing is tokenized.
    CacheHit {
        /// The cache.
        path: &'a Path,
    },
    /// The cache is damaged and is rebuilt.
    CacheDamaged {
        /// The cache.
        path: &'a Path,
        /// What is wrong with it.
        damage: &'a Damage,
    },
    /// Text is being tokenized.
    Tokenizing {
        /// Read so far.
        done: Bytes,
        /// To read.
        total: Bytes,
        /// Tokens made so far, separators included.
        tokens: u64,
    },
    /// The cache is complete and in place.
    Written {
        /// The cache.
        path: &'a Path,
        /// Tokens in it, separators included.
        tokens: u64,
    },
}
