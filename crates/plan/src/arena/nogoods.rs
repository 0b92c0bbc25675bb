//! Remembers which unfinished packings cannot be finished, so that no other way to the same one is
//! searched again.
//!
//! ```text
//!   +-------+        +-------+       Two ways to one unfinished packing: the same blocks wait over
//!   |   b   |        |   a   |       the same floors. What failed for one fails for the other.
//!   +-------+        +-------+
//!   |   a   |        |   b   |
//!   +-------+        +-------+
//! ```
//!
//! Only fingerprints of 128 bits are kept; two different packings with the same one would be a wrong
//! proof, at odds of about one in 2^64 for any number of steps that can be waited for.

use super::columns::{Column, fingerprint};

/// What is left of an unfinished packing in some columns, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    slot: u64,
    check: u64,
}

impl Key {
    /// Of the waiting blocks of a component, and the space over its floors. The same at every height.
    pub fn of(columns: &[Column], capacity: u64) -> Self {
        let (mut slot, mut check) = (columns.len() as u64, 0x5bd1_e995u64);
        for column in columns {
            let space = capacity - column.floor;
            slot = fingerprint(slot ^ column.starting ^ space);
            check = fingerprint(check.wrapping_add(space)).rotate_left(23) ^ column.starting;
        }
        Self { slot, check: check.max(1) }
    }
}

/// A set of keys that grows up to a limit, and then forgets.
pub(super) struct Nogoods {
    /// A key of zeros is an empty place.
    keys: Vec<Key>,
    len: usize,
}

const EMPTY: Key = Key { slot: 0, check: 0 };
const FIRST_SIZE: usize = 1 << 12;
/// 64 MiB.
const LAST_SIZE: usize = 1 << 22;
/// Neighbouring places in which a key may lie.
const PROBES: usize = 4;

impl Nogoods {
    pub fn new() -> Self {
        Self { keys: vec![EMPTY; FIRST_SIZE], len: 0 }
    }

    pub fn contains(&self, key: Key) -> bool {
        self.places(key).any(|place| self.keys[place] == key)
    }

    /// Adds a key; where all its places are taken, one of them is overwritten.
    pub fn insert(&mut self, key: Key) {
        if 2 * self.len >= self.keys.len() && self.keys.len() < LAST_SIZE {
            self.grow();
        }
        let free = self.places(key).find(|&place| self.keys[place] == EMPTY);
        self.len += usize::from(free.is_some());
        let any = self.places(key).nth(key.check as usize % PROBES).expect("a key has some places");
        self.keys[free.unwrap_or(any)] = key;
    }

    fn places(&self, key: Key) -> impl Iterator<Item = usize> + use<> {
        let mask = self.keys.len() - 1;
        (0..PROBES).map(move |probe| (key.slot as usize).wrapping_add(probe) & mask)
    }

    fn grow(&mut self) {
        let larger = vec![EMPTY; 2 * self.keys.len()];
        let old = std::mem::replace(&mut self.keys, larger);
        self.len = 0;
        for key in old.into_iter().filter(|&key| key != EMPTY) {
            self.insert(key);
        }
    }
}
