//! Merges adapters into the weights below them: copies the files of the weights, and on the way adds each adapter's
//! product to its layer. A file keeps its header, so tensors, dtypes and shards stay the same. Memory: the matrices of one
//! adapter and a few rows of its layer, and with codes the codes of the layer.

use super::archive::{Archive, ArchiveFile, describe, wrong};
use super::contents::adapter_name;
use super::names::candidates;
use super::read::{dtype_of, is_float, missing_tensor};
use super::{ADAPTER_FILE, AVERAGE_FILE, CheckpointError, INDEX_FILE, MODEL_FILE};
use plimsoll_exec::{CodedMatrix, Encoder, converted};
use plimsoll_files::Disk;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::WeightLayout;
use plimsoll_graph::{ADAPTER_PREFIX, Adapter, Adapters, DType, Graph, GraphError, LinearLayer, WeightCodes};
use plimsoll_units::Bytes;
use rayon::prelude::*;
use safetensors::tensor::TensorView;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::Path;

/// Values of a layer computed and written at a time, in whole rows.
const PART: usize = 1 << 20;

/// Size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// Weights with adapters to add to them.
pub struct Merge {
    weights: Archive,
    adapters: Archive,
    /// By the tensor's name in the files.
    changes: HashMap<String, Change>,
}

/// What happens to a tensor.
enum Change {
    /// The product of an adapter's matrices is added to it.
    Added { layer: LinearLayer, adapter: Adapter, codes: Vec<CodedPart> },
    /// A tensor of the adapters' file, which was trained whole, replaces it.
    Replaced { by: String },
}

/// Elements of a layer that are encoded, with scales of their own.
struct CodedPart {
    format: WeightCodes,
    elements: Range<usize>,
}

impl Merge {
    /// Opens adapters and the weights below them, and compares their names and shapes. `folder` has the adapters' file, or
    /// with `averaged` that of their averages. Where the graph of the model has parameters in codes, adapters are added to
    /// the decoded values.
    /// Errors: those of reading weights.
    pub fn open(
        model: &ModelConfig,
        adapters: &Adapters,
        graph: &Graph,
        [folder, weights]: [&Path; 2],
        averaged: bool,
    ) -> Result<Self, CheckpointError> {
        let file = folder.join(if averaged { AVERAGE_FILE } else { ADAPTER_FILE });
        let weights = Archive::file_or_shards(weights, MODEL_FILE)?;
        let mut merge = Self { weights, adapters: Archive::file(&file)?, changes: HashMap::new() };
        let names = model.parameter_names();
        let names = names.iter().map(String::as_str).collect::<HashSet<_>>();
        let layers = model.linear_layers().map_err(|error| bad(&file, &error))?;
        for (module, &adapter) in &adapters.layers {
            let layer = layers.iter().find(|layer| layer.module == *module).cloned();
            let layer =
                layer.ok_or_else(|| bad(&file, &GraphError::UnknownParameter { name: format!("{module}.weight") }))?;
            let tensor = format!("{module}.weight");
            let stored = merge.stored(&tensor, &names)?;
            merge.check(&merge.weights, &stored, &weight_shape(&layer))?;
            let [down, up] = matrices(module);
            merge.check(&merge.adapters, &down, &[adapter.rank, layer.inputs])?;
            merge.check(&merge.adapters, &up, &[layer.outputs, adapter.rank])?;
            let codes = coded_parts(graph, &tensor);
            merge.changes.insert(stored, Change::Added { layer, adapter, codes });
        }
        for name in &adapters.saved {
            let (stored, by) = (merge.stored(name, &names)?, adapter_name(name));
            let shape = merge.weights.view(&stored)?.shape().to_vec();
            merge.check(&merge.weights, &stored, &shape)?;
            merge.check(&merge.adapters, &by, &shape)?;
            merge.changes.insert(stored, Change::Replaced { by });
        }
        Ok(merge)
    }

