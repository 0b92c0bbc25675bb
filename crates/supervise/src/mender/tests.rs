//! Decisions after a series of ends.

use super::*;
use plimsoll_registry::Progress;
use std::path::Path;

const COMMAND: &str = "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --output_dir OUT";
const OOM: &str = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n\
                   torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";

fn ended(tail: &str, step: u64) -> Ending {
    let progress = (step > 0).then_some(Progress { epoch: None, step, of: None });
    Ending { code: Some(1), tail: tail.as_bytes().to_vec(), progress, ..Ending::default() }
}

fn oom() -> Ending {
    ended(OOM, 0)
}

fn error(exception: &str) -> Ending {
    ended(
        &format!("Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\n    f()\n{exception}\n"),
        0,
    )
}

fn done() -> Ending {
    Ending { code: Some(0), ..Ending::default() }
}

fn mender(folder: &Path) -> Mender {
    mender_of(COMMAND, folder)
}

fn mender_of(command: &str, folder: &Path) -> Mender {
    let command = command.replace("OUT", &folder.join("out").to_string_lossy());
    let argv: Vec<OsString> = command.split(' ').map(OsString::from).collect();
    Mender::new(&argv, Ladder::new(false, ""), folder.join("run"))
}

fn remembering(folder: &Path) -> Mender {
    mender(folder).remembering(Failures::at(folder.join("failures.json")), "RTX 3060")
}

fn flags(attempt: &Attempt) -> String {
    let words = attempt.env.iter().map(|(name, value)| format!("{}={}", name.display(), value.display()));
    words.chain(attempt.argv.iter().skip(2).map(|word| word.display().to_string())).collect::<Vec<_>>().join(" ")
}

fn again(verdict: Verdict) -> (Attempt, String) {
    match verdict.decision {
        Decision::Again { attempt, why } => (attempt, why),
        other => panic!("it does not restart: {other:?}"),
    }
}

fn stopped(verdict: Verdict) -> String {
    match verdict.decision {
        Decision::Stop { why } => why,
        other => panic!("it does not stop: {other:?}"),
    }
}

#[test]
fn each_out_of_memory_error_takes_the_next_step_until_none_is_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut mender = mender(folder.path());
    assert!(mender.start().notes.is_empty());
    let (attempt, why) = again(mender.next(&oom()));
    assert!(flags(&attempt).contains("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
    assert!(why.starts_with("out of GPU memory (pytorch, tried to allocate 2.00 GiB): PYTORCH_CUDA"), "{why}");
    let (attempt, _) = again(mender.next(&oom()));
    assert!(attempt.notes.iter().any(|note| note.contains("micro-batch 4 → 2")), "{:?}", attempt.notes);
    for _ in 0..3 {
        again(mender.next(&oom()));
    }
    let verdict = mender.next(&oom());
    assert_eq!((verdict.kind.as_str(), verdict.cause.starts_with("card_memory pytorch")), ("card_memory", true));
    assert!(stopped(verdict).contains("no steps are left"));
}

#[test]
fn the_next_run_starts_with_steps_that_worked_and_skips_steps_that_failed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut first = remembering(folder.path());
    first.start();
    again(first.next(&oom()));
    let (helped, _) = again(first.next(&oom()));
    assert_eq!(stopped(first.next(&done())), "it finished");
    let mut second = remembering(folder.path());
    let begun = second.start();
    assert_eq!((&begun.argv, &begun.env), (&helped.argv, &helped.env));
    assert!(begun.notes.last().is_some_and(|note| note.contains("worked last time")), "{:?}", begun.notes);
    // This time the steps do not suffice, and the supervisor is killed.
    again(second.next(&oom()));
    let mut third = remembering(folder.path());
    assert!(
        flags(&third.start()).contains("--per_device_train_batch_size 1"),
        "one step more than the steps that failed"
    );
    let mut other = remembering(folder.path());
    other.given.argv.extend(["--block_size".into(), "64".into()]);
    let mut other = Mender::new(&other.given.argv, Ladder::new(false, ""), folder.path().join("other"))
        .remembering(Failures::at(folder.path().join("failures.json")), "RTX 3060");
    assert!(other.start().notes.is_empty(), "another length is another run");
}

#[test]
fn a_run_that_never_ran_out_of_memory_leaves_no_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut mender = remembering(folder.path());
    mender.start();
    mender.next(&done());
    assert!(!folder.path().join("failures.json").exists() && !folder.path().join("run").exists());
}

