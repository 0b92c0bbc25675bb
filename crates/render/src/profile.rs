//! The time of a training step op by op, compared with the machine's ceilings.

use comfy_table::{CellAlignment, Table, presets};
use plimsoll_exec::Ceilings;
use plimsoll_graph::Pass;
use plimsoll_graph::ops::Nature;
use plimsoll_plan::{Card, Precision};
use plimsoll_train::TimedStep;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Parts of a step in order, and their names.
const PARTS: [(Pass, &str); 5] = [
    (Pass::HostUpdate, "host's update"),
    (Pass::Forward, "forward"),
    (Pass::Recompute, "recompute"),
    (Pass::Backward, "backward"),
    (Pass::Update, "update"),
];

/// The total of all nodes of an op in a part of a training step.
struct OpTime<'a> {
    /// Its index in the parts.
    part: usize,
    op: &'a str,
    nature: Nature,
    nodes: usize,
    seconds: f64,
    /// Its time if its arithmetic reached the ceiling of its precision.
    seconds_at_best: f64,
    flops: f64,
    bytes: f64,
}

/// The total of all products of the same extents by an op in a training step.
struct ProductTime<'a> {
    op: &'a str,
    /// Rows, terms of a sum, columns.
    extents: [usize; 3],
    nodes: usize,
    seconds: f64,
    /// Their time at the ceiling of their precision.
    seconds_at_best: f64,
    flops: f64,
}

/// The ceilings that ops are compared with.
pub struct Best {
    ceilings: Ceilings,
    /// The benchmarks or data sheets that define the ceilings.
    products: String,
    copies: String,
}

impl Best {
    /// The measured ceilings of the CPU.
    pub fn measured(ceilings: Ceilings) -> Self {
        Self {
            ceilings,
            products: "a product of 2,048 x 512 and 512 x 2,048".to_owned(),
            copies: "a copy of 128 MiB; cached data can exceed it".to_owned(),
        }
    }

    /// The time of a node's arithmetic at the ceiling. Streaming ops compute in single precision for all inputs.
    fn seconds_of(&self, step: &TimedStep) -> f64 {
        let flops_per_s = match step.nature {
            Nature::Products | Nature::Attention => self.ceilings.products_in(step.sample.dtype),
            Nature::Streaming => self.ceilings.flops_per_s,
        };
        step.sample.flops as f64 / flops_per_s
    }

    /// The ceilings of a card by its data sheet, for products in this precision, optionally in TF32 instead of single precision.
    pub fn on_paper(card: &Card, precision: Precision, tf32: bool) -> Self {
        let tflops = match precision {
            Precision::Fp32 if tf32 => card.tf32_tflops.unwrap_or(card.fp32_tflops),
            Precision::Fp32 => card.fp32_tflops,
            Precision::Fp16 => card.fp16_tflops,
            Precision::Bf16 | Precision::Bf16Pure | Precision::Fp8 => card.bf16_tflops.unwrap_or(card.fp32_tflops),
        };
        let in_bf16 = if precision == Precision::Fp8 { " in bf16; products in fp8 can exceed it" } else { "" };
        Self {
            ceilings: Ceilings {
                flops_per_s: 1e12 * tflops,
                bf16_flops_per_s: None,
                bytes_per_s: 1e9 * card.bandwidth_gb_per_s,
            },
            products: format!("the data sheet of {}{in_bf16}", card.name),
            copies: "the same; cached data can exceed it".to_owned(),
        }
    }
}

/// The profile of a training step.
pub struct StepProfile<'a> {
    ops: Vec<OpTime<'a>>,
    /// The slowest come first.
    products: Vec<ProductTime<'a>>,
    best: Best,
}

fn place(pass: Pass) -> usize {
    PARTS.iter().position(|(part, _)| *part == pass).expect("every pass is a part")
}

impl<'a> StepProfile<'a> {
    /// The profile of nodes that were timed in `steps` training steps. The slowest op of each part comes first.
    pub fn new(timed: &'a [TimedStep], steps: u64, best: Best) -> Self {
        let mut ops = BTreeMap::<_, OpTime>::new();
        for step in timed {
            let TimedStep { sample, runs, nature, .. } = step;
            let (part, op, nature) = (place(step.pass), sample.op.as_str(), *nature);
            let none =
                OpTime { part, op, nature, nodes: 0, seconds: 0.0, seconds_at_best: 0.0, flops: 0.0, bytes: 0.0 };
            let sum = ops.entry((part, op)).or_insert(none);
            let times = *runs as f64 / steps as f64;
            sum.nodes += runs / steps as usize;
            sum.seconds += times * sample.seconds;
            sum.seconds_at_best += times * best.seconds_of(step);
            sum.flops += times * sample.flops as f64;
            sum.bytes += times * sample.bytes as f64;
        }
        let mut ops = ops.into_values().collect::<Vec<_>>();
        ops.sort_by(|a, b| a.part.cmp(&b.part).then(b.seconds.total_cmp(&a.seconds)));
        Self { ops, products: products(timed, steps, &best), best }
    }

