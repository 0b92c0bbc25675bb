//! The target of a plan: for each kind of memory, the processor or card that runs its nodes. The working memory of
//! kernels depends on it.

use crate::MemoryKind;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The kinds of device with different kernels, which may need different scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processor's cores.
    Cpu,
    /// An NVIDIA card.
    Cuda,
}

/// What multiplies matrices on a card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Products {
    /// Plimsoll's own kernels.
    #[default]
    Kernels,
    /// NVIDIA's cuBLASLt; Plimsoll's kernels where it has no algorithm.
    CublasLt,
}

/// The properties of a processor or card that the working memory of its nodes depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// The processor.
    Cpu {
        /// Parallel workers; each may need its own scratch.
        threads: usize,
    },
    /// An NVIDIA card. Its kernels keep their tiles on chip; their scratch depends only on shapes, so that two cards
    /// with the same plan compute the same bits.
    Cuda {
        /// Major and minor version.
        compute_capability: (u8, u8),
        /// What multiplies matrices.
        #[serde(default)]
        products: Products,
    },
}

/// The first compute capability whose tensor cores multiply numbers of 8 bits.
pub const OLDEST_WITH_FP8: (u8, u8) = (8, 9);

impl Target {
    /// Whether it has kernels for products in 8 bits.
    pub fn has_fp8(&self) -> bool {
        match *self {
            Self::Cpu { .. } => true,
            Self::Cuda { compute_capability, .. } => compute_capability >= OLDEST_WITH_FP8,
        }
    }

    /// Number of parts of sums over rows on the processor.
    pub const CPU_ROW_PARTS: usize = 16;

    /// Number of parts of the gradient of a normalization's parameters on a card. It is the number of blocks of the
    /// rows' gradients: each block processes two rows at a time, and each multiprocessor needs several blocks.
    pub fn cuda_norm_parts(rows: usize) -> usize {
        rows.div_ceil(2).min(512)
    }

    /// Number of parts of the gradient of a normalization's parameters.
    pub fn norm_parts(&self, rows: usize) -> usize {
        match self {
            Self::Cpu { .. } => Self::CPU_ROW_PARTS,
            Self::Cuda { .. } => Self::cuda_norm_parts(rows),
        }
    }

    /// What kind of device it is.
    pub fn kind(&self) -> DeviceKind {
        match self {
            Self::Cpu { .. } => DeviceKind::Cpu,
            Self::Cuda { .. } => DeviceKind::Cuda,
        }
    }

    /// What multiplies matrices on a card; `None` for the processor.
    pub fn products(&self) -> Option<Products> {
        match *self {
            Self::Cuda { products, .. } => Some(products),
            Self::Cpu { .. } => None,
        }
    }

    /// Workspace of a library for matrix products, in addition to the op's scratch; zero with Plimsoll's own kernels.
    /// With more workspace cuBLASLt can choose from more algorithms.
    /// Source: NVIDIA's documentation of `cublasSetWorkspace`, which recommends 32 MiB for compute capabilities 9.x and
    /// 10.x, 12 MiB for 12.x and 4 MiB for all others; this uses 8 MiB for those.
    pub fn product_workspace(&self) -> Bytes {
        match *self {
            Self::Cuda { compute_capability: (major, _), products: Products::CublasLt } => match major {
                9..=11 => Bytes::mib(32),
                12.. => Bytes::mib(12),
                _ => Bytes::mib(8),
            },
            Self::Cuda { products: Products::Kernels, .. } | Self::Cpu { .. } => Bytes::ZERO,
        }
    }

    /// Workers of the processor; 1 for a card.
    pub fn threads(&self) -> usize {
        match *self {
            Self::Cpu { threads } => threads,
            Self::Cuda { .. } => 1,
        }
    }

    /// Number of parts of sums over rows. It does not depend on the number of workers, so results do not either.
    pub fn row_parts(&self, rows: usize) -> usize {
        match self {
            Self::Cpu { .. } => Self::CPU_ROW_PARTS,
            Self::Cuda { .. } => Self::cuda_row_parts(rows),
        }
    }

    /// The same on a card, where every multiprocessor needs a part.
    pub fn cuda_row_parts(rows: usize) -> usize {
        rows.min(128)
    }
}

/// The target of each kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// The target of the device's memory.
    pub device: Target,
    /// The target of the host's memory: always a processor.
    pub host: Target,
}

impl Targets {
    /// The processor is also the device.
    pub fn cpu(threads: usize) -> Self {
        Self { device: Target::Cpu { threads }, host: Target::Cpu { threads } }
    }

    /// A card with Plimsoll's own kernels for products, in a machine whose processor has `threads` workers.
    pub fn cuda(compute_capability: (u8, u8), threads: usize) -> Self {
        Self { device: Target::Cuda { compute_capability, products: Products::Kernels }, host: Target::Cpu { threads } }
    }

    /// The same targets with `by` for products on a card.
    #[must_use]
    pub fn multiplying_by(mut self, by: Products) -> Self {
        if let Target::Cuda { products, .. } = &mut self.device {
            *products = by;
        }
        self
    }

    /// Whether nodes of the device, nodes of the host and transfers between them run at the same time.
    pub fn overlaps(&self) -> bool {
        self.device.kind() != DeviceKind::Cpu
    }
}

impl std::ops::Index<MemoryKind> for Targets {
    type Output = Target;
    /// The target of a kind of memory.
    fn index(&self, kind: MemoryKind) -> &Target {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Host => &self.host,
        }
    }
}
