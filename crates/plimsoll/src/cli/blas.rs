//! The flag for a BLAS library. A child process tries the library first, since a broken library, or one built for 64-bit
//! integers, may crash its caller.

use super::Failure;
use super::failure::exit_code;
use crate::streams::talk;
use ::plimsoll_exec::{Blas, BlasError, blas_in_use, use_blas};
use clap::Args;
use plimsoll_render::BlasFindings;
use std::convert::Infallible;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long opening and trying a library may take: hundreds of times as long as a working library needs.
const PATIENCE: Duration = Duration::from_secs(10);

/// The libraries that `auto` tries, in this order.
const NAMES: &[&str] = if cfg!(target_os = "windows") {
    &["mkl_rt.3.dll", "mkl_rt.2.dll", "libopenblas.dll", "openblas.dll"]
} else if cfg!(target_os = "macos") {
    &["libmkl_rt.dylib", "libopenblas.dylib", "libblis.dylib"]
} else {
    &[
        "libmkl_rt.so",
        "libmkl_rt.so.3",
        "libmkl_rt.so.2",
        "libopenblas.so",
        "libopenblas.so.0",
        "libblis.so",
        "libblis.so.4",
        "libblis.so.3",
    ]
};

const HINT: &str = "`--blas` takes the path of OpenBLAS, MKL or BLIS with 32-bit integers, such as libopenblas.so.0; \
                    omit it to use the built-in matrix products";

/// The library that multiplies matrices on the CPU.
#[derive(Debug, Clone, Args)]
pub(super) struct BlasArgs {
    /// Multiply large matrices with a BLAS library: its path, or `auto` for the first of MKL, OpenBLAS and BLIS that the
    /// system finds. The library's own memory, a few MiB per thread, is not in the plan
    #[arg(long, value_name = "PATH|auto|off", default_value = "off")]
    blas: Choice,
}

#[derive(Debug, Clone)]
enum Choice {
    Off,
    Auto,
    Library(PathBuf),
}

impl FromStr for Choice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            // Some YAML readers parse an unquoted `off` as a boolean.
            "off" | "false" => Self::Off,
            "auto" => Self::Auto,
            path => Self::Library(PathBuf::from(path)),
        })
    }
}

impl BlasArgs {
    /// Selects the library for the rest of the process. Errors: the named library can't be used.
    pub(super) fn choose(&self) -> Result<(), Failure> {
        match &self.blas {
            Choice::Off => {}
            Choice::Auto => choose_first(),
            Choice::Library(path) => use_blas(open(&located(path)).map_err(|refusal| refused(path, refusal))?),
        }
        Ok(())
    }

    /// The library in use, as a setting of the run.
    pub(super) fn setting(&self) -> String {
        library_flag().unwrap_or_else(|| "off".to_owned())
    }
}

/// The value of `--blas` that selects the library in use; `None` without a library.
pub(super) fn library_flag() -> Option<String> {
    blas_in_use().map(|library| library.file.to_string_lossy().into_owned())
}

/// Whether a setting from a run's folder can be trusted: another user may have written the folder, and a library is code.
/// The names that `auto` tries select libraries that the system has installed.
pub(super) fn is_harmless(setting: &str) -> bool {
    ["off", "false", "auto"].contains(&setting) || NAMES.contains(&setting)
}

/// The absolute path of a file. A bare name stays as it is: the system's loader does not search the current folder.
fn located(path: &Path) -> PathBuf {
    if is_bare(path) {
        return path.to_owned();
    }
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn is_bare(path: &Path) -> bool {
    !path.as_os_str().is_empty() && path.file_name() == Some(path.as_os_str())
}

/// Uses the first installed library that works, and prints its name.
fn choose_first() {
    for name in NAMES {
        match open(Path::new(name)) {
            Ok(blas) => {
                talk(format_args!("matrix products use {}", blas.library()));
                return use_blas(blas);
            }
            Err(Refusal::Blas(BlasError::NotLoaded { .. })) => {}
            Err(refusal) => talk(format_args!("skipping {name}: {refusal}")),
        }
    }
    talk("no BLAS found; using the built-in matrix products");
}

/// The installed libraries of `auto`, in its order, including those that do not work.
pub(super) fn found() -> Vec<BlasFindings> {
    let all = NAMES.iter().map(|name| (name, open(Path::new(name))));
    let installed = all.filter_map(|(name, opened)| match opened {
        Err(Refusal::Blas(BlasError::NotLoaded { .. })) => None,
        Err(refusal) => Some((name, None, Some(refusal.to_string()))),
        Ok(blas) => Some((name, Some(blas.library().to_string()), None)),
    });
    installed.map(|(&name, library, problem)| BlasFindings { name: name.to_owned(), library, problem }).collect()
}

/// Why a library is not used.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Blas(#[from] BlasError),
    #[error("{} crashed the process that tried it: {status}{talk}", path.display())]
    Fatal { path: PathBuf, status: std::process::ExitStatus, talk: String },
    #[error("{} computed nothing within {} seconds", path.display(), PATIENCE.as_secs())]
    Hung { path: PathBuf },
    #[error("can't start a process to try {}: {source}", path.display())]
    NotTried { path: PathBuf, source: io::Error },
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::bad_input(refusal.to_string()).hint(HINT)
    }
}

