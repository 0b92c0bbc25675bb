//! A graph is a set of tensors and the programs that run on them; a program is a list of nodes in execution order. The
//! builder appends nodes and infers their outputs from the op.

use crate::ops::{GradientFormat, WeightLayout};
use crate::optimizers::Moment;
use crate::{
    Access, DType, Emit, GraphError, Init, Io, Memories, MemoryId, Op, Pass, ProgramKind, ProgramName, Role, Shape,
    Storage, Tensor, TensorId, TensorType, WeightCodes, first_of_step,
};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Operands or results of a node. Up to four are stored inline, since a search copies hundreds of graphs.
pub type TensorIds = SmallVec<[TensorId; 4]>;

/// One op applied to tensors. SSA except for outputs that the op declares as [`Access::ReadWrite`], and for persistent
/// tensors, which several nodes may write.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Operands in the op's order.
    pub inputs: TensorIds,
    /// Results in the op's order.
    pub outputs: TensorIds,
    /// The model's block (layer) that the node belongs to, for per-block levers.
    pub block: Option<u32>,
    /// The part of the program that it belongs to.
    pub pass: Pass,
}

/// Tensors that the host writes before a program runs or reads after it ran.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// Token ids (B, T), written by the host; those of the source, (B, S), if the model has an encoder.
    pub tokens: Option<TensorId>,
    /// Positions of the tokens (B, T), written by the host if rows contain several documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<TensorId>,
    /// Segments of the tokens, written by the host: 0 for padding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments: Option<TensorId>,
    /// Token ids (B, T) of the decoder, written by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder_tokens: Option<TensorId>,
    /// The segments of the source that the decoder's tokens attend to (B, T), written by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder_segments: Option<TensorId>,
    /// Target ids (B, T), written by the host; negative means no target.
    pub targets: Option<TensorId>,
    /// Mean loss (1), accumulated over micro-batches; read by the host.
    pub loss: Option<TensorId>,
    /// The numbers described at [`REWARDS`](crate::ops::REWARDS), accumulated over micro-batches; read by the host. `None` unless
    /// the run is trained on preferences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewards: Option<TensorId>,
    /// Norm of all gradients (1); read by the host.
    pub grad_norm: Option<TensorId>,
    /// Logits of one position (V); read by the host.
    pub logits: Option<TensorId>,
    /// Vectors of texts (B, C); read by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<TensorId>,
}

impl Ports {
    /// The tensors that the host writes before the program runs.
    pub fn fed(&self) -> impl Iterator<Item = TensorId> {
        let of_decoder = [self.decoder_tokens, self.decoder_segments];
        [self.tokens, self.positions, self.segments, self.targets].into_iter().chain(of_decoder).flatten()
    }

    /// All ports, mutable, to replace them.
    pub fn each_mut(&mut self) -> impl Iterator<Item = &mut TensorId> {
        let Self {
            tokens,
            positions,
            segments,
            decoder_tokens,
            decoder_segments,
            targets,
            loss,
            rewards,
            grad_norm,
            logits,
            vectors,
        } = self;
        let fed = [tokens, positions, segments, decoder_tokens, decoder_segments, targets];
        fed.into_iter().chain([loss, rewards, grad_norm, logits, vectors]).flatten()
    }

    /// The tensors that the host reads after the program ran.
    pub fn fetched(&self) -> impl Iterator<Item = TensorId> {
        [self.loss, self.rewards, self.grad_norm, self.logits, self.vectors].into_iter().flatten()
    }
}

/// A list of nodes that is executed as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// What it computes, and for which sequence lengths.
    pub name: ProgramName,
    /// The nodes in execution order.
    pub nodes: Vec<Node>,
    /// Tensors that the host writes and reads.
    pub ports: Ports,
}

/// A parameter with its training state.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// The weights.
    pub tensor: TensorId,
    /// Its initial values.
    pub init: Init,
    /// Whether weight decay applies. Norms and biases have none.
    pub decay: bool,
    /// Its training state; `None` if it is frozen or if the graph is for inference only.
    pub training: Option<Training>,
    /// Its pieces in a model's files; empty if it is stored whole under its own name.
    pub stored: Vec<StoredPiece>,
    /// The format of frozen weights in codes, if they are.
    pub coded: Option<Coded>,
    /// The norms of frozen weights, if adapters need them.
    pub norms: Option<OutputNorms>,
    /// Whether it is in single precision, whatever the precision of the run.
    pub is_single: bool,
}

