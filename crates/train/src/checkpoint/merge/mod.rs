//! Merges adapters into the weights below them: copies the files of the weights, and on the way adds each adapter's
//! product to its layer. A file keeps its header, so tensors, dtypes and shards stay the same, except that weights which
//! bitsandbytes quantized, and weights in MXFP4 that get adapters, are decoded, and that an embedding and an output head that share a weight get one each if either
//! has an adapter (`untied.rs`). Memory: the matrices of one adapter and a few rows of its layer, and with codes the codes of
//! the layer.

mod outputs;
mod rows;
mod untied;

use self::outputs::{Decoded, Format};
use self::rows::{CodedPart, Magnitudes, Matrix, Product, Source, floats};
use super::archive::{Archive, ArchiveFile, describe, wrong};
use super::bitsandbytes::Quantized;
use super::contents::{adapter_name, transposed};
use super::mxfp4::{self, Packed};
use super::names::candidates;
use super::read::{dtype_of, is_float, missing_tensor};
use super::tensors::dtype_name;
use super::{ADAPTER_FILE, CheckpointError, INDEX_FILE, MODEL_FILE};
use plimsoll_exec::converted;
use plimsoll_files::Disk;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::WeightLayout;
use plimsoll_graph::{Adapter, Adapters, Graph, GraphError, LayerRole, LinearLayer};
use plimsoll_units::Bytes;
use safetensors::tensor::TensorView;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// Weights with adapters to add to them.
pub struct Merge {
    weights: Archive,
    adapters: Archive,
    /// By the tensor's name in the files.
    changes: HashMap<String, Change>,
    /// The quantized weights, by the tensor's name in the files.
    decoded: HashMap<String, Decoded>,
    /// Whether the embedding and the output head shared a weight, and get one each.
    is_untied: bool,
    /// The second one of these, unless the files have it.
    copy: Option<Copied>,
}

/// A tensor that is written in addition to those of the files.
struct Copied {
    name: String,
    /// The tensor in the files with its values.
    from: String,
    change: Option<Change>,
}

/// What happens to a tensor.
enum Change {
    /// The product of an adapter's matrices is added to it, and with magnitudes each output gets its own.
    Added { layer: LinearLayer, adapter: Adapter, matrices: Matrices, codes: Vec<CodedPart>, has_magnitudes: bool },
    /// A tensor of the adapters' file, which was trained whole, replaces it.
    Replaced { by: String },
    /// It has no adapter, and is encoded and decoded.
    Recoded { codes: Vec<CodedPart> },
}

/// An adapter's matrices in their file.
#[derive(Clone)]
struct Matrices {
    names: [String; 2],
    /// Of fused layers of experts: the expert, the number of experts, and the first of their outputs that is the layer's.
    part: Option<[usize; 3]>,
}

/// A tensor as it is written.
enum Changed<'m> {
    Bytes(Vec<u8>),
    Matrix(Box<Matrix<'m>>),
}

