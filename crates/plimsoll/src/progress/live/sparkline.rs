//! The losses of a run as a row of bars, one character each. It keeps as many values as a wide terminal shows, for runs
//! of any length: each is the mean of some steps, and of twice as many each time the row is full.

/// The most means to keep; an even number.
const CAPACITY: usize = 64;

/// Bars from the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Means of the same number of steps each, in their order.
#[derive(Debug)]
pub(super) struct Sparkline {
    means: Vec<f64>,
    /// Steps per mean.
    steps: u64,
    /// Sum and number of the steps since the last mean.
    sum: f64,
    count: u64,
}

impl Sparkline {
    pub(super) fn new() -> Self {
        Self { means: Vec::with_capacity(CAPACITY), steps: 1, sum: 0.0, count: 0 }
    }

    /// Adds the loss of the next step. A loss that is NaN or infinite is left out.
    pub(super) fn push(&mut self, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        (self.sum, self.count) = (self.sum + loss, self.count + 1);
        if self.count < self.steps {
            return;
        }
        if self.means.len() == CAPACITY {
            self.means = self.means.chunks(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
            self.steps *= 2;
            return;
        }
        self.means.push(self.sum / self.count as f64);
        (self.sum, self.count) = (0.0, 0);
    }

    /// At most `columns` bars, from the first step to the last, the lowest for the lowest mean; empty for fewer than
    /// two means.
    pub(super) fn bars(&self, columns: usize) -> String {
        if self.means.len() < 2 || columns < 2 {
            return String::new();
        }
        let width = self.means.len().div_ceil(columns);
        let shown: Vec<f64> =
            self.means.chunks(width).map(|group| group.iter().sum::<f64>() / group.len() as f64).collect();
        let least = shown.iter().copied().fold(f64::INFINITY, f64::min);
        let most = shown.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let bar = |mean: f64| match most - least {
            range if range > 0.0 => BARS[((mean - least) / range * (BARS.len() - 1) as f64).round() as usize],
            _ => BARS[0],
        };
        shown.into_iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(losses: impl IntoIterator<Item = f64>) -> Sparkline {
        let mut line = Sparkline::new();
        losses.into_iter().for_each(|loss| line.push(loss));
        line
    }

    #[test]
    fn falling_losses_fall_from_the_first_step_to_the_last() {
        assert_eq!(of((0..8).rev().map(f64::from)).bars(20), "█▇▆▅▄▃▂▁");
        assert_eq!(of((0..8).rev().map(f64::from)).bars(4), "█▆▃▁", "means of two if only half fit");
        assert_eq!(of([3.0, 3.0, 3.0]).bars(20), "▁▁▁");
        assert_eq!(of([3.0, f64::NAN, 1.0, f64::INFINITY]).bars(20), "█▁");
        assert_eq!(of([3.0]).bars(20), "");
    }

    #[test]
    fn a_long_run_is_a_row_of_means_of_equal_numbers_of_steps() {
        // 1,000 steps are 62 means of 16 steps, and 8 steps without a mean yet.
        let line = of((0..1000).map(f64::from));
        assert_eq!((line.steps, line.means.len(), line.count), (16, 62, 8));
        for (n, mean) in line.means.iter().enumerate() {
            assert_eq!(*mean, 16.0 * n as f64 + 7.5);
        }
    }

    proptest! {
        #[test]
        fn any_losses_fit_their_columns(losses in prop::collection::vec(any::<f64>(), 0..500), columns in 0_usize..100) {
            let bars = of(losses).bars(columns);
            prop_assert!(bars.chars().count() <= columns);
            prop_assert!(bars.chars().all(|bar| BARS.contains(&bar)));
        }
    }
}
