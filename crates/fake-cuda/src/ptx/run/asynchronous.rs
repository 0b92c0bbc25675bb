//! `cp.async`: copies whose bytes arrive at the wait, the latest moment allowed, so that an earlier read of them is
//! detected.

use super::super::program::{Action, Reg};
use super::block::Block;
use super::fault::{FaultKind, Stop};
use super::mask::each;
use super::warp::Warp;

impl Block<'_, '_> {
    /// Starts copies from device to shared memory.
    pub fn copy_async(&mut self, warp: &mut Warp, site: usize, lanes: u32, action: &Action) -> Result<(), Stop> {
        let Action::CopyAsync { to, from, whole_lines, bytes, source_bytes } = action else { return Ok(()) };
        let bytes = warp.uniform(*bytes, lanes, "lanes copy different sizes")?;
        let known = if *whole_lines { bytes == 16 } else { matches!(bytes, 4 | 8 | 16) };
        if !known {
            return Err(Stop::first(lanes, FaultKind::Operand("cp.async with an invalid size")));
        }
        let source_bytes = match source_bytes {
            Some(reg) => *warp.read(*reg, lanes)?,
            None => [bytes; 32],
        };
        let (to, from) = (self.places(warp, lanes, to, bytes)?, self.places(warp, lanes, from, bytes)?);
        self.count(site, &from, false);
        for lane in each(lanes) {
            let stop = |kind| Stop { lane: lane as u32, kind };
            let read = (source_bytes[lane] & 0xffff_ffff) as usize;
            if read > bytes as usize {
                return Err(stop(FaultKind::Operand("cp.async reads more than it writes")));
            }
            let mut data = [0; 16];
            if read > 0 {
                self.fetch(warp, lane, from.at[lane], &mut data[..read], false).map_err(stop)?;
            }
            let at = to.at[lane].1;
            self.shared_bounds(at, at + bytes).map_err(stop)?;
            let (shared, access, launch) = self.shared_by(warp, lane, false);
            let departed = shared.depart(at as usize, bytes as usize, &access, launch);
            departed.map_err(|problem| stop(FaultKind::Memory(problem)))?;
            warp.copies.start(lane, at, data, bytes as usize);
        }
        Ok(())
    }

    /// Waits until all but `groups` groups have arrived; `None`: all copies.
    pub fn copy_wait(&mut self, warp: &mut Warp, lanes: u32, groups: Option<Reg>) -> Result<(), Stop> {
        let groups = match groups {
            Some(reg) => Some(warp.uniform(reg, lanes, "lanes wait for different groups")?),
            None => None,
        };
        for copy in warp.copies.due(lanes, groups) {
            let (shared, access, launch) = self.shared_by(warp, copy.lane, false);
            let arrived = shared.arrive(copy.to as usize, &copy.data[..copy.bytes], &access, launch);
            arrived.map_err(|problem| Stop { lane: copy.lane as u32, kind: FaultKind::Memory(problem) })?;
        }
        Ok(())
    }
}