#[test]
fn a_step_that_the_program_rejects_is_undone_and_not_retried() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut mender = mender(folder.path());
    mender.start();
    for _ in 0..4 {
        again(mender.next(&oom()));
    }
    let unknown = Ending {
        code: Some(2),
        ..ended("usage: a.py [-h]\na.py: error: unrecognized arguments: --gradient_checkpointing\n", 0)
    };
    let (attempt, why) = again(mender.next(&unknown));
    assert!(why.contains("rejected the step `checkpointing`") && why.contains("8 bits"), "{why}");
    assert!(!flags(&attempt).contains("gradient_checkpointing") && flags(&attempt).contains("paged_adamw_8bit"));
    let missing = error("ImportError: bitsandbytes is not installed");
    assert!(stopped(mender.next(&missing)).contains("no steps are left"));
}

#[test]
fn without_steps_a_run_waits_or_has_its_smallest_settings_until_memory_is_free() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let started = |mode| {
        let command = format!("{COMMAND} --block_size 512");
        let mut mender = mender_of(&command, folder.path()).when_no_step_is_left(mode);
        mender.start();
        for _ in 0..5 {
            again(mender.next(&oom()));
        }
        mender
    };
    let verdict = started(OnNoMemory::Wait).next(&oom()).decision;
    assert!(matches!(verdict, Decision::WhenFree { memory: MemoryKind::Card, .. }), "{verdict:?}");
    let mut mender = started(OnNoMemory::Minimal);
    let before = mender.configuration().clone();
    let Decision::Reduced { attempt, .. } = mender.next(&oom()).decision else { panic!("smaller settings are left") };
    assert!(flags(&attempt).contains("--block_size 128"), "{}", flags(&attempt));
    let command = format!("{COMMAND} --block_size 512");
    let mut other = mender_of(&command, folder.path()).when_no_step_is_left(OnNoMemory::Minimal);
    other.resume(&mender.past());
    for mut mender in [mender, other] {
        let verdict = mender.next(&oom()).decision;
        assert!(matches!(verdict, Decision::WhenFree { .. }), "nothing is smaller: {verdict:?}");
        assert!(mender.restored().is_some() && *mender.configuration() == before);
        assert!(mender.restored().is_none(), "it has its settings");
    }
    let limited = ended(&OOM.replace("2.00 GiB.", "2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 15.00 GiB is free. 8.00 GiB allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated."), 0);
    stopped(started(OnNoMemory::Wait).next(&limited));
}

#[test]
fn an_error_after_training_steps_is_not_blamed_on_the_last_repair() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut mender = mender(folder.path());
    mender.start();
    again(mender.next(&oom()));
    let (attempt, why) = again(mender.next(&ended(&String::from_utf8(error("KeyError: 'x'").tail).expect("text"), 40)));
    assert!(why.starts_with("exception: KeyError: 'x'; it restarts from step 0"), "{why}");
    assert!(flags(&attempt).contains("expandable_segments"), "the step stays");
}

#[test]
fn only_faults_with_an_outside_cause_are_restarted_unchanged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (exception, restarts) in [
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", true),
        ("ValueError: x", true),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", true),
        ("ModuleNotFoundError: No module named 'x'", false),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", false),
        ("OSError: [Errno 28] No space left on device", false),
        ("ValueError: loss is nan", false),
        ("RuntimeError: CUDA error: device-side assert triggered", false),
    ] {
        let mut mender = mender(folder.path());
        let given = mender.start();
        match mender.next(&error(exception)).decision {
            Decision::Again { attempt, .. } => assert!(restarts && attempt == given, "{exception}"),
            Decision::Stop { why } => assert!(!restarts && why.contains(exception), "{exception}: {why}"),
            other => panic!("{exception}: {other:?}"),
        }
    }
    let mut mender = mender(folder.path());
    assert!(stopped(mender.next(&Ending { code: Some(127), ..Ending::default() })).contains("can't be started"));
    assert!(stopped(mender.next(&Ending { signal: Some(2), ..Ending::default() })).contains("interrupted"));
}

#[test]
fn ends_with_the_same_cause_are_equal() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut mender = mender(folder.path());
    let [a, b, c] = ["ValueError: step 3 of 7", "ValueError: step 12 of 7", "ValueError: shapes differ"]
        .map(|exception| mender.next(&error(exception)).cause);
    assert!(a == b && a != c, "{a}, {b}, {c}");
}

#[test]
fn a_read_only_folder_leaves_the_command_unchanged() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("c.yaml");
    std::fs::write(&config, "base_model: gpt2\nmicro_batch_size: 4\n").expect("written");
    std::fs::write(folder.path().join("run"), "a file").expect("written");
    let argv: Vec<OsString> = vec!["axolotl".into(), "train".into(), config.into()];
    let mut mender = Mender::new(&argv, Ladder::new(false, "expandable_segments:True"), folder.path().join("run"));
    assert_eq!(mender.start().argv, argv);
    assert!(stopped(mender.next(&oom())).contains("files can't be written"));
}
