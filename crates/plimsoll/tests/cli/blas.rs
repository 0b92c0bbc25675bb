//! `--blas`: libraries that work, fail, or do not exist.

use crate::support::{Said, Sandbox};
use serde_json::Value;

/// A step whose products are large enough for a BLAS.
const BENCH: &str = "bench --model gpt2 --layers 1 --hidden 64 --heads 2 --vocab-size 300 --seq-len 64 --micro-batch 4 \
                     --vram 0.1 --steps 2 --warmup 1 --threads 2 --json";

fn bench(sandbox: &Sandbox, library: &str) -> Said {
    let mut words = BENCH.split_whitespace().collect::<Vec<_>>();
    words.extend(["--blas", library]);
    Said::of(sandbox.command(words).output().expect("the binary runs"))
}

#[test]
fn a_library_is_named_and_reproducible() {
    let sandbox = Sandbox::new();
    let right = plimsoll_fake_blas::right().to_string_lossy();
    let [off, first, second] = ["off", &right, &right].map(|library| bench(&sandbox, library).json());
    assert_eq!(off["measured"]["blas"], Value::Null);
    let name = first["measured"]["blas"].as_str().expect("a name");
    assert!(name.starts_with("OpenBLAS 0.0 stand-in (") && name.contains(&*right), "{name}");
    assert_eq!(first["loss"], second["loss"]);
    let loss = |bench: &Value| bench["loss"].as_f64().expect("a loss");
    assert!((loss(&off) - loss(&first)).abs() < 1e-5, "{off} {first}");
}

/// A run's folder may come from another user, and a library is code.
#[test]
fn a_resumed_run_loads_only_libraries_from_the_command_line() {
    let sandbox = Sandbox::new();
    let right = plimsoll_fake_blas::right().display().to_string();
    let resume = |flags: &str| {
        let said = sandbox.run(&format!("train --resume runs/kept --json {flags}"));
        assert_eq!(said.code, Some(0), "{flags}: {}", said.stderr);
        (said.json()["measured"]["blas"].clone(), said.stderr)
    };
    sandbox.must_train(&format!("--blas {right} --name kept --max-steps 5"));
    assert!(sandbox.text("runs/kept/config.yaml").contains(&right));
    let (blas, stderr) = resume("--max-steps 6");
    assert_eq!(blas, Value::Null);
    for words in ["runs/kept/config.yaml names a BLAS, which only the command line may", &format!("`--blas {right}`")] {
        assert!(stderr.contains(words), "lacks `{words}`: {stderr}");
    }
    let (blas, stderr) = resume(&format!("--max-steps 7 --blas {right}"));
    assert!(blas.as_str().is_some_and(|blas| blas.contains(&right)), "{blas}");
    assert!(!stderr.contains("names a BLAS"), "{stderr}");
    // A settings file that the command line names is the user's own.
    sandbox.write("own.yaml", format!("blas: {right}"));
    let (blas, _) = resume("--max-steps 8 --config own.yaml");
    assert!(blas.as_str().is_some_and(|blas| blas.contains(&right)), "{blas}");
}

#[test]
fn a_bare_name_is_not_searched_in_the_current_folder() {
    let sandbox = Sandbox::new();
    std::fs::copy(plimsoll_fake_blas::right(), sandbox.path("libnear.so")).expect("copied");
    let said = bench(&sandbox, "libnear.so");
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    for words in ["libnear.so can't be loaded: ", "hint: use `--blas ./libnear.so` for the file in this folder"] {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
    let said = bench(&sandbox, "./libnear.so");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
fn unusable_libraries_are_refused_with_a_hint() {
    let sandbox = Sandbox::new();
    let text = sandbox.path("text.txt");
    for (library, expected) in [
        (plimsoll_fake_blas::wrong(), "is broken: its product of "),
        (plimsoll_fake_blas::wide(), "uses 64-bit integers (ILP64)"),
        (plimsoll_fake_blas::bare(), "has no function `cblas_sgemm`"),
        (plimsoll_fake_blas::crashing(), "crashed the process that tried it: "),
        ("/missing/libopenblas.so".as_ref(), "/missing/libopenblas.so can't be loaded: "),
        (text.as_path(), "text.txt can't be loaded: "),
    ] {
        let said = bench(&sandbox, &library.to_string_lossy());
        assert_eq!((said.code, said.stdout_text()), (Some(4), ""), "{}", said.stderr);
        assert!(said.stderr.contains(expected), "{}", said.stderr);
        assert!(said.stderr.contains("hint: `--blas` takes the path of OpenBLAS"), "{}", said.stderr);
    }
}

/// On any machine `auto` says in one line what it uses, and continues.
#[test]
fn auto_says_what_it_uses() {
    let sandbox = Sandbox::new();
    let said = bench(&sandbox, "auto");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let line = said.stderr.lines().find(|line| line.contains("matrix products")).unwrap_or_default();
    let expected = if said.json()["measured"]["blas"].is_null() { "no BLAS found; " } else { "matrix products by " };
    assert!(line.starts_with(expected), "{}", said.stderr);
}