    fn seconds(&self, counts: impl Fn(&OpTime) -> bool) -> f64 {
        self.ops.iter().filter(|op| counts(op)).fold(0.0, |sum, op| sum + op.seconds)
    }

    /// The time of all nodes of a step together, each timed separately.
    pub fn milliseconds(&self) -> f64 {
        1e3 * self.seconds(|_| true)
    }

    /// These nodes' share of the step, 0 to 1.
    fn share(&self, counts: impl Fn(&OpTime) -> bool) -> f64 {
        self.seconds(counts) / self.seconds(|_| true)
    }

    fn share_of(&self, nature: Nature) -> f64 {
        self.share(|op| op.nature == nature)
    }

    /// A row for each part, followed by a row for each of its ops, and the total.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(vec!["op", "nodes", "ms", "share", "GFLOP/s", "GEMM", "GB/s", "copy"]);
        let percent = |part: f64| format!("{:.1}%", 100.0 * part);
        let whole_percent = |part: f64| format!("{:.0}%", 100.0 * part);
        let total = self.seconds(|_| true);
        for (part, (_, name)) in PARTS.into_iter().enumerate() {
            let ops = self.ops.iter().filter(|op| op.part == part);
            let seconds = self.seconds(|op| op.part == part);
            let nodes = ops.clone().map(|op| op.nodes).sum::<usize>();
            if nodes > 0 {
                let milliseconds = format!("{:.2}", seconds * 1e3);
                table.add_row(vec![name.to_owned(), nodes.to_string(), milliseconds, percent(seconds / total)]);
            }
            for op in ops {
                let (flops_per_s, bytes_per_s) = (op.flops / op.seconds, op.bytes / op.seconds);
                table.add_row(vec![
                    format!(" {}", op.op),
                    op.nodes.to_string(),
                    format!("{:.2}", op.seconds * 1e3),
                    percent(op.seconds / total),
                    format!("{:.1}", flops_per_s / 1e9),
                    whole_percent(op.seconds_at_best / op.seconds),
                    format!("{:.1}", bytes_per_s / 1e9),
                    whole_percent(bytes_per_s / self.best.ceilings.bytes_per_s),
                ]);
            }
        }
        align_right(&mut table);
        let Best { ceilings: Ceilings { flops_per_s, bf16_flops_per_s, bytes_per_s }, products, copies } = &self.best;
        let gemm = match bf16_flops_per_s {
            Some(half) => format!("{:.1} GFLOP/s in bf16, of {:.1} in fp32,\n     ", half / 1e9, flops_per_s / 1e9),
            None => format!("{:.1} GFLOP/s,", flops_per_s / 1e9),
        };
        format!(
            "{table}\n\
             {}\n\
             GEMM: part of {gemm} {products}\n\
             copy: part of {:.1} GB/s, {copies}\n\
             products {}, attention {}, the rest {}: {} is not products\n\
             head_loss_grad is LM head and loss, forward and backward in one",
            self.products_table(),
            bytes_per_s / 1e9,
            percent(self.share_of(Nature::Products)),
            percent(self.share_of(Nature::Attention)),
            percent(self.share_of(Nature::Streaming)),
            percent(self.share(|op| op.nature != Nature::Products)),
        )
    }

    /// A row for each shape of products: the part of the ceiling that it reaches.
    fn products_table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(vec!["product", "rows", "terms", "columns", "nodes", "ms", "GFLOP/s", "GEMM"]);
        for product in &self.products {
            let flops_per_s = product.flops / product.seconds;
            let [rows, terms, columns] = product.extents.map(|extent| extent.to_string());
            table.add_row(vec![
                product.op.to_owned(),
                rows,
                terms,
                columns,
                product.nodes.to_string(),
                format!("{:.2}", product.seconds * 1e3),
                format!("{:.1}", flops_per_s / 1e9),
                format!("{:.0}%", 100.0 * product.seconds_at_best / product.seconds),
            ]);
        }
        align_right(&mut table);
        table
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let ops = self.ops.iter().map(|op| {
            json!({
                "part": PARTS[op.part].1,
                "op": op.op,
                "nature": op.nature,
                "nodes": op.nodes,
                "step_ms": op.seconds * 1e3,
                "flops_per_s": op.flops / op.seconds,
                "bytes_per_s": op.bytes / op.seconds,
            })
        });
        let products = self.products.iter().map(|product| {
            let ([rows, terms, columns], flops_per_s) = (product.extents, product.flops / product.seconds);
            json!({
                "op": product.op,
                "rows": rows,
                "terms": terms,
                "columns": columns,
                "nodes": product.nodes,
                "step_ms": product.seconds * 1e3,
                "flops_per_s": flops_per_s,
                "part_of_ceiling": product.seconds_at_best / product.seconds,
            })
        });
        json!({
            "ceilings": {
                "flops_per_s": self.best.ceilings.flops_per_s,
                "bf16_flops_per_s": self.best.ceilings.bf16_flops_per_s,
                "bytes_per_s": self.best.ceilings.bytes_per_s,
            },
            "shares": {
                "products": self.share_of(Nature::Products),
                "attention": self.share_of(Nature::Attention),
                "streaming": self.share_of(Nature::Streaming),
            },
            "ops": ops.collect::<Vec<_>>(),
            "products": products.collect::<Vec<_>>(),
        })
    }
}

