//! Causes of ends, as data. Not here: finding the cause (`mod.rs`), and changes against it (`../ladder`).

use super::AllocatorSizes;

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// It finished.
    Done,
    /// It ran out of GPU memory.
    CardMemory {
        /// The allocator that failed.
        by: CardAllocator,
        /// The sizes in its message.
        sizes: AllocatorSizes,
    },
    /// It ran out of host memory.
    HostMemory(HostShortage),
    /// Anything else.
    Fault(Fault),
}

/// The allocator that ran out of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardAllocator {
    /// PyTorch's caching allocator, on any kind of GPU.
    PyTorch,
    /// PyTorch's allocator, for DeepSpeed's state that does not depend on the batch: partitions, buckets, moments.
    DeepSpeed,
    /// The driver, called by other code than PyTorch's allocator.
    Driver,
    /// cuBLAS, for its handle or its workspace.
    Cublas,
    /// cuDNN.
    Cudnn,
    /// Another CUDA library, or an engine that reserves its memory in advance.
    Library,
    /// NCCL, for its buffers.
    Nccl,
    /// bitsandbytes.
    Bitsandbytes,
    /// A batch-size search that found none that fits.
    Search,
}

/// The form in which host memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostShortage {
    /// The OOM killer ended a process of the run.
    Killed,
    /// Python's `MemoryError`.
    Python,
    /// C++'s `std::bad_alloc`.
    Cpp,
    /// PyTorch's CPU allocator.
    CpuAllocator,
    /// A data-loading worker was killed.
    Worker,
    /// Shared memory (`/dev/shm`) is full.
    SharedMemory,
    /// Pinned memory, which copies to a GPU use.
    Pinned,
    /// A system call failed, such as fork or mmap.
    System,
    /// Windows' paging file.
    PagingFile,
}

/// Failures that are not caused by a lack of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A kernel accessed an invalid address.
    IllegalAccess,
    /// An assertion in a kernel failed, mostly an index out of range.
    DeviceAssert,
    /// Any other error of CUDA or its libraries.
    Cuda,
    /// A kernel needs more shared memory or registers than the GPU has.
    KernelLimits,
    /// Other processes of the run could not be reached.
    Communication,
    /// The loss or a gradient is NaN or infinite.
    NotANumber,
    /// A module is missing or can't be loaded.
    Import,
    /// The disk is full.
    DiskFull,
    /// A flag, a key in a file, or a path is invalid.
    Configuration,
    /// The script is missing or can't be parsed.
    Script,
    /// The user interrupted it.
    Interrupted,
    /// Killed from outside: SIGTERM, or a SIGKILL that is not from the OOM killer.
    Killed,
    /// It hung.
    Hang,
    /// A signal that the process caused itself, such as 11 (SIGSEGV).
    Crashed {
        /// The signal number.
        signal: i32,
    },
    /// Any other Python exception.
    Exception {
        /// The name of the exception without its module.
        name: String,
    },
    /// An exit code without a known reason.
    Exit {
        /// The code.
        code: i32,
    },
}

impl Cause {
    /// Whether the run ran out of memory.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::CardMemory { .. } | Self::HostMemory(_))
    }

    /// A stable word for tables and reports: `card_memory`, `host_memory`, `illegal_access`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::CardMemory { .. } => "card_memory",
            Self::HostMemory(_) => "host_memory",
            Self::Fault(fault) => match fault {
                Fault::IllegalAccess => "illegal_access",
                Fault::DeviceAssert => "device_assert",
                Fault::Cuda => "cuda",
                Fault::KernelLimits => "kernel_limits",
                Fault::Communication => "communication",
                Fault::NotANumber => "not_a_number",
                Fault::Import => "import",
                Fault::DiskFull => "disk_full",
                Fault::Configuration => "configuration",
                Fault::Script => "script",
                Fault::Interrupted => "interrupted",
                Fault::Killed => "killed",
                Fault::Hang => "hang",
                Fault::Crashed { .. } => "crashed",
                Fault::Exception { .. } => "exception",
                Fault::Exit { .. } => "exit",
            },
        }
    }

    /// Details that distinguish causes of one kind: the allocator, the exception, the signal number.
    pub fn detail(&self) -> String {
        match self {
            Self::CardMemory { by, .. } => by.name().to_owned(),
            Self::HostMemory(by) => by.name().to_owned(),
            Self::Fault(Fault::Crashed { signal }) => signal.to_string(),
            Self::Fault(Fault::Exception { name }) => name.clone(),
            Self::Fault(Fault::Exit { code }) => code.to_string(),
            Self::Done | Self::Fault(_) => String::new(),
        }
    }
}

impl CardAllocator {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PyTorch => "pytorch",
            Self::DeepSpeed => "deepspeed",
            Self::Driver => "driver",
            Self::Cublas => "cublas",
            Self::Cudnn => "cudnn",
            Self::Library => "library",
            Self::Nccl => "nccl",
            Self::Bitsandbytes => "bitsandbytes",
            Self::Search => "search",
        }
    }
}

impl HostShortage {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Python => "python",
            Self::Cpp => "cpp",
            Self::CpuAllocator => "cpu_allocator",
            Self::Worker => "worker",
            Self::SharedMemory => "shared_memory",
            Self::Pinned => "pinned",
            Self::System => "system",
            Self::PagingFile => "paging_file",
        }
    }
}
