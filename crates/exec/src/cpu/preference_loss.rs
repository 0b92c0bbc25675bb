//! Losses of preferences, in double precision: they are few numbers.

use super::CpuKernel;
use crate::call::Call;
use plimsoll_graph::ops::{PreferenceKind, PreferenceLoss, PreferenceLossGrad, REWARDS};

impl CpuKernel for PreferenceLoss {
    fn run(&self, mut call: Call) {
        let [loss, rewards] = call.take_outputs();
        let scale = f64::from(call.scalars.loss_scale);
        let (total, sums) = visit(self, &call, |_, _| {});
        loss[0] = (total * scale) as f32;
        rewards.iter_mut().zip(sums).for_each(|(reward, sum)| *reward = (sum * scale) as f32);
    }
}

impl CpuKernel for PreferenceLossGrad {
    fn run(&self, mut call: Call) {
        let [loss, rewards, slopes] = call.take_outputs();
        let scale = f64::from(call.scalars.loss_scale);
        let slope_scale = scale * f64::from(call.scalars.gradient_scale);
        slopes.fill(0.0);
        let (total, sums) = visit(&self.forward, &call, |chosen, of_rows| {
            slopes[chosen..][..2].copy_from_slice(&of_rows.map(|slope| (slope * slope_scale) as f32));
        });
        let results = loss.iter_mut().chain(rewards);
        for (result, sum) in results.zip(std::iter::once(total).chain(sums)) {
            let before = if self.accumulate_loss { *result } else { 0.0 };
            *result = before + (sum * scale) as f32;
        }
    }
}

/// The sums of losses and rewards. Calls `slopes` with the first row of each example that is present, and the slopes of its
/// loss in both log-probabilities.
fn visit(op: &PreferenceLoss, call: &Call, mut slopes: impl FnMut(usize, [f64; 2])) -> (f64, [f64; REWARDS]) {
    let (policy, reference, targets) = (call.f32(0), call.f32(1), call.i32(2));
    let columns = call.io.inputs[2].columns();
    let beta = f64::from(op.beta);
    let (mut total, mut rewards) = (0.0, [0.0; REWARDS]);
    for (pair, targets) in targets.chunks_exact(2 * columns).enumerate() {
        let (chosen, rejected) = targets.split_at(columns);
        let tokens = [chosen, rejected].map(|row| row.iter().filter(|&&target| target >= 0).count());
        if tokens.contains(&0) {
            continue;
        }
        let ratios = [2 * pair, 2 * pair + 1].map(|row| f64::from(policy[row]) - f64::from(reference[row]));
        let (loss, of_rows) = loss_and_slopes(op, ratios, tokens.map(|tokens| tokens as f64));
        total += loss;
        slopes(2 * pair, of_rows);
        let [good, bad] = ratios.map(|ratio| beta * ratio);
        rewards[0] += good;
        rewards[1] += bad;
        rewards[2] += if good > bad { 1.0 } else { 0.0 };
    }
    (total, rewards)
}

/// log (1 + exp x).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The loss of an example and its slopes in both log-ratios.
fn loss_and_slopes(op: &PreferenceLoss, ratios: [f64; 2], tokens: [f64; 2]) -> (f64, [f64; 2]) {
    let (beta, wrong) = (f64::from(op.beta), f64::from(op.smoothing));
    let margin = beta * (ratios[0] - ratios[1]);
    // σ(margin) and σ(-margin), neither of which cancels.
    let [up, down] = [(-softplus(-margin)).exp(), (-softplus(margin)).exp()];
    let (loss, slope) = match op.kind {
        PreferenceKind::Sigmoid => {
            ((1.0 - wrong) * softplus(-margin) + wrong * softplus(margin), wrong * up - (1.0 - wrong) * down)
        }
        PreferenceKind::Robust => {
            let factor = 1.0 / (1.0 - 2.0 * wrong);
            (
                factor * ((1.0 - wrong) * softplus(-margin) - wrong * softplus(margin)),
                -factor * ((1.0 - wrong) * down + wrong * up),
            )
        }
        PreferenceKind::Hinge if margin < 1.0 => (1.0 - margin, -1.0),
        PreferenceKind::Hinge => (0.0, 0.0),
        PreferenceKind::Ipo => {
            let off = ratios[0] / tokens[0] - ratios[1] / tokens[1] - 0.5 / beta;
            return (off * off, [2.0 * off / tokens[0], -2.0 * off / tokens[1]]);
        }
    };
    (loss, [beta * slope, -beta * slope])
}
