//! The least peak by trying every order: the oracle for tiny problems.

use crate::arena::Problem;

/// The least peak of a problem with few buffers, in bytes.
///
/// In an optimal packing push every buffer down as far as it goes, from the lowest offset upwards.
/// Laying buffers in that order, each directly on the highest of those below it, rebuilds the packing;
/// so the best over all orders is the optimum.
pub fn least_peak(problem: &Problem) -> u64 {
    let mut search = Search { problem, laid: Vec::new(), best: u64::MAX };
    let room: Vec<usize> = (0..problem.buffers.len()).filter(|&i| problem.buffers[i].takes_room()).collect();
    search.lay(&room, 0);
    search.best
}

struct Search<'a> {
    problem: &'a Problem,
    /// (buffer, top) of those laid so far.
    laid: Vec<(usize, u64)>,
    best: u64,
}

impl Search<'_> {
    fn lay(&mut self, rest: &[usize], peak: u64) {
        if rest.is_empty() {
            self.best = self.best.min(peak);
            return;
        }
        for &next in rest {
            let buffer = self.problem.buffers[next];
            let meets = |i: usize| {
                let other = self.problem.buffers[i].lifespan;
                other.lower < buffer.lifespan.upper && buffer.lifespan.lower < other.upper
            };
            let floor = self.laid.iter().filter(|(i, _)| meets(*i)).map(|(_, top)| *top).max().unwrap_or(0);
            let top = floor + buffer.size.next_multiple_of(self.problem.alignment);
            if top < self.best {
                let others: Vec<usize> = rest.iter().copied().filter(|&i| i != next).collect();
                self.laid.push((next, top));
                self.lay(&others, peak.max(top));
                self.laid.pop();
            }
        }
    }
}
