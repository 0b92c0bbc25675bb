//! The least peak by trying every order: the oracle for tiny problems.

use crate::Problem;

/// The least peak of a problem of few buffers, in bytes.
///
/// Push every buffer of an optimal packing down as far as possible, starting with the lowest. Placing buffers in that
/// order, each directly on the highest one below it, rebuilds the packing; so the best over all orders is the optimum.
/// An order in which offsets decrease rebuilds no further packing.
pub fn least_peak(problem: &Problem) -> u64 {
    let room: Vec<usize> = (0..problem.buffers.len()).filter(|&i| problem.buffers[i].takes_room()).collect();
    let mut search = Search { problem, placed: Vec::new(), best: u64::MAX, bound: 0 };
    let live = room.iter().map(|&i| search.height(&room, problem.buffers[i].lifespan.lower));
    search.bound = live.max().unwrap_or(0);
    search.place(&room, (0, 0), 0);
    search.best
}

struct Search<'a> {
    problem: &'a Problem,
    /// (buffer, top) of the buffers placed so far.
    placed: Vec<(usize, u64)>,
    best: u64,
    /// The most bytes that are live at a time: no packing is lower.
    bound: u64,
}

impl Search<'_> {
    /// `latest` is the offset and the index of the last placed buffer.
    fn place(&mut self, rest: &[usize], latest: (u64, usize), peak: u64) {
        if rest.is_empty() {
            self.best = self.best.min(peak);
            return;
        }
        if self.best == self.bound {
            return;
        }
        if rest.iter().any(|&i| self.height(rest, self.problem.buffers[i].lifespan.lower) >= self.best) {
            return;
        }
        for &next in rest {
            let buffer = self.problem.buffers[next];
            let meets = |i: usize| {
                let other = self.problem.buffers[i].lifespan;
                other.lower < buffer.lifespan.upper && buffer.lifespan.lower < other.upper
            };
            let floor = self.placed.iter().filter(|(i, _)| meets(*i)).map(|(_, top)| *top).max().unwrap_or(0);
            if (floor, next) >= latest {
                let top = floor + self.size(next);
                let others: Vec<usize> = rest.iter().copied().filter(|&i| i != next).collect();
                self.placed.push((next, top));
                self.place(&others, (floor, next), peak.max(top));
                self.placed.pop();
            }
        }
    }

    /// A lower bound of the height at `time`, because the remaining buffers go above the placed ones.
    fn height(&self, rest: &[usize], time: u64) -> u64 {
        let live = |i: &usize| {
            let lifespan = self.problem.buffers[*i].lifespan;
            lifespan.lower <= time && time < lifespan.upper
        };
        let floor = self.placed.iter().filter(|(i, _)| live(i)).map(|(_, top)| *top).max().unwrap_or(0);
        floor + rest.iter().copied().filter(live).map(|i| self.size(i)).sum::<u64>()
    }

    fn size(&self, i: usize) -> u64 {
        self.problem.buffers[i].size.next_multiple_of(self.problem.alignment)
    }
}
