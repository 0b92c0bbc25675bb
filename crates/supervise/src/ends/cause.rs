//! Why a run ended, as data. Not here: how that is found out (`mod.rs`), and what is done about it (`../ladder`).

use super::Told;

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// It came to its end.
    Done,
    /// The card's memory did not suffice.
    CardMemory {
        /// Who could not get any.
        by: CardAllocator,
        /// The sizes that were told with it.
        told: Told,
    },
    /// The machine's memory did not suffice.
    HostMemory(HostShortage),
    /// Anything else.
    Fault(Fault),
}

/// Who asked for memory of the card and got none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardAllocator {
    /// PyTorch's caching allocator, on any kind of card.
    PyTorch,
    /// PyTorch's allocator, asked by DeepSpeed for what it keeps whatever the batch: partitions, buckets, moments.
    DeepSpeed,
    /// The driver, asked by somebody else than PyTorch's allocator.
    Driver,
    /// cuBLAS, for its handle or its workspace.
    Cublas,
    /// cuDNN.
    Cudnn,
    /// Another of CUDA's libraries, or an engine that takes its memory in advance.
    Library,
    /// NCCL, for its buffers.
    Nccl,
    /// bitsandbytes.
    Bitsandbytes,
    /// A search for a batch size that fits, which found none.
    Search,
}

/// How the machine's memory was seen to be short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostShortage {
    /// The kernel killed a process of the run.
    Killed,
    /// Python's `MemoryError`.
    Python,
    /// C++'s `std::bad_alloc`.
    Cpp,
    /// PyTorch's allocator for the processor.
    CpuAllocator,
    /// A worker that loads data was killed.
    Worker,
    /// Shared memory (`/dev/shm`) is full.
    SharedMemory,
    /// Pages that can't be swapped out, which copies to a card want.
    Pinned,
    /// A system call got none: a fork, a mapping.
    System,
    /// Windows' paging file.
    PagingFile,
}

/// Ends that more memory would not have prevented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A kernel read or wrote where it must not.
    IllegalAccess,
    /// An assertion in a kernel: mostly an index out of range.
    DeviceAssert,
    /// Anything else that CUDA or its libraries say.
    Cuda,
    /// A kernel wants more of the chip's shared memory or registers than there are.
    KernelLimits,
    /// Other processes of the run could not be reached.
    Communication,
    /// The loss, or a gradient, is no number.
    NotANumber,
    /// A module is not there, or can't be loaded.
    Import,
    /// No room on the disk.
    DiskFull,
    /// A flag, a key of a file or a path is wrong.
    Configuration,
    /// The script is not there, or Python can't parse it.
    Script,
    /// Somebody interrupted it.
    Interrupted,
    /// It was ended from outside: SIGTERM, or SIGKILL that was not the kernel's for lack of memory.
    Killed,
    /// Nothing happened for too long.
    Hang,
    /// A signal that the process brought on itself, such as 11 (SIGSEGV).
    Crashed {
        /// Its number.
        signal: i32,
    },
    /// Any other exception of Python's, by its name.
    Exception {
        /// Without its module.
        name: String,
    },
    /// An exit code and no reason.
    Exit {
        /// The code.
        code: i32,
    },
}

impl Cause {
    /// Whether less memory is what it takes.
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::CardMemory { .. } | Self::HostMemory(_))
    }

    /// One word for tables and reports, which stays the same: `card_memory`, `host_memory`, `illegal_access`.
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

    /// What tells causes of a kind apart: the allocator, the exception's name, the number of a signal.
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
    /// Its name, as reports have it.
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
    /// Its name, as reports have it.
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
