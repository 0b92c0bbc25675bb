//! The presets as a table.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, presets};
use plimsoll_graph::models::ModelConfig;
use plimsoll_units::Bytes;

/// A preset, and the memory that training it needs.
#[derive(Debug, Clone)]
pub struct ListedModel {
    /// Its name.
    pub name: &'static str,
    /// The number of its parameters.
    pub parameters: u64,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Training of all parameters.
    pub full: LeastMemory,
    /// Training of adapters on frozen weights in half precision.
    pub lora: LeastMemory,
    /// Training of adapters on frozen weights in 4 bits; `None` if the model's can't be.
    pub qlora: Option<LeastMemory>,
}

/// The least memory for a way to train a model.
#[derive(Debug, Clone, Copy)]
pub struct LeastMemory {
    /// Device memory of the smallest plan.
    pub device: Bytes,
    /// Host memory of that plan.
    pub host: Bytes,
    /// The smallest known card with room for it.
    pub card: Option<&'static str>,
}

/// A row for each preset, and a note on the figures. If a terminal has too few `columns` for the names on the hub in the
/// same table, they follow in a second one.
pub fn models_table(listed: &[ListedModel], columns: Option<usize>) -> String {
    let wide = table(listed, true).to_string();
    let fits = |columns: usize| wide.lines().all(|line| line.chars().count() <= columns);
    let Some(columns) = columns.filter(|columns| !fits(*columns)) else { return format!("{wide}\n{NOTE}") };
    let fitted = |mut table: Table| {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns.min(1000) as u16);
        // Names of models are copied into commands, so only names of GPUs are wrapped.
        for column in 0..2 {
            table.column_mut(column).map(|column| column.set_constraint(ColumnConstraint::ContentWidth));
        }
        table
    };
    let mut names = Table::new();
    names.load_style(presets::UTF8_BORDERS_ONLY);
    names.set_header(vec!["model", "on the hub"]);
    listed.iter().for_each(|model| {
        names.add_row(vec![model.name, on_hub(model.name)]);
    });
    format!("{}\n{}\n{NOTE}", fitted(names), fitted(table(listed, false)))
}

const NOTE: &str = "\
full: the smallest GPU that trains all parameters, in bf16 with a
single-precision copy, and what it needs of GPU and host memory; LoRA and QLoRA:
the smallest that trains adapters of rank 16 (`--method lora`, `qlora`). One
sample of up to 1,024 tokens at a time; with more memory it is faster:
`plimsoll plan --model NAME --gpu GPU`";

fn table(listed: &[ListedModel], with_hub: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let row = |[name, hub, parameters, device, host, cards @ ..]: [String; 8]| {
        let middle = if with_hub { vec![hub, parameters, device, host] } else { vec![parameters] };
        [vec![name], middle, cards.to_vec()].concat()
    };
    let heads = ["model", "on the hub", "parameters", "GPU", "host", "full", "LoRA", "QLoRA"];
    table.set_header(row(heads.map(str::to_owned)));
    for model in listed {
        let card = |least: Option<LeastMemory>| least.and_then(|least| least.card).unwrap_or("-").to_owned();
        table.add_row(row([
            model.name.to_owned(),
            on_hub(model.name).to_owned(),
            counted(model.parameters),
            model.full.device.to_string(),
            model.full.host.to_string(),
            card(Some(model.full)),
            card(Some(model.lora)),
            card(model.qlora),
        ]));
    }
    for column in if with_hub { 2..5 } else { 1..2 } {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The first of a preset's names on the hub.
fn on_hub(name: &str) -> &'static str {
    ModelConfig::hub_names(name).first().map_or("-", |name| name)
}

/// A short count of parameters: `124M`, `1.24B`.
fn counted(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => format!("{:.0}K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0}M", parameters as f64 / 1e6),
        _ => format!("{:.2}B", parameters as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_plan::cards;

    #[test]
    fn the_table_fits_80_columns_and_is_one_line_a_model_where_there_is_room() {
        let card = cards().iter().map(|card| card.name).max_by_key(|name| name.len());
        let least = LeastMemory { device: Bytes::mib(1023), host: Bytes::mib(999_999), card };
        let listed = ModelConfig::preset_names().into_iter().map(|name| ListedModel {
            name,
            parameters: 999_000_000,
            tokens: 1024,
            full: least,
            lora: least,
            qlora: Some(least),
        });
        let listed = listed.collect::<Vec<_>>();
        let [narrow, wide, piped] = [Some(80), Some(300), None].map(|columns| models_table(&listed, columns));
        let widest = narrow.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{widest:?} columns:\n{narrow}");
        for model in &listed {
            let is_in =
                |text: &str| text.lines().any(|l| l.contains(&format!(" {} ", model.name)) && l.contains("999M"));
            assert!(is_in(&narrow) && is_in(&wide) && narrow.contains(on_hub(model.name)), "{}", model.name);
        }
        assert_eq!(wide, piped);
        assert!(wide.lines().any(|line| line.contains("openai-community/gpt2-xl") && line.contains("999M")));
    }
}