/// Elements of a parameter that a model's files store one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPiece {
    /// The name of the tensor in the files.
    pub tensor: Arc<str>,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The piece's first element in that tensor.
    pub from: usize,
    /// The piece's first element in the parameter.
    pub at: usize,
    /// Number of its elements.
    pub elements: usize,
    /// If the piece, which the parameter is all of, is the transpose of the parameter: the number of columns of the parameter, as
    /// a matrix.
    pub transposed: Option<usize>,
}

/// The tensors that training needs in addition to a parameter's weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Training {
    /// The gradient of a step.
    pub gradient: TensorId,
    /// The weights that the optimizer updates, if the parameter's own tensor is only a copy: rounded, or in another
    /// memory.
    pub master: Option<TensorId>,
    /// The lower 16 bits that the rounded weights lack, or those of the master if there is one. The optimizer updates both
    /// together.
    pub remainder: Option<TensorId>,
    /// The optimizer's moments and, if they are quantized, their scales.
    pub state: Vec<TensorId>,
    /// The moving average of the weights.
    pub average: Option<TensorId>,
}

/// Frozen weights in codes: a matrix, or one for each expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// The format of the codes, which the parameter's tensor holds.
    pub format: WeightCodes,
    /// The tensors of [`WeightCodes::scales`].
    pub scales: Vec<TensorId>,
}

/// The norms of the weights of each output of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputNorms {
    /// The tensor of the norms, (outputs,) in `F32`, which is filled when the weights are.
    pub tensor: TensorId,
    /// The layout of the weights.
    pub layout: WeightLayout,
}

impl Parameter {
    /// The shape of the weights, from the type of the parameter's tensor.
    pub fn shape(&self, stored: &TensorType) -> Shape {
        match &self.coded {
            Some(coded) => coded.format.shape(stored),
            None => stored.shape.clone(),
        }
    }

    /// The weights that the optimizer updates: the master if there is one. Together with the remainder, if there is
    /// one, they have full precision.
    pub fn master(&self) -> TensorId {
        self.training.as_ref().and_then(|t| t.master).unwrap_or(self.tensor)
    }
}

/// Tensors, parameters and programs.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Graph {
    /// All tensors of all programs; a [`TensorId`] is an index into this.
    pub tensors: Vec<Tensor>,
    /// The parameters in the order of their declaration.
    pub parameters: Vec<Parameter>,
    /// The programs, which share the arena.
    pub programs: Vec<Program>,
    /// The memories that store the tensors.
    pub memories: Memories,
}

impl Graph {
    /// Adds a tensor.
    pub fn tensor(&mut self, name: impl Into<Arc<str>>, ty: TensorType, role: Role, storage: Storage) -> TensorId {
        let id = TensorId(u32::try_from(self.tensors.len()).expect("a graph has fewer than 2^32 tensors"));
        self.tensors.push(Tensor { name: name.into(), ty, role, storage, memory: MemoryId::DEVICE });
        id
    }

    /// Declares a parameter.
    pub fn parameter(&mut self, name: impl Into<Arc<str>>, shape: &[usize], init: Init, decay: bool) -> TensorId {
        let tensor = self.tensor(name, TensorType::f32(shape), Role::Weight, Storage::Persistent);
        let (training, stored, coded, norms) = (None, vec![], None, None);
        self.parameters.push(Parameter { tensor, init, decay, training, stored, coded, norms, is_single: false });
        tensor
    }

    /// Whether a step estimates the reference point of its loss; see [`Op::has_reference_point`].
    pub fn has_reference_point(&self) -> bool {
        let step = self.program(self.first_of_step());
        step.is_some_and(|step| step.nodes.iter().any(|node| node.op.has_reference_point()))
    }

    /// The program with which a step begins, except the first one of a run.
    pub fn first_of_step(&self) -> ProgramKind {
        first_of_step(self.programs.iter().map(|program| program.name.kind))
    }

    /// Declares a parameter that a model's files store in these pieces.
    pub(crate) fn pieces(
        &mut self,
        name: impl Into<Arc<str>>,
        shape: &[usize],
        init: Init,
        decay: bool,
        stored: Vec<StoredPiece>,
    ) -> TensorId {
        let tensor = self.parameter(name, shape, init, decay);
        self.parameters.last_mut().expect("it was just declared").stored = stored;
        tensor
    }

