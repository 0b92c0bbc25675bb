//! The rewards of preferences, from the sums that a program left.

use plimsoll_graph::ops::REWARDS;
use plimsoll_telemetry::Event;

/// The event for numbers described at [`REWARDS`]. `judged`: whether examples have one answer.
pub(crate) fn rewards_event(step: u64, held_out: bool, numbers: [f64; REWARDS], judged: bool) -> Event {
    let [chosen, rejected, part] = numbers;
    // The mean of the part of examples with this label.
    let mean = |sum: f64, part: f64| (part > 1e-6).then(|| sum / part);
    let (chosen, rejected, accuracy) = match judged {
        true => (mean(chosen, part), mean(rejected, 1.0 - part), None),
        false => (Some(chosen), Some(rejected), Some(part)),
    };
    Event::Rewards { step, held_out, chosen, rejected, accuracy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_of_single_answers_are_means_of_their_label() {
        let of = |numbers, judged| match rewards_event(3, true, numbers, judged) {
            Event::Rewards { step: 3, held_out: true, chosen, rejected, accuracy } => (chosen, rejected, accuracy),
            other => panic!("{other:?}"),
        };
        assert_eq!(of([0.5, -0.25, 0.75], false), (Some(0.5), Some(-0.25), Some(0.75)));
        assert_eq!(of([0.75, -0.25, 0.75], true), (Some(1.0), Some(-1.0), None));
        assert_eq!(of([0.0, -0.25, 0.0], true), (None, Some(-0.25), None));
        assert_eq!(of([0.5, 0.0, 1.0 - 1e-8], true), (Some(0.5 / (1.0 - 1e-8)), None, None));
    }
}