/// Why the requested library is not used, with a hint if the current folder has a file of its name.
fn refused(path: &Path, refusal: Refusal) -> Failure {
    let is_here = is_bare(path) && path.is_file();
    let failure = Failure::from(refusal);
    if is_here {
        failure.hint(format!("use `--blas ./{}` for the file in this folder", path.display()))
    } else {
        failure
    }
}

/// Opens a library after a child process has tried it.
fn open(path: &Path) -> Result<Blas, Refusal> {
    let not_tried = |source| Refusal::NotTried { path: path.to_owned(), source };
    let program = std::env::current_exe().map_err(not_tried)?;
    let mut trial = Command::new(program);
    trial.arg("try-blas").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = trial.spawn().map_err(not_tried)?;
    let Some((status, said)) = output_in_time(child, PATIENCE).map_err(not_tried)? else {
        return Err(Refusal::Hung { path: path.to_owned() });
    };
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        // An error of the child occurs again in this process, with the same message.
        Some(exit_code::DONE | exit_code::BAD_INPUT) => Ok(Blas::open(path)?),
        _ => {
            let said = String::from_utf8_lossy(&said);
            let talk = said.lines().find(|line| !line.trim().is_empty()).map_or(String::new(), |l| format!(" ({l})"));
            Err(Refusal::Fatal { path: path.to_owned(), status, talk })
        }
    }
}

/// A child's exit status and stderr; `None` if it runs too long, after killing it.
fn output_in_time(mut child: Child, patience: Duration) -> io::Result<Option<(ExitStatus, Vec<u8>)>> {
    let (send, said) = mpsc::channel();
    let stderr = child.stderr.take();
    // A child that writes much to stderr blocks until it is read.
    let read = std::thread::Builder::new().name("try-blas".to_owned()).spawn(move || {
        let mut text = Vec::new();
        let read = stderr.map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut text));
        // Unread output can't be reported, and the receiver may be gone.
        let _ = read.map(|_| send.send(text));
    });
    if let Err(error) = read {
        child.kill().and_then(|()| child.wait())?;
        return Err(error);
    }
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            // Processes that the child started may keep its stderr open.
            return Ok(Some((status, said.recv_timeout(patience).unwrap_or_default())));
        }
        if begin.elapsed() > patience {
            // It may have exited in the meantime.
            let _ = child.kill();
            child.wait()?;
            return Ok(None);
        }
        sleep(Duration::from_millis(2));
    }
}

/// The child's command: opens a library, which tries it, and exits.
#[derive(Debug, Args)]
pub(super) struct TryBlasArgs {
    /// The library
    path: PathBuf,
}

pub(super) fn run(args: &TryBlasArgs) -> Result<u8, Failure> {
    Blas::open(&args.path).map_err(Refusal::from)?;
    Ok(exit_code::DONE)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_paths_refer_to_the_current_folder() {
        for (path, bare) in
            [("libx.so", true), ("./libx.so", false), ("a/libx.so", false), ("/libx.so", false), ("", false)]
        {
            assert_eq!(is_bare(Path::new(path)), bare, "{path}");
        }
    }

    fn child(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("a shell")
    }

    #[test]
    fn a_hanging_child_is_killed() {
        let begin = Instant::now();
        let ended =
            output_in_time(child("exec sleep 60"), Duration::from_millis(20)).expect("a child can be waited for");
        assert!(ended.is_none() && begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_child_may_write_more_than_a_pipe_holds() {
        let script = "head -c 300000 /dev/zero >&2; exit 3";
        let ended = output_in_time(child(script), Duration::from_secs(60)).expect("a child can be waited for");
        let (status, said) = ended.expect("it ends");
        assert_eq!((status.code(), said.len()), (Some(3), 300_000));
    }
}
