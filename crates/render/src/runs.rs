//! Runs as a table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_registry::{Entry, GpuShare, Progress, RunKind, RunState};
use plimsoll_units::{Seconds, format_duration};
use serde_json::{Value, json};

/// A run in a list.
#[derive(Debug, Clone)]
pub struct ListedRun {
    /// The contents of its folder.
    pub entry: Entry,
    /// Its state.
    pub state: RunState,
    /// Its progress.
    pub progress: Option<Progress>,
    /// The supervisor that was just started for it.
    pub adopted_by: Option<u32>,
    /// The ID of the user that owns its folder, if that is not this user.
    pub owner: Option<u32>,
}

impl ListedRun {
    /// The time that it has run, or ran.
    fn age_s(&self) -> f64 {
        self.entry.ran_s(self.state)
    }

    fn state_in_words(&self) -> String {
        let code = self.entry.ended.as_ref().map(|ended| ended.code);
        let of_owner = self.owner.map_or(String::new(), |uid| format!(", of user {uid}"));
        let words = match (self.state, code) {
            (RunState::Running, _) => "running".to_owned(),
            (RunState::Orphaned, _) if self.adopted_by.is_some() => "orphaned, adopted now".to_owned(),
            (RunState::Orphaned, _) => "orphaned".to_owned(),
            (RunState::Ended, Some(Some(code))) => format!("ended ({code})"),
            (RunState::Ended, _) => "ended".to_owned(),
            (RunState::Gone, _) => "cut short".to_owned(),
            (RunState::Elsewhere, _) => format!("on {}", self.entry.machine.host),
        };
        words + &of_owner
    }
}

/// A row for each run.
pub fn runs_table(runs: &[ListedRun]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let mut header = vec!["run", "state", "time", "step", "restarts", "GPU memory", "pid", "command"];
    let has_shares = runs.iter().any(|run| !run.entry.shares.is_empty());
    if has_shares {
        header.insert(6, "GPU share");
    }
    table.set_header(header);
    for run in runs {
        let step = run.progress.map_or("-".to_owned(), |progress| match progress.of {
            Some(of) => format!("{}/{of}", progress.step),
            None => progress.step.to_string(),
        });
        let mut row = vec![
            run.entry.name(),
            run.state_in_words(),
            format_duration(Seconds(run.age_s())),
            step,
            run.entry.restarts.to_string(),
            run.entry.cards.iter().map(|card| card.peak).max().map_or("-".to_owned(), |peak| peak.to_string()),
            run.entry.process.pid.to_string(),
            shortened(&run.entry.command.join(" ")),
        ];
        if has_shares {
            row.insert(6, share_in_words(&run.entry.shares));
        }
        table.add_row(row);
    }
    for column in 3..if has_shares { 8 } else { 7 } {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// What each worker may use of its GPU: `2 × 3.33 GiB, 50%`.
fn share_in_words(shares: &[GpuShare]) -> String {
    let Some(first) = shares.first() else { return "-".to_owned() };
    let compute = first.compute.map(|part| format!("{:.0}%", part * 100.0));
    let limits = first.memory.map(|bytes| bytes.to_string()).into_iter().chain(compute).collect::<Vec<_>>().join(", ");
    if shares.len() > 1 { format!("{} × {limits}", shares.len()) } else { limits }
}

fn shortened(command: &str) -> String {
    const MOST: usize = 48;
    let line = command.replace(char::is_control, " ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The same for scripts.
pub fn runs_json(runs: &[ListedRun]) -> Value {
    let runs = runs.iter().map(|run| {
        let ListedRun { entry, state, progress, adopted_by, owner } = run;
        let workers = entry
            .workers
            .iter()
            .map(|worker| json!({ "worker": worker.worker, "attempt": worker.attempt, "pid": worker.leader.as_ref().map(|leader| leader.pid) }));
        json!({
            "name": entry.name(),
            "folder": entry.folder,
            "kind": match entry.kind { RunKind::Supervised => "run", RunKind::Own => "train" },
            "state": state,
            "pid": entry.process.pid,
            "adopted_by": adopted_by,
            "other_owner_uid": owner,
            "host": entry.machine.host,
            "command": entry.command,
            "started_s": entry.started_s,
            "ran_s": run.age_s(),
            "progress": progress,
            "restarts": entry.restarts,
            "cards": entry.cards,
            "shares": entry.shares,
            "workers": workers.collect::<Vec<_>>(),
            "status": entry.ended.as_ref().map(|ended| ended.status),
            "exit_code": entry.ended.as_ref().and_then(|ended| ended.code),
        })
    });
    json!({ "runs": runs.collect::<Vec<_>>() })
}
