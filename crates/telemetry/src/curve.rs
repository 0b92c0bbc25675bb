//! Values over the steps of a run, summarized in a bounded number of stretches regardless of the run's length. Each
//! stretch keeps its lowest and highest value, so a spike in a million steps is still visible.

use serde::Serialize;

/// Maximum number of stretches.
const MOST: u64 = 400;

/// Larger values do not occur in a run, and could overflow in computations.
const LARGEST: f64 = 1e100;

/// A value at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// The value.
    pub value: f64,
}

/// Statistics of the values at consecutive steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stretch {
    /// The value of the first step.
    pub first: Point,
    /// The value of the last step.
    pub last: Point,
    /// The lowest.
    pub lowest: Point,
    /// The highest.
    pub highest: Point,
    /// The mean.
    pub mean: f64,
    /// Number of values.
    pub count: u64,
}

impl Stretch {
    fn of(point: Point) -> Self {
        Self { first: point, last: point, lowest: point, highest: point, mean: point.value, count: 1 }
    }

    /// Joins two stretches; `later` has later steps.
    fn joined(self, later: Self) -> Self {
        let count = self.count + later.count;
        Self {
            first: if later.first.step < self.first.step { later.first } else { self.first },
            last: if later.last.step < self.last.step { self.last } else { later.last },
            lowest: if later.lowest.value < self.lowest.value { later.lowest } else { self.lowest },
            highest: if later.highest.value > self.highest.value { later.highest } else { self.highest },
            mean: self.mean + (later.mean - self.mean) * (later.count as f64 / count as f64),
            count,
        }
    }
}

/// Values over steps.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Number of steps per stretch.
    width: u64,
    /// In step order.
    stretches: Vec<Stretch>,
}

impl Default for Curve {
    fn default() -> Self {
        Self { width: 1, stretches: Vec::new() }
    }
}

impl Curve {
    /// Adds a value. Ignores NaN, infinities, and values too large for any run.
    pub fn push(&mut self, step: u64, value: f64) {
        if value.is_nan() || value.abs() > LARGEST {
            return;
        }
        while step / self.width >= MOST {
            self.width *= 2;
            self.join_neighbors();
        }
        let (width, point) = (self.width, Stretch::of(Point { step, value }));
        match self.stretches.binary_search_by_key(&(step / width), |stretch| stretch.first.step / width) {
            Ok(index) => self.stretches[index] = self.stretches[index].joined(point),
            Err(index) => self.stretches.insert(index, point),
        }
    }

    fn join_neighbors(&mut self) {
        let width = self.width;
        self.stretches = joined(&self.stretches, |stretch| stretch.first.step / width);
    }

    /// The stretches; if there are few steps, one per step.
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// The values, joined to about this many stretches.
    pub fn in_stretches(&self, most: usize) -> Vec<Stretch> {
        let each = self.stretches.len().div_ceil(most.max(1)).max(1);
        self.stretches.chunks(each).filter_map(|part| part.iter().copied().reduce(Stretch::joined)).collect()
    }

    /// The curve up to a step, at the resolution of its stretches: drops a stretch that extends past the step.
    pub fn up_to(&self, step: u64) -> Self {
        let before = self.stretches.iter().take_while(|stretch| stretch.last.step <= step);
        Self { width: self.width, stretches: before.copied().collect() }
    }

    /// All values joined to one stretch; `None` if there are no values.
    pub fn whole(&self) -> Option<Stretch> {
        self.stretches.iter().copied().reduce(Stretch::joined)
    }
}

/// Joins neighbors that have the same key.
fn joined(stretches: &[Stretch], key: impl Fn(&Stretch) -> u64) -> Vec<Stretch> {
    let groups = stretches.chunk_by(|a, b| key(a) == key(b));
    groups.filter_map(|group| group.iter().copied().reduce(Stretch::joined)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn few_values_are_kept_one_by_one() {
        let mut curve = Curve::default();
        (1..=300).for_each(|step| curve.push(step, 1.0 / step as f64));
        let values = curve.stretches().iter().map(|s| (s.first.step, s.lowest.value, s.highest.value, s.count));
        assert!(values.eq((1..=300).map(|step| (step, 1.0 / step as f64, 1.0 / step as f64, 1))));
    }

    #[test]
    fn a_spike_in_a_million_steps_is_kept() {
        let mut curve = Curve::default();
        for step in 1..=1_000_000u64 {
            curve.push(
                step,
                match step {
                    654_321 => 99.0,
                    777_777 => -1.0,
                    _ => 2.0,
                },
            );
        }
        let whole = curve.whole().expect("values");
        assert_eq!((whole.highest, whole.lowest.step), (Point { step: 654_321, value: 99.0 }, 777_777));
        assert_eq!((whole.first.step, whole.last.step, whole.count), (1, 1_000_000, 1_000_000));
        assert!((whole.mean - 2.000094).abs() < 1e-6, "{}", whole.mean);
        assert!(curve.stretches().len() as u64 <= MOST && curve.stretches().len() as u64 > MOST / 3);
        assert!(curve.in_stretches(20).len() <= 20);
    }

    proptest! {
        /// For any steps and values of a journal, in any order.
        #[test]
        fn extremes_are_kept_and_the_number_is_bounded(
            points in prop::collection::vec((prop_oneof![0..2000u64, any::<u64>()], any::<f64>()), 1..600),
        ) {
            let mut curve = Curve::default();
            points.iter().for_each(|(step, value)| curve.push(*step, *value));
            prop_assert!(curve.stretches().len() as u64 <= MOST);
            let sound = points.iter().map(|p| p.1).filter(|v| !v.is_nan() && v.abs() <= LARGEST).collect::<Vec<_>>();
            prop_assert_eq!(curve.whole().is_none(), sound.is_empty());
            let Some(whole) = curve.whole() else { return Ok(()) };
            prop_assert_eq!(whole.lowest.value, sound.iter().copied().fold(f64::INFINITY, f64::min));
            prop_assert_eq!(whole.highest.value, sound.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            prop_assert_eq!(whole.count, sound.len() as u64);
            prop_assert!(whole.mean.is_finite());
            prop_assert!(curve.stretches().is_sorted_by_key(|s| s.first.step));
        }
    }
}
