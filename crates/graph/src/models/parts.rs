//! What several families are built of.

use super::Mode;
use crate::ops::{Dropout, DropoutKey, Linear, WeightLayout};
use crate::{Graph, GraphError, Init, ProgramBuilder, TensorId};
use std::ops::RangeFrom;

/// The places of a forward pass where something is dropped out, each with a number of its own.
#[derive(Debug)]
pub(super) struct Dropouts {
    sites: RangeFrom<u32>,
    draws: bool,
}

/// Sites of one forward pass at most, so that a second pass draws other bits.
const SITES: u32 = 1 << 20;

impl Dropouts {
    pub(super) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Train { draw } => Self { sites: draw * SITES.., draws: true },
            Mode::Evaluate | Mode::Cached => Self { sites: 0.., draws: false },
        }
    }

    /// The next site's key; none if nothing is dropped. Every site counts, so that none depends on others' rates.
    pub(super) fn key(&mut self, rate: f32) -> Option<DropoutKey> {
        let site = self.sites.next().expect("an endless range");
        (self.draws && rate > 0.0).then_some(DropoutKey { rate, site })
    }

    /// x with elements dropped, or as it is.
    pub(super) fn apply(
        &mut self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        rate: f32,
    ) -> Result<TensorId, GraphError> {
        match self.key(rate) {
            Some(key) => builder.apply(Dropout { key }, &[x]),
            None => Ok(x),
        }
    }
}

/// Weights (out, in), and biases if there are any.
#[derive(Debug, Clone)]
pub(super) struct Projection(Vec<TensorId>);

impl Projection {
    /// Declares `NAME.weight`, normal with this deviation, and `NAME.bias` if asked for.
    pub(super) fn declare(graph: &mut Graph, name: &str, [from, to]: [usize; 2], std: f32, bias: bool) -> Self {
        let mut ids = vec![graph.parameter(format!("{name}.weight"), &[to, from], Init::Normal(std), true)];
        if bias {
            ids.push(graph.parameter(format!("{name}.bias"), &[to], Init::Zeros, false));
        }
        Self(ids)
    }

    fn op(&self) -> Linear {
        Linear { layout: WeightLayout::OutIn, bias: self.0.len() > 1 }
    }

    pub(super) fn apply(&self, builder: &mut ProgramBuilder, x: TensorId) -> Result<TensorId, GraphError> {
        builder.apply(self.op(), &[&[x], self.0.as_slice()].concat())
    }

    /// Writes the result to a tensor that is there.
    pub(super) fn apply_into(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        into: TensorId,
    ) -> Result<(), GraphError> {
        builder.push_into(self.op(), &[&[x], self.0.as_slice()].concat(), &[Some(into)]).map(drop)
    }
}
