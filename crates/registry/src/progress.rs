//! Estimates a trainer's progress from its output: progress bars, `step 20/100`, `{"step": 20}`, `Epoch 2/3`. Used to
//! decide when the next worker starts and whether an attempt got further than the one before.

use serde::{Deserialize, Serialize};

/// A trainer's progress. Later progress compares greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch, if steps are counted per epoch.
    pub epoch: Option<u64>,
    /// The step.
    pub step: u64,
    /// The last step, if known.
    pub of: Option<u64>,
}

impl Progress {
    /// The fraction done; `None` if the last step is unknown.
    pub fn fraction(&self) -> Option<f64> {
        let of = self.of.filter(|&of| of > 0)?;
        Some((self.step as f64 / of as f64).min(1.0))
    }
}

/// The furthest progress in an output.
pub fn last_progress(output: &[u8]) -> Option<Progress> {
    let mut meter = Meter::default();
    meter.read(output);
    meter.finish();
    meter.furthest()
}

/// Bytes to parse of each read, from its end. A progress bar is far shorter.
const LOOKED_AT: usize = 4096;

/// Words before a step number. A word comes before the words that it contains.
const STEPS: [&str; 5] = ["global_step", "iteration", "step", "iter", "update"];

/// Parts of the names of bars that do not count training steps.
const OTHER_BARS: [&str; 18] = [
    "map", "filter", "load", "fetch", "token", "eval", "valid", "test", "sav", "generat", "shard", "resolv", "extract",
    "split", "group", "pack", "predict", "sampl",
];

/// Parses an output as it arrives.
#[derive(Debug, Default)]
pub struct Meter {
    /// The unfinished line.
    line: Vec<u8>,
    epoch: Option<u64>,
    furthest: Option<Progress>,
}

impl Meter {
    /// Parses new output. Of a large piece, only the end.
    pub fn read(&mut self, bytes: &[u8]) {
        if bytes.len() > LOOKED_AT {
            self.line.clear();
        }
        for &byte in &bytes[bytes.len().saturating_sub(LOOKED_AT)..] {
            match byte {
                b'\n' | b'\r' => self.finish(),
                _ if self.line.len() < LOOKED_AT => self.line.push(byte),
                _ => {}
            }
        }
    }

    /// Parses the unfinished line.
    pub fn finish(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if let Some((done, total)) = bar(&line).or_else(|| step(&line)) {
            self.take(done, total);
        } else if let Some((epoch, _)) = after(&line.to_lowercase(), "epoch") {
            self.epoch = Some(epoch);
            self.furthest = self.furthest.max(Some(Progress { epoch: self.epoch, step: 0, of: None }));
        }
    }

    /// The furthest progress so far.
    pub fn furthest(&self) -> Option<Progress> {
        self.furthest
    }

    /// Takes the position of a bar. A bar with another length is another bar: ignored, as an evaluation, while the
    /// current one is not full; taken, as training after preparation, once it is.
    fn take(&mut self, step: u64, total: Option<u64>) {
        let seen = Progress { epoch: self.epoch, step, of: total };
        let Some(furthest) = self.furthest.filter(|furthest| furthest.epoch == self.epoch) else {
            self.furthest = Some(seen);
            return;
        };
        let is_full = furthest.of == Some(furthest.step);
        match (furthest.of, total) {
            (Some(of), Some(total)) if of != total && is_full => self.furthest = Some(seen),
            (Some(of), Some(total)) if of != total => {}
            (of, total) => self.furthest = Some(furthest.max(Progress { of: total.or(of), ..seen })),
        }
    }
}

/// `Name:  20%|██   | 20/100 [00:01<00:04, 19.9it/s]`, or `20/100 [====>   ]`, as tqdm and Keras draw them.
fn bar(line: &str) -> Option<(u64, Option<u64>)> {
    let count = match line.split_once("%|") {
        Some((before, drawn)) => {
            let name = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').to_lowercase();
            if OTHER_BARS.iter().any(|other| name.contains(other)) {
                return None;
            }
            drawn.split_once('|')?.1
        }
        None => line,
    };
    let (done, rest) = number(count.trim_start())?;
    let (total, rest) = number(rest.strip_prefix('/')?)?;
    let is_bar = rest.trim_start().starts_with(['[', '━', '─']);
    (is_bar && total > 0).then_some((done, Some(total)))
}

/// `step 20/100`, `Step: 20`, `iter=20`, `"global_step": 20`.
fn step(line: &str) -> Option<(u64, Option<u64>)> {
    let line = line.to_lowercase();
    STEPS.iter().find_map(|word| after(&line, word))
}

