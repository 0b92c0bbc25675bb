//! Runs as a table and as JSON.

use crate::listed_run::{Compared, ListedRun, compared, peak};
use comfy_table::{CellAlignment, Table, presets};
use plimsoll_registry::{GpuShare, RunKind};
use plimsoll_units::{Seconds, format_duration};
use serde_json::{Value, json};

/// A row for each run. Columns that no run has a value for are left out.
pub fn runs_table(runs: &[ListedRun]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let (has_shares, has_speeds) =
        (runs.iter().any(|run| !run.entry.shares.is_empty()), runs.iter().any(|run| run.speed.is_some()));
    let shown = |cells: [String; 10]| {
        let is_shown = [true, true, true, true, has_speeds, true, true, has_shares, true, true];
        cells.into_iter().zip(is_shown).filter_map(|(cell, is_shown)| is_shown.then_some(cell)).collect::<Vec<_>>()
    };
    let header = ["run", "state", "time", "step", "speed", "restarts", "GPU memory", "GPU share", "pid", "command"];
    let header = shown(header.map(str::to_owned));
    let right = 3..header.len() - 1;
    table.set_header(header);
    for run in runs {
        let compared = compared(run, runs);
        let than_newest = |quotient: fn(&Compared) -> Option<f64>| {
            compared.as_ref().and_then(quotient).map_or(String::new(), |quotient| format!(" ({quotient:.2} ×)"))
        };
        let step = run.progress.map_or("-".to_owned(), |progress| match progress.of {
            Some(of) => format!("{}/{of}", progress.step),
            None => progress.step.to_string(),
        });
        table.add_row(shown([
            run.entry.name(),
            run.state_in_words(),
            format_duration(Seconds(run.ran_s())) + &than_newest(|compared| compared.ran),
            step,
            run.speed.map_or("-".to_owned(), |speed| speed.to_string() + &than_newest(|compared| compared.speed)),
            run.entry.restarts.to_string(),
            peak(run).map_or("-".to_owned(), |peak| peak.to_string() + &than_newest(|compared| compared.peak_memory)),
            share_in_words(&run.entry.shares),
            run.entry.process.pid.to_string(),
            shortened(&run.entry.command.join(" ")),
        ]));
    }
    for column in right {
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
    let listed = runs.iter().map(|run| {
        let ListedRun { entry, state, progress, speed, adopted_by, owner } = run;
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
            "ran_s": run.ran_s(),
            "progress": progress,
            "speed": speed,
            "compared": compared(run, runs),
            "restarts": entry.restarts,
            "cards": entry.cards,
            "shares": entry.shares,
            "workers": workers.collect::<Vec<_>>(),
            "status": entry.ended.as_ref().map(|ended| ended.status),
            "exit_code": entry.ended.as_ref().and_then(|ended| ended.code),
        })
    });
    json!({ "runs": listed.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listed_run::Speed;
    use plimsoll_registry::{CardPeak, Ended, Entry, RunState, Status};
    use plimsoll_units::Bytes;
    use std::path::Path;

    fn run(name: &str, kind: RunKind, command: &str, started_s: f64, per_s: f64) -> ListedRun {
        let command = command.split(' ').map(str::to_owned).collect();
        let mut entry = Entry::new(kind, &Path::new("/runs").join(name), command);
        entry.started_s = started_s;
        entry.ended = Some(Ended { status: Status::Finished, code: Some(0), time_s: started_s + 1000.0 / per_s });
        let (uuid, peak) = ("GPU-a".to_owned(), Bytes::mib(per_s as u64));
        entry.cards = vec![CardPeak { uuid, name: "A".to_owned(), peak, total: None }];
        ListedRun {
            entry,
            state: RunState::Ended,
            progress: None,
            speed: Some(Speed { per_s, unit: "tokens" }),
            adopted_by: None,
            owner: None,
        }
    }

    #[test]
    fn runs_of_one_command_are_compared_with_the_newest() {
        let runs = [
            run("a", RunKind::Own, "plimsoll train --name a --model gpt2", 1.0, 300.0),
            run("b", RunKind::Own, "/bin/plimsoll train --model gpt2 --detached --resume auto --name=b", 2.0, 200.0),
            run("c", RunKind::Own, "plimsoll train --model t5", 3.0, 100.0),
            run("d", RunKind::Supervised, "python train.py --name a", 4.0, 100.0),
            run("e", RunKind::Supervised, "python train.py --name b", 5.0, 100.0),
        ];
        let found = runs.iter().map(|run| compared(run, &runs)).collect::<Vec<_>>();
        let first = found[0].as_ref().expect("an older run");
        let (speed, ran) = (first.speed.expect("known"), first.ran.expect("known"));
        assert_eq!((first.with.as_str(), speed, first.peak_memory, first.more_restarts), ("b", 1.5, Some(1.5), 0));
        assert!((ran - 2.0 / 3.0).abs() < 1e-9, "{ran}");
        assert_eq!(found[1..], [None, None, None, None], "the newest, and the only ones of their commands");
        let table = runs_table(&runs);
        assert!(table.contains("300 tokens/s (1.50 ×)") && table.contains("300 MiB (1.50 ×)"), "{table}");
        assert!(table.contains("3 s (0.67 ×)") && table.contains(" 200 tokens/s "), "{table}");
        assert_eq!(runs_json(&runs)["runs"][0]["compared"]["with"], "b");
    }
}