impl Merge {
    /// Opens adapters and the weights below them, and compares their names and shapes. `folder` has the adapters' file, and with
    /// `averaged` that of their averages, which then take the place of the adapters. Where the graph of the model has parameters
    /// in codes, the files get the decoded values, with adapters added or not.
    /// Errors: those of reading weights.
    pub fn open(
        model: &ModelConfig,
        adapters: &Adapters,
        graph: &Graph,
        [folder, weights]: [&Path; 2],
        averaged: bool,
    ) -> Result<Self, CheckpointError> {
        let file = folder.join(ADAPTER_FILE);
        let weights = Archive::file_or_shards(weights, MODEL_FILE)?;
        let adapters_file = if averaged { Archive::averages(folder, ADAPTER_FILE)? } else { Archive::file(&file)? };
        let (changes, decoded) = (HashMap::new(), HashMap::new());
        let mut merge = Self { weights, adapters: adapters_file, changes, decoded, is_untied: false, copy: None };
        let names = model.parameter_names();
        let names = names.iter().map(String::as_str).collect::<HashSet<_>>();
        let layers = model.adaptable_layers().map_err(|error| bad(&file, &error))?;
        let adapted = layers.iter().filter(|layer| adapters.layers.contains_key(&layer.module));
        let changed = adapted.map(|layer| layer.weight.clone()).chain(coded_tensors(graph)).collect();
        merge.find_quantized(model, &names, &changed)?;
        let fused = model.fused_layers().map_err(|error| bad(&file, &error))?;
        for (module, &adapter) in &adapters.layers {
            let parts = fused.iter().filter(|layer| layer.module == *module).collect::<Vec<_>>();
            if !parts.is_empty() && !layers.iter().any(|layer| layer.module == *module) {
                for part in parts {
                    merge.add_fused(graph, &names, adapters, (part, adapter), &layers)?;
                }
                continue;
            }
            let layer = layers.iter().find(|layer| layer.module == *module).cloned();
            let layer = layer.ok_or_else(|| bad(&file, &GraphError::NoAdapter { module: module.clone() }))?;
            if let Some(because) = layer.role.lacks_magnitudes().filter(|_| adapters.has_magnitudes) {
                return Err(bad(&file, &GraphError::NoMagnitudes { module: module.clone(), because }));
            }
            let shares = untied::shares_weight(&layers, &layer);
            if shares && !untied::can_have_own_head(model) {
                return Err(CheckpointError::TiedAdapter { path: file, module: module.clone() });
            }
            for layer in layer.in_files() {
                let matrices = merge.matrices(adapters, &layer, adapter)?;
                merge.add(graph, &names, adapters.has_magnitudes, (layer, adapter), matrices, shares)?;
            }
        }
        for name in &adapters.saved {
            let (stored, by) = (merge.stored(name, &names)?, adapter_name(name));
            let shape = match merge.decoded.get(&stored) {
                Some(decoded) => decoded.shape.clone(),
                None => merge.weights.view(&stored)?.shape().to_vec(),
            };
            merge.check_weight(&stored, &shape)?;
            merge.check(&merge.adapters, &by, &shape)?;
            let is_shared = |layer: &LinearLayer| layer.weight == *name && untied::shares_weight(&layers, layer);
            let is_untied = merge.is_untied && layers.iter().any(is_shared);
            if is_untied || matches!(merge.changes.get(&stored), Some(Change::Added { .. })) {
                let problem = format!("`{name}` was trained whole and has an adapter, which can't be merged");
                return Err(CheckpointError::BadAdapters { path: file, problem });
            }
            merge.changes.insert(stored, Change::Replaced { by });
        }
        for tensor in coded_tensors(graph) {
            let stored = merge.stored(&tensor, &names)?;
            if !merge.changes.contains_key(&stored) {
                let shape = merge.weights.view(&stored)?.shape().to_vec();
                merge.check_weight(&stored, &shape)?;
                merge.changes.insert(stored, Change::Recoded { codes: coded_parts(graph, &tensor) });
            }
        }
        Ok(merge)
    }

    /// The names of an adapter's matrices. Errors: one is missing, or has another shape.
    fn matrices(
        &self,
        adapters: &Adapters,
        layer: &LinearLayer,
        adapter: Adapter,
    ) -> Result<Matrices, CheckpointError> {
        let names = adapters.matrices(layer);
        let experts = if let LayerRole::Experts(count) = layer.role { count } else { 1 };
        self.check(&self.adapters, &names[0], &[experts * adapter.rank, layer.inputs])?;
        self.check(&self.adapters, &names[1], &[layer.outputs, adapter.rank * experts])?;
        Ok(Matrices { names, part: None })
    }

    /// Adds the adapter of a part of fused layers to the weight of each expert. `layers`: those that the files have. Errors: as
    /// for [`Self::add`].
    fn add_fused(
        &mut self,
        graph: &Graph,
        of_model: &HashSet<&str>,
        adapters: &Adapters,
        (part, adapter): (&LinearLayer, Adapter),
        layers: &[LinearLayer],
    ) -> Result<(), CheckpointError> {
        let all = self.matrices(adapters, part, adapter)?;
        let own = layers.iter().filter(|layer| layer.weight == part.weight).flat_map(LinearLayer::in_files);
        let own = own.collect::<Vec<_>>();
        let count = own.len();
        for (expert, layer) in own.into_iter().enumerate() {
            let matrices = Matrices { part: Some([expert, count, part.first]), ..all.clone() };
            self.add(graph, of_model, false, (layer, adapter), matrices, false)?;
        }
        Ok(())
    }

