//! Exchanges between lanes of a warp: shuffles, votes, matches, reductions. All lanes of the mask must take part.

use super::super::program::{Action, Shuffle, Vote};
use super::access::reduced;
use super::block::{Block, chosen};
use super::fault::{FaultKind, Stop};
use super::mask::each;
use super::warp::{Row, Warp};

const MASK: &str = "lanes have different masks";

impl Block<'_, '_> {
    /// Executes an exchange.
    pub fn exchange(&mut self, warp: &mut Warp, lanes: u32, action: &Action) -> Result<(), Stop> {
        match action {
            Action::Shuffle { from, result, in_range, operands } => {
                let mask = warp.uniform(operands[3], lanes, MASK)? as u32;
                warp.converged(lanes, mask)?;
                let [value, lane, clamp] = [operands[0], operands[1], operands[2]].map(|reg| warp.read(reg, lanes));
                let (row, within) = shuffled(*from, lanes, value?, lane?, clamp?)?;
                warp.write(*result, lanes, &row);
                if let Some(in_range) = in_range {
                    warp.write(*in_range, lanes, &within);
                }
            }
            Action::Vote { vote, result, predicate, mask } => {
                let mask = warp.uniform(*mask, lanes, MASK)? as u32;
                warp.converged(lanes, mask)?;
                let yes = chosen(warp.read(predicate.0, lanes)?, predicate.1) & lanes;
                let outcome = match vote {
                    Vote::All => (yes == lanes).into(),
                    Vote::Any => (yes != 0).into(),
                    Vote::Uniform => (yes == lanes || yes == 0).into(),
                    Vote::Ballot => yes.into(),
                };
                warp.write(*result, lanes, &[outcome; 32]);
            }
            Action::Match { all, bits, result, agreed, value, mask } => {
                let mask = warp.uniform(*mask, lanes, MASK)? as u32;
                warp.converged(lanes, mask)?;
                let value = warp.read(*value, lanes)?.map(|value| value << (64 - bits));
                let same = |lane: usize| {
                    each(lanes).filter(|other| value[*other] == value[lane]).fold(0u32, |same, other| same | 1 << other)
                };
                let mut row: Row = [0; 32];
                each(lanes).for_each(|lane| row[lane] = same(lane).into());
                let agree = each(lanes).all(|lane| row[lane] == u64::from(lanes));
                if *all && !agree {
                    row = [0; 32];
                }
                warp.write(*result, lanes, &row);
                if let Some(agreed) = agreed {
                    warp.write(*agreed, lanes, &[agree.into(); 32]);
                }
            }
            Action::Reduce { update, signed, result, value, mask } => {
                let mask = warp.uniform(*mask, lanes, MASK)? as u32;
                warp.converged(lanes, mask)?;
                let value = warp.read(*value, lanes)?;
                let total = each(lanes).map(|lane| value[lane]).reduce(|a, b| reduced(*update, *signed, a, b));
                let row = [total.unwrap_or(0); 32];
                warp.write(*result, lanes, &row);
            }
            _ => return Err(Stop::first(lanes, FaultKind::Operand("an instruction that is not an exchange"))),
        }
        Ok(())
    }
}

/// Each lane's result, and whether its source lane was in range; if not, it keeps its own value.
/// Source: the ISA's pseudo-code of `shfl.sync`.
fn shuffled(from: Shuffle, here: u32, value: &Row, operand: &Row, clamp: &Row) -> Result<(Row, Row), Stop> {
    let (mut row, mut within) = ([0; 32], [0; 32]);
    for lane in each(here) {
        let own = lane as i64;
        let (distance, bound, segment) =
            ((operand[lane] & 31) as i64, (clamp[lane] & 31) as i64, (clamp[lane] >> 8 & 31) as i64);
        let last = own & segment | bound & !segment;
        let source = match from {
            Shuffle::Up => own - distance,
            Shuffle::Down => own + distance,
            Shuffle::Butterfly => own ^ distance,
            Shuffle::Index => own & segment | distance & !segment,
        };
        let in_range = if from == Shuffle::Up { source >= last } else { source <= last };
        let source = if in_range { source as usize } else { lane };
        if here >> source & 1 == 0 {
            return Err(Stop { lane: lane as u32, kind: FaultKind::AbsentLane(source as u32) });
        }
        (row[lane], within[lane]) = (value[source] & 0xffff_ffff, in_range.into());
    }
    Ok((row, within))
}
