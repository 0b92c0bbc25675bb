//! Reference of `ops/adamw.rs`. Rounding to `Bf16` is left out, since what it draws is nobody's meaning; codes of
//! quantised moments are whole numbers, found by looking at every level.

use super::{Real, RefCall};
use crate::quantise::Levels;
use graph::ops::{AdamW, STATE_BLOCK, StateFormat};

pub(super) fn adamw<F: Real>(op: &AdamW, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (gradient, factor) = (call.f(0), call.f(1)[0].to_f64());
    if factor.is_nan() {
        return;
    }
    let [beta1, beta2] = [op.beta1, op.beta2].map(f64::from);
    let [eps, decay] = [op.eps, op.weight_decay].map(f64::from);
    let rate = f64::from(op.rate) * f64::from(call.scalars.learning_rate);
    let correction1 = 1.0 - beta1.powf(call.scalars.update as f64);
    let correction2 = 1.0 - beta2.powf(call.scalars.update as f64);
    let quantised = op.state == StateFormat::Blockwise8;
    let levels = [Levels::signed(), Levels::unsigned()];
    let mut moments = [1, 2].map(|which| {
        let stored = outputs[which].iter().map(|x| x.to_f64());
        if !quantised {
            return stored.collect::<Vec<_>>();
        }
        let scale = |i: usize| outputs[which + 2][i / STATE_BLOCK].to_f64();
        stored.enumerate().map(|(i, code)| scale(i) * f64::from(levels[which - 1].decode(code as u8))).collect()
    });
    for (i, g) in gradient.iter().enumerate() {
        let g = factor * g.to_f64();
        let m = beta1 * moments[0][i] + (1.0 - beta1) * g;
        let v = beta2 * moments[1][i] + (1.0 - beta2) * g * g;
        let decayed = outputs[0][i].to_f64() * (1.0 - rate * decay);
        let updated = decayed - rate * (m / correction1) / ((v / correction2).sqrt() + eps);
        outputs[0][i] = F::from_f64(updated);
        (moments[0][i], moments[1][i]) = (m, v);
    }
    for (which, moments) in moments.iter().enumerate() {
        if !quantised {
            outputs[which + 1] = moments.iter().map(|&x| F::from_f64(x)).collect();
            continue;
        }
        for (block, values) in moments.chunks(STATE_BLOCK).enumerate() {
            let largest = values.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            outputs[which + 3][block] = F::from_f64(largest);
            for (i, &value) in values.iter().enumerate() {
                let distance = |code: u8| (f64::from(levels[which].decode(code)) * largest - value).abs();
                let allowed = |code: &u8| which == 0 || value == 0.0 || *code > 0;
                let nearest = (0..=255).filter(allowed).min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
                outputs[which + 1][block * STATE_BLOCK + i] = F::from_f64(nearest.map_or(0.0, f64::from));
            }
        }
    }
}
