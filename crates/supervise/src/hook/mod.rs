//! The hook for Python programs: which commands get it, its file in the run's folder, the environment variables with
//! which Python finds it, and the snapshots that it leaves. The hook itself is `sitecustomize.py`.
//! Not here: reading a snapshot (`plimsoll replay`).

use plimsoll_files::Disk;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const TEXT: &str = include_str!("sitecustomize.py");
const FOLDER: &str = "hook";

/// Settings of the hook.
#[derive(Debug, Clone, PartialEq)]
pub struct Hook {
    /// The fraction of its card's memory that the process may use.
    pub memory_fraction: Option<f64>,
    /// Number of allocator events to record for a snapshot; 0 to record none.
    pub history_entries: u64,
}

impl Default for Hook {
    fn default() -> Self {
        Self { memory_fraction: None, history_entries: 100_000 }
    }
}

impl Hook {
    /// Writes the hook to a run's folder. Returns the environment variables that a child needs to find it.
    /// `python_path`: the current `PYTHONPATH`, which is appended to the hook's folder.
    /// Errors: those of the system; `InvalidInput` if the folder's path is not valid in a `PYTHONPATH`.
    pub fn install(
        &self,
        disk: &Disk,
        run: &Path,
        python_path: Option<&OsStr>,
    ) -> io::Result<Vec<(OsString, OsString)>> {
        let run = run.canonicalize()?;
        let folder = run.join(FOLDER);
        let mut path =
            env::join_paths([&folder]).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        disk.create_folders(&folder)?;
        disk.replace(&folder.join("sitecustomize.py"), TEXT.as_bytes())?;
        if let Some(before) = python_path.filter(|path| !path.is_empty()) {
            path.push(if cfg!(windows) { ";" } else { ":" });
            path.push(before);
        }
        let mut variables: Vec<(OsString, OsString)> = vec![
            ("PYTHONPATH".into(), path),
            ("PLIMSOLL_HOOK_FOLDER".into(), run.into()),
            ("PLIMSOLL_HISTORY_ENTRIES".into(), self.history_entries.to_string().into()),
        ];
        let fraction = self.memory_fraction.map(|fraction| fraction.to_string().into());
        variables.extend(fraction.map(|fraction| ("PLIMSOLL_MEMORY_FRACTION".into(), fraction)));
        Ok(variables)
    }
}

/// The hook's snapshots in a run's folder, the newest last.
/// Errors: the folder can't be read.
pub fn snapshots(run: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(run)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("oom-") && name.ends_with(".pickle") {
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Whether a command starts Python: an interpreter, a script, or a trainer's launcher, also as an argument of programs
/// such as `env` that start another program.
pub fn starts_python(argv: &[OsString]) -> bool {
    let names: Vec<String> = argv.iter().map(|word| base(word)).collect();
    let Some((first, rest)) = names.split_first() else { return false };
    is_python(first) || (STARTERS.contains(&first.as_str()) && rest.iter().any(|name| is_python(name)))
}

/// Programs that start the program in their arguments.
const STARTERS: [&str; 19] = [
    "env", "nice", "ionice", "nohup", "numactl", "taskset", "time", "timeout", "stdbuf", "setsid", "srun", "mpirun",
    "mpiexec", "uv", "poetry", "pdm", "pixi", "conda", "hatch",
];

/// Programs written in Python that start trainers.
const LAUNCHERS: [&str; 9] =
    ["torchrun", "accelerate", "axolotl", "llamafactory-cli", "lmf", "tune", "deepspeed", "trl", "ipython"];

fn base(word: &OsStr) -> String {
    let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".exe").unwrap_or(&name).to_owned()
}

fn is_python(name: &str) -> bool {
    let version = ["python", "pypy"].iter().find_map(|start| name.strip_prefix(start));
    let is_interpreter =
        version.is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 'w'));
    is_interpreter || name.ends_with(".py") || LAUNCHERS.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(line: &str) -> bool {
        starts_python(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn commands_that_start_python_are_recognized() {
        for line in [
            "python train.py",
            "/opt/venv/bin/python3.11 -m axolotl.cli.train a.yaml",
            "pythonw.exe t.py",
            "pypy3 t.py",
            "./train.py --x",
            "torchrun --nproc_per_node 2 train.py",
            "accelerate launch train.py",
            "llamafactory-cli train a.yaml",
            "tune run lora_finetune_single_device --config a.yaml",
            "deepspeed train.py",
            "uv run python train.py",
            "uv run train.py",
            "env A=b nice python3 t.py",
            "numactl -N 0 /usr/bin/python3 t.py",
        ] {
            assert!(starts(line), "{line}");
        }
        for line in [
            "bash run.sh",
            "./a.out",
            "pythonista x",
            "python-config --libs",
            "make train",
            "env A=b ls",
            "grep python x",
        ] {
            assert!(!starts(line), "{line}");
        }
        assert!(!starts_python(&[]));
    }

    #[test]
    fn the_hook_is_prepended_to_the_python_path() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let hook = Hook { memory_fraction: Some(0.5), ..Hook::default() };
        let before = OsString::from("/a:/b");
        let variables = hook.install(&Disk::default(), run.path(), Some(&before)).expect("installed");
        let value = |name: &str| {
            variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.to_string_lossy().into_owned())
        };
        let folder = run.path().canonicalize().expect("a path").join("hook");
        assert_eq!(value("PYTHONPATH"), Some(format!("{}:/a:/b", folder.display())));
        assert_eq!(value("PLIMSOLL_MEMORY_FRACTION").as_deref(), Some("0.5"));
        assert_eq!(fs::read_to_string(folder.join("sitecustomize.py")).expect("text"), TEXT);
        let alone = Hook::default().install(&Disk::default(), run.path(), None).expect("installed");
        assert_eq!(alone[0].1, folder.into_os_string());
        assert_eq!(alone.len(), 3, "no fraction was set");
    }

    #[test]
    fn a_folder_with_a_path_separator_is_an_error() {
        let run = tempfile::tempdir().expect("a temporary folder");
        let odd = run.path().join("a:b");
        fs::create_dir(&odd).expect("a folder");
        let error = Hook::default().install(&Disk::default(), &odd, None).expect_err("it contains a separator");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(!odd.join("hook").exists());
    }

    #[test]
    fn snapshots_are_found_by_name_the_newest_last() {
        let run = tempfile::tempdir().expect("a temporary folder");
        for (age, name) in [(9, "oom-7-2.pickle"), (20, "oom-9-1.pickle"), (1, "other.pickle"), (1, "oom-1.txt")] {
            let file = fs::File::create(run.path().join(name)).expect("a file");
            let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            file.set_modified(time).expect("a time");
        }
        let found = snapshots(run.path()).expect("readable");
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap_or_default().to_owned()).collect();
        assert_eq!(names, ["oom-9-1.pickle", "oom-7-2.pickle"]);
    }
}
