//! The parts of the optimizer that may be moved to the host. A search bounds spans of them, and tells apart only those of which
//! one may be the best.
//!
//! ```text
//!   0 ──────────────────── 16     one bound for all
//!   0 ──────── 8  9 ────── 16     the one that may be faster is halved
//!   0 ── 4  5 ─ 8                 until a single part is left, which is tried
//! ```
//!
//! Of a span, certain are the bytes of its last part on the device, and those of its first on the host: each part moves what
//! the one before it does, and more.

use crate::budget::Budget;
use crate::candidates::micro_batches;
use crate::levers::moved;
use crate::request::Request;
use plimsoll_graph::Graph;

/// How closely what may be chosen is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// For a hint: levels of blocks, and quarters of the optimizer.
    Rough,
    /// For a plan.
    Full,
}

/// As many parts are tried beside none: more where there are few micro-batches to try them with.
fn number_of_parts(request: &Request, detail: Detail) -> usize {
    const FEW: usize = 4;
    match detail {
        Detail::Rough => 4,
        Detail::Full if micro_batches(request).len() > FEW => 16,
        Detail::Full => 32,
    }
}

/// The parts that a request leaves open to move, ascending: of those that move the same of this graph the largest.
pub(crate) fn parts(request: &Request, detail: Detail, graph: &Graph) -> Vec<f64> {
    match (request.levers.optimizer_offload, request.budget) {
        (Some(fraction), _) => vec![fraction],
        // What is moved within one memory frees nothing.
        (None, Budget::Shared(_)) => vec![0.0],
        (None, Budget::Apart { .. }) => {
            let parts = number_of_parts(request, detail);
            let all = (0..=parts).map(|part| part as f64 / parts as f64).collect::<Vec<_>>();
            let moves = |part: &f64| moved(graph, *part).len();
            all.chunk_by(|a, b| moves(a) == moves(b)).filter_map(|alike| alike.last().copied()).collect()
        }
    }
}

/// Parts next to each other, by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Span {
    /// A single part.
    pub(crate) const fn one(part: usize) -> Self {
        Self { first: part, last: part }
    }

    /// Its part, if it is a single one.
    pub(crate) fn single(self) -> Option<usize> {
        (self.first == self.last).then_some(self.last)
    }

    /// Both halves; a single part's are none.
    pub(crate) fn halves(self) -> Option<[Self; 2]> {
        let Self { first, last } = self;
        let middle = first + (last - first) / 2;
        (first < last).then_some([Self { first, last: middle }, Self { first: middle + 1, last }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_a_span_down_to_its_parts() {
        for (first, last) in [(0, 1), (0, 16), (3, 4), (5, 11)] {
            let mut open = vec![Span { first, last }];
            let mut parts = Vec::new();
            while let Some(span) = open.pop() {
                match span.halves() {
                    Some([low, high]) => {
                        assert!(low.first == span.first && high.last == span.last && low.last + 1 == high.first);
                        open.extend([high, low]);
                    }
                    None => parts.push(span.single().expect("a single part")),
                }
            }
            assert!(parts.into_iter().eq(first..=last), "{first}, {last}");
        }
    }
}
