//! A process's memory on a card in addition to its tensors: the CUDA context and the workspaces of cuBLAS.
//! Not here: tensors (`runtime/`), and detecting cards.

use plimsoll_units::Bytes;

/// The properties of a card that memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gpu {
    /// Its total memory.
    pub memory: Bytes,
    /// Its architecture; (9, 0) is Hopper.
    pub compute_capability: (u8, u8),
}

/// A lower bound, the likely value and an upper bound, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spread {
    pub low: u64,
    pub likely: u64,
    pub high: u64,
}

const MIB: u64 = 1 << 20;

impl std::ops::Add for Spread {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { low: self.low + other.low, likely: self.likely + other.likely, high: self.high + other.high }
    }
}

/// cuBLAS's workspace per handle and stream before Hopper: two buffers of 4096 KiB and eight of 16 KiB.
/// Source: `aten/src/ATen/cuda/CublasHandlePool.cpp`, `:4096:2:16:8`.
const WORKSPACE: u64 = (2 * 4096 + 8 * 16) << 10;
/// The same for Hopper and later. Source: ibid., `:4096:8`.
const WORKSPACE_HOPPER: u64 = (8 * 4096) << 10;

impl Gpu {
    /// The workspace that PyTorch allocates for each cuBLAS handle with the caching allocator. The threads of the
    /// forward and the backward pass have one handle each.
    pub(crate) fn cublas_workspace(self) -> u64 {
        if self.compute_capability >= (9, 0) { WORKSPACE_HOPPER } else { WORKSPACE }
    }

    /// NCCL's memory on the card for a group of cards, which no allocator counts: a buffer per protocol for each
    /// connection of a channel. The number of channels depends on the links: at least two, at most 32; each has a ring,
    /// and a tree with up to two more connections. The likely values are 16 channels with NVLink and 4 without, each
    /// with a ring and a chain.
    ///
    /// Source: NCCL's `init.cc`, `computeBuffSizes`, and `device.h`; `NCCL_BUFFSIZE` in its manual.
    pub(crate) fn nccl(self) -> Spread {
        const SIMPLE: u64 = 4 << 20;
        const LL: u64 = 8 * 512 * 8 * 16;
        const LL128: u64 = 120 * 640 * 8 * 8;
        const CONNECTION: u64 = SIMPLE + LL + LL128;
        let has_links = matches!(self.compute_capability, (8, 0) | (9, _) | (10, _));
        let channels = if has_links { 16 } else { 4 };
        Spread { low: 2 * CONNECTION, likely: 2 * channels * CONNECTION, high: 3 * 32 * CONNECTION }
    }

    /// Number of multiprocessors of the architecture's largest card: some kernels compute a partial sum per
    /// multiprocessor.
    /// Source: NVIDIA's data sheets of the B200, RTX 5090, H100, A100, RTX 4090 and RTX 3090.
    pub(crate) fn multiprocessors(self) -> u64 {
        match self.compute_capability {
            (12.., _) => 170,
            (10.., _) => 148,
            (9, _) => 132,
            (8, 0) => 108,
            (8, 9) => 128,
            _ => 82,
        }
    }

    /// Memory of the CUDA context, PyTorch's loaded kernels and the libraries.
    ///
    /// Source: on an H100 a process of PyTorch 2.x had 0.72 GiB (fp32) to 0.74 GiB (bf16) more than its allocator had
    /// reserved (`bench/results/2026-11-22-h100.md`). Other cards: values of `nvidia-smi` that users report after a
    /// first product, with lazy loading of modules, the default since CUDA 11.7. On a Tesla T4, fitcheck-llm 0.3.1 measured
    /// 141 MiB after training steps in each of its runs of PyTorch 2.10 and 2.14; the upper bound is for other versions.
    pub(crate) fn context(self) -> Spread {
        let [low, likely, high] = match self.compute_capability {
            (10.., _) => [500, 750, 1100],
            (9, _) => [500, 755, 900],
            (8, 0) => [400, 480, 700],
            (8, _) => [250, 450, 700],
            (7, 5) => [140, 141, 700],
            _ => [250, 400, 700],
        };
        Spread { low: low * MIB, likely: likely * MIB, high: high * MIB }
    }
}
