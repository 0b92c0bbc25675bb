//! The meaning of an exception, by its name and message: tables of known wordings.
//! Not here: whether an exception ended the run (`statements.rs`, `mod.rs`).
//! Covers PyTorch 0.4 to 2.x, CUDA 9 to 13, bitsandbytes, DeepSpeed, DirectML, ONNX Runtime, NCCL, NumPy, Arrow,
//! datasets, CPython and Windows.

use super::{AllocatorSizes, CardAllocator, Cause, Fault, HostShortage};

/// The meaning of an exception.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meaning {
    /// The cause of the end.
    Cause(Cause),
    /// Other processes of the run are gone or did not answer. If one of them printed an error, that is the cause.
    Consequence(Fault),
    /// Another process or exception ended this one.
    Wrapper,
    /// A signal with this number ended a process of the run.
    Signal(i32),
}

/// The meaning of an exception. `message` is its first line, `more` the lines after it.
pub(super) fn meaning(name: &str, message: &str, more: &str) -> Meaning {
    let base = name.rsplit(['.', '$']).next().unwrap_or(name);
    if is_wrapper(base, message) {
        return Meaning::Wrapper;
    }
    // Java's exception has the same name as PyTorch's.
    if name.starts_with("java.lang.OutOfMemoryError") {
        return Meaning::Cause(Cause::HostMemory(HostShortage::System));
    }
    if let Some(cause) = shortage(base, message, more) {
        return Meaning::Cause(cause);
    }
    // PyTorch's writer reports what failed; the system's reason is on the next line.
    let fault = match message.contains("PytorchStreamWriter failed writing file") && is_full(more) {
        true => Fault::DiskFull,
        false => fault(base, message),
    };
    // NCCL's watchdog ends the process with the card's error.
    let is_cards = matches!(fault, Fault::IllegalAccess | Fault::DeviceAssert | Fault::Cuda);
    if !is_cards && is_communication(base, message) {
        return Meaning::Consequence(Fault::Communication);
    }
    // Launchers interrupt the other processes when one of them fails. A user's interrupt shows in the exit code.
    let follows = fault == Fault::Interrupted || message.ends_with("exited unexpectedly");
    if follows { Meaning::Consequence(fault) } else { Meaning::Cause(Cause::Fault(fault)) }
}

pub(super) fn has_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

/// Whether an exception wraps another one, or the exit code of another process.
fn is_wrapper(base: &str, message: &str) -> bool {
    const NAMES: [&str; 6] = [
        "ChildFailedError",
        "CalledProcessError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "BackendCompilerFailed",
        "SystemExit",
    ];
    let carried = (message.starts_with("Caught ") || message.starts_with("[Caught "))
        && has_any(message, &[" in DataLoader worker", " in replica ", " in pin memory thread"]);
    // vLLM's engine is another process, which prints the reason.
    let is_engines = message.starts_with("Engine core initialization failed");
    // PyTorch's extension builder runs compilers, which print the reason.
    let is_compilers = has_any(message, &["Error compiling objects for extension", "Error building extension"]);
    NAMES.contains(&base) || base.starts_with("RayTaskError") || carried || is_engines || is_compilers
}

fn is_communication(base: &str, message: &str) -> bool {
    const NAMES: [&str; 9] = [
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "BrokenPipeError",
        "ConnectionResetError",
        "ConnectionRefusedError",
        "ConnectionAbortedError",
        "EOFError",
        "SignalException",
    ];
    const MESSAGES: [&str; 7] = [
        "Connection closed by peer",
        "Connection reset by peer",
        "NCCL communicator was aborted",
        "collective operation timeout",
        "NCCL watchdog thread",
        "Socket Timeout",
        "Broken pipe",
    ];
    NAMES.contains(&base) || has_any(message, &MESSAGES)
}

/// An out-of-memory error of the GPU or the host.
fn shortage(base: &str, message: &str, more: &str) -> Option<Cause> {
    // Ray ends tasks before the OOM killer does, with an exception of the same name as PyTorch's.
    if has_any(message, &["node running low on memory", "killed due to memory pressure (OOM)"]) {
        return Some(Cause::HostMemory(HostShortage::Killed));
    }
    card(base, message, more).or_else(|| host(base, message, more).map(Cause::HostMemory))
}

