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
        let (total, sums) = visit(&self.forward, &call, |at, of_policy| {
            slopes[at..].iter_mut().zip(of_policy).for_each(|(to, slope)| *to = (slope * slope_scale) as f32);
        });
        let results = loss.iter_mut().chain(rewards);
        for (result, sum) in results.zip(std::iter::once(total).chain(sums)) {
            let before = if self.accumulate_loss { *result } else { 0.0 };
            *result = before + (sum * scale) as f32;
        }
    }
}

/// The sums of losses and rewards. Calls `slopes` with the slopes of the loss of each example that is present in the policy's
/// log-probabilities, and the position of the first of these.
fn visit(op: &PreferenceLoss, call: &Call, mut slopes: impl FnMut(usize, &[f64])) -> (f64, [f64; REWARDS]) {
    let has_reference = op.kind.has_reference();
    let (policy, at) = (call.f32(0), if has_reference { 2 } else { 1 });
    let (targets, columns) = (call.i32(at), call.io.inputs[at].columns());
    let beta = f64::from(op.beta);
    let (mut total, mut rewards) = (0.0, [0.0; REWARDS]);
    if let PreferenceKind::Single { liked, disliked, .. } = op.kind {
        let reference_point = f64::from(call.scalars.reference_point);
        for (row, targets) in targets.chunks_exact(columns).enumerate() {
            if targets.iter().all(|&target| target == -1) {
                continue;
            }
            let reward = beta * (f64::from(policy[row]) - f64::from(call.f32(1)[row]));
            let above = reward - reference_point;
            let [up, down] = [(-softplus(-above)).exp(), (-softplus(above)).exp()];
            let (loss, slope) = if targets.iter().any(|&target| target >= 0) {
                rewards[0] += reward;
                rewards[2] += 1.0;
                (f64::from(liked) * down, -f64::from(liked) * beta * up * down)
            } else {
                rewards[1] += reward;
                (f64::from(disliked) * up, f64::from(disliked) * beta * up * down)
            };
            total += loss;
            slopes(row, &[slope]);
        }
        return (total, rewards);
    }
    for (pair, targets) in targets.chunks_exact(2 * columns).enumerate() {
        let (chosen, rejected) = targets.split_at(columns);
        let tokens = [chosen, rejected].map(|row| row.iter().filter(|&&target| target >= 0).count());
        if tokens.contains(&0) {
            continue;
        }
        let lengths = tokens.map(|tokens| tokens as f64);
        let numbers = if has_reference {
            let reference = call.f32(1);
            let ratios = [2 * pair, 2 * pair + 1].map(|row| f64::from(policy[row]) - f64::from(reference[row]));
            let (loss, of_rows) = loss_and_slopes(op, ratios, lengths);
            total += loss;
            slopes(2 * pair, &of_rows);
            ratios
        } else {
            let [good, of_prompt, bad] = [0, 1, 2].map(|number| f64::from(policy[4 * pair + number]));
            let prompt = chosen.iter().filter(|&&target| target < -1).count() as f64;
            let means = [good / lengths[0], bad / lengths[1]];
            let (loss, of_means) = loss_of_odds(beta, means);
            let all = prompt + lengths[0];
            total += loss - (good + of_prompt) / all;
            slopes(4 * pair, &[of_means[0] / lengths[0] - 1.0 / all, -1.0 / all, of_means[1] / lengths[1]]);
            means
        };
        let [good, bad] = numbers.map(|number| beta * number);
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

/// The term of the odds of an example without a reference, and its slopes in the mean log-probabilities of both answers.
fn loss_of_odds(beta: f64, means: [f64; 2]) -> (f64, [f64; 2]) {
    const MOST: f64 = -1.0 / (1u32 << 20) as f64;
    let others = means.map(|mean| -mean.min(MOST).exp_m1());
    let [good, bad] = [0, 1].map(|answer| means[answer].min(MOST) - others[answer].ln());
    let pull = beta * (-softplus(good - bad)).exp();
    (beta * softplus(bad - good), [-pull / others[0], pull / others[1]])
}

/// The loss of an example with a reference, and its slopes in both log-ratios.
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
        PreferenceKind::Orpo | PreferenceKind::Single { .. } => unreachable!("not a loss of two log-ratios"),
        PreferenceKind::Ipo => {
            let off = ratios[0] / tokens[0] - ratios[1] / tokens[1] - 0.5 / beta;
            return (off * off, [2.0 * off / tokens[0], -2.0 * off / tokens[1]]);
        }
    };
    (loss, [beta * slope, -beta * slope])
}
