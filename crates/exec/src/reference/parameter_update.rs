//! Reference of `ops/parameter_update.rs` and of all its optimizers. There is no stochastic rounding to `Bf16`, since
//! its random bits are not part of the definition. Codes of quantized moments are integers, found by comparing all
//! levels, and so are remainders (`reference/remainder.rs`).

use super::remainder::{nearest, whole};
use super::{Real, RefCall, Reference};
use crate::quantize::Levels;
use plimsoll_graph::ops::{Operation, ParameterUpdate, STATE_BLOCK, StateFormat};
use plimsoll_graph::optimizers::Rule;

impl Reference for ParameterUpdate {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (gradient, factor) = (call.f(0), call.f(1)[0].to_f64());
        if factor.is_nan() {
            return;
        }
        let rate = f64::from(self.rate) * f64::from(call.scalars.learning_rate);
        let remainder = self.update().and_then(|update| update.remainder);
        let mut moments = (0..self.rule.moments().len()).map(|which| decoded(self, outputs, which)).collect::<Vec<_>>();
        for (i, g) in gradient.iter().enumerate() {
            let mut kept = moments.iter().map(|moment| moment[i]).collect::<Vec<_>>();
            let moved = step(&self.rule, factor * g.to_f64(), &mut kept, call.scalars.update as f64);
            let weight = match remainder {
                Some(at) => whole(outputs[0][i].to_f64(), outputs[at][i].to_f64()),
                None => outputs[0][i].to_f64(),
            };
            let weight = weight * (1.0 - rate * f64::from(self.weight_decay)) - rate * moved;
            match remainder.map(|at| (at, nearest(weight))) {
                Some((at, [nearest, lacks])) => {
                    (outputs[0][i], outputs[at][i]) = (F::from_f64(nearest), F::from_f64(lacks));
                }
                None => outputs[0][i] = F::from_f64(weight),
            }
            moments.iter_mut().zip(kept).for_each(|(moment, kept)| moment[i] = kept);
        }
        for (which, moment) in moments.iter().enumerate() {
            encode(self, outputs, which, moment);
        }
    }
}

/// Updates the moments of an element, given its gradient and the number of the update; returns the step of its weight
/// against the gradient at a learning rate of one.
fn step(rule: &Rule, g: f64, moments: &mut [f64], number: f64) -> f64 {
    match *rule {
        Rule::AdamW(rule) => {
            let [beta1, beta2, eps] = [rule.beta1, rule.beta2, rule.eps].map(f64::from);
            moments[0] = beta1 * moments[0] + (1.0 - beta1) * g;
            moments[1] = beta2 * moments[1] + (1.0 - beta2) * g * g;
            let [m, v] = [moments[0] / (1.0 - beta1.powf(number)), moments[1] / (1.0 - beta2.powf(number))];
            m / (v.sqrt() + eps)
        }
        Rule::Lion(rule) => {
            let [beta1, beta2] = [rule.beta1, rule.beta2].map(f64::from);
            let direction = beta1 * moments[0] + (1.0 - beta1) * g;
            moments[0] = beta2 * moments[0] + (1.0 - beta2) * g;
            if direction == 0.0 { 0.0 } else { direction.signum() }
        }
    }
}

/// The index of the first moment among the results.
fn first_moment(op: &ParameterUpdate) -> usize {
    op.update().map_or(1, |update| update.state)
}

/// The levels of a moment's codes.
fn levels(op: &ParameterUpdate, which: usize) -> Levels {
    if op.rule.moments()[which].is_signed { Levels::signed() } else { Levels::unsigned() }
}

/// The values of a moment.
fn decoded<F: Real>(op: &ParameterUpdate, outputs: &[Vec<F>], which: usize) -> Vec<f64> {
    let stored = outputs[first_moment(op) + which].iter().map(|x| x.to_f64());
    if op.state != StateFormat::Blockwise8 {
        return stored.collect();
    }
    let (scales, levels) = (&outputs[first_moment(op) + op.rule.moments().len() + which], levels(op, which));
    let scale = |i: usize| scales[i / STATE_BLOCK].to_f64();
    stored.enumerate().map(|(i, code)| scale(i) * f64::from(levels.decode(code as u8))).collect()
}

/// Stores a moment in its format.
fn encode<F: Real>(op: &ParameterUpdate, outputs: &mut [Vec<F>], which: usize, values: &[f64]) {
    if op.state != StateFormat::Blockwise8 {
        outputs[first_moment(op) + which] = values.iter().map(|&x| F::from_f64(x)).collect();
        return;
    }
    let (scales, is_signed) = (first_moment(op) + op.rule.moments().len() + which, op.rule.moments()[which].is_signed);
    let levels = levels(op, which);
    for (block, values) in values.chunks(STATE_BLOCK).enumerate() {
        let largest = values.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        outputs[scales][block] = F::from_f64(largest);
        for (i, &value) in values.iter().enumerate() {
            let distance = |code: u8| (f64::from(levels.decode(code)) * largest - value).abs();
            let allowed = |code: &u8| is_signed || value == 0.0 || *code > 0;
            let nearest = (0..=255).filter(allowed).min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
            outputs[first_moment(op) + which][block * STATE_BLOCK + i] = F::from_f64(nearest.map_or(0.0, f64::from));
        }
    }
}
