//! The memories that store tensors: a table with a row per memory, and containers with a value per memory.
//!
//! ```text
//!   row   kind     links
//!   0     device   ◄──► 1          the computing device
//!   1     host     ◄──► 0          its machine
//!   2 …   further rows: another card, a disk
//! ```
//!
//! Not here: how many bytes a plan may use of each memory (`plan/src/budget.rs`) and what it uses (`plan/src/plan.rs`).

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::ops::{Index, IndexMut};
use std::str::FromStr;

/// The alignment of tensors in the memories of devices and hosts. It suits vector loads and GPU transactions.
pub const ALIGNMENT: u64 = 256;

/// The row of a memory in the table of memories. In files it is a name: `device`, `host`, `memory-2` and so on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(u8);

impl MemoryId {
    /// The memory of the computing device.
    pub const DEVICE: Self = Self(0);
    /// The memory of the machine that the device is in.
    pub const HOST: Self = Self(1);
    /// Largest number of rows of a table.
    pub const MOST: usize = 8;

    /// The row as a `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The first `count` rows. Panics if `count` exceeds `MOST`.
    fn first(count: usize) -> impl DoubleEndedIterator<Item = Self> + Clone {
        assert!(count <= Self::MOST, "{count} memories, but a table has at most {} rows", Self::MOST);
        (0..count as u8).map(Self)
    }
}

impl fmt::Display for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::DEVICE => f.write_str("device"),
            Self::HOST => f.write_str("host"),
            Self(row) => write!(f, "memory-{row}"),
        }
    }
}

impl FromStr for MemoryId {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        Self::first(Self::MOST)
            .find(|id| id.to_string() == name)
            .ok_or_else(|| format!("`{name}` is not a memory: `device`, `host`, or `memory-2` to `memory-7`"))
    }
}

impl Serialize for MemoryId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemoryId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The kind of a memory, which decides what runs the nodes whose tensors it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// The device's own memory: the device runs the nodes.
    Device,
    /// Memory that the processor addresses: the processor runs the nodes.
    Host,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// What kind it is.
    pub kind: MemoryKind,
    /// Tensors start at multiples of this. A power of two.
    pub alignment: u64,
}

impl Memory {
    /// A memory of this kind with the usual alignment.
    pub const fn new(kind: MemoryKind) -> Self {
        Self { kind, alignment: ALIGNMENT }
    }

    /// The size of a tensor in this memory, up to where the next one can start.
    pub fn padded(&self, bytes: Bytes) -> u64 {
        bytes.align_up(self.alignment).0
    }
}

/// A link that transfers tensors from one memory to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// The memory to read.
    pub from: MemoryId,
    /// The memory to write.
    pub to: MemoryId,
    /// Its rate; `None` for the rate between the machine's device and host, measured or assumed.
    pub bytes_per_s: Option<f64>,
}

/// The table of memories, and the links between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Memories {
    rows: PerMemory<Memory>,
    links: SmallVec<[Link; 2]>,
}

impl Default for Memories {
    /// The device and the host, with a link in each direction.
    fn default() -> Self {
        let link = |from, to| Link { from, to, bytes_per_s: None };
        Self {
            rows: PerMemory::of_device_and_host(Memory::new(MemoryKind::Device), Memory::new(MemoryKind::Host)),
            links: smallvec![link(MemoryId::DEVICE, MemoryId::HOST), link(MemoryId::HOST, MemoryId::DEVICE)],
        }
    }
}

impl Memories {
    /// Adds a row. Panics if the table is full.
    pub fn add(&mut self, memory: Memory) -> MemoryId {
        self.rows.push(memory)
    }

    /// Adds a link.
    pub fn connect(&mut self, link: Link) {
        self.links.push(link);
    }

    /// All rows in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = MemoryId> + Clone + use<> {
        self.rows.ids()
    }

    /// The link from one memory to another, if they have one.
    pub fn link(&self, from: MemoryId, to: MemoryId) -> Option<&Link> {
        self.links.iter().find(|link| link.from == from && link.to == to)
    }

    /// A value for each memory.
    pub fn map<T>(&self, value: impl FnMut(MemoryId) -> T) -> PerMemory<T> {
        self.ids().map(value).collect()
    }
}

