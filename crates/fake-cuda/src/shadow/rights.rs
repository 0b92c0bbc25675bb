//! Access rights of a launch: the regions that the device announced through the hook, each with a mode.

/// Access mode of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Read.
    Read,
    /// Written, then read; its previous contents count as unwritten.
    Write,
    /// Read and written.
    Update,
    /// Like `Write`, and unwritten again at the next announcement.
    Scratch,
}

impl Mode {
    /// The mode with this number in the hook.
    pub fn of(number: u32) -> Option<Self> {
        [Self::Read, Self::Write, Self::Update, Self::Scratch].get(number.checked_sub(1)? as usize).copied()
    }

    /// Whether the previous contents count as unwritten.
    pub fn starts_unwritten(self) -> bool {
        matches!(self, Self::Write | Self::Scratch)
    }
}

/// Announced regions. Before the first announcement everything is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    restricted: bool,
    /// Sorted by address, disjoint: start, end, mode.
    regions: Vec<(u64, u64, Mode)>,
}

impl Rights {
    /// Rights that allow nothing.
    pub fn none() -> Self {
        Self { restricted: true, regions: Vec::new() }
    }

    /// Allows one more region. Errors: it overlaps a region with another mode. A region may be announced twice in the
    /// same mode.
    pub fn allow(&mut self, start: u64, bytes: u64, mode: Mode) -> Result<(), (u64, u64, Mode)> {
        let end = start.saturating_add(bytes);
        self.restricted = true;
        let place = self.regions.partition_point(|region| region.1 <= start);
        if let Some(region) = self.regions.get(place).filter(|region| region.0 < end) {
            let same = *region == (start, end, mode) || (region.2 == Mode::Read && mode == Mode::Read);
            if !same {
                return Err(*region);
            }
            // Merge overlapping readable regions; the union may overlap another.
            let (from, to) = (region.0.min(start), region.1.max(end));
            self.regions.remove(place);
            return self.allow(from, to - from, mode);
        }
        if bytes > 0 {
            self.regions.insert(place, (start, end, mode));
        }
        Ok(())
    }

    /// Whether all these bytes may be read or written.
    pub fn allows(&self, start: u64, bytes: u64, write: bool) -> bool {
        if !self.restricted {
            return true;
        }
        let (mut at, end) = (start, start.saturating_add(bytes));
        let place = self.regions.partition_point(|region| region.1 <= start);
        for &(from, to, mode) in &self.regions[place..] {
            if at >= end || from > at || (write && mode == Mode::Read) {
                break;
            }
            at = to;
        }
        at >= end
    }

    /// The regions.
    pub fn regions(&self) -> &[(u64, u64, Mode)] {
        &self.regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_announced_bytes_are_allowed() {
        let mut rights = Rights::default();
        assert!(rights.allows(0, 1, true), "without an announcement everything is allowed");
        rights.allow(100, 50, Mode::Read).unwrap();
        rights.allow(150, 50, Mode::Update).unwrap();
        assert!(rights.allows(100, 50, false) && rights.allows(140, 20, false) && rights.allows(150, 50, true));
        assert!(!rights.allows(140, 20, true), "a part is read-only");
        assert!(!rights.allows(190, 11, false) && !rights.allows(99, 2, false));
    }

    #[test]
    fn modes_of_one_region_must_agree() {
        let mut rights = Rights::none();
        rights.allow(0, 10, Mode::Read).unwrap();
        rights.allow(20, 10, Mode::Read).unwrap();
        rights.allow(5, 20, Mode::Read).unwrap();
        assert_eq!(rights.regions(), [(0, 30, Mode::Read)]);
        rights.allow(40, 8, Mode::Write).unwrap();
        rights.allow(40, 8, Mode::Write).unwrap();
        assert_eq!(rights.allow(25, 10, Mode::Write), Err((0, 30, Mode::Read)));
    }
}
