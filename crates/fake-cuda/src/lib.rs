//! For tests: a library that stands in for NVIDIA's CUDA driver on machines without a card or driver. It runs kernels
//! from their PTX, and checks every access of every thread and the order of streams.
//!
//! `ptx` parses and runs, `shadow` records the last accesses of every byte, `trace` counts the cost of launches,
//! `streams` orders operations, `driver` has the driver's functions, and `lt` those of cuBLASLt, for tests that load
//! this library as cuBLASLt too.
//!
//! # The machine
//! The environment variable [`MACHINE`] describes it; unset, it has an RTX 3060. Entries are separated by `;`, sizes
//! are in MiB:
//! | entry | what it does |
//! | --- | --- |
//! | `card=rtx3060` | also `rtx2080`, `rtx3090`, `a100`, `rtx4090`, `rtx5090` |
//! | `name=`, `capability=8.6`, `memory=`, `cards=`, `driver=12080` | override one property; `cards=0` for no cards |
//! | `mig=1g.5gb:4864,2g.10gb:9728` | cards are in MIG mode, with these slices; `mig=` for none |
//! | `others=`, `growth=` | memory held by other processes, and memory that they take at each allocation or query |
//! | `grab=cuMemCreate:1:500` | other processes take 500 MiB more at the function's first call |
//! | `wrong=gelu_f32` | the kernel's first result is wrong |
//! | `context=`, `module=` | memory used by a context and a module |
//! | `cublas=130100` | the version of cuBLASLt; its functions fail as the driver's do: `fail=cublasLtMatmul:2:13` |
//! | `registrable=` | the host's own memory that can be pinned, in KiB |
//! | `mapping=0` | no virtual memory management |
//! | `mode=3` | compute mode: 0 shared, 2 prohibited, 3 exclusive; for a call that fails because of another process use `fail=` |
//! | `display=1` | the card drives a display, so that the system limits the time of a kernel |
//! | `execution=late` | operations run when the host waits for them; `eager`: immediately |
//! | `order=backward` | order of blocks and warps; also `forward`, `interleaved`, `random:SEED` |
//! | `blur=SEED` | approximate instructions are off by up to 2 units in the last place |
//! | `accumulation=truncating` | rounding of matrix instructions; also `nearest` |
//! | `steps=N` | maximum number of warp instructions of a launch, after which it counts as hung |
//! | `fail=cuMemAlloc_v2:3:2` | the third call of the function returns code 2 |
//! | `stick=cuLaunchKernel:5:700` | the fifth call and every call after it return code 700 |
//! | `trace=PATH` | write counters per kernel to a CSV file when the context is released |
//! | `log=1` | print every call to stderr |
//!
//! `CUDA_VISIBLE_DEVICES` hides and numbers cards as it does with NVIDIA's driver.
//!
//! # Hooks
//! Functions in addition to the driver's, looked up by name: `fake_cuda_allow(address, bytes, mode)`,
//! `fake_cuda_calls(name, count)`, `fake_cuda_failure(text, size)`, `fake_cuda_used(now, most)`,
//! `fake_cuda_leaks(count)`, `fake_cuda_trace(path)`, `fake_cuda_reset(description)`. `driver/hooks.rs` describes them.
//!
//! # Not simulated
//! Speed, the driver's compiler, registers and spills, the rounding inside tensor cores.

pub mod driver;
pub mod lt;
pub mod ptx;
pub mod shadow;
pub mod streams;
pub mod trace;
pub mod workbench;

use std::io;
use std::path::{Path, PathBuf};

/// Environment variable that describes the machine.
pub const MACHINE: &str = "FAKE_CUDA";

/// Path of the shared library, which cargo builds next to the tests that depend on this crate. Panics if it is missing.
pub fn library() -> PathBuf {
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let name = format!("{prefix}plimsoll_fake_cuda{suffix}");
    let test = std::env::current_exe().expect("a test has a path");
    let folders =
        test.ancestors().skip(1).take(2).flat_map(|folder| [folder.join(&name), folder.join("deps").join(&name)]);
    let found = folders.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name} next to {}", test.display()))
}

/// Writes a copy of the library to `path` without one function, whose name is changed in the symbol table. ELF only,
/// because ELF loaders compare names.
pub fn library_without(function: &str, path: &Path) -> io::Result<()> {
    let mut bytes = std::fs::read(library())?;
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places = bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name).map(|(at, _)| at);
    for place in places.collect::<Vec<_>>() {
        bytes[place + 1] = b'-';
    }
    std::fs::write(path, bytes)
}
