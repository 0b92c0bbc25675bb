//! Runs the Python hook in real interpreters: with stand-ins for several versions of PyTorch, and with PyTorch itself.
//! Skipped with a message unless `PLIMSOLL_PYTHON` names an interpreter.

use plimsoll_files::Disk;
use plimsoll_supervise::hook::{Hook, snapshots};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A run's folder, and a folder of modules that its scripts may import.
struct Run {
    python: OsString,
    folder: TempDir,
    modules: TempDir,
}

impl Run {
    fn new(test: &str) -> Option<Self> {
        let Some(python) = env::var_os("PLIMSOLL_PYTHON") else {
            eprintln!("SKIPPED {test}: PLIMSOLL_PYTHON names no Python");
            return None;
        };
        let [folder, modules] = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        Some(Self { python, folder, modules })
    }

    fn with_module(self, name: &str, text: &str) -> Self {
        fs::write(self.modules.path().join(name), text).expect("written");
        self
    }

    fn with_fake_torch(self) -> Self {
        self.with_module("torch.py", include_str!("programs/fake_torch.py"))
    }

    fn run(&self, hook: Option<&Hook>, script: &str, variables: &[(&str, &str)]) -> Output {
        let modules = self.modules.path().as_os_str();
        let mut command = Command::new(&self.python);
        command.args(["-c", script]).env("PYTHONPATH", modules).envs(variables.iter().copied());
        if let Some(hook) = hook {
            command.envs(hook.install(&Disk::default(), self.folder.path(), Some(modules)).expect("installed"));
        }
        command.output().expect("Python runs")
    }

    fn notes(&self) -> String {
        fs::read_to_string(self.folder.path().join("hook.jsonl")).unwrap_or_default()
    }

