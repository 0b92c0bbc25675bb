//! Chains of ops whose results have the rows of their operands: what a node computes that works through its rows tile by
//! tile. Not here: the ops that execute chains (`by_rows.rs`), which nodes become one (`row_tiles.rs`).

use super::{Io, Op, Target};
use crate::program::drop_dead_nodes;
use crate::{
    Graph, GraphError, Init, ProgramBuilder, Role, Storage, TensorId, TensorType, Training, WeightCodes, differentiate,
};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};

/// A tensor of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Slot {
    /// An operand of the node, by its index.
    Operand(usize),
    /// A result of the node, by its index.
    Result(usize),
    /// A tensor that exists for one tile only, in the node's scratch. Numbered in the order in which they are made.
    Inner(usize),
}

/// An op of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainOp {
    /// The op.
    pub op: Op,
    /// Operands in the op's order.
    pub inputs: Vec<Slot>,
    /// Results in the op's order.
    pub outputs: Vec<Slot>,
}

/// Ops that are applied to a tile of rows after another. Tensors with rows have the shape (B, T, ..).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// The ops in the order of their execution.
    pub ops: Vec<ChainOp>,
    /// For each operand, whether it has rows. The others are weights and norms of weights, which every tile reads whole.
    pub has_rows: Vec<bool>,
    /// Number of results with rows. The results after them are gradients of weights, to which every tile adds.
    pub results_with_rows: usize,
}

/// A tile of rows, with the types that a chain's tensors have for it.
#[derive(Debug, Clone)]
pub struct Tile {
    /// The first of its rows.
    pub first: usize,
    /// Number of its rows.
    pub rows: usize,
    operands: Vec<TensorType>,
    inner: Vec<TensorType>,
    results: Vec<TensorType>,
}

impl Tile {
    /// The type of a tensor of the chain.
    pub fn ty(&self, slot: Slot) -> &TensorType {
        match slot {
            Slot::Operand(index) => &self.operands[index],
            Slot::Result(index) => &self.results[index],
            Slot::Inner(index) => &self.inner[index],
        }
    }

    /// The types of an op's operands and results.
    pub fn io(&self, own: &ChainOp) -> Io<'_> {
        Io::new(own.inputs.iter().map(|&slot| self.ty(slot)), own.outputs.iter().map(|&slot| self.ty(slot)))
    }
}

/// Where the inner tensors of a tile are in a node's scratch, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// The first byte of each inner tensor.
    pub inner: Vec<u64>,
    /// The first byte of the scratch of the ops.
    pub scratch: u64,
    /// The sum.
    pub bytes: u64,
}

/// The alignment of inner tensors.
const ALIGNMENT: u64 = 256;

/// The number of rows of a tensor (B, T, ..).
fn rows_of(ty: &TensorType) -> usize {
    ty.shape.iter().take(2).product()
}

/// The type of some rows of a tensor (B, T, ..).
fn with_rows(ty: &TensorType, rows: usize) -> TensorType {
    let rest = ty.shape.get(2..).unwrap_or(&[]);
    ty.with_shape(&[&[1, rows], rest].concat())
}

impl Chain {
    /// The types of all tensors for operands of these types.
    fn typed(&self, first: usize, operands: Vec<TensorType>) -> Result<Tile, GraphError> {
        let rows = operands.iter().zip(&self.has_rows).find(|(_, has)| **has).map_or(0, |(ty, _)| rows_of(ty));
        let mut tile = Tile { first, rows, operands, inner: vec![], results: vec![] };
        for own in &self.ops {
            let inputs = own.inputs.iter().map(|&slot| tile.ty(slot)).collect::<Vec<_>>();
            let types = own.op.infer(&inputs)?;
            for (&slot, ty) in own.outputs.iter().zip(types) {
                let (index, list) = match slot {
                    Slot::Inner(index) => (index, &mut tile.inner),
                    Slot::Result(index) => (index, &mut tile.results),
                    Slot::Operand(_) => unreachable!("an op writes no operand"),
                };
                list.resize(list.len().max(index + 1), TensorType::f32(&[]));
                list[index] = ty;
            }
        }
        Ok(tile)
    }