    /// Adds an adapter to the weight of its layer, which it may share with another module. Errors: a tensor is missing, or has
    /// another shape.
    fn add(
        &mut self,
        graph: &Graph,
        of_model: &HashSet<&str>,
        has_magnitudes: bool,
        (layer, adapter): (LinearLayer, Adapter),
        matrices: Matrices,
        shares: bool,
    ) -> Result<(), CheckpointError> {
        // Several layers of the graph may be parts of one tensor; a head may have the weight of another module.
        let tensor = match shares || layer.is_stacked() {
            true => layer.weight.clone(),
            false => format!("{}.weight", layer.module),
        };
        let stored = self.stored(&tensor, of_model)?;
        self.check_weight(&stored, &weight_shape(&layer))?;
        if has_magnitudes {
            self.check(&self.adapters, &layer.magnitudes(), &[layer.outputs])?;
        }
        let codes = coded_parts(graph, &tensor);
        let role = layer.role;
        let change = Change::Added { layer, adapter, matrices, codes, has_magnitudes };
        if shares {
            self.untie(&tensor, stored, role, change);
        } else {
            self.changes.insert(stored, change);
        }
        Ok(())
    }

    /// Size of the merged files.
    pub fn bytes(&self) -> Bytes {
        let bytes = |file: ArchiveFile| match self.has_other_tensors(&file) {
            true => self.output_bytes(&file),
            false => file.bytes.len() as u64,
        };
        Bytes(self.weights.files().map(bytes).sum())
    }

    /// The dtypes of the layers with adapters in the files, such as `BF16`, in the order of their names.
    pub fn dtypes(&self) -> Vec<String> {
        let changes = self.changes.iter().map(|(name, change)| (name, Some(change)));
        let changes = changes.chain(self.copy.iter().map(|copy| (&copy.from, copy.change.as_ref())));
        let added = changes.filter(|(_, change)| matches!(change, Some(Change::Added { .. })));
        let dtype = |name: &str| match self.decoded.get(name) {
            Some(decoded) => Some(dtype_name(decoded.dtype)),
            None => self.weights.view(name).ok().map(|view| view.dtype()),
        };
        let found = added.filter_map(|(name, _)| Some(format!("{:?}", dtype(name)?))).collect::<BTreeSet<_>>();
        found.into_iter().collect()
    }

