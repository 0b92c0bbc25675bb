//! Remembers which partial packings cannot be completed, so that the search does not reach the same one by another way.
//!
//! ```text
//!   +-------+        +-------+       Two ways to one partial packing: the same buffers wait above
//!   |   b   |        |   a   |       the same floors. If one fails, the other fails too.
//!   +-------+        +-------+
//!   |   a   |        |   b   |
//!   +-------+        +-------+
//! ```
//!
//! The set keeps only fingerprints of 128 bits. Two different packings with equal fingerprints would make a proof
//! wrong; at a billion packings the probability of that is below 10^-20.

use super::columns::{Column, fingerprint};

/// Fingerprint of the remaining work of a partial packing in some columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    slot: u64,
    check: u64,
}

impl Key {
    /// The key of a component's waiting buffers and the space above its floors; it is the same at every height.
    pub fn of(columns: &[Column], capacity: u64) -> Self {
        let (mut slot, mut check) = (1u64, 2u64);
        for column in columns {
            let room = capacity - column.floor;
            slot = fingerprint(slot ^ room).wrapping_add(column.starting);
            check = fingerprint(check.wrapping_add(room)).rotate_left(23) ^ column.starting;
        }
        Self { slot, check }
    }
}

/// A set of keys that grows up to a limit and then overwrites keys.
pub(super) struct Nogoods {
    keys: Vec<Key>,
    len: usize,
}

/// An empty slot. The set would not remember a packing with this key.
const EMPTY: Key = Key { slot: 0, check: 0 };
const FIRST_SIZE: usize = 1 << 12;
/// Slots of the largest set: 64 MiB.
const LAST_SIZE: usize = 1 << 22;
/// Neighboring slots that may hold a key.
const PROBES: usize = 4;

impl Nogoods {
    pub fn new() -> Self {
        Self { keys: vec![EMPTY; FIRST_SIZE], len: 0 }
    }

    pub fn contains(&self, key: Key) -> bool {
        key != EMPTY && self.places(key).any(|place| self.keys[place] == key)
    }

    /// Adds a key; if all of its slots are occupied, it overwrites one of them.
    pub fn insert(&mut self, key: Key) {
        if 2 * self.len >= self.keys.len() && self.keys.len() < LAST_SIZE {
            self.grow();
        }
        let free = self.places(key).find(|&place| self.keys[place] == EMPTY);
        self.len += usize::from(free.is_some());
        let any = self.places(key).nth(key.check as usize % PROBES).expect("a key has several slots");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A set that forgets keys would make the search repeat the same packings.
    #[test]
    fn keys_remain_in_the_set_while_it_grows() {
        let key = |n: u64| Key { slot: fingerprint(n), check: fingerprint(n ^ 1 << 40) };
        let mut nogoods = Nogoods::new();
        (0..4 * FIRST_SIZE as u64).for_each(|n| nogoods.insert(key(n)));
        let found = |from: u64, to: u64| (from..to).filter(|&n| nogoods.contains(key(n))).count();
        assert!(nogoods.keys.len() >= 4 * FIRST_SIZE);
        assert!(found(0, 4 * FIRST_SIZE as u64) * 10 > 4 * FIRST_SIZE * 9);
        assert_eq!(found(1 << 30, (1 << 30) + 10_000), 0);
        assert!(!nogoods.contains(EMPTY));
    }
}
