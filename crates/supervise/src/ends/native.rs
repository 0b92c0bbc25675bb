//! Last messages of programs and libraries without Python: C and CUDA, Rust, Java, compilers.
//! Not here: exceptions of Python and C++ (`statements.rs`), and the meaning of messages (`messages.rs`).

use super::messages::{Meaning, has_any, meaning};
use super::statement::{Numbered, Weight, message_lines};
use super::{Cause, HostShortage};

/// The meaning of a line that a program writes before it ends.
pub(super) fn native(lines: &Numbered<'_>, here: usize) -> Option<(Weight, Meaning)> {
    panic(lines, here)
        .or_else(|| Some((Weight::Final, checked_call(lines, here)?)))
        .or_else(|| Some((Weight::Final, Meaning::Cause(Cause::HostMemory(host(lines[here].1)?)))))
}

/// `thread 'main' panicked at src/train.rs:41:30:` with the message on the next lines; before Rust 1.73 it was in
/// quotes on the same line. A panic of another thread does not end the process.
fn panic(lines: &Numbered<'_>, here: usize) -> Option<(Weight, Meaning)> {
    let (_, rest) = lines[here].1.split_once("thread '")?;
    let (thread, rest) = rest.split_once('\'')?;
    let (_, place) = rest.split_once("panicked at ")?;
    let message = match place.strip_prefix('\'') {
        Some(quoted) => quoted.to_owned(),
        None => message_lines(lines, here),
    };
    let (first, more) = message.split_once('\n').unwrap_or((&message, ""));
    let weight = if thread == "main" { Weight::Final } else { Weight::Thread };
    Some((weight, meaning("panic", first, more)))
}

/// Messages of macros that check CUDA calls: those of llm.c (the error is on the next line), `gpuErrchk` from Stack
/// Overflow, NVIDIA's samples, and ggml.
fn checked_call(lines: &Numbered<'_>, here: usize) -> Option<Meaning> {
    const BUFFERS: [&str; 2] = ["unable to allocate ", "failed to allocate "];
    const BACKENDS: [&str; 5] = ["CUDA", "ROCm", "Metal", "Vulkan", "SYCL"];
    let line = lines[here].1;
    let after = |words: &str| Some(line.split_once(words)?.1);
    let is_backends = |rest: &str| BACKENDS.iter().any(|name| rest.starts_with(name)) && rest.contains(" buffer");
    let said = if line.contains("[CUDA ERROR] at file ") {
        lines.get(here + 1)?.1
    } else if line.contains("CUDA error at ") {
        after(" code=")?
    } else if BUFFERS.iter().filter_map(|words| after(words)).any(is_backends) {
        "out of memory"
    } else {
        ["GPUassert: ", "cudaMalloc failed: ", "hipMalloc failed: "].into_iter().find_map(after)?
    };
    Some(meaning("RuntimeError", &format!("CUDA error: {said}"), ""))
}

/// An out-of-memory error of the host: of Rust's allocator, Java, Node.js, Go or a compiler, or a kill by the OOM
/// killer.
fn host(line: &str) -> Option<HostShortage> {
    const KILLED: [&str; 6] = [
        "Killed signal terminated program ",
        "internal compiler error: Killed",
        "unable to execute command: Killed",
        "died due to signal 9",
        "terminated with signal 9 [Killed]",
        "(signal: 9, SIGKILL: kill)",
    ];
    const REFUSED: [&str; 5] = [
        "java.lang.OutOfMemoryError",
        "JavaScript heap out of memory",
        "fatal error: runtime: out of memory",
        "virtual memory exhausted: ",
        ": out of memory allocating ",
    ];
    let of_rust = || line.split_once("memory allocation of ").is_some_and(|(_, rest)| rest.contains(" bytes failed"));
    if has_any(line, &KILLED) {
        Some(HostShortage::Killed)
    } else if has_any(line, &REFUSED) || of_rust() {
        Some(HostShortage::System)
    } else {
        None
    }
}
