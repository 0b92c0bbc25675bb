//! How files hold what a plan says of each memory: the device's and the host's numbers under names of their own, as all
//! versions wrote them, and those of further memories in a list, which is left out where there are none.

use crate::budget::Limit;
use plimsoll_graph::{Memory, MemoryId, MemoryKind, PerMemory};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// `PlannedMemory` of each memory.
pub(crate) mod memories {
    use super::*;
    use crate::budget::PlannedMemory;
    use serde::{Deserializer, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Stored {
        budget_bytes: u64,
        peak_bytes: u64,
        /// `null` if the host's memory is the device's.
        host_budget_bytes: Option<u64>,
        host_bytes: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        further_memories: Vec<Further>,
    }

    #[derive(Serialize, Deserialize)]
    struct Further {
        #[serde(flatten)]
        memory: Memory,
        /// `null` if its bytes are the device's.
        budget_bytes: Option<u64>,
        peak_bytes: u64,
    }

    fn limit(bytes: Option<u64>) -> Limit {
        bytes.map_or(Limit::SharedWith(MemoryId::DEVICE), |bytes| Limit::Own(Bytes(bytes)))
    }

    fn budget_bytes(planned: &PlannedMemory) -> Option<u64> {
        match planned.limit {
            Limit::Own(bytes) => Some(bytes.0),
            Limit::SharedWith(_) => None,
        }
    }

    pub(crate) fn serialize<S: Serializer>(all: &PerMemory<PlannedMemory>, serializer: S) -> Result<S::Ok, S::Error> {
        let [device, host] = [MemoryId::DEVICE, MemoryId::HOST].map(|id| &all[id]);
        let further = all.values().skip(2).map(|planned| Further {
            memory: planned.memory,
            budget_bytes: budget_bytes(planned),
            peak_bytes: planned.peak_bytes,
        });
        let stored = Stored {
            budget_bytes: budget_bytes(device).unwrap_or(u64::MAX),
            peak_bytes: device.peak_bytes,
            host_budget_bytes: budget_bytes(host),
            host_bytes: host.peak_bytes,
            further_memories: further.collect(),
        };
        stored.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PerMemory<PlannedMemory>, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        let of_kind = |kind, limit, peak_bytes| PlannedMemory { memory: Memory::new(kind), limit, peak_bytes };
        let device = of_kind(MemoryKind::Device, limit(Some(stored.budget_bytes)), stored.peak_bytes);
        let host = of_kind(MemoryKind::Host, limit(stored.host_budget_bytes), stored.host_bytes);
        let further = stored.further_memories.into_iter().map(|Further { memory, budget_bytes, peak_bytes }| {
            PlannedMemory { memory, limit: limit(budget_bytes), peak_bytes }
        });
        rows([device, host].into_iter().chain(further))
    }
}

/// The peak of a program in each memory.
pub(crate) mod peaks {
    use super::*;
    use serde::{Deserializer, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Stored {
        peak_bytes: u64,
        host_peak_bytes: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        further_peaks_bytes: Vec<u64>,
    }

    pub(crate) fn serialize<S: Serializer>(peaks: &PerMemory<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let stored = Stored {
            peak_bytes: peaks[MemoryId::DEVICE],
            host_peak_bytes: peaks[MemoryId::HOST],
            further_peaks_bytes: peaks.values().skip(2).copied().collect(),
        };
        stored.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PerMemory<u64>, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        rows([stored.peak_bytes, stored.host_peak_bytes].into_iter().chain(stored.further_peaks_bytes))
    }
}

/// A value for each row. Errors: more rows than a table can have.
fn rows<T, E: serde::de::Error>(values: impl Iterator<Item = T>) -> Result<PerMemory<T>, E> {
    let values = values.collect::<Vec<_>>();
    match values.len() {
        ..=MemoryId::MOST => Ok(values.into_iter().collect()),
        count => Err(E::custom(format!("{count} memories, but a plan has {} at most", MemoryId::MOST))),
    }
}
