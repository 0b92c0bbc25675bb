//! A table with text in its first column and figures in the others.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// The widest table. Wider ones are no easier to read, and some libraries count columns in 16 bits.
const COLUMNS_MAX: usize = 1000;

/// The table with a line over its columns. `columns`: of the terminal, to which the text is wrapped; `None` without a terminal.
pub(super) fn figures_table(heads: &[&str], rows: Vec<Vec<String>>, columns: Option<usize>) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(heads.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns.min(COLUMNS_MAX) as u16);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_in_a_narrow_terminal_and_figures_are_whole() {
        let rows = vec![vec!["--gradient-checkpointing --loss liger ".repeat(4), "12.34 GiB".to_owned()]];
        let [narrow, wide, none] = [Some(80), Some(200), None]
            .map(|columns| figures_table(&["what fits", "nvidia-smi"], rows.clone(), columns));
        let widest = |text: &str| text.lines().map(|line| line.chars().count()).max();
        assert!(widest(&narrow) <= Some(80) && narrow.contains("12.34 GiB"), "{narrow}");
        assert!(narrow.lines().count() > wide.lines().count(), "{narrow}\n{wide}");
        assert_eq!(widest(&wide), widest(&none), "no wider than it needs");
    }
}