    fn snapshots(&self) -> usize {
        snapshots(self.folder.path()).expect("readable").len()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_ok(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

const FAIL: &str = "import torch; torch.cuda.use(); torch.cuda.fail()";

#[test]
fn the_features_of_each_version_are_used_once_cuda_is_used() {
    for (which, calls, log) in [
        ("observer", "record python 5000\n", "an allocator observer"),
        ("ring", "record True 5000\n", "the exception that ends the process"),
    ] {
        let Some(run) = Run::new("hook: versions").map(Run::with_fake_torch) else { return };
        let hook = Hook { memory_fraction: Some(0.25), history_entries: 5000 };
        let output = run.run(Some(&hook), FAIL, &[("FAKE_TORCH", which), ("LOCAL_RANK", "1")]);
        assert!(text(&output.stderr).ends_with("OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 MiB.\n"));
        assert_eq!(text(&output.stdout), format!("fraction 0.25 of 1\n{calls}"), "{}", run.notes());
        assert_eq!(run.snapshots(), 1);
        for said in ["set the memory fraction", "records the allocator's history", log, "left a snapshot"] {
            assert!(run.notes().contains(said), "{said}: {}", run.notes());
        }
    }
}

#[test]
fn a_program_that_catches_every_error_leaves_few_snapshots() {
    let Some(run) = Run::new("hook: many errors").map(Run::with_fake_torch) else { return };
    let script = "import torch\ntorch.cuda.use()\nfor _ in range(9):\n  try: torch.cuda.fail()\n  except torch.cuda.OutOfMemoryError: pass";
    assert_ok(&run.run(Some(&Hook::default()), script, &[("FAKE_TORCH", "observer")]));
    assert_eq!(run.snapshots(), 3);
}

#[test]
fn the_hook_initializes_nothing_and_only_logs_its_errors() {
    let Some(run) = Run::new("hook: without CUDA").map(Run::with_fake_torch) else { return };
    let idle = "import torch; assert not torch.cuda.ready; assert 'exec_module' not in vars(torch.__loader__)";
    assert_eq!(assert_ok(&run.run(Some(&Hook::default()), idle, &[("FAKE_TORCH", "observer")])).trim(), "");
    assert!(run.notes().contains("CUDA was not used"), "{}", run.notes());
    assert_ok(&run.run(Some(&Hook::default()), idle, &[("FAKE_TORCH", "cpu")]));
    assert!(run.notes().contains("built without CUDA"), "{}", run.notes());
    let hook = Hook { memory_fraction: Some(0.5), ..Hook::default() };
    assert_ok(&run.run(Some(&hook), "import torch; torch.cuda.use(); print(1)", &[("FAKE_TORCH", "broken")]));
    for said in ["no fraction", "not today"] {
        assert!(run.notes().contains(said), "{said}: {}", run.notes());
    }
}

#[test]
fn a_program_without_torch_runs_as_without_the_hook() {
    let Some(run) = Run::new("hook: other programs") else { return };
    let script = "import sys, json\nprint(sys.path, sorted(m for m in sys.modules if 'torch' in m))\n\
                  try:\n  import torch_is_not_here\nexcept ImportError as e: print(e)\nsys.exit(3)";
    let [with, without] = [Some(&Hook::default()), None].map(|hook| run.run(hook, script, &[]));
    assert_eq!((text(&with.stdout), text(&with.stderr)), (text(&without.stdout), text(&without.stderr)));
    assert_eq!((with.status.code(), without.status.code()), (Some(3), Some(3)));
    assert_eq!(run.notes(), "");
}

#[test]
fn another_sitecustomize_still_runs_and_is_importable() {
    let Some(run) = Run::new("hook: another sitecustomize").map(Run::with_fake_torch) else { return };
    let run = run.with_module("sitecustomize.py", "MINE = 7\nimport sys\nsys.flag_of_mine = True\n");
    let script = "import sys, sitecustomize, torch; torch.cuda.use(); print(sitecustomize.MINE, sys.flag_of_mine)";
    let said = assert_ok(&run.run(Some(&Hook::default()), script, &[("FAKE_TORCH", "observer")]));
    assert!(said.starts_with("7 True"), "{said}");
    assert!(run.notes().contains("records the allocator's history"), "{}", run.notes());
    let run = run.with_module("sitecustomize.py", "raise ValueError('as without the hook')");
    let output = run.run(Some(&Hook::default()), "print(1)", &[]);
    assert!(
        output.status.success() && text(&output.stderr).contains("as without the hook"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_missing_folder_does_no_harm() {
    let Some(run) = Run::new("hook: no folder").map(Run::with_fake_torch) else { return };
    let variables = [("FAKE_TORCH", "observer"), ("PLIMSOLL_HOOK_FOLDER", "/nowhere/at/all")];
    let mut command = Command::new(&run.python);
    command.args(["-c", "import torch; torch.cuda.use(); print('fine')"]);
    command.envs(
        Hook::default()
            .install(&Disk::default(), run.folder.path(), Some(run.modules.path().as_os_str()))
            .expect("installed"),
    );
    assert!(assert_ok(&command.envs(variables).output().expect("Python runs")).contains("fine"));
}

#[test]
fn results_of_pytorch_are_the_same_with_the_hook() {
    let Some(run) = Run::new("hook: PyTorch") else { return };
    let has_torch = Command::new(&run.python).args(["-c", "import torch"]).output().is_ok_and(|o| o.status.success());
    if !has_torch {
        eprintln!("SKIPPED hook: PyTorch: PLIMSOLL_PYTHON names a Python without PyTorch");
        return;
    }
    let script = "import torch, faulthandler\ntorch.manual_seed(1)\nm = torch.nn.Linear(8, 8)\n\
                  l = m(torch.randn(4, 8)).square().mean()\nl.backward()\n\
                  print(l.item().hex(), m.weight.grad.sum().item().hex(), torch.cuda.is_initialized())";
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let [with, without] = [Some(&Hook::default()), None].map(|hook| assert_ok(&run.run(hook, script, &hidden)));
    assert_eq!(with, without);
    assert!(run.notes().contains("saw torch"), "{}", run.notes());
    assert!(run.notes().contains("nothing: "), "it logs that it did nothing without CUDA: {}", run.notes());
}
