//! Dicts: in insertion order, with any hashable key, and immutable.

use crate::Value;
use crate::error::{Meter, Result};
use crate::value::compare::{equal, hash};

/// Dicts up to this size are searched linearly.
const SEARCHED_MAX: usize = 8;

/// A dict.
#[derive(Debug, Default)]
pub struct Dict {
    entries: Vec<(Value, Value)>,
    /// Hashes of keys with their positions, in ascending order. Empty for a small dict.
    hashes: Vec<(u64, u32)>,
    depth: u32,
}

impl Dict {
    /// Creates a dict from pairs: keeps the first of equal keys with the last value. Errors: a key is not hashable.
    pub(crate) fn new(meter: &mut Meter, pairs: Vec<(Value, Value)>) -> Result<Self> {
        meter.charge_items(2 * pairs.len())?;
        let mut hashes = Vec::with_capacity(pairs.len());
        for (at, (key, _)) in pairs.iter().enumerate() {
            hashes.push((hash(meter, key)?, at as u32));
        }
        hashes.sort_unstable();
        // Moves the value of a repeated key to its first pair; the repeated pair becomes `None`.
        let mut values: Vec<Option<(Value, Value)>> = pairs.into_iter().map(Some).collect();
        for run in hashes.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1) {
            for (later, &(_, at)) in run.iter().enumerate().skip(1) {
                let (key, value) = values[at as usize].clone().expect("not visited yet");
                for &(_, earlier) in &run[..later] {
                    if let Some((first, kept)) = &mut values[earlier as usize]
                        && equal(meter, first, &key)?
                    {
                        *kept = value;
                        values[at as usize] = None;
                        break;
                    }
                }
            }
        }
        let entries: Vec<(Value, Value)> = values.into_iter().flatten().collect();
        let depth = 1 + entries.iter().map(|(key, value)| key.depth().max(value.depth())).max().unwrap_or(0);
        let mut dict = Self { entries, hashes: Vec::new(), depth };
        if dict.entries.len() > SEARCHED_MAX {
            for (at, (key, _)) in dict.entries.iter().enumerate() {
                dict.hashes.push((hash(meter, key)?, at as u32));
            }
            dict.hashes.sort_unstable();
        }
        Ok(dict)
    }

    /// A dict whose keys are texts, which are hashable.
    pub(crate) fn of_texts(pairs: Vec<(Value, Value)>) -> Self {
        Self::new(&mut Meter::new(u64::MAX), pairs).expect("texts are hashable")
    }

    /// The value of a text key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        if self.hashes.is_empty() {
            return self.entries.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value);
        }
        let at = self.candidates(crate::value::compare::hash_of_text(key));
        at.map(|at| &self.entries[at]).find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }

    /// The value of a key. Errors: it is not hashable.
    pub(crate) fn find(&self, meter: &mut Meter, key: &Value) -> Result<Option<&Value>> {
        let hash = hash(meter, key)?;
        if let Some(text) = key.as_str() {
            return Ok(self.get(text));
        }
        let all = 0..if self.hashes.is_empty() { self.entries.len() } else { 0 };
        for at in all.chain(self.candidates(hash)) {
            let (name, value) = &self.entries[at];
            if equal(meter, name, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The positions of keys with this hash; empty for a small dict.
    fn candidates(&self, hash: u64) -> impl Iterator<Item = usize> {
        let first = self.hashes.partition_point(|&(other, _)| other < hash);
        self.hashes[first..].iter().take_while(move |(other, _)| *other == hash).map(|&(_, at)| at as usize)
    }

    /// Number of keys.
    #[expect(clippy::len_without_is_empty, reason = "no caller needs it")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Value, &Value)> + ExactSizeIterator {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn entry(&self, at: usize) -> Option<&(Value, Value)> {
        self.entries.get(at)
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }
}