    /// The format of the quantized weights that are decoded, in words; `None` if there are none.
    pub fn decoded(&self) -> Option<&'static str> {
        let formats = self.decoded.values().map(|decoded| match decoded.format {
            Format::BitsAndBytes => "bitsandbytes",
            Format::Mxfp4 => "MXFP4",
        });
        formats.min()
    }

    /// Whether an embedding and an output head that shared a weight have one each now.
    pub fn is_untied(&self) -> bool {
        self.is_untied
    }

    /// Writes the merged files into a folder, and syncs them. Errors: `Io`; `NotFinite` if a sum overflows its dtype.
    pub fn write(&self, disk: &Disk, folder: &Path) -> Result<(), CheckpointError> {
        for file in self.weights.files() {
            let name = file.path.file_name().expect("an open file has a name");
            let path = folder.join(name);
            let mut refused = None;
            let mut copy = |path: &Path| {
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, File::create_new(path)?);
                match self.has_other_tensors(&file) {
                    true => self.write_outputs(&file, &mut out, &mut refused)?,
                    false => self.copy(&file, &mut out, &mut refused)?,
                }
                out.flush()
            };
            let written = disk.create_with(&path, &mut copy).and_then(|()| disk.sync_file(&path));
            if let Some(error) = refused {
                return Err(error);
            }
            written.map_err(|source| CheckpointError::Io { path, source })?;
        }
        if self.weights.path().ends_with(INDEX_FILE) {
            let path = folder.join(INDEX_FILE);
            let index = std::fs::read(self.weights.path()).and_then(|index| {
                match self.decoded().is_some() || self.copy.is_some() {
                    true => Ok(self.index_of_outputs(&index)?),
                    false => Ok(index),
                }
            });
            let copied = index.and_then(|index| disk.write_new(&path, &index));
            copied.map_err(|source| CheckpointError::Io { path, source })?;
        }
        Ok(())
    }

    /// Copies a file with the changes of its tensors. `refused` receives an error that is not the disk's.
    fn copy(&self, file: &ArchiveFile, out: &mut impl Write, refused: &mut Option<CheckpointError>) -> io::Result<()> {
        let mut at = 0;
        for (name, range) in &file.tensors {
            out.write_all(&file.bytes[at..range.start])?;
            at = range.end;
            self.write_tensor(name, self.changes.get(name), &file.bytes[range.clone()], out, refused)?;
        }
        out.write_all(&file.bytes[at..])
    }

    /// Writes the values of a tensor of the files with a change, and drops its pages. `bytes`: those in the file. `refused`
    /// receives an error that is not the disk's.
    fn write_tensor(
        &self,
        name: &str,
        change: Option<&Change>,
        bytes: &[u8],
        out: &mut impl Write,
        refused: &mut Option<CheckpointError>,
    ) -> io::Result<()> {
        let written = match (change, self.decoded.get(name)) {
            (None, None) => out.write_all(bytes).map(Ok),
            (change, _) => self.write_changed(name, change, out),
        };
        if let Err(error) = written? {
            *refused = Some(error);
            return Err(io::Error::other("a tensor can't be merged"));
        }
        self.weights.release(name);
        Ok(())
    }

    /// Writes a tensor that is changed or decoded. The outer error is the disk's.
    fn write_changed(
        &self,
        name: &str,
        change: Option<&Change>,
        out: &mut impl Write,
    ) -> io::Result<Result<(), CheckpointError>> {
        match self.changed(name, change) {
            Ok(Changed::Bytes(bytes)) => out.write_all(&bytes).map(Ok),
            Ok(Changed::Matrix(matrix)) => matrix.write(out),
            Err(error) => Ok(Err(error)),
        }
    }

    fn changed<'m>(&'m self, name: &'m str, change: Option<&'m Change>) -> Result<Changed<'m>, CheckpointError> {
        let dtype_of = |view: &TensorView| dtype_of(view).expect("changed tensors are floats");
        let view = self.weights.view(name)?;
        let decoded = self.decoded.get(name);
        let dtype = decoded.map_or_else(|| dtype_of(&view), |decoded| decoded.dtype);
        let (codes, product, magnitudes) = match change {
            Some(Change::Replaced { by }) => {
                let other = self.adapters.view(by)?;
                return Ok(Changed::Bytes(converted(other.data(), dtype_of(&other), dtype).into_owned()));
            }
            Some(Change::Added { layer, adapter, matrices, codes, has_magnitudes }) => {
                let magnitudes = if *has_magnitudes { Some(self.magnitudes(layer)?) } else { None };
                (&codes[..], Some(self.product(layer, *adapter, matrices)?), magnitudes)
            }
            Some(Change::Recoded { codes }) => (&codes[..], None, None),
            None => (&[][..], None, None),
        };
        const FOUND: &str = "it was found before";
        let (shape, source) = match decoded {
            Some(Decoded { shape, format: Format::BitsAndBytes, .. }) => {
                (&shape[..], Source::Codes(Quantized::find(&self.weights, name, shape)?.expect(FOUND)))
            }
            Some(Decoded { shape, format: Format::Mxfp4, .. }) => {
                (&shape[..], Source::Packed(Packed::find(&self.weights, name, shape)?.expect(FOUND)))
            }
            None => (view.shape(), Source::Floats(view.data(), dtype)),
        };
        let (columns, rows) = shape.split_last().expect("changed tensors are matrices");
        let shape = [rows.iter().product(), *columns];
        Ok(Changed::Matrix(Box::new(Matrix { name, shape, source, dtype, codes, product, magnitudes })))
    }

    /// The magnitudes of a layer.
    fn magnitudes(&self, layer: &LinearLayer) -> Result<Magnitudes, CheckpointError> {
        let view = self.adapters.view(&layer.magnitudes())?;
        let values = floats(view.data(), dtype_of(&view).expect("magnitudes were checked"));
        Ok(Magnitudes { values, layout: layer.layout })
    }

    /// The product of an adapter's matrices, in the layout of its layer.
    fn product(
        &self,
        layer: &LinearLayer,
        adapter: Adapter,
        Matrices { names: [down, up], part }: &Matrices,
    ) -> Result<Product, CheckpointError> {
        let values = |view: TensorView| floats(view.data(), dtype_of(&view).expect("matrices were checked"));
        let (mut down, mut up) = (values(self.adapters.view(down)?), values(self.adapters.view(up)?));
        if let &Some([expert, count, first]) = part {
            down = down[expert * adapter.rank * layer.inputs..][..adapter.rank * layer.inputs].to_vec();
            let rows = up.chunks_exact(adapter.rank * count).skip(first).take(layer.outputs);
            up = rows.flat_map(|row| row.iter().skip(expert).step_by(count).copied()).collect();
        }
        let LayerRole::Experts(count) = layer.role else {
            let (left, right) = factors(layer.layout, [&down, &up], [layer.inputs, adapter.rank]);
            return Ok(Product { left, right, rank: adapter.rank, scale: adapter.scale });
        };
        // B of all experts is (outputs, rank, E).
        let up = transposed(&up, count);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for (down, up) in down.chunks_exact(down.len() / count).zip(up.chunks_exact(up.len() / count)) {
            let of_expert = factors(layer.layout, [down, up], [layer.inputs, adapter.rank]);
            left.extend(of_expert.0);
            right.extend(of_expert.1);
        }
        Ok(Product { left, right, rank: adapter.rank, scale: adapter.scale })
    }

    /// The name of a tensor of the model in the files of the weights. Errors: they lack it.
    fn stored(&self, name: &str, of_model: &HashSet<&str>) -> Result<String, CheckpointError> {
        stored_name(&self.weights, name, of_model).ok_or_else(|| missing_tensor(&self.weights, name))
    }

    /// Errors: a tensor of the weights is missing, has another shape, or is neither of floats nor quantized.
    fn check_weight(&self, name: &str, shape: &[usize]) -> Result<(), CheckpointError> {
        // The shapes of quantized weights were compared when they were found.
        if self.decoded.contains_key(name) { Ok(()) } else { self.check(&self.weights, name, shape) }
    }

    /// Errors: the tensor is missing, has another shape, or is not of floats.
    fn check(&self, archive: &Archive, name: &str, shape: &[usize]) -> Result<(), CheckpointError> {
        let view = archive.view(name)?;
        let path = archive.file_of(name);
        match dtype_of(&view).filter(|dtype| is_float(*dtype)) {
            None => {
                let (path, tensor) = (path.to_owned(), name.to_owned());
                Err(CheckpointError::UnsupportedDtype { path, tensor, found: describe(&view) })
            }
            Some(_) if view.shape() != shape => Err(wrong(path, name, format!("F32 {shape:?}"), &view)),
            Some(_) => Ok(()),
        }
    }
}

