//! Finds signs in an output that the run survived an error: logged steps, advancing progress bars, and messages about a
//! retry. Not here: errors (`statements.rs`).

use super::lines::Line;
use std::collections::BTreeMap;

/// Signs that a run continued, by their line indexes.
#[derive(Debug, Default)]
pub(super) struct SurvivalSigns {
    /// Lines that log a step.
    logged: Vec<usize>,
    /// Lines about a retry with less memory.
    retried: Vec<usize>,
    /// Lines where a bar has advanced.
    advanced: Vec<usize>,
}

impl SurvivalSigns {
    /// Finds the signs in an output.
    pub(super) fn of(lines: &[Line]) -> Self {
        let mut found = Self::default();
        // The furthest position of each bar, by its process and its length.
        let mut bars: BTreeMap<(&str, u64), u64> = BTreeMap::new();
        for (at, line) in lines.iter().enumerate() {
            if reports_a_retry(&line.text) {
                found.retried.push(at);
            } else if logs_a_step(&line.text) {
                found.logged.push(at);
            } else if let Some((done, of)) = bar(&line.text) {
                let furthest = bars.entry((&line.source, of)).or_insert(done);
                if done > *furthest {
                    *furthest = done;
                    found.advanced.push(at);
                }
            }
        }
        found
    }

    /// Whether the run continued after a line. A bar is redrawn when its process ends and may advance then, so it must
    /// advance twice.
    pub(super) fn after(&self, at: usize) -> bool {
        self.logged.last().is_some_and(|last| *last > at) || self.surely_after(at)
    }

    /// Like [`after`](Self::after), but requires two logged steps: another process may have logged its current step.
    pub(super) fn surely_after(&self, at: usize) -> bool {
        let later = |signs: &[usize]| signs.iter().filter(|sign| **sign > at).count();
        // A message about a retry often contains the error itself.
        let is_retried = self.retried.last().is_some_and(|last| *last >= at);
        is_retried || later(&self.logged) >= 2 || later(&self.advanced) >= 2
    }
}

/// `{'loss': 2.31, 'epoch': 0.5}` (Hugging Face), `step 12 | loss 2.31` and similar lines.
fn logs_a_step(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let Some((_, after_loss)) = lower.split_once("loss") else { return false };
    let value = after_loss.trim_start_matches(['\'', '"', ':', '=', ' ', '|']);
    let has_value = value.starts_with(|c: char| c.is_ascii_digit());
    let counts = ["step", "iter", "epoch", "batch"].iter().any(|word| {
        lower.split_once(word).is_some_and(|(_, rest)| {
            let rest = rest.trim_start_matches(['s', 'a', 't', 'i', 'o', 'n']);
            rest.trim_start_matches(['\'', '"', ':', '=', ' ', '[', '#']).starts_with(|c: char| c.is_ascii_digit())
        })
    });
    has_value && (counts || lower.starts_with("{'"))
}

/// Messages of Accelerate, Lightning, fairseq and scripts that caught an error and continue with less memory.
fn reports_a_retry(line: &str) -> bool {
    const WORDS: [&str; 9] = [
        "retrying",
        "decreasing batch size",
        "reducing batch size",
        "trying batch size",
        "trying again with",
        "skipping batch",
        "skipping update",
        "attempting to recover",
        "falling back to",
    ];
    let lower = line.to_ascii_lowercase();
    WORDS.iter().any(|word| lower.contains(word))
}

/// The position of a tqdm bar: `57%|#####7    | 57/100 [00:31<00:23,  1.85it/s]`.
fn bar(line: &str) -> Option<(u64, u64)> {
    let (_, rest) = line.split_once("%|")?;
    let (_, rest) = rest.split_once("| ")?;
    let (done, of) = rest.split(' ').next()?.split_once('/')?;
    Some((done.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::lines::lines;
    use super::*;

    fn survived(text: &str) -> bool {
        SurvivalSigns::of(&lines(text)).after(0)
    }

    #[test]
    fn steps_bars_and_retries_show_that_a_run_survived() {
        assert!(survived("oom\n{'loss': 2.3, 'grad_norm': 1.0, 'epoch': 0.1}"));
        assert!(survived("oom\nstep 12 | loss 2.31 | 300 ms"));
        assert!(survived("oom\nEpoch [2/3], iter 40, Loss: 0.71"));
        assert!(survived("oom\nDecreasing batch size to: 4."));
        assert!(survived(" 1%| | 1/100 [a]\r 2%| | 2/100 [a]\r 3%| | 3/100 [a]"));
        assert!(!survived("oom\n 57%|## | 57/100 [00:31<00:23,  1.85it/s]"), "the last redraw of a bar");
        assert!(!survived("loss of precision is possible\nval_loss is nan\ntraining step failed"));
    }
}
