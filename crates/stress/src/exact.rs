//! Workloads whose result is known. The first result is compared with the known answer on the host; every later one is
//! compared with the first on the device, to the bit, so that no run is unchecked and the host is not in the way.
//!
//! ```text
//!   operands ─► op ─► result ─┬─► add ─► cast ─► norm: zero if the result is the first one
//!               - first result ┘
//! ```

use crate::findings::{Mismatch, Unit, WrongResults};
use crate::known::{AttentionAnswer, Elements, HEAD_SIZE, KnownAnswer, ProductAnswer};
use crate::parts::{Burst, Parts};
use plimsoll_exec::converted;
use plimsoll_graph::ops::{ATTENTION_ROWS, Add, Attention, Cast, GradNorm, Linear, Scale, WeightLayout};
use plimsoll_graph::{DType, GraphError, Op, ProgramBuilder, ProgramName, Scalars, TensorId, TensorType};
use plimsoll_train::{Engine, TrainError};
use rayon::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an operand that are computed and written at a time.
const PART: usize = 4 << 20;

/// A workload with a known result.
pub(crate) struct Exact {
    pub label: String,
    pub size: String,
    program: ProgramName,
    /// Stores the result as the first one, with the opposite sign.
    negate: ProgramName,
    operands: Vec<TensorId>,
    result: TensorId,
    /// The norm of the difference.
    apart: TensorId,
    flops: u64,
    answer: Arc<dyn KnownAnswer>,
}

/// A product of square matrices. `precision`: its name.
pub(crate) fn product(
    parts: &mut Parts,
    answer: &Arc<ProductAnswer>,
    dtype: DType,
    precision: &str,
) -> Result<Exact, GraphError> {
    let extent = answer.extent();
    let op = Linear { layout: WeightLayout::InOut, bias: false };
    let shapes = [vec![1, extent, extent], vec![extent, extent]];
    let size = format!("{extent} x {extent} x {extent}");
    build(parts, format!("product, {precision}"), size, op, &shapes, dtype, answer.clone())
}

/// Causal attention of one sample.
pub(crate) fn attention(
    parts: &mut Parts,
    [heads, tokens]: [usize; 2],
    dtype: DType,
    precision: &str,
) -> Result<Exact, GraphError> {
    let op = Attention {
        heads,
        kv_heads: heads,
        packed: false,
        causal: true,
        scale: 1.0 / (HEAD_SIZE as f32).sqrt(),
        window: None,
        cap: None,
        bias: None,
        has_sinks: false,
        segmented: false,
        dropout: None,
        rows: ATTENTION_ROWS,
    };
    let shapes = vec![vec![1, tokens, heads * HEAD_SIZE]; 3];
    let size = format!("{heads} x {HEAD_SIZE}, {tokens} tokens");
    let answer = Arc::new(AttentionAnswer::new(heads, tokens));
    build(parts, format!("attention, {precision}"), size, op, &shapes, dtype, answer)
}

fn build(
    parts: &mut Parts,
    label: String,
    size: String,
    op: impl Into<Op>,
    shapes: &[Vec<usize>],
    dtype: DType,
    answer: Arc<dyn KnownAnswer>,
) -> Result<Exact, GraphError> {
    let op = op.into();
    let types = shapes.iter().map(|shape| TensorType { shape: shape[..].into(), dtype }).collect::<Vec<_>>();
    let results = op.infer(&types.iter().collect::<Vec<_>>())?;
    let operands =
        (0..).zip(&types).map(|(i, ty)| parts.kept(&format!("{label}, operand {i}"), ty)).collect::<Vec<_>>();
    let result = parts.kept(&label, &results[0]);
    let negated = parts.kept(&format!("{label}, negated"), &results[0]);
    let apart = parts.kept(&format!("{label}, difference"), &TensorType::f32(&[1]));
    let io = parts.graph.io(&operands, &[result]);
    let flops = op.flops(&io);
    let program = parts.next_program();
    let mut builder = ProgramBuilder::new(&mut parts.graph);
    let outputs = (0..results.len()).map(|index| (index == 0).then_some(result)).collect::<Vec<_>>();
    builder.push_into(op, &operands, &outputs)?;
    let mut difference = builder.apply(Add, &[result, negated])?;
    if dtype != DType::F32 {
        difference = builder.apply(Cast { to: DType::F32 }, &[difference])?;
    }
    builder.push_into(GradNorm, &[difference], &[Some(apart)])?;
    builder.finish(program);
    let negate = parts.next_program();
    let mut builder = ProgramBuilder::new(&mut parts.graph);
    builder.push_into(Scale { factor: -1.0 }, &[result], &[Some(negated)])?;
    builder.finish(negate);
    Ok(Exact { label, size, program, negate, operands, result, apart, flops, answer })
}

