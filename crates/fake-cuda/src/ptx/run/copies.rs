//! Copies of a warp that `cp.async` started and whose bytes have not arrived.

use super::mask::each;

/// Pending copies of a warp.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pending: Vec<Copy>,
    /// Number of groups that each lane has committed.
    committed: [u64; 32],
}

/// A copy of up to 16 bytes.
#[derive(Debug)]
pub(super) struct Copy {
    pub lane: usize,
    /// Group of the copy: the number of groups that the lane committed before it.
    group: u64,
    /// Offset in shared memory.
    pub to: u64,
    pub data: [u8; 16],
    pub bytes: usize,
}

impl Copies {
    /// Lanes with pending copies.
    pub fn lanes(&self) -> u32 {
        self.pending.iter().fold(0, |lanes, copy| lanes | 1 << copy.lane)
    }

    /// Adds a copy to the group that its lane will commit next.
    pub fn start(&mut self, lane: usize, to: u64, data: [u8; 16], bytes: usize) {
        self.pending.push(Copy { lane, group: self.committed[lane], to, data, bytes });
    }

    /// Commits the lanes' groups.
    pub fn commit(&mut self, lanes: u32) {
        each(lanes).for_each(|lane| self.committed[lane] += 1);
    }

    /// Removes the copies that must have arrived when all but the last `groups` groups of each lane have, or all
    /// copies.
    pub fn due(&mut self, lanes: u32, groups: Option<u64>) -> Vec<Copy> {
        let committed = self.committed;
        let due = |copy: &Copy| {
            let reached = groups.is_none_or(|groups| copy.group + groups < committed[copy.lane]);
            lanes >> copy.lane & 1 == 1 && reached
        };
        let (due, pending) = std::mem::take(&mut self.pending).into_iter().partition(due);
        self.pending = pending;
        due
    }
}
