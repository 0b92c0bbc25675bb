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
        PreferenceKind::Orpo | PreferenceKind::Single { .. } => unreachable!("not a loss of two log-ratios"),
        PreferenceKind::Ipo => {
            let off = ratios[0] / tokens[0] - ratios[1] / tokens[1] - 1.0 / (2.0 * beta);
            (off * off, [2.0 * off / tokens[0], -2.0 * off / tokens[1]])
        }
    }
}

/// The log of the odds of an answer whose tokens have this mean log-probability, and its slope.
fn log_odds(mean: f64) -> (f64, f64) {
    let mean = mean.min(-(-20f64).exp2());
    let other = -mean.exp_m1();
    (mean - other.ln(), 1.0 / other)
}

/// The loss of an example without a reference, and its slopes: in the log-probabilities of the answers, `answers`, and in that
/// of the chosen answer's prompt. Each of them is followed by its number of tokens.
fn of_odds(beta: f64, answers: [(f64, f64); 2], prompt: (f64, f64)) -> (f64, [f64; 2], f64) {
    let all = answers[0].1 + prompt.1;
    let [chosen, rejected] = answers.map(|(sum, tokens)| log_odds(sum / tokens));
    let (margin, likelihood) = (chosen.0 - rejected.0, -(answers[0].0 + prompt.0) / all);
    let pull = beta * sigmoid(-margin);
    let slopes = [-pull * chosen.1 / answers[0].1 - 1.0 / all, pull * rejected.1 / answers[1].1];
    (likelihood - beta * log_sigmoid(margin), slopes, -1.0 / all)
}

/// The loss of a single answer with this log-ratio, its slope, and its part of the rewards.
fn of_single(op: &PreferenceLoss, reference_point: f64, ratio: f64, is_liked: bool) -> (f64, f64, [f64; REWARDS]) {
    let PreferenceKind::Single { liked, disliked, .. } = op.kind else { unreachable!("a loss of two answers") };
    let reward = f64::from(op.beta) * ratio;
    let above = reward - reference_point;
    let (weight, toward) = if is_liked { (f64::from(liked), -1.0) } else { (f64::from(disliked), 1.0) };
    let slope = toward * weight * f64::from(op.beta) * sigmoid(above) * sigmoid(-above);
    let rewards = if is_liked { [reward, 0.0, 1.0] } else { [0.0, reward, 0.0] };
    (weight * sigmoid(toward * above), slope, rewards)
}

/// The sums of losses and rewards, and the slopes of all log-probabilities of the policy, none of them scaled.
fn of_all<F: Real>(op: &PreferenceLoss, call: &RefCall<F>) -> (f64, [f64; REWARDS], Vec<f64>) {
    let (policy, at) = (call.f(0), if op.kind.has_reference() { 2 } else { 1 });
    let (targets, columns) = (call.i(at), call.io.inputs[at].columns());
    let tokens = |row: usize, is_of_group: fn(i32) -> bool| {
        let of_row = &targets[row * columns..][..columns];
        of_row.iter().filter(|&&target| is_of_group(target)).count() as f64
    };
    let (mut loss, mut rewards, mut slopes) = (0.0, [0.0; REWARDS], vec![0.0; policy.len()]);
    if !op.kind.is_paired() {
        for row in 0..policy.len() {
            let [is_liked, is_disliked] = [|t| t >= 0, |t| t < -1].map(|is_of_group| tokens(row, is_of_group) > 0.0);
            if is_liked || is_disliked {
                let ratio = policy[row].to_f64() - call.f(1)[row].to_f64();
                let (of_loss, slope, of_row) = of_single(op, f64::from(call.scalars.reference_point), ratio, is_liked);
                loss += of_loss;
                slopes[row] = slope;
                rewards.iter_mut().zip(of_row).for_each(|(sum, value)| *sum += value);
            }
        }
        return (loss, rewards, slopes);
    }
    for chosen in (0..targets.len() / columns).step_by(2) {
        let rows = [chosen, chosen + 1];
        let lengths = rows.map(|row| tokens(row, |target| target >= 0));
        if lengths.contains(&0.0) {
            continue;
        }
        let of_rewards = if op.kind.has_reference() {
            let ratios = rows.map(|row| policy[row].to_f64() - call.f(1)[row].to_f64());
            let (of_loss, of_rows) = of_example(op, ratios, lengths);
            loss += of_loss;
            slopes[chosen..][..2].copy_from_slice(&of_rows);
            ratios
        } else {
            let [answers, prompts] = [0, 1].map(|group| rows.map(|row| policy[2 * row + group].to_f64()));
            let prompt = (prompts[0], tokens(chosen, |target| target < -1));
            let [good, bad] = [0, 1].map(|answer| (answers[answer], lengths[answer]));
            let (of_loss, of_rows, of_prompt) = of_odds(f64::from(op.beta), [good, bad], prompt);
            loss += of_loss;
            slopes[2 * chosen..][..4].copy_from_slice(&[of_rows[0], of_prompt, of_rows[1], 0.0]);
            [good.0 / good.1, bad.0 / bad.1]
        };
        let [good, bad] = of_rewards.map(|reward| f64::from(op.beta) * reward);
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
