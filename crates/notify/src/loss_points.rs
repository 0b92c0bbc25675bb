//! The losses of a run of any length, in a bounded number of points.

use crate::message::LossPoint;

/// Maximum number of points, more than a small image has columns.
const POINTS_MAX: usize = 256;

/// Each point is the mean over the same number of steps. When there are too many points, each pair is merged.
#[derive(Debug, Clone)]
pub(crate) struct LossPoints {
    points: Vec<LossPoint>,
    stride: u64,
    sum: f64,
    count: u64,
}

impl Default for LossPoints {
    fn default() -> Self {
        Self { points: vec![], stride: 1, sum: 0.0, count: 0 }
    }
}

impl LossPoints {
    /// Adds a step's loss; NaN and infinity are skipped.
    pub(crate) fn add(&mut self, step: u64, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        (self.sum, self.count) = (self.sum + loss, self.count + 1);
        if self.count < self.stride {
            return;
        }
        self.points.push(LossPoint { step, loss: self.sum / self.count as f64 });
        (self.sum, self.count) = (0.0, 0);
        if self.points.len() == POINTS_MAX {
            let pairs = self.points.chunks_exact(2);
            let halved = pairs.map(|p| LossPoint { step: p[1].step, loss: f64::midpoint(p[0].loss, p[1].loss) });
            self.points = halved.collect();
            self.stride *= 2;
        }
    }

    /// Discards the steps after this one, which will be repeated.
    pub(crate) fn rewind(&mut self, to_step: u64) {
        self.points.retain(|point| point.step <= to_step);
        (self.sum, self.count) = (0.0, 0);
    }

    pub(crate) fn points(&self) -> Vec<LossPoint> {
        self.points.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_summarized_in_few_points() {
        let mut losses = LossPoints::default();
        for step in 1..=100_000u64 {
            losses.add(step, step as f64);
        }
        let points = losses.points();
        assert!((POINTS_MAX / 2..POINTS_MAX).contains(&points.len()), "{}", points.len());
        // Each is the mean of the steps that end with it.
        let stride = points[0].step;
        assert!(points.iter().all(|p| (p.loss - (p.step as f64 - (stride as f64 - 1.0) / 2.0)).abs() < 1e-6));
        losses.add(100_001, f64::NAN);
        assert_eq!(losses.points(), points);
        losses.rewind(50_000);
        assert!(losses.points().iter().all(|point| point.step <= 50_000));
    }
}