    /// Size of the merged files.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.weights.files().map(|file| file.bytes.len() as u64).sum())
    }

    /// The dtypes of the layers with adapters in the files, such as `BF16`, in the order of their names.
    pub fn dtypes(&self) -> Vec<String> {
        let added = self.changes.iter().filter(|(_, change)| matches!(change, Change::Added { .. }));
        let dtype = |name: &str| self.weights.view(name).map(|view| format!("{:?}", view.dtype()));
        let found = added.filter_map(|(name, _)| dtype(name).ok()).collect::<BTreeSet<_>>();
        found.into_iter().collect()
    }

    /// Writes the merged files into a folder, and syncs them. Errors: `Io`; `NotFinite` if a sum overflows its dtype.
    pub fn write(&self, disk: &Disk, folder: &Path) -> Result<(), CheckpointError> {
        for file in self.weights.files() {
            let name = file.path.file_name().expect("an open file has a name");
            let path = folder.join(name);
            let mut refused = None;
            let mut copy = |path: &Path| {
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, File::create_new(path)?);
                self.copy(&file, &mut out, &mut refused)?;
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
            let copied = std::fs::read(self.weights.path()).and_then(|index| disk.write_new(&path, &index));
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
            let bytes = &file.bytes[range.clone()];
            let written = match self.changes.get(name) {
                None => out.write_all(bytes).map(Ok),
                Some(change) => self.write_changed(name, change, out),
            };
            if let Err(error) = written? {
                *refused = Some(error);
                return Err(io::Error::other("a tensor can't be merged"));
            }
            self.weights.release(name);
        }
        out.write_all(&file.bytes[at..])
    }

    /// Writes a changed tensor. The outer error is the disk's.
    fn write_changed(
        &self,
        name: &str,
        change: &Change,
        out: &mut impl Write,
    ) -> io::Result<Result<(), CheckpointError>> {
        let dtype = |view: &TensorView| dtype_of(view).expect("changed tensors are floats");
        let view = match self.weights.view(name) {
            Ok(view) => view,
            Err(error) => return Ok(Err(error)),
        };
        match change {
            Change::Replaced { by } => match self.adapters.view(by) {
                Ok(other) => out.write_all(&converted(other.data(), dtype(&other), dtype(&view))).map(Ok),
                Err(error) => Ok(Err(error)),
            },
            Change::Added { layer, adapter, codes } => match self.product(layer, *adapter) {
                Ok(product) => write_sum(name, &view, dtype(&view), codes, &product, out),
                Err(error) => Ok(Err(error)),
            },
        }
    }

    /// The product of an adapter's matrices, in the layout of its layer.
    fn product(&self, layer: &LinearLayer, adapter: Adapter) -> Result<Product, CheckpointError> {
        let values = |view: TensorView| floats(view.data(), dtype_of(&view).expect("matrices were checked"));
        let [down, up] = matrices(&layer.module);
        let (down, up) = (values(self.adapters.view(&down)?), values(self.adapters.view(&up)?));
        let (left, right) = match layer.layout {
            WeightLayout::OutIn => (up, down),
            WeightLayout::InOut => (transposed(&down, layer.inputs), transposed(&up, adapter.rank)),
        };
        Ok(Product { left, right, rank: adapter.rank, scale: adapter.scale })
    }

    /// The name of a tensor of the model in the files of the weights. Errors: they lack it.
    fn stored(&self, name: &str, of_model: &HashSet<&str>) -> Result<String, CheckpointError> {
        let found = candidates(name, of_model).find(|candidate| self.weights.has(candidate));
        found.map(|found| found.into_owned()).ok_or_else(|| missing_tensor(&self.weights, name))
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

fn bad(path: &Path, error: &GraphError) -> CheckpointError {
    CheckpointError::BadAdapters { path: path.to_owned(), problem: error.to_string() }
}

/// The names of an adapter's matrices, A and B.
fn matrices(module: &str) -> [String; 2] {
    ["A", "B"].map(|letter| format!("{ADAPTER_PREFIX}{module}.lora_{letter}.weight"))
}

/// The shape of a layer's weight in the files.
fn weight_shape(layer: &LinearLayer) -> [usize; 2] {
    match layer.layout {
        WeightLayout::OutIn => [layer.outputs, layer.inputs],
        WeightLayout::InOut => [layer.inputs, layer.outputs],
    }
}

/// The parts of a tensor of the model's files that the graph stores in codes.
fn coded_parts(graph: &Graph, tensor: &str) -> Vec<CodedPart> {
    let mut parts = Vec::new();
    for parameter in &graph.parameters {
        let Some(coded) = &parameter.coded else { continue };
        if parameter.stored.is_empty() && *graph[parameter.tensor].name == *tensor {
            let elements = parameter.shape(&graph[parameter.tensor].ty).iter().product();
            parts.push(CodedPart { format: coded.format, elements: 0..elements });
        }
        let pieces = parameter.stored.iter().filter(|piece| *piece.tensor == *tensor);
        parts.extend(
            pieces.map(|piece| CodedPart { format: coded.format, elements: piece.from..piece.from + piece.elements }),
        );
    }
    parts
}

fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let bytes = converted(bytes, dtype, DType::F32);
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|index| matrix[index % rows * columns + index / rows]).collect()
}

