//! Times each node of each program.

use plimsoll_graph::ops::Nature;
use plimsoll_graph::{Io, Pass, ProgramName};
use plimsoll_plan::{Plan, Sample, Work};
use std::collections::BTreeMap;
use std::time::Duration;

/// Times of the nodes of programs.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    /// Program and index of the node -> its times.
    times: BTreeMap<(ProgramName, usize), Vec<Duration>>,
}

/// A node with its work and its typical time.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedStep {
    /// The part of its program.
    pub pass: Pass,
    /// What dominates the time of its op.
    pub nature: Nature,
    /// Sizes of its product, or of each: rows, terms of a sum, columns.
    pub product: Option<[usize; 3]>,
    /// Its op, precision, work, and shortest time: other load on the machine only adds to it.
    pub sample: Sample,
    /// Number of runs.
    pub runs: usize,
}

impl Profile {
    /// Adds a time of a node.
    pub(crate) fn observe(&mut self, program: ProgramName, step: usize, time: Duration) {
        self.times.entry((program, step)).or_default().push(time);
    }

    /// All nodes of a plan that ran. Panics if nodes of another plan ran.
    pub fn steps(&self, plan: &Plan) -> Vec<TimedStep> {
        self.times
            .iter()
            .map(|((program, index), times)| {
                let step = &plan.program(*program).expect("a program that ran").steps[*index];
                let io = Io {
                    inputs: step.inputs.iter().map(|&id| &plan[id].ty).collect(),
                    outputs: step.outputs.iter().map(|&id| &plan[id].ty).collect(),
                };
                let Work { device, dtype, flops, bytes, operands, .. } = Work::of(&step.op, &io, plan.target(step));
                let seconds = times.iter().min().map_or(f64::NAN, Duration::as_secs_f64);
                let sample = Sample { device, op: step.op.name().to_owned(), dtype, flops, bytes, operands, seconds };
                let (nature, product) = (step.op.nature(), step.op.product(&io));
                TimedStep { pass: step.pass, nature, product, sample, runs: times.len() }
            })
            .collect()
    }
}
