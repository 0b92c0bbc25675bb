//! An access of a byte, packed into a word, because each byte stores three of them.

/// An access: thread, block and the warp's clock. 0 means no access.
///
/// ```text
/// bit 63: present    62: strong   52..62: thread in its block   24..52: clock of its warp   0..24: block
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp(u64);

const STRONG: u64 = 1 << 62;

impl Stamp {
    /// Maximum number of blocks of a launch.
    pub const BLOCKS: u64 = 1 << 24;
    /// Maximum number of barriers of a warp.
    pub const CLOCKS: u32 = 1 << 28;

    /// Whether the stamp is an access.
    pub fn is_access(self) -> bool {
        self.0 != 0
    }

    /// The thread within its block.
    pub fn thread(self) -> u32 {
        (self.0 >> 52 & 0x3ff) as u32
    }

    /// The block's number within the launch.
    pub fn block(self) -> u32 {
        (self.0 & 0xff_ffff) as u32
    }

    /// Distance of the threads of two accesses: 0 for no access, 1 for the same thread, 2 for the same warp, 3 for the
    /// same block, 4 for different blocks.
    pub fn distance(self, other: Self) -> u32 {
        let differing = self.0 ^ other.0;
        let differs = |bits: u64| u32::from(differing & bits != 0);
        let (block, warp, thread) = (differs(0xff_ffff), differs(0x1f << 57), differs(0x3ff << 52));
        u32::from(self.is_access()) * (1 + thread.max(2 * warp).max(3 * block))
    }

    fn clock(self) -> u32 {
        (self.0 >> 24 & 0xfff_ffff) as u32
    }

    fn strong(self) -> bool {
        self.0 & STRONG != 0
    }
}

/// A new access, with what its warp knows of other warps of its block.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    stamp: Stamp,
    /// Clock of each warp of the block when it last passed a barrier of the block.
    passed: &'a [u32],
}

impl<'a> Access<'a> {
    /// An access of `thread` of `block` at `clock`, which its warp advances at each barrier. `passed`: each warp's
    /// clock at its last block barrier.
    pub fn new(block: u32, thread: u32, clock: u32, strong: bool, passed: &'a [u32]) -> Self {
        let stamp = 1 << 63 | u64::from(thread) << 52 | u64::from(clock) << 24 | u64::from(block);
        Self { stamp: Stamp(stamp | if strong { STRONG } else { 0 }), passed }
    }

    /// Its stamp.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether an earlier access is ordered before this one, or needs no order because both are strong. Block barriers
    /// order all threads of the block, warp barriers the lanes of the warp; nothing orders blocks.
    pub fn follows(&self, earlier: Stamp) -> bool {
        if !earlier.is_access() || (earlier.strong() && self.stamp.strong()) {
            return true;
        }
        if earlier.block() != self.stamp.block() {
            return false;
        }
        let warp = earlier.thread() / 32;
        if warp == self.stamp.thread() / 32 {
            return earlier.thread() == self.stamp.thread() || earlier.clock() < self.stamp.clock();
        }
        self.passed.get(warp as usize).is_some_and(|passed| earlier.clock() < *passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barriers_order_threads_and_nothing_orders_blocks() {
        let none_passed = [0, 0];
        let write = Access::new(3, 5, 0, false, &none_passed).stamp();
        let later =
            |block, thread, clock, passed: &[u32]| Access::new(block, thread, clock, false, passed).follows(write);
        assert!(later(3, 5, 0, &[0, 0]), "a thread follows itself");
        assert!(!later(3, 6, 0, &[0, 0]), "lanes of a warp race");
        assert!(later(3, 6, 1, &[0, 0]), "a barrier of the warp orders them");
        assert!(!later(3, 40, 1, &[0, 0]), "another warp is not ordered");
        assert!(later(3, 40, 1, &[1, 1]), "a barrier of the block orders warps");
        assert!(!later(4, 40, 1, &[1, 1]), "but not blocks");
    }

    #[test]
    fn atomics_do_not_race_with_atomics() {
        let atomic = Access::new(0, 1, 0, true, &[]).stamp();
        assert!(Access::new(1, 1, 0, true, &[]).follows(atomic));
        assert!(!Access::new(1, 1, 0, false, &[]).follows(atomic));
    }
}