    /// Gives every parameter that is not in `frozen` a gradient, which is kept in this format, and an optimizer's moments, all
    /// persistent.
    pub fn declare_training_state(&mut self, moments: &[Moment], gradients: GradientFormat, frozen: &BTreeSet<String>) {
        for index in 0..self.parameters.len() {
            let Tensor { name, ty, .. } = self[self.parameters[index].tensor].clone();
            if frozen.contains(&*name) {
                continue;
            }
            let mut declare = |suffix: &str, ty: &TensorType, role| {
                self.tensor(format!("{name}.{suffix}"), ty.clone(), role, Storage::Persistent)
            };
            let gradient = declare("grad", &ty.with_dtype(gradients.dtype()), Role::Gradient);
            let state = moments.iter().map(|moment| declare(moment.name, &ty, Role::Optimizer)).collect();
            self.parameters[index].training =
                Some(Training { gradient, master: None, remainder: None, state, average: None });
        }
    }

    /// Number of parameters (elements, not tensors), trained or not.
    pub fn parameter_count(&self) -> u64 {
        self.elements(|_| true)
    }

    /// Number of trained parameters (elements, not tensors).
    pub fn trained_parameter_count(&self) -> u64 {
        self.elements(|parameter| parameter.training.is_some())
    }

    fn elements(&self, counts: impl Fn(&Parameter) -> bool) -> u64 {
        let elements = |p: &Parameter| p.shape(&self[p.tensor].ty).iter().product::<usize>() as u64;
        self.parameters.iter().filter(|p| counts(p)).map(elements).sum()
    }

    /// The program of this name; for a kind, the one with the longest sequences.
    pub fn program(&self, name: impl Into<ProgramName>) -> Option<&Program> {
        let name = name.into();
        self.programs.iter().find(|program| program.name == name)
    }

    /// The micro-step for all micro-batches of a step except the first; if there is only one, the program of that one.
    pub fn repeated_micro_step(&self) -> Option<&Program> {
        self.program(ProgramKind::MicroStepAdd).or_else(|| self.program(self.first_of_step()))
    }

    /// The types of a node's operands and results.
    pub fn io<'a>(&'a self, inputs: &[TensorId], outputs: &[TensorId]) -> Io<'a> {
        let type_of = |&id: &TensorId| &self[id].ty;
        Io::new(inputs.iter().map(type_of), outputs.iter().map(type_of))
    }
}

impl std::ops::Index<TensorId> for Graph {
    type Output = Tensor;
    fn index(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }
}

impl std::ops::IndexMut<TensorId> for Graph {
    fn index_mut(&mut self, id: TensorId) -> &mut Tensor {
        &mut self.tensors[id.index()]
    }
}

impl Node {
    /// The memory that the node works in, where all its tensors are. Nodes that move tensors between memories belong to
    /// the device.
    pub fn memory(&self, graph: &Graph) -> MemoryId {
        let mut memories = self.inputs.iter().chain(&self.outputs).map(|&id| graph[id].memory);
        let first = memories.next().unwrap_or(MemoryId::HOST);
        if memories.all(|memory| memory == first) { first } else { MemoryId::DEVICE }
    }
}

impl Emit for ProgramBuilder<'_> {
    fn emit(
        &mut self,
        op: Op,
        inputs: &[TensorId],
        outputs: Option<&[Option<TensorId>]>,
    ) -> Result<Vec<TensorId>, GraphError> {
        match outputs {
            Some(outputs) => self.push_into(op, inputs, outputs),
            None => self.push(op, inputs),
        }
    }

    fn type_of(&self, id: TensorId) -> &TensorType {
        &self.graph[id].ty
    }
}

/// Builds a program by appending nodes.
#[derive(Debug)]
pub struct ProgramBuilder<'g> {
    /// The graph that the program belongs to.
    pub graph: &'g mut Graph,
    /// The nodes so far.
    pub nodes: Vec<Node>,
    /// Tensors that the host writes and reads.
    pub ports: Ports,
    block: Option<u32>,
    pass: Pass,
    scope: String,
}

impl<'g> ProgramBuilder<'g> {
    /// An empty program.
    pub fn new(graph: &'g mut Graph) -> Self {
        Self {
            graph,
            nodes: Vec::new(),
            ports: Ports::default(),
            block: None,
            pass: Pass::Forward,
            scope: String::new(),
        }
    }

    /// Sets the part of the model and the block that the next nodes belong to.
    pub fn scope(&mut self, scope: impl Into<String>, block: Option<u32>) {
        self.scope = scope.into();
        self.block = block;
    }

    /// The part of the model and the block that the next nodes belong to.
    pub(crate) fn current_scope(&self) -> (String, Option<u32>) {
        (self.scope.clone(), self.block)
    }

