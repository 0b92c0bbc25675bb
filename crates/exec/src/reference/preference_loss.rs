//! Reference of `ops/preference_loss.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{PreferenceKind, PreferenceLoss, PreferenceLossGrad, REWARDS};

/// log σ(x).
fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    log_sigmoid(x).exp()
}

/// The loss of an example, and its slopes in both log-ratios, of answers with these numbers of tokens.
fn of_example(op: &PreferenceLoss, ratios: [f64; 2], tokens: [f64; 2]) -> (f64, [f64; 2]) {
    let (beta, e) = (f64::from(op.beta), f64::from(op.smoothing));
    let margin = beta * (ratios[0] - ratios[1]);
    let [right, wrong] = [margin, -margin].map(|x| -log_sigmoid(x));
    let of_margin = |slope: f64| [beta * slope, -beta * slope];
    match op.kind {
        PreferenceKind::Sigmoid => {
            let slope = e * sigmoid(margin) - (1.0 - e) * sigmoid(-margin);
            ((1.0 - e) * right + e * wrong, of_margin(slope))
        }
        PreferenceKind::Robust => {
            let slope = -(e * sigmoid(margin) + (1.0 - e) * sigmoid(-margin));
            (((1.0 - e) * right - e * wrong) / (1.0 - 2.0 * e), of_margin(slope / (1.0 - 2.0 * e)))
        }
        PreferenceKind::Hinge => ((1.0 - margin).max(0.0), of_margin(if margin < 1.0 { -1.0 } else { 0.0 })),
        PreferenceKind::Ipo => {
            let off = ratios[0] / tokens[0] - ratios[1] / tokens[1] - 1.0 / (2.0 * beta);
            (off * off, [2.0 * off / tokens[0], -2.0 * off / tokens[1]])
        }
    }
}

/// The sums of losses and rewards, and the slopes of all rows, none of them scaled.
fn of_all<F: Real>(op: &PreferenceLoss, call: &RefCall<F>) -> (f64, [f64; REWARDS], Vec<f64>) {
    let (policy, reference, targets) = (call.f(0), call.f(1), call.i(2));
    let columns = call.io.inputs[2].columns();
    let ratio = |row: usize| policy[row].to_f64() - reference[row].to_f64();
    let tokens = |row: usize| targets[row * columns..][..columns].iter().filter(|&&target| target >= 0).count() as f64;
    let (mut loss, mut rewards, mut slopes) = (0.0, [0.0; REWARDS], vec![0.0; policy.len()]);
    for chosen in (0..policy.len()).step_by(2) {
        let rows = [chosen, chosen + 1];
        let (ratios, tokens) = (rows.map(ratio), rows.map(tokens));
        if tokens.contains(&0.0) {
            continue;
        }
        let (of_loss, of_rows) = of_example(op, ratios, tokens);
        loss += of_loss;
        slopes[chosen..][..2].copy_from_slice(&of_rows);
        let [good, bad] = ratios.map(|ratio| f64::from(op.beta) * ratio);
        for (sum, value) in rewards.iter_mut().zip([good, bad, f64::from(u8::from(good > bad))]) {
            *sum += value;
        }
    }
    (loss, rewards, slopes)
}

impl Reference for PreferenceLoss {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (loss, rewards, _) = of_all(self, call);
        let scale = f64::from(call.scalars.loss_scale);
        outputs[0][0] = F::from_f64(loss * scale);
        outputs[1] = rewards.into_iter().map(|reward| F::from_f64(reward * scale)).collect();
    }
}

impl Reference for PreferenceLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (loss, rewards, slopes) = of_all(&self.forward, call);
        let scale = f64::from(call.scalars.loss_scale);
        let sums = [vec![loss], rewards.to_vec()];
        for (total, parts) in outputs.iter_mut().zip(sums) {
            start(self.accumulate_loss, total);
            total.iter_mut().zip(parts).for_each(|(total, part)| *total += F::from_f64(part * scale));
        }
        let scale = scale * f64::from(call.scalars.gradient_scale);
        outputs[2] = slopes.into_iter().map(|slope| F::from_f64(slope * scale)).collect();
    }
}
