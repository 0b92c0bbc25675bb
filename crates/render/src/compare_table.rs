//! Plans for several cards, side by side.

use super::plan_table::limit_words;
use comfy_table::{CellAlignment, Table, presets};
use plimsoll_plan::{Found, Levers, Misfit};
use plimsoll_units::{Bytes, Seconds, format_duration};

/// A card and the result of planning for it.
pub struct ComparedPlan<'a> {
    /// The card.
    pub device: &'a str,
    /// The budget of the plan.
    pub budget: Bytes,
    /// The plan, or why there is none.
    pub result: &'a Result<Found, Box<Misfit>>,
}

/// A row for each card. `tokens`: of a whole run, whose time is shown too.
pub fn compare_table(plans: &[ComparedPlan], tokens: Option<f64>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let time = tokens.map(|tokens| format!("{:.0}M tokens", tokens / 1e6));
    let heads =
        ["GPU", "budget", "peak", "used", "micro-batch", "offloaded", "precision", "tokens/s"].map(str::to_owned);
    table.set_header(heads.into_iter().chain(time));
    let mut bounds = Vec::new();
    for ComparedPlan { device, budget, result } in plans {
        let mut row = vec![(*device).to_owned(), budget.to_string()];
        match result {
            Ok(found) => {
                row.push(found.plan.peak().to_string());
                let part = found.plan.peak().as_f64() / found.plan.budget().device().as_f64();
                row.push(format!("{:.0} %", 100.0 * part));
                bounds.push(format!("{device}: {}", limit_words(found.limited_by)));
                row.push(format!("{} x {}", found.plan.micro_batch, found.plan.accumulation));
                row.push(offloaded(&found.settings.levers));
                row.push(found.settings.levers.precision.name().to_owned());
                row.push(format!("{:.0}", found.tokens_per_s()));
                row.extend(tokens.map(|tokens| format_duration(Seconds(tokens / found.tokens_per_s()))));
            }
            Err(misfit) => {
                row.push(misfit.plan.peak().to_string());
                row.push(format!("short {}", misfit.largest_short()));
            }
        }
        table.add_row(row);
    }
    for column in 1..=8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let bounds = bounds.into_iter().map(|bound| bound + "\n").collect::<String>();
    format!("{table}\n{bounds}times are estimates from the GPUs' data sheets")
}

/// The parts of a plan that are offloaded to the host.
fn offloaded(levers: &Levers) -> String {
    let optimizer = levers.optimizer_offload > 0.0;
    let optimizer = optimizer.then(|| format!("{:.0} % of the optimizer", 100.0 * levers.optimizer_offload));
    let blocks = levers.activation_offload;
    let activations = (blocks > 0).then(|| format!("{blocks} {}", if blocks == 1 { "block" } else { "blocks" }));
    let weights =
        (levers.weight_offload > 0.0).then(|| format!("{:.0} % of the weights", 100.0 * levers.weight_offload));
    let all = optimizer.into_iter().chain(weights).chain(activations).collect::<Vec<_>>();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_offloaded_is_named() {
        for (optimizer_offload, weight_offload, activation_offload, expected) in [
            (0.0, 0.0, 0, "-"),
            (0.75, 0.0, 0, "75 % of the optimizer"),
            (0.0, 0.0, 1, "1 block"),
            (1.0, 0.25, 12, "100 % of the optimizer, 25 % of the weights, 12 blocks"),
        ] {
            let levers = Levers { optimizer_offload, weight_offload, activation_offload, ..Levers::default() };
            assert_eq!(offloaded(&levers), expected);
        }
    }
}