/// PyTorch's names for kinds of GPUs.
pub(super) const CARDS: [&str; 4] = ["CUDA", "HIP", "XPU", "MPS"];

/// vLLM's messages for a GPU without room for its cache, or with less free memory than its configured fraction. The
/// second one is followed by sizes.
const NO_CACHE: &str = "No available memory for the cache blocks";
const TOO_LITTLE_FREE: &str = "Free memory on device";

/// Phrases for running out of memory, in messages of programs that caught the error.
pub(super) const SHORT: [&str; 3] = ["out of memory", NO_CACHE, TOO_LITTLE_FREE];

/// Messages of cuSOLVER, cuSPARSE, cuFFT, XLA, vLLM, DirectML and ONNX Runtime.
const LIBRARIES: [&str; 8] = [
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED: Out of memory",
    NO_CACHE,
    TOO_LITTLE_FREE,
    "not enough GPU video memory",
    "Failed to allocate memory for requested buffer of size",
];

/// Messages of cuDNN: up to version 8, since version 9, and PyTorch's if no algorithm's workspace fits.
const CUDNNS: [&str; 3] = [
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "Unable to find a valid cuDNN algorithm to run",
];

fn card(base: &str, message: &str, more: &str) -> Option<Cause> {
    let is_allocators = message.contains("out of memory. Tried to allocate")
        || message.starts_with("MPS backend out of memory")
        // With `backend:cudaMallocAsync` (c10/cuda/CUDAMallocAsyncAllocator.cpp).
        || message.starts_with("Allocation on device")
        // PyTorch up to 1.4; PyTorch since 2.2, if NVML fails while the allocator writes its report; MPS, for a tensor
        // that is too large for a buffer.
        || message.starts_with("cuda runtime error (2)")
        || message.starts_with("NVML_SUCCESS == r INTERNAL ASSERT FAILED")
        || message.starts_with("Invalid buffer size: ")
        || CARDS.iter().any(|card| message.strip_prefix(card).is_some_and(|rest| rest.starts_with(" out of memory")));
    let by = if is_allocators {
        CardAllocator::PyTorch
    } else if has_any(message, &["CUBLAS_STATUS_ALLOC_FAILED", "cublas runtime error : resource allocation failed"]) {
        CardAllocator::Cublas
    } else if has_any(message, &CUDNNS) {
        CardAllocator::Cudnn
    } else if has_any(message, &LIBRARIES) || base == "ResourceExhaustedError" {
        CardAllocator::Library
    } else if message.contains("NCCL") && is_nccls(message, more) {
        CardAllocator::Nccl
    } else if message.starts_with("No executable batch size found") {
        CardAllocator::Search
    } else if is_drivers(message) || base == "OutOfMemoryError" {
        CardAllocator::Driver
    } else {
        return None;
    };
    Some(Cause::CardMemory { by, sizes: AllocatorSizes::read(message) })
}

/// `CUDA error: out of memory`, `CUDA driver error: out of memory`, `HIP error: out of memory`, and libraries that call
/// the runtime directly.
fn is_drivers(message: &str) -> bool {
    let (_, after) = message.split_once("error: ").unwrap_or_default();
    after.starts_with("out of memory")
        || has_any(message, &["Triton Error [CUDA]: out of memory", "Triton Error [HIP]: out of memory"])
        || has_any(message, &["cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"])
}

fn is_nccls(message: &str, more: &str) -> bool {
    let said = [message, more];
    said.iter().any(|text| has_any(text, &["Failed to CUDA calloc", "Failed to CUDA malloc", "'out of memory'"]))
}

