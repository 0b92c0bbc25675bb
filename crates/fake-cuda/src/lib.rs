//! For tests: a library that stands in for that of NVIDIA's CUDA driver, on machines without card or driver. It runs
//! the kernels that it is handed, as PTX, and checks every access of every thread, every order of streams.
//!
//! `ptx` parses and runs, `shadow` knows of every byte who touched it, `trace` counts what launches cost, `streams`
//! orders operations, `driver` has the functions that the device calls, and `lt` those of cuBLASLt, by which it multiplies
//! where it is given this library for that one too.
//!
//! # The machine
//! The environment variable [`MACHINE`] describes it; unset, it is an RTX 3060. Entries are separated by `;`, sizes are
//! in MiB:
//!
//! | entry | what it does |
//! | --- | --- |
//! | `card=rtx3060` | also `rtx2080`, `rtx3090`, `a100`, `rtx4090`, `rtx5090` |
//! | `name=`, `capability=8.6`, `memory=`, `cards=`, `driver=12080` | parts of that; no cards with `cards=0` |
//! | `mig=1g.5gb:4864,2g.10gb:9728` | cards are in MIG mode, with these slices; `mig=`: without any |
//! | `others=`, `growth=` | held by other processes, and how much more they take whenever memory is asked for |
//! | `grab=cuMemCreate:1:500` | others take 500 MiB more when the function is called for the first time |
//! | `wrong=gelu_f32` | the kernel's first result is wrong |
//! | `context=`, `module=` | what a context and a module take |
//! | `cublas=130100` | the version of cuBLASLt; its functions fail as the driver's do: `fail=cublasLtMatmul:2:13` |
//! | `mapping=0` | no virtual memory management |
//! | `mode=3` | compute mode: 0 shared, 2 prohibited, 3 exclusive; a call that another process makes fail is `fail=` |
//! | `execution=late` | operations run when the host waits for them; `eager`: at once |
//! | `order=backward` | of blocks and warps; also `forward`, `interleaved`, `random:SEED` |
//! | `blur=SEED` | approximate instructions are off by up to 2 units in the last place |
//! | `accumulation=truncating` | of matrix instructions; also `nearest` |
//! | `steps=N` | instructions of warps after which a launch counts as hanging |
//! | `fail=cuMemAlloc_v2:3:2` | the third call of a function gives code 2 |
//! | `stick=cuLaunchKernel:5:700` | the fifth gives code 700, and so does every call behind it |
//! | `trace=PATH` | counters by kernel are written there as CSV when the context is released |
//! | `log=1` | calls are told on the standard error stream |
//!
//! `CUDA_VISIBLE_DEVICES` hides and numbers cards as it does with NVIDIA's driver.
//!
//! # Hooks
//! Functions that the driver does not have, to be looked up by name: `fake_cuda_allow(address, bytes, mode)`,
//! `fake_cuda_calls(name, count)`, `fake_cuda_failure(text, size)`, `fake_cuda_used(now, most)`,
//! `fake_cuda_leaks(count)`, `fake_cuda_trace(path)`, `fake_cuda_reset(description)`. `driver/hooks.rs` says what they do.
//!
//! # What it cannot show
//! Speed, the driver's own compiler, registers and spills, the rounding inside of tensor cores.

pub mod driver;
pub mod lt;
pub mod ptx;
pub mod shadow;
pub mod streams;
pub mod trace;
pub mod workbench;

use std::io;
use std::path::{Path, PathBuf};

/// The environment variable that describes the machine.
pub const MACHINE: &str = "FAKE_CUDA";

/// The shared library, which cargo makes beside the tests that depend on this crate. Panics if it is not there.
pub fn library() -> PathBuf {
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let name = format!("{prefix}plimsoll_fake_cuda{suffix}");
    let test = std::env::current_exe().expect("a test has a path");
    let folders =
        test.ancestors().skip(1).take(2).flat_map(|folder| [folder.join(&name), folder.join("deps").join(&name)]);
    let found = folders.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name} beside {}", test.display()))
}

/// A copy of the library, at `path`, that lacks a function: its name is spoilt in the table of symbols. ELF only, whose
/// loaders compare names.
pub fn library_without(function: &str, path: &Path) -> io::Result<()> {
    let mut bytes = std::fs::read(library())?;
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let places = bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name).map(|(at, _)| at);
    for place in places.collect::<Vec<_>>() {
        bytes[place + 1] = b'-';
    }
    std::fs::write(path, bytes)
}