/// The number after a word, and the total after it, if any.
fn after(line: &str, word: &str) -> Option<(u64, Option<u64>)> {
    line.match_indices(word).find_map(|(at, _)| {
        let is_word = !line[..at].ends_with(|c: char| c.is_alphanumeric());
        let rest = &line[at + word.len()..];
        // `steps_per_second: 3` and `step_time=2` are not step numbers.
        let rest = rest.strip_prefix('s').filter(|rest| rest.starts_with([' ', ':'])).unwrap_or(rest);
        let rest = rest.trim_start_matches([' ', ':', '=', '"', '\'', '#', '[', '(', '\t']);
        let (done, rest) = number(rest).filter(|_| is_word)?;
        let rest = rest.trim_start();
        let total = rest.strip_prefix('/').or_else(|| rest.strip_prefix("of "));
        Some((done, total.and_then(|rest| number(rest.trim_start())).map(|(total, _)| total)))
    })
}

/// A whole number, such as `1200`, `1,200` or `1.2k`, and the text after it.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let digits = digits.trim_end_matches([',', '.']).replace(',', "");
    let (scale, rest) = match rest.chars().next() {
        Some('k' | 'K') => (1e3, &rest[1..]),
        Some('M') => (1e6, &rest[1..]),
        _ => (1.0, rest),
    };
    let value = digits.parse::<f64>().ok()? * scale;
    let is_count = value.fract() == 0.0 && value < 1e15;
    is_count.then_some((value as u64, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(output: &str, expected: Option<(Option<u64>, u64, Option<u64>)>) {
        let found = last_progress(output.as_bytes());
        let expected = expected.map(|(epoch, step, of)| Progress { epoch, step, of });
        assert_eq!(found, expected, "{output:?}");
    }

    #[test]
    fn bars_and_log_lines_of_trainers_are_parsed() {
        check("  1%|          | 3/300 [00:01<01:57,  2.52it/s]", Some((None, 3, Some(300))));
        check("Training:  20%|██        | 20/100 [00:01<00:04, 19.9it/s]\r", Some((None, 20, Some(100))));
        check(" 12%|█▏        | 1.2k/10k [00:01<00:04, 19.9it/s]\r", Some((None, 1200, Some(10_000))));
        check("Epoch 2/3\n 20/100 [====>.........] - ETA: 3s\r", Some((Some(2), 20, Some(100))));
        check("step 20/100 loss 3.1\nstep 21/100 loss 3.0\n", Some((None, 21, Some(100))));
        check("Step: 1,200, loss: 3\n", Some((None, 1200, None)));
        check("iter 250: loss 2.1, time 12ms\n", Some((None, 250, None)));
        check("{\"event\": \"x\", \"step\": 7, \"loss\": 2.0}\n", Some((None, 7, None)));
        check("[Step 5 of 50] lr 1e-4\n", Some((None, 5, Some(50))));
        check("epoch=1 step=3\nepoch=1 step=2\n", Some((None, 3, None)));
    }

    #[test]
    fn other_counters_are_not_progress() {
        check(
            "Map: 100%|██████████| 1000/1000 [00:01<00:00]\nLoading checkpoint shards:  50%|█ | 1/2 [00:01<00:01]",
            None,
        );
        check("{'loss': 2.1, 'epoch': 0.5}\n{'train_steps_per_second': 3, 'step_time': 4}\n", None);
        check("footstep 7\n2026-11-23 10:00/11:00 [info]\nloss 3/4\n", None);
        check("", None);
    }

    #[test]
    fn an_evaluation_bar_does_not_reset_the_training_bar() {
        check(
            " 50%|█ | 50/100 [a]\r 20%|█ | 20/1000 [b]\r100%|█ | 1000/1000 [b]\n 51%|█ | 51/100 [a]\r",
            Some((None, 51, Some(100))),
        );
        check("100%|█ | 1000/1000 [preparing]\n  1%|█ | 1/100 [a]\r", Some((None, 1, Some(100))));
    }

    #[test]
    fn a_later_epoch_is_greater() {
        let [first, second] =
            [(1, 90), (2, 3)].map(|(epoch, step)| Progress { epoch: Some(epoch), step, of: Some(100) });
        assert!(second > first && first.fraction() == Some(0.9));
    }

    proptest! {
        #[test]
        fn any_output_is_parsed(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "[0-9/%|. a-z\\[k]{0,60}",
        ) {
            let _ = (last_progress(&bytes), last_progress(text.as_bytes()));
        }

        #[test]
        fn an_output_in_two_pieces_gives_the_same_progress(cut in 0usize..80) {
            let output = "step 1/9\n 20%|██ | 2/9 [00:01<00:04]\rstep 3/9\nloss 2\nEpoch 1\n \
                44%|██ | 4/9 [00:01<00:04]\r";
            let cut = cut.min(output.len());
            let mut meter = Meter::default();
            meter.read(&output.as_bytes()[..cut]);
            meter.read(&output.as_bytes()[cut..]);
            prop_assert_eq!(meter.furthest(), last_progress(output.as_bytes()));
        }
    }
}
