//! What a plan is made for: each kind of memory has a target that runs its nodes, by which the working memory of their
//! kernels is sized.

use crate::MemoryKind;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The kinds of device that an op may need different scratch on.
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
    /// Kernels of our own.
    #[default]
    Kernels,
    /// NVIDIA's cuBLASLt, and our kernels where it has no algorithm.
    CublasLt,
}

/// What runs the nodes of a kind of memory, as far as their working memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// The processor.
    Cpu {
        /// Workers that run at the same time; each may need its own scratch.
        threads: usize,
    },
    /// An NVIDIA card. Its kernels keep their tiles on the chip; their scratch depends on shapes alone, so that two cards
    /// with one plan compute the same bits.
    Cuda {
        /// Major and minor.
        compute_capability: (u8, u8),
        /// What multiplies matrices.
        #[serde(default)]
        products: Products,
    },
}

impl Target {
    /// Parts that sums over rows are cut into on the processor.
    pub const CPU_ROW_PARTS: usize = 16;

    /// Parts that a card cuts the gradient of a normalization's parameters into: the blocks that gradients of rows are
    /// shared out to, each of which has two rows at once, and of which multiprocessors want several.
    pub fn cuda_norm_parts(rows: usize) -> usize {
        rows.div_ceil(2).min(512)
    }

    /// Parts that the gradient of a normalization's parameters is summed in.
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

    /// What multiplies matrices on a card; `None` for the processor, whose plans don't depend on it.
    pub fn products(&self) -> Option<Products> {
        match *self {
            Self::Cuda { products, .. } => Some(products),
            Self::Cpu { .. } => None,
        }
    }

    /// Workspace of a library that multiplies matrices, in addition to the op's scratch; zero if our own kernels multiply.
    /// With more workspace cuBLASLt has more algorithms to choose from.
    /// Source: NVIDIA's documentation of `cublasSetWorkspace`, which recommends 32 MiB for compute capabilities 9.x and
    /// 10.x, 12 MiB for 12.x and 4 MiB for all others, which have twice that here.
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

    /// Parts that sums over rows are cut into. Independent of the number of workers, so that results are, too.
    pub fn row_parts(&self, rows: usize) -> usize {
        match self {
            Self::Cpu { .. } => Self::CPU_ROW_PARTS,
            Self::Cuda { .. } => Self::cuda_row_parts(rows),
        }
    }

    /// The same on a card: more, so that each multiprocessor gets some.
    pub fn cuda_row_parts(rows: usize) -> usize {
        rows.min(128)
    }
}

/// The target of each kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// Runs the nodes of the device's memory.
    pub device: Target,
    /// Runs the nodes of the host's memory: always a processor.
    pub host: Target,
}

impl Targets {
    /// The processor is the device.
    pub fn cpu(threads: usize) -> Self {
        Self { device: Target::Cpu { threads }, host: Target::Cpu { threads } }
    }

    /// A card that multiplies with our own kernels, in a machine whose processor has `workers` workers.
    pub fn cuda(compute_capability: (u8, u8), threads: usize) -> Self {
        Self { device: Target::Cuda { compute_capability, products: Products::Kernels }, host: Target::Cpu { threads } }
    }

    /// The same with another multiplier on a card.
    #[must_use]
    pub fn multiplying_by(mut self, by: Products) -> Self {
        if let Target::Cuda { products, .. } = &mut self.device {
            *products = by;
        }
        self
    }

    /// Whether nodes of the device and of the host, and transfers between them, run at the same time.
    pub fn overlaps(&self) -> bool {
        self.device.kind() != DeviceKind::Cpu
    }
}

impl std::ops::Index<MemoryKind> for Targets {
    type Output = Target;
    /// Runs the nodes whose tensors rest in a memory of this kind.
    fn index(&self, kind: MemoryKind) -> &Target {
        match kind {
            MemoryKind::Device => &self.device,
            MemoryKind::Host => &self.host,
        }
    }
}