/// Products of the nodes that were timed in `steps` training steps, in all parts.
fn products<'a>(timed: &'a [TimedStep], steps: u64, best: &Best) -> Vec<ProductTime<'a>> {
    let mut products = BTreeMap::<_, ProductTime>::new();
    for step in timed {
        let TimedStep { sample, runs, product, .. } = step;
        let Some(extents) = *product else { continue };
        let op = sample.op.as_str();
        let none = ProductTime { op, extents, nodes: 0, seconds: 0.0, seconds_at_best: 0.0, flops: 0.0 };
        let sum = products.entry((op, extents)).or_insert(none);
        let times = *runs as f64 / steps as f64;
        sum.nodes += runs / steps as usize;
        sum.seconds += times * sample.seconds;
        sum.seconds_at_best += times * best.seconds_of(step);
        sum.flops += times * sample.flops as f64;
    }
    let mut products = products.into_values().collect::<Vec<_>>();
    products.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    products
}

/// All columns but the first.
fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, DeviceKind};
    use plimsoll_plan::{Sample, card};

    #[test]
    fn arithmetic_is_held_against_the_ceiling_of_its_precision() {
        let best =
            |bf16_flops_per_s| Best::measured(Ceilings { flops_per_s: 100.0, bf16_flops_per_s, bytes_per_s: 1.0 });
        let timed = |nature, dtype, extents: Option<[usize; 3]>| TimedStep {
            pass: Pass::Forward,
            nature,
            product: extents,
            sample: Sample {
                device: DeviceKind::Cpu,
                op: "op".into(),
                dtype,
                flops: 500,
                bytes: 1,
                operands: 1,
                seconds: 10.0,
            },
            runs: 2,
        };
        let part = |nature, dtype, half| {
            let steps = [timed(nature, dtype, Some([1, 2, 3])), timed(nature, dtype, Some([3, 2, 1]))];
            let profile = StepProfile::new(&steps, 2, best(half));
            let parts = profile.products.iter().map(|product| product.seconds_at_best / product.seconds);
            // Each shape alone, and both together.
            assert_eq!(parts.clone().count(), 2);
            let whole = profile.ops[0].seconds_at_best / profile.ops[0].seconds;
            assert!(parts.into_iter().all(|part| (part - whole).abs() < 1e-12));
            whole
        };
        assert_eq!(part(Nature::Products, DType::F32, Some(200.0)), 0.5);
        assert_eq!(part(Nature::Products, DType::Bf16, Some(200.0)), 0.25);
        assert_eq!(part(Nature::Attention, DType::Bf16, Some(200.0)), 0.25);
        assert_eq!(part(Nature::Streaming, DType::Bf16, Some(200.0)), 0.5);
        // A card has one ceiling: its data sheet's value for the run's precision.
        assert_eq!(part(Nature::Products, DType::Bf16, None), 0.5);
    }

    #[test]
    fn products_are_held_against_the_data_sheets_figure_for_their_precision() {
        let a100 = card("a100").expect("a known card");
        for (precision, tf32, tflops) in [
            (Precision::Fp32, false, 19.5),
            (Precision::Fp32, true, 156.0),
            (Precision::Bf16, true, 312.0),
            (Precision::Fp16, false, 312.0),
        ] {
            let found = Best::on_paper(a100, precision, tf32).ceilings.flops_per_s;
            assert!((found / (tflops * 1e12) - 1.0).abs() < 1e-9, "{precision:?}, {tf32}: {found}");
        }
    }
}
