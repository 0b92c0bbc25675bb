//! What a plan must stay under. A card has memory of its own beside the host's; on the CPU, device and host are one.

use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// A limit on the arenas of the device and of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Budget {
    /// Both arenas lie in one memory and share its budget. Moving tensors to the host frees nothing there.
    Shared(Bytes),
    /// Each arena has a memory of its own.
    Apart {
        /// Of the device.
        device: Bytes,
        /// Of the host.
        host: Bytes,
    },
}

impl Budget {
    /// Two memories without limits.
    pub const UNLIMITED: Self = Self::Apart { device: Bytes(u64::MAX), host: Bytes(u64::MAX) };

    /// What the device's arena must stay under, with the host's where they share.
    pub fn device(self) -> Bytes {
        match self {
            Self::Shared(bytes) | Self::Apart { device: bytes, .. } => bytes,
        }
    }

    /// What the host's arena must stay under, where it has a budget of its own.
    pub fn host(self) -> Option<Bytes> {
        match self {
            Self::Shared(_) => None,
            Self::Apart { host, .. } => Some(host),
        }
    }

    /// What the budgets of device and host have to be for arenas of these sizes. The host's is zero where they share.
    pub fn needed([device, host]: [u64; 2], is_shared: bool) -> [Bytes; 2] {
        if is_shared { [Bytes(device.saturating_add(host)), Bytes::ZERO] } else { [Bytes(device), Bytes(host)] }
    }

    /// What the budgets of device and host lack for arenas of these sizes. Where they share, the device's lacks it.
    pub fn lacking(self, arenas: [u64; 2]) -> [Bytes; 2] {
        let [device, host] = Self::needed(arenas, self.host().is_none());
        [device.saturating_sub(self.device()), host.saturating_sub(self.host().unwrap_or(Bytes::ZERO))]
    }

    /// An even part of it.
    pub fn divided(self, parts: usize) -> Self {
        self.map(|bytes| Bytes(bytes.0 / parts as u64))
    }

    /// The same memories without limits.
    pub fn without_limits(self) -> Self {
        self.map(|_| Bytes(u64::MAX))
    }

    fn map(self, change: impl Fn(Bytes) -> Bytes) -> Self {
        match self {
            Self::Shared(bytes) => Self::Shared(change(bytes)),
            Self::Apart { device, host } => Self::Apart { device: change(device), host: change(host) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_holds_both_arenas_and_what_is_apart_holds_each() {
        let (shared, apart) = (Budget::Shared(Bytes(10)), Budget::Apart { device: Bytes(10), host: Bytes(4) });
        for (arenas, lacks_shared, lacks_apart) in [
            ([10, 0], [0, 0], [0, 0]),
            ([6, 4], [0, 0], [0, 0]),
            ([7, 4], [1, 0], [0, 0]),
            ([11, 5], [6, 0], [1, 1]),
            ([u64::MAX, 1], [u64::MAX - 10, 0], [u64::MAX - 10, 0]),
        ] {
            assert_eq!(shared.lacking(arenas), lacks_shared.map(Bytes), "{arenas:?}");
            assert_eq!(apart.lacking(arenas), lacks_apart.map(Bytes), "{arenas:?}");
        }
        assert_eq!(shared.without_limits().lacking([u64::MAX, 9]), [Bytes::ZERO; 2]);
        assert_eq!(apart.divided(2), Budget::Apart { device: Bytes(5), host: Bytes(2) });
    }
}
