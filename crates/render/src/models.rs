//! The presets as a table.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
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
    /// Device memory of the smallest plan.
    pub least: Bytes,
    /// Host memory of that plan.
    pub least_host: Bytes,
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
GPU and host: the least memory that training all parameters takes, in bf16 with
a single-precision copy, one sample of up to 1,024 tokens at a time; with more
it is faster: `plimsoll plan --model NAME --gpu GPU`";

fn table(listed: &[ListedModel], with_hub: bool) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let row = |mut cells: Vec<String>| {
        if !with_hub {
            cells.remove(1);
        }
        cells
    };
    let heads = ["model", "on the hub", "parameters", "GPU", "host", "smallest GPU"];
    table.set_header(row(heads.map(str::to_owned).to_vec()));
    for model in listed {
        table.add_row(row(vec![
            model.name.to_owned(),
            on_hub(model.name).to_owned(),
            counted(model.parameters),
            model.least.to_string(),
            model.least_host.to_string(),
            model.card.map_or("-".to_owned(), str::to_owned),
        ]));
    }
    let first = 1 + usize::from(with_hub);
    for column in first..first + 3 {
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
        let listed = ModelConfig::preset_names().into_iter().map(|name| ListedModel {
            name,
            parameters: 999_000_000,
            tokens: 1024,
            least: Bytes::mib(1023),
            least_host: Bytes::mib(999_999),
            card,
        });
        let listed = listed.collect::<Vec<_>>();
        let [narrow, wide, piped] = [Some(80), Some(200), None].map(|columns| models_table(&listed, columns));
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
