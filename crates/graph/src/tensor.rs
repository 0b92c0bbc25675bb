//! Tensors: a type (shape and dtype), a role, and how long their bytes are kept.

use crate::MemoryId;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Index of a tensor in its graph and in a plan of that graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

impl TensorId {
    /// The index as a `usize`.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision: eleven significant bits, up to 65,504.
    F16,
    /// The upper half of single precision: eight significant bits, the range of `F32`.
    Bf16,
    /// Signed 32-bit integers: token ids and targets.
    I32,
    /// Signed 16-bit integers: the difference between single precision and `Bf16`.
    I16,
    /// Bytes: codes of quantized values.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether these are floats of 16 bits.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}

/// Extents of a tensor, outermost first. Up to four are stored inline, since a search copies hundreds of graphs.
pub type Shape = SmallVec<[usize; 4]>;

/// Shape and dtype, which are all that an op needs to know of an operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorType {
    /// Extents, outermost first; row-major and contiguous.
    #[serde(with = "as_list")]
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
}

/// Shapes as plain lists.
mod as_list {
    use super::Shape;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(shape: &Shape, serializer: S) -> Result<S::Ok, S::Error> {
        shape.as_slice().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        Ok(Shape::from_vec(Vec::deserialize(deserializer)?))
    }
}

impl TensorType {
    /// A float tensor.
    pub fn f32(shape: &[usize]) -> Self {
        Self { shape: shape.into(), dtype: DType::F32 }
    }

    /// An integer tensor.
    pub fn i32(shape: &[usize]) -> Self {
        Self { shape: shape.into(), dtype: DType::I32 }
    }

    /// This shape with other elements.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { shape: self.shape.clone(), dtype }
    }

    /// The same elements in another shape.
    pub fn with_shape(&self, shape: &[usize]) -> Self {
        Self { shape: shape.into(), dtype: self.dtype }
    }

    /// The same rows with another number of columns.
    pub fn with_columns(&self, columns: usize) -> Self {
        let mut ty = self.clone();
        if let Some(last) = ty.shape.last_mut() {
            *last = columns;
        }
        ty
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes without any padding.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elements() as u64 * self.dtype.size_bytes())
    }

    /// The last extent: the width of a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The product of all extents but the last: the number of rows.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len().saturating_sub(1)].iter().product()
    }
}

/// The purpose of a tensor. The plan's table has one line per role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A parameter, trained or frozen.
    Weight,
    /// A parameter's gradient, accumulated over the micro-batches of a step.
    Gradient,
    /// State of the optimizer: moments, weights in full precision, averages of the weights.
    Optimizer,
    /// Results that ops of the forward and backward pass pass on, and key/value caches.
    Activation,
    /// Working memory of a single op.
    Scratch,
    /// Transfers between host and device: token batches in, losses and logits out.
    Staging,
}

/// How long a tensor's bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// From the first step of the run to the last, across all programs.
    Persistent,
    /// Across repeated executions of one program, as long as no other program runs in between (key/value caches).
    Carried,
    /// Within one execution of one program, from the op that writes the tensor to the last op that reads it.
    Transient,
}

/// A value in the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// A path such as `h3/attn/qkv`; a parameter has its name in the family's checkpoints.
    pub name: Arc<str>,
    /// Shape and dtype.
    pub ty: TensorType,
    /// Its purpose.
    pub role: Role,
    /// How long it is kept.
    pub storage: Storage,
    /// The memory that stores it.
    pub memory: MemoryId,
}

/// Initial values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
    /// The values of another tensor, which are known before.
    Copy(TensorId),
}
