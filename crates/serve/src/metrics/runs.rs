//! Metrics of runs: their state and the values of their last step.

use super::family::{Family, Labels, MetricKind};
use plimsoll_telemetry::Curve;
use plimsoll_watch::{RunView, Standing};

/// A metric: name, unit, help, and its value.
type Field = (&'static str, Option<&'static str>, &'static str, fn(&RunView) -> Option<f64>);

fn newest(curve: &Curve) -> Option<f64> {
    curve.whole().map(|whole| whole.last.value)
}

const FIELDS: &[Field] = &[
    ("plimsoll_run_step", None, "The last completed step.", |run| (run.sessions > 0).then_some(run.step as f64)),
    ("plimsoll_run_last_step", None, "The final step of the run.", |run| run.last_step.map(|step| step as f64)),
    ("plimsoll_run_loss", None, "Mean loss per token of the last step (nats).", |run| Some(run.last?.loss)),
    ("plimsoll_run_eval_loss", None, "The newest held-out loss per token (nats).", |run| newest(&run.held_out)),
    ("plimsoll_run_learning_rate", None, "Learning rate of the last step.", |run| Some(run.last?.learning_rate)),
    ("plimsoll_run_grad_norm", None, "Norm of the last step's gradient before clipping.", |run| {
        Some(run.last?.grad_norm)
    }),
    ("plimsoll_run_tokens_per_second", None, "Tokens trained on per second.", |run| Some(run.last?.tokens_per_s)),
    ("plimsoll_run_step_duration_seconds", Some("seconds"), "Duration of the last step.", |run| {
        Some(run.last?.step_ms / 1e3)
    }),
    ("plimsoll_run_memory_bytes", Some("bytes"), "Memory held on the device.", |run| {
        Some(run.last?.memory_bytes as f64)
    }),
    ("plimsoll_run_planned_bytes", Some("bytes"), "Planned memory.", |run| run.planned_bytes.map(|bytes| bytes as f64)),
    ("plimsoll_run_budget_bytes", Some("bytes"), "Memory allowed.", |run| run.budget_bytes.map(|bytes| bytes as f64)),
    ("plimsoll_run_elapsed_seconds", Some("seconds"), "Elapsed time.", |run| (run.sessions > 0).then_some(run.seconds)),
    ("plimsoll_run_remaining_seconds", Some("seconds"), "Estimated remaining time.", |run| run.seconds_left),
    ("plimsoll_run_checkpoint_step", None, "Step of the newest checkpoint.", |run| {
        Some(run.checkpoints.first()?.step as f64)
    }),
    ("plimsoll_run_last_event_timestamp_seconds", Some("seconds"), "Time of the last event.", |run| run.last_s),
];

const STANDINGS: [(Standing, &str); 9] = [
    (Standing::NotStarted, "not_started"),
    (Standing::Running, "running"),
    (Standing::Finished, "finished"),
    (Standing::Interrupted, "interrupted"),
    (Standing::TooHot, "too_hot"),
    (Standing::Diverged, "diverged"),
    (Standing::Unsaved, "unsaved"),
    (Standing::Failed, "failed"),
    (Standing::CutShort, "cut_short"),
];

pub(super) fn families<'a>(runs: impl Iterator<Item = &'a RunView> + Clone) -> Vec<Family> {
    let mut info = Family::new("plimsoll_run", MetricKind::Info, None, "Labels of a run.");
    let mut standing = Family::new("plimsoll_run_standing", MetricKind::StateSet, None, "State of a run.");
    let help = "Steps whose update was skipped because gradients overflowed.";
    let mut skipped = Family::new("plimsoll_run_skipped_updates", MetricKind::Counter, None, help);
    for run in runs.clone() {
        let labels = labels(run);
        let mut more = labels.clone();
        more.extend(run.device.clone().map(|device| ("device", device)));
        more.extend(run.parameters.map(|parameters| ("parameters", parameters.to_string())));
        info.push(&more, Some(1.0));
        for (state, name) in STANDINGS {
            let mut of_state = labels.clone();
            of_state.push(("plimsoll_run_standing", name.to_owned()));
            standing.push(&of_state, Some(f64::from(u8::from(run.standing == state))));
        }
        skipped.push(&labels, (run.sessions > 0).then_some(run.skipped_updates as f64));
    }
    let fields = FIELDS.iter().map(|(name, unit, help, value)| {
        let mut family = Family::new(name, MetricKind::Gauge, *unit, help);
        for run in runs.clone() {
            family.push(&labels(run), value(run));
        }
        family
    });
    [info, standing, skipped].into_iter().chain(fields).collect()
}

/// The id tells runs with the same name apart.
fn labels(run: &RunView) -> Labels {
    vec![("run", run.name.clone()), ("id", run.id.clone()), ("model", run.model.clone().unwrap_or_default())]
}