fn host(base: &str, message: &str, more: &str) -> Option<HostShortage> {
    const CPU: [&str; 4] = [
        "DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory",
        "enforce fail at CPUAllocator",
        "$ Torch: not enough memory",
    ];
    if has_any(message, &CPU) {
        return Some(HostShortage::CpuAllocator);
    }
    if message.contains("DataLoader worker") {
        return match message {
            m if m.contains("by signal: Bus error") => Some(HostShortage::SharedMemory),
            m if m.contains("by signal: Killed") => Some(HostShortage::Worker),
            _ => None,
        };
    }
    if message.contains("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED") {
        return Some(HostShortage::System);
    }
    let is_full = has_any(message, &["No space left on device", "Cannot allocate memory"]);
    if is_full && has_any(message, &["/dev/shm", "</torch_", "/torch_"]) {
        return Some(HostShortage::SharedMemory);
    }
    if message.contains("NCCL") && more.contains("Error while creating shared memory segment /dev/shm") {
        return Some(HostShortage::SharedMemory);
    }
    if message.contains("WinError 1455") || message.contains("os error 1455") {
        return Some(HostShortage::PagingFile);
    }
    match base {
        "MemoryError" | "_ArrayMemoryError" | "ArrowMemoryError" => Some(HostShortage::Python),
        "std::bad_alloc" => Some(HostShortage::Cpp),
        "OSError" | "BlockingIOError" if message.contains("[Errno 12]") => Some(HostShortage::System),
        _ if message.starts_with("std::bad_alloc") => Some(HostShortage::Cpp),
        _ if has_any(message, &["Cannot allocate memory (os error 12)", "Os { code: 12,"]) => {
            Some(HostShortage::System)
        }
        _ => None,
    }
}

fn is_full(message: &str) -> bool {
    const WORDS: [&str; 7] = [
        "No space left on device",
        "Disk quota exceeded",
        // datasets, Windows, Rust, SQLite, huggingface_hub.
        "Not enough disk space",
        "There is not enough space on the disk",
        "(os error 28)",
        "database or disk is full",
        "Not enough free disk space",
    ];
    has_any(message, &WORDS)
}

fn fault(base: &str, message: &str) -> Fault {
    let is_cudas = has_any(
        message,
        &["CUDA error:", "cuda runtime error (", "CUDA driver error:", "HIP error:", "CUBLAS_STATUS_", "CUDNN_STATUS_"],
    );
    if base == "KeyboardInterrupt" {
        Fault::Interrupted
    } else if has_any(message, &["an illegal memory access was encountered", "misaligned address"]) {
        Fault::IllegalAccess
    } else if message.contains("device-side assert triggered") {
        Fault::DeviceAssert
    } else if message.contains("too many resources requested for launch") {
        Fault::KernelLimits
    } else if is_cudas || base == "AcceleratorError" {
        Fault::Cuda
    } else if base == "OutOfResources" || message.starts_with("out of resource: ") {
        Fault::KernelLimits
    } else if matches!(base, "ImportError" | "ModuleNotFoundError") {
        Fault::Import
    } else if matches!(base, "SyntaxError" | "IndentationError" | "TabError") {
        Fault::Script
    } else if is_full(message) {
        Fault::DiskFull
    } else if is_not_a_number(base, message) {
        Fault::NotANumber
    } else if is_configuration(base, message) {
        Fault::Configuration
    } else {
        Fault::Exception { name: base.to_owned() }
    }
}

fn is_not_a_number(base: &str, message: &str) -> bool {
    let words = message.split(|c: char| !c.is_ascii_alphanumeric());
    let is_nan = words.into_iter().any(|word| matches!(word, "nan" | "NaN" | "NAN"));
    let is_about_training =
        has_any(&message.to_lowercase(), &["loss", "grad", "returned", "norm", "diverged", "logits"]);
    let is_scale = message.contains("loss scale") && has_any(message, &["minimum", "Minimum"]);
    base == "FloatingPointError" || is_scale || (is_nan && is_about_training)
}

fn is_configuration(base: &str, message: &str) -> bool {
    const NAMES: [&str; 11] = [
        "ValidationError",
        "ConfigError",
        "ConfigKeyError",
        "ConfigAttributeError",
        "InstantiationError",
        "MissingMandatoryValue",
        "ScannerError",
        "ParserError",
        "FileNotFoundError",
        "ArgumentError",
        "RepositoryNotFoundError",
    ];
    const MESSAGES: [&str; 5] = [
        "is not a valid model identifier",
        "not used by the HfArgumentParser",
        "unrecognized arguments:",
        "unexpected keyword argument",
        "is not a local folder",
    ];
    NAMES.contains(&base) || has_any(message, &MESSAGES)
}