    /// Declares a tensor that the host writes before the program runs.
    pub fn input(&mut self, name: &str, shape: &[usize], dtype: DType) -> TensorId {
        let ty = TensorType { shape: shape.into(), dtype };
        self.graph.tensor(name, ty, Role::Staging, Storage::Transient)
    }

    /// Appends a node with new outputs of the inferred types, and returns them.
    pub fn push(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<Vec<TensorId>, GraphError> {
        let op = op.into();
        let types = self.infer(&op, inputs)?;
        let outputs = types
            .into_iter()
            .enumerate()
            .map(|(index, ty)| {
                let name = self.name_output(&op, index);
                self.graph.tensor(name, ty, Role::Activation, Storage::Transient)
            })
            .collect::<Vec<_>>();
        self.append(op, inputs, &outputs);
        Ok(outputs)
    }

    /// Like [`push`](Self::push), for ops with a single output.
    pub fn apply(&mut self, op: impl Into<Op>, inputs: &[TensorId]) -> Result<TensorId, GraphError> {
        Ok(self.push(op, inputs)?[0])
    }

    /// Appends a node. An output that is `Some` is an existing tensor; `None` creates one.
    pub fn push_into(
        &mut self,
        op: impl Into<Op>,
        inputs: &[TensorId],
        outputs: &[Option<TensorId>],
    ) -> Result<Vec<TensorId>, GraphError> {
        let op = op.into();
        let types = self.infer(&op, inputs)?;
        if types.len() != outputs.len() {
            let problem = format!("has {} outputs, but {} were given", types.len(), outputs.len());
            return Err(GraphError::ShapeMismatch { op: op.name(), problem });
        }
        let mut ids = Vec::with_capacity(outputs.len());
        for (index, (ty, given)) in types.into_iter().zip(outputs).enumerate() {
            ids.push(match *given {
                Some(id) if self.graph[id].ty == ty => id,
                Some(id) => {
                    let problem =
                        format!("output {index} is {ty:?}, `{}` is {:?}", self.graph[id].name, self.graph[id].ty);
                    return Err(GraphError::ShapeMismatch { op: op.name(), problem });
                }
                None => {
                    let name = self.name_output(&op, index);
                    self.graph.tensor(name, ty, Role::Activation, Storage::Transient)
                }
            });
        }
        self.append(op, inputs, &ids);
        Ok(ids)
    }

    fn append(&mut self, op: Op, inputs: &[TensorId], outputs: &[TensorId]) {
        let (inputs, outputs) = (inputs.into(), outputs.into());
        self.nodes.push(Node { op, inputs, outputs, block: self.block, pass: self.pass });
    }

    /// Sets the pass of the next nodes.
    pub(crate) fn begin(&mut self, pass: Pass) {
        self.pass = pass;
    }

    /// Ends the program: drops nodes with unused results and adds the program to the graph.
    pub fn finish(self, name: impl Into<ProgramName>) {
        let nodes = drop_dead_nodes(self.graph, self.nodes, self.ports.fetched());
        self.graph.programs.push(Program { name: name.into(), nodes, ports: self.ports });
    }

    fn infer(&self, op: &Op, inputs: &[TensorId]) -> Result<Vec<TensorType>, GraphError> {
        let types = inputs.iter().map(|&id| &self.graph[id].ty).collect::<Vec<_>>();
        op.infer(&types)
    }

    fn name_output(&self, op: &Op, index: usize) -> String {
        let separator = if self.scope.is_empty() { "" } else { "/" };
        match index {
            0 => format!("{}{separator}{}", self.scope, op.name()),
            n => format!("{}{separator}{}.{n}", self.scope, op.name()),
        }
    }
}

/// Keeps the nodes that write one of `fetched`, a tensor that outlives the program, or a tensor that a kept node reads.
pub(crate) fn drop_dead_nodes(graph: &Graph, nodes: Vec<Node>, fetched: impl Iterator<Item = TensorId>) -> Vec<Node> {
    let mut needed = vec![false; graph.tensors.len()];
    for id in fetched {
        needed[id.index()] = true;
    }
    let mut kept = Vec::with_capacity(nodes.len());
    for node in nodes.into_iter().rev() {
        let lives = node.outputs.iter().any(|&id| needed[id.index()] || graph[id].storage != Storage::Transient);
        if lives {
            for &id in &node.inputs {
                needed[id.index()] = true;
            }
            for (index, &id) in node.outputs.iter().enumerate() {
                if node.op.access(index) == Access::ReadWrite {
                    needed[id.index()] = true;
                }
            }
            kept.push(node);
        }
    }
    kept.reverse();
    kept
}
