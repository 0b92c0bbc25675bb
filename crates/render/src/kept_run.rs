//! The report of a program that `plimsoll run` kept alive, as Markdown and as JSON: its attempts, and the memory of its cards.

use plimsoll_registry::{CardPeak, Entry, Report, RunState};
use plimsoll_telemetry::Sample;
use plimsoll_units::{Bytes, Seconds, format_duration};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Stretches of time in JSON, and in Markdown.
const STRETCHES: usize = 400;
const ROWS: usize = 20;

/// A run with the samples that were taken while it ran.
pub struct KeptRun {
    /// The contents of its folder.
    pub entry: Entry,
    /// Its report, once it has ended.
    pub report: Option<Report>,
    /// Cards and machine over time.
    pub samples: Vec<Sample>,
}

/// The most memory in use on a card in a stretch of time.
struct Stretch {
    /// Seconds from the first sample.
    from_s: f64,
    used: Bytes,
    temperature_c: Option<f64>,
}

impl KeptRun {
    /// Memory of each card by its UUID, in this number of stretches of time.
    fn memory(&self, most: usize) -> BTreeMap<String, Vec<Stretch>> {
        let Some((first, last)) = self.samples.first().zip(self.samples.last()) else { return BTreeMap::new() };
        let stretch_s = ((last.time_s - first.time_s) / most as f64).max(1.0);
        let mut cards: BTreeMap<String, BTreeMap<usize, Stretch>> = BTreeMap::new();
        for sample in &self.samples {
            let at = ((((sample.time_s - first.time_s) / stretch_s).max(0.0)) as usize).min(most - 1);
            for card in &sample.cards {
                let Some(used) = card.used else { continue };
                let known = cards.entry(card.uuid.clone()).or_default();
                let stretch = known.entry(at).or_insert(Stretch {
                    from_s: at as f64 * stretch_s,
                    used,
                    temperature_c: card.temperature_c,
                });
                stretch.used = stretch.used.max(used);
                stretch.temperature_c = stretch.temperature_c.into_iter().chain(card.temperature_c).reduce(f64::max);
            }
        }
        cards.into_iter().map(|(uuid, stretches)| (uuid, stretches.into_values().collect())).collect()
    }

    /// The most memory on each card; of a run that is still running, up to the last sample.
    fn peaks(&self) -> Vec<CardPeak> {
        let mut peaks: BTreeMap<&str, CardPeak> =
            self.entry.cards.iter().map(|peak| (peak.uuid.as_str(), peak.clone())).collect();
        for card in self.samples.iter().flat_map(|sample| &sample.cards) {
            let Some(used) = card.used else { continue };
            let seen = || CardPeak { uuid: card.uuid.clone(), name: card.name.clone(), peak: used, total: card.total };
            let peak = peaks.entry(&card.uuid).or_insert_with(seen);
            peak.peak = peak.peak.max(used);
        }
        peaks.into_values().collect()
    }

    fn state(&self) -> String {
        let state = self.entry.state();
        match (&self.entry.ended, state) {
            (Some(ended), _) => {
                let code = ended.code.map_or("unknown".to_owned(), |code| code.to_string());
                let status = json!(ended.status).as_str().unwrap_or_default().replace('_', " ");
                format!("{status}, exit code {code}")
            }
            (None, RunState::Running) => "running".to_owned(),
            (None, RunState::Orphaned) => "running without a supervisor".to_owned(),
            (None, RunState::Elsewhere) => format!("on {}", self.entry.machine.host),
            (None, RunState::Ended | RunState::Gone) => "gone without a recorded end".to_owned(),
        }
    }
}

/// The report in Markdown.
pub fn kept_run_markdown(run: &KeptRun) -> String {
    let command = run.entry.command.join(" ").replace(char::is_control, " ").replace('`', "'");
    let mut text = format!("# {}\n\n`{command}`\n\n{}", run.entry.name(), run.state());
    if let Some(report) = &run.report {
        let _ = write!(text, "; ran for {}, {} restarts", format_duration(Seconds(report.ran_s)), report.restarts);
    }
    text += ".\n";
    let peaks = run.peaks();
    if !peaks.is_empty() {
        text += "\n## GPU memory\n\nOf all programs on a GPU together.\n\n| GPU | most | of |\n| --- | ---: | ---: |\n";
        for CardPeak { name, peak, total, .. } in &peaks {
            let total = total.map_or("-".to_owned(), |total| total.to_string());
            let _ = writeln!(text, "| {name} | {peak} | {total} |");
        }
    }
    for (uuid, stretches) in run.memory(ROWS) {
        let name = peaks.iter().find(|peak| peak.uuid == uuid).map_or(uuid.as_str(), |peak| &peak.name);
        let _ = write!(text, "\n## {name} over time\n\n| from | most memory | °C |\n| ---: | ---: | ---: |\n");
        for Stretch { from_s, used, temperature_c } in stretches {
            let celsius = temperature_c.map_or("-".to_owned(), |celsius| format!("{celsius:.0}"));
            let _ = writeln!(text, "| {} | {used} | {celsius} |", format_duration(Seconds(from_s)));
        }
    }
    if let Some(report) = &run.report {
        text += "\n## Attempts\n\n| worker | attempt | end | ran | step | changes |\n| ---: | ---: | --- | ---: | ---: | --- |\n";
        for attempt in &report.attempts {
            let step = attempt.progress.map_or("-".to_owned(), |progress| progress.step.to_string());
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {step} | {} |",
                attempt.worker,
                attempt.attempt,
                attempt.kind.replace('_', " "),
                format_duration(Seconds(attempt.ran_s)),
                attempt.notes.join("; ").replace('|', "/"),
            );
        }
    }
    text
}

/// The same for scripts, with memory over time in at most 400 stretches a card.
pub fn kept_run_json(run: &KeptRun) -> Value {
    let of_stretch = |stretch: &Stretch| {
        let Stretch { from_s, used, temperature_c } = stretch;
        json!({ "from_s": from_s, "used_bytes": used, "temperature_c": temperature_c })
    };
    let memory = run.memory(STRETCHES);
    let cards = run.peaks().into_iter().map(|peak| {
        let memory = memory.get(&peak.uuid).into_iter().flatten().map(of_stretch).collect::<Vec<_>>();
        let mut card = json!(peak);
        card["memory"] = memory.into();
        card
    });
    json!({
        "name": run.entry.name(),
        "kind": "run",
        "command": run.entry.command,
        "state": run.entry.state(),
        "started_s": run.entry.started_s,
        "cards": cards.collect::<Vec<_>>(),
        "report": run.report,
    })
}
