//! The products of `ops/head.rs`: logits, and the gradients of their factors.

use super::{Real, RefCall, start};
use plimsoll_graph::ops::HeadGradients;

/// Rows and a table that are multiplied: hidden states and the weight, or the two parts of an adapter.
struct Factors<'a, F> {
    /// The rows of each draw.
    rows: Vec<&'a [F]>,
    table: &'a [F],
    columns: usize,
}

/// The factors of logits, which are the sums of their products.
pub(super) struct Head<'a, F> {
    factors: Vec<Factors<'a, F>>,
    /// Rows of a table.
    pub(super) vocab: usize,
}

impl<'a, F: Real> Head<'a, F> {
    pub(super) fn of(call: &RefCall<'a, F>, draws: usize, has_adapter: bool) -> Self {
        let factors = |first: usize, table: usize| Factors {
            rows: (first..first + draws).map(|index| call.f(index)).collect(),
            table: call.f(table),
            columns: call.io.inputs[table].columns(),
        };
        let of_adapter = has_adapter.then(|| factors(draws + 2, 2 * draws + 2));
        let factors = [factors(0, draws)].into_iter().chain(of_adapter).collect();
        Self { factors, vocab: call.io.inputs[draws].shape[0] }
    }

    /// The logits of a row before a cap.
    pub(super) fn logits(&self, draw: usize, row: usize) -> Vec<f64> {
        let dot = |of: &Factors<F>, k: usize| {
            let (a, b) = (&of.rows[draw][row * of.columns..], &of.table[k * of.columns..][..of.columns]);
            a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum::<f64>()
        };
        (0..self.vocab).map(|k| self.factors.iter().map(|of| dot(of, k)).sum()).collect()
    }
}

/// The gradients of all factors.
pub(super) struct Gradients<'h, 'a, F> {
    head: &'h Head<'a, F>,
    /// By factors, then by draw.
    rows: Vec<Vec<Vec<f64>>>,
    tables: Vec<Vec<f64>>,
}

impl<'h, 'a, F: Real> Gradients<'h, 'a, F> {
    pub(super) fn of(head: &'h Head<'a, F>) -> Self {
        let rows = head.factors.iter().map(|of| of.rows.iter().map(|rows| vec![0.0; rows.len()]).collect());
        let tables = head.factors.iter().map(|of| vec![0.0; of.table.len()]);
        Self { head, rows: rows.collect(), tables: tables.collect() }
    }

    /// Adds those of a row whose logits have these slopes.
    pub(super) fn add(&mut self, draw: usize, row: usize, slopes: impl IntoIterator<Item = f64>) {
        for (k, slope) in slopes.into_iter().enumerate() {
            for (of, (rows, table)) in self.head.factors.iter().zip(self.rows.iter_mut().zip(&mut self.tables)) {
                for i in 0..of.columns {
                    let (of_row, of_table) = (row * of.columns + i, k * of.columns + i);
                    rows[draw][of_row] += slope * of.table[of_table].to_f64();
                    table[of_table] += slope * of.rows[draw][of_row].to_f64();
                }
            }
        }
    }

    /// Sets results to those of the rows, and adds those of the tables to results if `accumulate`.
    pub(super) fn write(self, requested: &HeadGradients, accumulate: bool, outputs: &mut [Vec<F>]) {
        let mut outputs = outputs.iter_mut();
        let of_rows = self.rows.into_iter().zip([requested.input, requested.low()]).filter(|(_, is_wanted)| *is_wanted);
        for (gradient, output) in of_rows.flat_map(|(draws, _)| draws).zip(&mut outputs) {
            *output = gradient.into_iter().map(F::from_f64).collect();
        }
        let of_tables = self.tables.into_iter().zip([requested.weight, requested.up()]);
        for ((gradient, _), output) in of_tables.filter(|(_, is_wanted)| *is_wanted).zip(&mut outputs) {
            start(accumulate, output);
            output.iter_mut().zip(gradient).for_each(|(total, part)| *total += F::from_f64(part));
        }
    }
}