impl Index<MemoryId> for Memories {
    type Output = Memory;
    fn index(&self, id: MemoryId) -> &Memory {
        &self.rows[id]
    }
}

/// A value per memory of a table. Two values are stored inline, since a search creates many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerMemory<T>(SmallVec<[T; 2]>);

impl<T> Default for PerMemory<T> {
    /// No values.
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl<T> PerMemory<T> {
    /// The values of a table with two rows.
    pub fn of_device_and_host(device: T, host: T) -> Self {
        Self(smallvec![device, host])
    }

    /// Adds the value of the next row. Panics if the table is full.
    pub fn push(&mut self, value: T) -> MemoryId {
        self.0.push(value);
        self.ids().next_back().expect("one row was just added")
    }

    /// The rows with a value, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = MemoryId> + Clone + use<T> {
        MemoryId::first(self.0.len())
    }

    /// The values with their rows.
    pub fn iter(&self) -> impl Iterator<Item = (MemoryId, &T)> {
        self.ids().zip(&self.0)
    }

    /// The values.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// The values, mutable.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// The value of a row, if the table has it.
    pub fn get(&self, id: MemoryId) -> Option<&T> {
        self.0.get(id.index())
    }

    /// Computes a new value for each memory.
    pub fn map<U>(&self, mut change: impl FnMut(MemoryId, &T) -> U) -> PerMemory<U> {
        self.iter().map(|(id, value)| change(id, value)).collect()
    }
}

impl<T> FromIterator<T> for PerMemory<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T> IntoIterator for PerMemory<T> {
    type Item = T;
    type IntoIter = smallvec::IntoIter<[T; 2]>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T> Index<MemoryId> for PerMemory<T> {
    type Output = T;
    fn index(&self, id: MemoryId) -> &T {
        &self.0[id.index()]
    }
}

impl<T> IndexMut<MemoryId> for PerMemory<T> {
    fn index_mut(&mut self, id: MemoryId) -> &mut T {
        &mut self.0[id.index()]
    }
}

/// A set of memories of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemorySet(u8);

impl MemorySet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);

    /// Whether it is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains a memory.
    pub const fn contains(self, id: MemoryId) -> bool {
        self.0 >> id.0 & 1 == 1
    }

    /// Its memories, in the order of their rows.
    pub fn ids(self) -> impl Iterator<Item = MemoryId> {
        MemoryId::first(MemoryId::MOST).filter(move |&id| self.contains(id))
    }
}

impl FromIterator<MemoryId> for MemorySet {
    fn from_iter<I: IntoIterator<Item = MemoryId>>(ids: I) -> Self {
        Self(ids.into_iter().fold(0, |set, id| set | 1 << id.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_memories_and_reject_unknown_names() {
        let mut memories = Memories::default();
        let third = memories.add(Memory::new(MemoryKind::Host));
        for (id, name) in [(MemoryId::DEVICE, "device"), (MemoryId::HOST, "host"), (third, "memory-2")] {
            let json = serde_json::to_string(&id).expect("a name");
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<MemoryId>(&json).expect("a serialized name"), id);
        }
        for name in ["\"memory-1\"", "\"memory-8\"", "\"\"", "2"] {
            assert!(serde_json::from_str::<MemoryId>(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_further_row_has_values_and_links_like_the_first_two() {
        let mut memories = Memories::default();
        let third = memories.add(Memory { kind: MemoryKind::Host, alignment: 4096 });
        memories.connect(Link { from: MemoryId::HOST, to: third, bytes_per_s: Some(1e9) });
        assert_eq!(memories.ids().collect::<Vec<_>>(), [MemoryId::DEVICE, MemoryId::HOST, third]);
        assert_eq!(memories[third].padded(Bytes(1)), 4096);
        assert_eq!(memories.link(MemoryId::HOST, third).and_then(|link| link.bytes_per_s), Some(1e9));
        assert_eq!(memories.link(third, MemoryId::DEVICE), None);
        let set = [third, MemoryId::HOST].into_iter().collect::<MemorySet>();
        assert_eq!(set.ids().collect::<Vec<_>>(), [MemoryId::HOST, third]);
        assert!(!set.is_empty() && MemorySet::EMPTY.is_empty());
    }
}