/// scale · left · right: (rows, rank) and (rank, columns).
struct Product {
    left: Vec<f32>,
    right: Vec<f32>,
    rank: usize,
    scale: f32,
}

impl Product {
    /// Adds one of its rows.
    fn add_row(&self, row: usize, to: &mut [f32]) {
        let mut sum = vec![0.0_f32; to.len()];
        for (&factor, right) in self.left[row * self.rank..][..self.rank].iter().zip(self.right.chunks_exact(to.len()))
        {
            sum.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * value);
        }
        to.iter_mut().zip(sum).for_each(|(value, sum)| *value += self.scale * sum);
    }
}

/// Writes a matrix plus a product, rounded once. The outer error is the disk's; the inner one is `NotFinite`.
fn write_sum(
    name: &str,
    view: &TensorView,
    dtype: DType,
    codes: &[CodedPart],
    product: &Product,
    out: &mut impl Write,
) -> io::Result<Result<(), CheckpointError>> {
    let columns = view.shape()[1];
    let size = dtype.size_bytes() as usize;
    let coded = codes.iter().map(|part| Coded::encode(view.data(), dtype, columns, part)).collect::<Vec<_>>();
    let rows = (PART / columns).max(1);
    for (index, part) in view.data().chunks(rows * columns * size).enumerate() {
        let mut values = floats(part, dtype);
        let add = |(row, values): (usize, &mut [f32])| {
            let row = index * rows + row;
            coded.iter().for_each(|coded| coded.decode(row, values));
            product.add_row(row, values);
        };
        values.par_chunks_mut(columns).enumerate().for_each(add);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let merged = converted(&bytes, DType::F32, dtype);
        if floats(&merged, dtype).iter().any(|value| !value.is_finite()) {
            return Ok(Err(CheckpointError::NotFinite { tensor: name.to_owned() }));
        }
        out.write_all(&merged)?;
    }
    Ok(Ok(()))
}

/// Rows of a matrix in codes.
struct Coded {
    format: WeightCodes,
    rows: Range<usize>,
    codes: Vec<u8>,
    /// Words, so that scales in single precision are aligned; and the bytes of each.
    scales: Vec<(Vec<u32>, usize)>,
}

impl Coded {
    fn encode(matrix: &[u8], dtype: DType, columns: usize, part: &CodedPart) -> Self {
        let size = dtype.size_bytes() as usize;
        let mut encoder = Encoder::new(part.format, columns);
        let step = encoder.multiple() * (PART / encoder.multiple()).max(1);
        let bytes = &matrix[part.elements.start * size..part.elements.end * size];
        let codes = bytes.chunks(step * size).flat_map(|bytes| encoder.encode(&floats(bytes, dtype))).collect();
        let scales = encoder.scales().into_iter().map(|bytes| {
            let mut words = vec![0_u32; bytes.len().div_ceil(size_of::<u32>())];
            bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
            (words, bytes.len())
        });
        let scales = scales.collect();
        let rows = part.elements.start / columns..part.elements.end / columns;
        Self { format: part.format, rows, codes, scales }
    }

    /// Replaces a row of the matrix by the decoded one, if it is here.
    fn decode(&self, row: usize, into: &mut [f32]) {
        if self.rows.contains(&row) {
            let scales = self.scales.iter().map(|(words, bytes)| &bytemuck::cast_slice(words)[..*bytes]);
            let scales = scales.collect::<Vec<_>>();
            let matrix = CodedMatrix::new(self.format, into.len(), &self.codes, &scales);
            matrix.decode(row - self.rows.start, 0, into);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_added_in_either_layout() {
        // B A = [[1, -1], [2, 0.5]] · [[1, 2, 3], [4, 5, 6]] = [[-3, -3, -3], [4, 6.5, 9]].
        let (down, up) = (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![1.0, -1.0, 2.0, 0.5]);
        let rows = |product: &Product, rows: usize, columns: usize| {
            let mut all = vec![1.0; rows * columns];
            all.chunks_exact_mut(columns).enumerate().for_each(|(row, values)| product.add_row(row, values));
            all
        };
        let straight = Product { left: up.clone(), right: down.clone(), rank: 2, scale: 2.0 };
        assert_eq!(rows(&straight, 2, 3), [-5.0, -5.0, -5.0, 9.0, 14.0, 19.0]);
        let (left, right) = (transposed(&down, 3), transposed(&up, 2));
        let turned = Product { left, right, rank: 2, scale: 2.0 };
        assert_eq!(rows(&turned, 3, 2), [-5.0, 9.0, -5.0, 14.0, -5.0, 19.0]);
    }
}