impl Exact {
    /// Writes the operands, and checks the first result.
    pub(crate) fn prepare(&self, engine: &mut Engine, wrong: &mut WrongResults) -> Result<(), TrainError> {
        for (index, &operand) in self.operands.iter().enumerate() {
            let (columns, dtype) = (engine.plan()[operand].ty.columns(), engine.plan()[operand].dtype());
            let rows = engine.plan()[operand].ty.rows();
            let at_a_time = (PART / (4 * columns)).max(1);
            for first in (0..rows).step_by(at_a_time) {
                let mut values = vec![0.0_f32; at_a_time.min(rows - first) * columns];
                let fill = |(row, values): (usize, &mut [f32])| self.answer.fill(index, first + row, values);
                values.par_chunks_mut(columns).enumerate().for_each(fill);
                let offset = (first * columns) as u64 * dtype.size_bytes();
                let bytes = converted(bytemuck::cast_slice(&values), DType::F32, dtype);
                engine.write_part(operand, offset, &bytes)?;
            }
        }
        engine.run(self.program, &Scalars::default())?;
        self.check_on_host(engine, wrong)?;
        engine.run(self.negate, &Scalars::default())
    }

    /// Runs for about this long. Every result is compared with the first one.
    pub(crate) fn run(
        &self,
        engine: &mut Engine,
        time: Duration,
        wrong: &mut WrongResults,
    ) -> Result<Burst, TrainError> {
        let (mut runs, mut differing, start) = (0, 0, Instant::now());
        while runs == 0 || start.elapsed() < time {
            engine.run(self.program, &Scalars::default())?;
            // NaN is a difference too.
            differing += u64::from(engine.read_one(self.apart)? != 0.0);
            runs += 1;
        }
        let busy = start.elapsed();
        wrong.checks += runs;
        if differing > 0 {
            let located = wrong.values;
            self.check_on_host(engine, wrong)?;
            if wrong.values == located {
                self.report(engine, wrong, differing);
            }
        }
        Ok(Burst { busy, work: (runs * self.flops) as f64, unit: Unit::Flops })
    }

    /// Compares the result with the known answer.
    fn check_on_host(&self, engine: &mut Engine, wrong: &mut WrongResults) -> Result<(), TrainError> {
        let tensor = &engine.plan()[self.result];
        let (dtype, first) = (tensor.dtype(), tensor.region().offset);
        let found = self.answer.check(&Elements { dtype, bytes: &engine.view(self.result)? });
        wrong.checks += 1;
        for element in found {
            let offset = first + element.element as u64 * dtype.size_bytes();
            let (workload, bits) = (self.label.clone(), Some(element.bits));
            wrong.add(Mismatch { workload, offset, on_host: false, bits });
        }
        Ok(())
    }

    /// Reports results that differed from the first one, but can't be located.
    fn report(&self, engine: &Engine, wrong: &mut WrongResults, count: u64) {
        let offset = engine.plan()[self.result].region().offset;
        for _ in 0..count {
            wrong.add(Mismatch { workload: self.label.clone(), offset, on_host: false, bits: None });
        }
    }
}
