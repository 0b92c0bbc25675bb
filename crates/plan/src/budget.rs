//! How many bytes a plan may use of each memory. A card has memory of its own besides the host's; on the CPU, the arenas
//! of device and host are in one memory.

use plimsoll_graph::{Memory, MemoryId, PerMemory};
use plimsoll_units::Bytes;

/// The limit of the arena in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The memory has bytes of its own.
    Own(Bytes),
    /// Its bytes are those of another memory, whose limit both arenas share. Moving tensors between the two frees nothing.
    SharedWith(MemoryId),
}

/// A limit for each memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget(PerMemory<Limit>);

/// A row of the table of memories, and what the plan uses of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedMemory {
    /// The memory.
    pub memory: Memory,
    /// What the arena must stay under.
    pub limit: Limit,
    /// The size of the arena.
    pub peak_bytes: u64,
}

impl Budget {
    /// Device and host are one memory.
    pub fn shared(bytes: Bytes) -> Self {
        Self(PerMemory::of_device_and_host(Limit::Own(bytes), Limit::SharedWith(MemoryId::DEVICE)))
    }

    /// The device has a memory of its own.
    pub fn apart(device: Bytes, host: Bytes) -> Self {
        Self(PerMemory::of_device_and_host(Limit::Own(device), Limit::Own(host)))
    }

    /// Device and host each have a memory without a limit.
    pub fn unlimited() -> Self {
        Self::apart(Bytes(u64::MAX), Bytes(u64::MAX))
    }

    /// Of these limits. A limit that is shared must be that of a memory with bytes of its own.
    pub(crate) fn of(limits: PerMemory<Limit>) -> Self {
        Self(limits)
    }

    /// Just enough for arenas of these sizes, each in a memory of its own.
    pub(crate) fn exactly(arenas: &PerMemory<u64>) -> Self {
        Self(arenas.map(|_, &bytes| Limit::Own(Bytes(bytes))))
    }

    /// The limits.
    pub(crate) fn limits(&self) -> &PerMemory<Limit> {
        &self.0
    }

    /// What the arenas in a memory must stay under, if it has bytes of its own.
    pub fn own(&self, memory: MemoryId) -> Option<Bytes> {
        match self.0[memory] {
            Limit::Own(bytes) => Some(bytes),
            Limit::SharedWith(_) => None,
        }
    }

    /// What the device's arena must stay under, together with the host's if they share a memory.
    pub fn device(&self) -> Bytes {
        self.own(MemoryId::DEVICE).expect("the device has memory of its own")
    }

    /// What the host's arena must stay under, if the host has memory of its own.
    pub fn host(&self) -> Option<Bytes> {
        self.own(MemoryId::HOST)
    }

    /// What each limit has to be for arenas of these sizes; zero for a memory that shares another's.
    pub fn needed(&self, arenas: &PerMemory<u64>) -> PerMemory<Bytes> {
        let mut needed = arenas.map(|_, &bytes| Bytes(bytes));
        for (memory, limit) in self.0.iter() {
            if let Limit::SharedWith(owner) = *limit {
                let bytes = std::mem::replace(&mut needed[memory], Bytes::ZERO);
                needed[owner] = Bytes(needed[owner].0.saturating_add(bytes.0));
            }
        }
        needed
    }

    /// What each limit lacks for arenas of these sizes; zero for a memory that shares another's.
    pub fn lacking(&self, arenas: &PerMemory<u64>) -> PerMemory<Bytes> {
        self.lacking_of(&self.needed(arenas))
    }

    /// What each limit lacks if it has to be as large as this.
    pub(crate) fn lacking_of(&self, needed: &PerMemory<Bytes>) -> PerMemory<Bytes> {
        needed.map(|memory, needed| needed.saturating_sub(self.own(memory).unwrap_or(Bytes::ZERO)))
    }

    /// Whether arenas of these sizes stay within all limits.
    pub fn holds(&self, arenas: &PerMemory<u64>) -> bool {
        self.lacking(arenas).values().all(|lacking| *lacking == Bytes::ZERO)
    }

    /// An even part of it.
    #[must_use]
    pub fn divided(&self, parts: usize) -> Self {
        self.map(|bytes| Bytes(bytes.0 / parts as u64))
    }

    /// The same memories without limits.
    #[must_use]
    pub fn without_limits(&self) -> Self {
        self.map(|_| Bytes(u64::MAX))
    }

    /// The same with another limit of a memory that has bytes of its own.
    #[must_use]
    pub fn with(&self, memory: MemoryId, bytes: Bytes) -> Self {
        let limits = self.0.map(|id, &limit| if id == memory { Limit::Own(bytes) } else { limit });
        Self(limits)
    }

    fn map(&self, change: impl Fn(Bytes) -> Bytes) -> Self {
        let limits = self.0.map(|_, &limit| match limit {
            Limit::Own(bytes) => Limit::Own(change(bytes)),
            Limit::SharedWith(_) => limit,
        });
        Self(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arenas(sizes: &[u64]) -> PerMemory<u64> {
        sizes.iter().copied().collect()
    }

    fn lacking(budget: &Budget, sizes: &[u64]) -> Vec<u64> {
        budget.lacking(&arenas(sizes)).values().map(|bytes| bytes.0).collect()
    }

    #[test]
    fn a_shared_memory_holds_both_arenas_and_memories_of_their_own_hold_one_each() {
        let (shared, apart) = (Budget::shared(Bytes(10)), Budget::apart(Bytes(10), Bytes(4)));
        for (arenas, lacks_shared, lacks_apart) in [
            ([10, 0], [0, 0], [0, 0]),
            ([6, 4], [0, 0], [0, 0]),
            ([7, 4], [1, 0], [0, 0]),
            ([11, 5], [6, 0], [1, 1]),
            ([u64::MAX, 1], [u64::MAX - 10, 0], [u64::MAX - 10, 0]),
        ] {
            assert_eq!(lacking(&shared, &arenas), lacks_shared, "{arenas:?}");
            assert_eq!(lacking(&apart, &arenas), lacks_apart, "{arenas:?}");
        }
        assert!(shared.without_limits().holds(&arenas(&[u64::MAX, 9])));
        assert_eq!(apart.divided(2), Budget::apart(Bytes(5), Bytes(2)));
        assert_eq!(apart.with(MemoryId::DEVICE, Bytes(7)), Budget::apart(Bytes(7), Bytes(4)));
    }

    #[test]
    fn a_third_memory_has_a_limit_of_its_own_or_shares_one() {
        let own = Budget::of([10, 4, 6].into_iter().map(|bytes| Limit::Own(Bytes(bytes))).collect());
        assert_eq!(lacking(&own, &[10, 4, 7]), [0, 0, 1]);
        let shares = [Limit::Own(Bytes(10)), Limit::Own(Bytes(4)), Limit::SharedWith(MemoryId::HOST)];
        assert_eq!(lacking(&Budget::of(shares.into_iter().collect()), &[10, 3, 7]), [0, 6, 0]);
    }
}