/// The factors of an adapter's product in the layout of its layer, of A and B.
fn factors(layout: WeightLayout, [down, up]: [&[f32]; 2], [inputs, rank]: [usize; 2]) -> (Vec<f32>, Vec<f32>) {
    match layout {
        WeightLayout::OutIn => (up.to_vec(), down.to_vec()),
        WeightLayout::InOut => (transposed(down, inputs), transposed(up, rank)),
    }
}

/// The name of a tensor of the model in the files of the weights; `None` if they lack it.
fn stored_name(weights: &Archive, name: &str, of_model: &HashSet<&str>) -> Option<String> {
    let found = candidates(name, of_model).find(|candidate| weights.has(candidate)).map(|found| found.into_owned());
    let packed =
        || candidates(name, of_model).map(|candidate| mxfp4::blocks(&candidate)).find(|name| weights.has(name));
    found.or_else(packed)
}

fn bad(path: &Path, error: &GraphError) -> CheckpointError {
    CheckpointError::BadAdapters { path: path.to_owned(), problem: error.to_string() }
}

/// The shape of a layer's weight in the files.
fn weight_shape(layer: &LinearLayer) -> Vec<usize> {
    let of_matrix = match layer.layout {
        WeightLayout::OutIn => [layer.outputs, layer.inputs],
        WeightLayout::InOut => [layer.inputs, layer.outputs],
    };
    match layer.role {
        LayerRole::Experts(count) => [&[count][..], &of_matrix].concat(),
        LayerRole::Embedding | LayerRole::Inner | LayerRole::Head => of_matrix.to_vec(),
    }
}

/// The tensors of the model's files that the graph stores in codes.
fn coded_tensors(graph: &Graph) -> BTreeSet<String> {
    let coded = graph.parameters.iter().filter(|parameter| parameter.coded.is_some());
    let tensors = coded.flat_map(|parameter| {
        let whole = parameter.stored.is_empty().then(|| graph[parameter.tensor].name.to_string());
        parameter.stored.iter().map(|piece| piece.tensor.to_string()).chain(whole)
    });
    tensors.collect()
}

/// The parts of a tensor of the model's files that the graph stores in codes.
fn coded_parts(graph: &Graph, tensor: &str) -> Vec<CodedPart> {
    let mut parts = Vec::new();
    for parameter in &graph.parameters {
        let Some(coded) = &parameter.coded else { continue };
        if parameter.stored.is_empty() && *graph[parameter.tensor].name == *tensor {
            let shape = parameter.shape(&graph[parameter.tensor].ty);
            let of_matrix = shape.iter().rev().take(2).product::<usize>();
            let matrices = (0..shape.iter().product()).step_by(of_matrix.max(1));
            parts.extend(matrices.map(|first| CodedPart { format: coded.format, elements: first..first + of_matrix }));
        }
        let pieces = parameter.stored.iter().filter(|piece| *piece.tensor == *tensor);
        parts.extend(
            pieces.map(|piece| CodedPart { format: coded.format, elements: piece.from..piece.from + piece.elements }),
        );
    }
    parts
}
