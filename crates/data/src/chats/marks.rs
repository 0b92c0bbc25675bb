//! Marks in a template's output: noncharacters, which no text of a chat contains, so they can be found and removed.
//!
//! ```text
//!   {% generation %} … {% endgeneration %}     BEGIN … END
//!   {% for m in messages %} … {% endfor %}     LOOP TURN … TURN … LOOP_END
//!   a message to locate                        PROBE, put into its text by `answers.rs`
//! ```
//!
//! Not here: writing them; the template engine does that at the request of `template.rs`.

use std::ops::Range;

pub(super) const BEGIN: char = '\u{fdd0}';
pub(super) const END: char = '\u{fdd1}';
pub(super) const LOOP: char = '\u{fdd2}';
pub(super) const TURN: char = '\u{fdd3}';
pub(super) const LOOP_END: char = '\u{fdd4}';
pub(super) const PROBE: char = '\u{fdd5}';

pub(super) fn is_mark(c: char) -> bool {
    (BEGIN..=PROBE).contains(&c)
}

/// A text without its marks, and the positions that they marked.
#[derive(Debug, Default)]
pub(super) struct Unmarked {
    pub text: String,
    /// The text of `{% generation %}` blocks.
    pub generated: Vec<Range<usize>>,
    pub probes: Vec<Probe>,
    /// The end of the last loop; `None` without loops.
    pub loops_end: Option<usize>,
    iterations: Vec<Iteration>,
}

/// A mark that was put into a message.
#[derive(Debug)]
pub(super) struct Probe {
    pub at: usize,
    /// The iterations that contain it, outermost first.
    iterations: Vec<usize>,
}

/// The text of one iteration of a loop.
#[derive(Debug)]
struct Iteration {
    span: Range<usize>,
    probes: usize,
}

impl Unmarked {
    pub(super) fn of(marked: &str) -> Self {
        let mut unmarked = Self { text: String::with_capacity(marked.len()), ..Self::default() };
        // The current iteration of each open loop.
        let mut loops: Vec<Option<usize>> = Vec::new();
        let mut begin = 0;
        for part in marked.split_inclusive(is_mark) {
            let text = part.trim_end_matches(is_mark);
            unmarked.text.push_str(text);
            let at = unmarked.text.len();
            match part[text.len()..].chars().next() {
                Some(BEGIN) => begin = at,
                Some(END) => unmarked.generated.push(begin..at),
                Some(LOOP) => loops.push(None),
                Some(TURN) => {
                    if let Some(open) = loops.last_mut() {
                        unmarked.close(open.take(), at);
                        *open = Some(unmarked.iterations.len());
                        unmarked.iterations.push(Iteration { span: at..at, probes: 0 });
                    }
                }
                Some(LOOP_END) => {
                    unmarked.close(loops.pop().flatten(), at);
                    unmarked.loops_end = Some(at);
                }
                Some(_) => {
                    let iterations: Vec<usize> = loops.iter().filter_map(|open| *open).collect();
                    iterations.iter().for_each(|&iteration| unmarked.iterations[iteration].probes += 1);
                    unmarked.probes.push(Probe { at, iterations });
                }
                None => {}
            }
        }
        unmarked
    }

    fn close(&mut self, iteration: Option<usize>, at: usize) {
        if let Some(iteration) = iteration {
            self.iterations[iteration].span.end = at;
        }
    }

    /// The text of a probe's message: the outermost iteration that contains no other probe and none of these positions.
    pub(super) fn turn(&self, probe: &Probe, others: &[usize]) -> Option<Range<usize>> {
        let mut iterations = probe.iterations.iter().map(|&iteration| &self.iterations[iteration]);
        let is_alone = |iteration: &&Iteration| {
            iteration.probes == 1 && !others.iter().any(|other| iteration.span.contains(other))
        };
        iterations.find(is_alone).map(|iteration| iteration.span.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_removed_and_yield_their_ranges() {
        let unmarked = Unmarked::of(
            "a\u{fdd2}\u{fdd3}b\u{fdd0}c\u{fdd5}\u{fdd1}\u{fdd2}\u{fdd3}d\u{fdd4}\u{fdd3}e\u{fdd5}f\u{fdd4}g",
        );
        assert_eq!(unmarked.text, "abcdefg");
        assert_eq!((&unmarked.generated[..], unmarked.loops_end), (std::slice::from_ref(&(2..3)), Some(6)));
        let turns: Vec<_> = unmarked.probes.iter().map(|probe| (probe.at, unmarked.turn(probe, &[]))).collect();
        assert_eq!(turns, [(3, Some(1..4)), (5, Some(4..6))]);
        assert_eq!(unmarked.turn(&unmarked.probes[0], &[1]), None);
    }

    #[test]
    fn marks_in_any_order_are_harmless() {
        let all: Vec<char> = (BEGIN..=PROBE).chain(['x']).collect();
        for seed in 0..2000_usize {
            let marked: String =
                (0..8).map(|at| all[(seed * 31 + at * at * 7 + seed / (at + 1)) % all.len()]).collect();
            let unmarked = Unmarked::of(&marked);
            assert!(!unmarked.text.contains(is_mark), "{marked:?}");
            let _: Vec<_> = unmarked.probes.iter().map(|probe| unmarked.turn(probe, &[])).collect();
        }
    }
}