    /// Types of the results. Errors: an op does not accept its operands, or rows do not match.
    pub(super) fn infer(&self, op: &'static str, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        if inputs.len() != self.has_rows.len() {
            let problem = format!("takes {} operands, found {}", self.has_rows.len(), inputs.len());
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        let shape = |ty: &TensorType| ty.shape.get(..2).map(<[usize]>::to_vec);
        let mut shapes = inputs.iter().zip(&self.has_rows).filter(|(_, has)| **has).map(|(ty, _)| shape(ty));
        let first = shapes.next().flatten();
        if first.is_none() || shapes.any(|shape| shape != first) {
            let problem = "the operands with rows do not have the same number of them".to_owned();
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        Ok(self.typed(0, inputs.iter().map(|ty| (*ty).clone()).collect())?.results)
    }

    /// All rows as one tile. Panics if the operands are not those that [`Operation::infer`](super::Operation::infer) accepts.
    pub(super) fn whole(&self, operands: &[&TensorType]) -> Tile {
        self.typed(0, operands.iter().map(|ty| (*ty).clone()).collect()).expect("the operands were checked")
    }

    /// The tile from a row on. Panics as [`Self::whole`] does.
    fn tile(&self, operands: &[&TensorType], first: usize, rows: usize) -> Tile {
        let cut = |(ty, &has_rows): (&&TensorType, &bool)| if has_rows { with_rows(ty, rows) } else { (*ty).clone() };
        self.typed(first, operands.iter().zip(&self.has_rows).map(cut).collect()).expect("the operands were checked")
    }

    /// The number of all rows.
    fn rows(&self, operands: &[&TensorType]) -> usize {
        operands.iter().zip(&self.has_rows).find(|(_, has)| **has).map_or(0, |(ty, _)| rows_of(ty))
    }

    /// The first and the last tile, and the number of tiles. All but the last are as large as the first.
    pub(super) fn ends(&self, operands: &[&TensorType], rows: usize) -> ([Tile; 2], usize) {
        let (all, rows) = (self.rows(operands), rows.max(1));
        let count = all.div_ceil(rows).max(1);
        let first = (count - 1) * rows;
        ([self.tile(operands, 0, rows.min(all)), self.tile(operands, first, all - first)], count)
    }

    /// The tiles of at most `rows` rows for operands of these types, in order. Panics if an op does not accept them.
    pub fn tiles(&self, operands: &[&TensorType], rows: usize) -> Vec<Tile> {
        let (all, rows) = (self.rows(operands), rows.max(1));
        (0..all).step_by(rows).map(|first| self.tile(operands, first, rows.min(all - first))).collect()
    }

    /// The first byte of a tile in an operand or a result that has rows; zero in one that has none.
    pub fn offset(&self, tile: &Tile, slot: Slot) -> u64 {
        let has_rows = match slot {
            Slot::Operand(index) => self.has_rows[index],
            Slot::Result(index) => index < self.results_with_rows,
            Slot::Inner(_) => false,
        };
        if has_rows { tile.ty(slot).bytes().0 / tile.rows as u64 * tile.first as u64 } else { 0 }
    }

    /// The scratch of a node that executes the chain. The first tile is the largest.
    pub fn workspace(&self, operands: &[&TensorType], rows: usize, target: &Target) -> Workspace {
        let ([largest, last], _) = self.ends(operands, rows);
        let count = largest.inner.len();
        let mut lives = vec![(usize::MAX, 0); count];
        for (at, own) in self.ops.iter().enumerate() {
            for slot in own.inputs.iter().chain(&own.outputs) {
                if let Slot::Inner(index) = *slot {
                    lives[index] = (lives[index].0.min(at), at);
                }
            }
        }
        let size = |index: usize| largest.inner[index].bytes().0.next_multiple_of(ALIGNMENT);
        let mut order = (0..count).collect::<Vec<_>>();
        order.sort_by_key(|&index| std::cmp::Reverse(size(index)));
        let (mut inner, mut placed) = (vec![0; count], Vec::<usize>::new());
        for index in order {
            let meet = |other: &&usize| lives[**other].0 <= lives[index].1 && lives[index].0 <= lives[**other].1;
            let mut taken = placed.iter().filter(meet).map(|&o| (inner[o], inner[o] + size(o))).collect::<Vec<_>>();
            taken.sort_unstable();
            let lowest =
                taken.into_iter().fold(0, |at: u64, (from, to)| if at + size(index) <= from { at } else { at.max(to) });
            inner[index] = lowest;
            placed.push(index);
        }
        let scratch = placed.iter().map(|&index| inner[index] + size(index)).max().unwrap_or(0);
        let of_ops = [&largest, &last]
            .into_iter()
            .flat_map(|tile| self.ops.iter().map(|own| own.op.scratch(&tile.io(own), target).0));
        let of_ops = of_ops.max().unwrap_or(0);
        // Whole floats, as scratch is passed to the processor's kernels.
        Workspace { inner, scratch, bytes: scratch + of_ops.next_multiple_of(4) }
    }

    /// A sum over the ops, for all rows as one tile.
    pub(super) fn sum(&self, io: &Io, of: impl Fn(&Op, &Io) -> u64) -> u64 {
        let whole = self.whole(&io.inputs);
        self.ops.iter().map(|own| of(&own.op, &whole.io(own))).sum()
    }

    /// Bytes that all tiles move. Tiles of the same number of rows move as many.
    pub(super) fn bytes_moved(&self, io: &Io, rows: usize) -> Bytes {
        let ([first, last], count) = self.ends(&io.inputs, rows);
        let moved = |tile: &Tile| self.ops.iter().map(|own| own.op.bytes_moved(&tile.io(own)).0).sum::<u64>();
        Bytes(moved(&first) * (count as u64 - 1) + moved(&last))
    }

    /// The chain with a weight in codes, whose scales are operands after it; `None` if an op can't read them.
    pub(super) fn with_codes(&self, operand: usize, codes: WeightCodes) -> Option<Self> {
        if *self.has_rows.get(operand)? {
            return None;
        }
        let scales = codes.scale_count();
        let moved = |slot: Slot| match slot {
            Slot::Operand(index) if index > operand => Slot::Operand(index + scales),
            slot => slot,
        };
        let coded = |own: &ChainOp| {
            let mut op = own.op.clone();
            let mut inputs = Vec::with_capacity(own.inputs.len() + scales);
            for &slot in &own.inputs {
                let place = inputs.len();
                inputs.push(moved(slot));
                if slot == Slot::Operand(operand) {
                    op = op.with_codes(place, codes)?;
                    inputs.extend((1..=scales).map(|further| Slot::Operand(operand + further)));
                }
            }
            Some(ChainOp { op, inputs, outputs: own.outputs.clone() })
        };
        let ops = self.ops.iter().map(coded).collect::<Option<Vec<_>>>()?;
        let mut has_rows = self.has_rows.clone();
        has_rows.splice(operand + 1..operand + 1, vec![false; scales]);
        Some(Self { ops, has_rows, results_with_rows: self.results_with_rows })
    }

    /// The chain with the chosen products in fp8, as [`Operation::in_fp8`](super::Operation::in_fp8) has it; `None` if there is none.
    pub(super) fn in_fp8(&self, reads: &dyn Fn(usize) -> bool, writes: &dyn Fn(usize) -> bool) -> Option<Self> {
        let mut chain = self.clone();
        let mut has_any = false;
        for own in &mut chain.ops {
            let reads = |index: usize| matches!(own.inputs[index], Slot::Operand(operand) if reads(operand));
            let writes = |index: usize| matches!(own.outputs[index], Slot::Result(result) if writes(result));
            if let Some(op) = own.op.in_fp8(&reads, &writes) {
                own.op = op;
                has_any = true;
            }
        }
        has_any.then_some(chain)
    }

    /// The operands that gradients take as constants: norms of weights.
    pub fn constants(&self) -> BTreeSet<usize> {
        let norm = |own: &ChainOp| match (&own.op, own.inputs.get(2)) {
            (Op::ColumnScale(_), Some(&Slot::Operand(index))) => Some(index),
            _ => None,
        };
        self.ops.iter().filter_map(norm).collect()
    }

    /// Whether the gradients of all operands of a chain with one result can be those of one node.
    pub(crate) fn is_differentiable(&self, operands: &[&TensorType]) -> bool {
        let constants = self.constants();
        let wanted = (0..operands.len()).filter(|index| !constants.contains(index)).collect();
        self.infer("by_rows", operands).is_ok() && self.gradient(operands, &wanted, false).is_ok()
    }

    /// The gradient of a chain with one result, for operands of these types. It computes the chain's own tensors again, as far as
    /// it needs them. `wanted`: the operands whose gradient it computes, those with rows first among its results; if it
    /// `accumulates`, gradients of weights are added to.
    /// Returns the chain and its operands: 0 is the gradient of the result, i + 1 is operand i.
    /// Errors: an op has no gradient, or a gradient is that of the result and needs no chain.
    pub(super) fn gradient(
        &self,
        operands: &[&TensorType],
        wanted: &BTreeSet<usize>,
        accumulates: bool,
    ) -> Result<(Self, Vec<usize>), GraphError> {
        let mut graph = Graph::default();
        let declare = |(index, ty): (usize, &&TensorType)| {
            let id = graph.parameter(format!("operand {index}"), &ty.shape, Init::Zeros, false);
            if wanted.contains(&index) {
                let gradient = graph.tensor("gradient", (*ty).clone(), Role::Gradient, Storage::Persistent);
                let training = Training { gradient, master: None, remainder: None, state: vec![], average: None };
                graph.parameters[index].training = Some(training);
            }
            id
        };
        let ids = operands.iter().enumerate().map(declare).collect::<Vec<_>>();
        let weights = wanted.iter().copied().filter(|&index| !self.has_rows[index]).collect::<Vec<_>>();
        let accumulators = weights.iter().map(|&index| {
            let training = graph.parameters[index].training.as_ref();
            training.expect("a wanted operand has a gradient").gradient
        });
        let accumulators = accumulators.collect::<Vec<_>>();
        let upstream =
            graph.tensor("upstream", self.whole(operands).results[0].clone(), Role::Activation, Storage::Transient);
        let mut builder = ProgramBuilder::new(&mut graph);
        let mut made = HashMap::<Slot, TensorId>::new();
        for own in &self.ops {
            let of = |slot: &Slot| match *slot {
                Slot::Operand(index) => ids[index],
                slot => made[&slot],
            };
            let inputs = own.inputs.iter().map(of).collect::<Vec<_>>();
            let outputs = builder.push(own.op.clone(), &inputs)?;
            made.extend(own.outputs.iter().copied().zip(outputs));
        }
        let gradients = differentiate(&mut builder, &[(made[&Slot::Result(0)], Some(upstream))], accumulates)?;
        let with_rows = wanted
            .iter()
            .filter(|&&index| self.has_rows[index])
            .map(|&index| gradients.get(&ids[index]).copied().ok_or(GraphError::NotDifferentiable { op: "by_rows" }));
        let with_rows = with_rows.collect::<Result<Vec<_>, _>>()?;
        let nodes = std::mem::take(&mut builder.nodes);
        let nodes = drop_dead_nodes(&graph, nodes, with_rows.iter().copied());
        let results = with_rows.iter().chain(&accumulators).copied().enumerate();
        let mut slots = results.map(|(index, id)| (id, Slot::Result(index))).collect::<HashMap<_, _>>();
        let is_made = |id: &TensorId| nodes.iter().any(|node| node.outputs.contains(id));
        if slots.len() < with_rows.len() + accumulators.len() || !slots.keys().all(is_made) {
            return Err(GraphError::NotDifferentiable { op: "by_rows" });
        }
        let all = [&[upstream], &ids[..]].concat();
        let is_read = |id: &TensorId| nodes.iter().any(|node| node.inputs.contains(id));
        let read = (0..all.len()).filter(|&index| is_read(&all[index])).collect::<Vec<_>>();
        slots.extend(read.iter().enumerate().map(|(operand, &index)| (all[index], Slot::Operand(operand))));
        let mut inner = 0;
        let mut ops = Vec::with_capacity(nodes.len());
        for node in nodes {
            for &output in &node.outputs {
                slots.entry(output).or_insert_with(|| {
                    inner += 1;
                    Slot::Inner(inner - 1)
                });
            }
            let of = |ids: &[TensorId]| ids.iter().map(|id| slots[id]).collect::<Vec<_>>();
            ops.push(ChainOp { inputs: of(&node.inputs), outputs: of(&node.outputs), op: node.op });
        }
        let has_rows = read.iter().map(|&index| index.checked_sub(1).is_none_or(|operand| self.has_rows[operand]));
        Ok((Self { ops, has_rows: has_rows.collect(), results_with_rows: with_rows.len() }, read))
    }
}
