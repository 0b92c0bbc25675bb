//! The presets as a table.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_graph::models::ModelConfig;
use plimsoll_units::Bytes;

/// A preset, and what trains it.
#[derive(Debug, Clone)]
pub struct ListedModel {
    /// Its name.
    pub name: &'static str,
    /// How many parameters it has.
    pub parameters: u64,
    /// Tokens of a sample.
    pub tokens: usize,
    /// What the least plan takes of a card.
    pub least: Bytes,
    /// What it takes of the host's memory.
    pub least_host: Bytes,
    /// The smallest card that is known that has room for it.
    pub card: Option<&'static str>,
}

/// A line for each preset, and what its figures mean.
pub fn models_table(listed: &[ListedModel]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(vec!["model", "on the hub", "parameters", "card", "host", "smallest card"]);
    for model in listed {
        table.add_row(vec![
            model.name.to_owned(),
            ModelConfig::hub_names(model.name).first().map_or("-", |name| name).to_owned(),
            counted(model.parameters),
            model.least.to_string(),
            model.least_host.to_string(),
            model.card.map_or("-".to_owned(), str::to_owned),
        ]);
    }
    for column in [2, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{table}\ncard and host: the least memory that training all parameters takes, in bf16 with a single-precision copy,\n\
         one sample of up to 1,024 tokens at a time; with more it is faster: `plimsoll plan --model NAME --gpu CARD`"
    )
}

/// A count of parameters as people say it: `124M`, `1.24B`.
fn counted(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => format!("{:.0}K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0}M", parameters as f64 / 1e6),
        _ => format!("{:.2}B", parameters as f64 / 1e9),
    }
}
