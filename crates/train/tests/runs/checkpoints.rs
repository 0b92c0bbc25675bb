//! Checkpoints that are damaged, foreign or can't be written: each is refused with a message or skipped, nothing
//! panics, and complete checkpoints stay complete.

use crate::support::weights::{Tensors, right_tensors, serialize, with_header, with_raw_header, zeros};
use crate::support::{Setup, all_losses, bits, families};
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_graph::TensorId;
use plimsoll_telemetry::Event;
use plimsoll_train::checkpoint::{
    self, CONFIG_FILE, CheckpointError, FileSum, MODEL_FILE, Newest, OPTIMIZER_FILE, RunState, STATE_FILE,
    TrainingCounts, list, load_weights, newest_whole, restore, verify,
};
use plimsoll_train::{Ending, Engine, Start, TrainError};
use proptest::prelude::*;
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};
use tempfile::TempDir;

const FILES: [&str; 4] = [MODEL_FILE, OPTIMIZER_FILE, CONFIG_FILE, STATE_FILE];

/// A run that saves a checkpoint after each of its three steps.
fn three_steps() -> Setup {
    Setup { steps: 3, checkpoint_every: Some(1), ..Setup::default() }
}

/// The folder of such a run, and its folder of checkpoints.
fn run(setup: &Setup) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    setup.run(&folder, &Start::Fresh, |_: &_, _: &_| {});
    let checkpoints = folder.join("checkpoints");
    (parent, checkpoints)
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn steps_in(checkpoints: &Path) -> Vec<u64> {
    list(checkpoints).expect("a folder").into_iter().map(|(step, _)| step).collect()
}

/// For every family, precision and format of moments, and with averages: exact to the byte, before the run.
#[test]
fn the_size_of_a_checkpoint_is_computed_before_it_is_written() {
    use plimsoll_graph::MemoryId;
    use plimsoll_graph::ops::StateFormat::{Bf16, Blockwise8, F32};
    use plimsoll_plan::{Average, Levers, Precision};
    let average = Some(Average { decay: 0.9, memory: MemoryId::DEVICE });
    let variants = [
        (Precision::Fp32, F32, None),
        (Precision::Bf16, Blockwise8, average),
        (Precision::Bf16Pure, Bf16, average),
        (Precision::Fp16, F32, None),
    ];
    for (family, setup) in families() {
        for (precision, optimizer_state, average) in variants {
            let levers = Levers { precision, optimizer_state, average, ..setup.levers };
            let loss_scale = precision.scales_gradients().then(plimsoll_train::LossScale::default);
            let setup = Setup { steps: 1, levers, loss_scale, ..setup.clone() };
            let engine = setup.engine();
            let model = setup.model_folder();
            let expected = checkpoint::sizes(&engine, &model);
            let (_parent, checkpoints) = run(&setup);
            let folder = checkpoints.join("step-000001");
            for (file, bytes) in expected {
                let written = read(&folder.join(file)).len() as u64;
                let is_right = if file == STATE_FILE { written <= bytes } else { written == bytes };
                assert!(is_right, "{family}, {precision:?}: {file} has {written} bytes, {bytes} were expected");
            }
            let files = fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path());
            let taken = files.map(|file| read(&file).len().next_multiple_of(4096) as u64).sum::<u64>();
            let room = checkpoint::room(&engine, &model).0;
            assert!(taken <= room && room <= taken + 16384, "{family}: {taken} bytes on a disk, {room} were expected");
        }
    }
}

/// Flips a bit in the middle of the weights.
fn spoil(checkpoint: &Path) {
    let path = checkpoint.join(MODEL_FILE);
    let mut bytes = read(&path);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    write(&path, &bytes);
}

#[test]
fn any_damage_to_a_file_is_detected() {
    let (_parent, checkpoints) = run(&three_steps());
    let (_, checkpoint) = &list(&checkpoints).expect("a folder")[0];
    assert_eq!(verify(checkpoint).expect("nothing happened yet").step, 3);
    for file in FILES {
        let path = checkpoint.join(file);
        let whole = read(&path);
        let flipped = |place: usize| {
            let mut bytes = whole.clone();
            bytes[place / 8] ^= 1 << (place % 8);
            bytes
        };
        let places = (0..50).map(|i| (8 * whole.len() - 1) * i / 49);
        let mut damaged = places.map(|place| (format!("bit {place}"), flipped(place))).collect::<Vec<_>>();
        for length in [0, 1, 8, whole.len() / 2, whole.len() - 1] {
            damaged.push((format!("only {length} bytes"), whole[..length].to_vec()));
        }
        damaged.push(("a byte more".into(), [&whole[..], b"x"].concat()));
        for (what, bytes) in damaged {
            write(&path, &bytes);
            let result = verify(checkpoint);
            assert!(matches!(result, Err(CheckpointError::Damaged { .. })), "{file}, {what}: {result:?}");
        }
        fs::remove_file(&path).expect("it is there");
        assert!(matches!(verify(checkpoint), Err(CheckpointError::Io { .. })), "{file} is missing");
        write(&path, &whole);
        assert!(verify(checkpoint).is_ok(), "{file} is back");
    }
}

#[test]
fn files_of_another_checkpoint_are_detected() {
    let (_parent, checkpoints) = run(&three_steps());
    let [newest, older] = [0, 1].map(|i| list(&checkpoints).expect("a folder")[i].1.clone());
    for file in [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE] {
        let [own, foreign] = [&newest, &older].map(|checkpoint| read(&checkpoint.join(file)));
        assert_ne!(own, foreign);
        write(&newest.join(file), &foreign);
        assert!(matches!(verify(&newest), Err(CheckpointError::Damaged { .. })), "{file}");
        write(&newest.join(file), &own);
    }
}

#[test]
fn the_newest_complete_checkpoint_is_found_and_damaged_ones_are_reported() {
    let (_parent, checkpoints) = run(&three_steps());
    for (damaged, expected) in [(0usize, Some(3)), (1, Some(2)), (2, Some(1)), (3, None)] {
        if let Some(index) = damaged.checked_sub(1) {
            spoil(&list(&checkpoints).expect("a folder")[index].1);
        }
        let Newest { found, skipped, left_behind } = newest_whole(&checkpoints).expect("a folder that can be read");
        let found = found.map(|(path, state)| (state.step, path));
        assert_eq!(found, expected.map(|step| (step, path_of(&checkpoints, step))));
        assert_eq!(left_behind, Vec::<PathBuf>::new());
        let reported = skipped.iter().map(|s| &s.path).collect::<Vec<_>>();
        assert_eq!(
            reported,
            list(&checkpoints).expect("a folder")[..damaged].iter().map(|(_, path)| path).collect::<Vec<_>>()
        );
        assert!(skipped.iter().all(|s| s.reason.contains(MODEL_FILE)), "{skipped:?}");
    }
    let nowhere = newest_whole(&checkpoints.join("nowhere")).expect("nothing is there");
    assert_eq!(nowhere, Newest { found: None, skipped: vec![], left_behind: vec![] });
}

fn newest_step(checkpoints: &Path) -> u64 {
    let newest = newest_whole(checkpoints).expect("a folder that can be read");
    newest.found.expect("a whole checkpoint").1.step
}

fn path_of(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("step-{step:06}"))
}

#[test]
fn only_the_newest_checkpoints_stay() {
    for (keep_checkpoints, stay) in [(2, &[3, 2][..]), (1, &[3]), (0, &[3]), (9, &[3, 2, 1])] {
        let (_parent, checkpoints) = run(&Setup { keep_checkpoints, ..three_steps() });
        assert_eq!(steps_in(&checkpoints), stay, "keep {keep_checkpoints}");
    }
}

/// The checkpoint just saved is the best one, even if damaged checkpoints of later steps exist.
#[test]
fn damaged_checkpoints_do_not_push_out_the_one_just_saved() {
    for (keep_checkpoints, stay) in [(1, &[3, 2][..]), (2, &[3, 2, 1])] {
        let (parent, checkpoints) = run(&three_steps());
        for step in [2, 3] {
            spoil(&path_of(&checkpoints, step));
        }
        let start = Start::Resume(path_of(&checkpoints, 1));
        let second_step = Setup { steps: 2, keep_checkpoints, ..three_steps() };
        let (_, _, newest) = second_step.run(&parent.path().join("run"), &start, |_: &_, _: &_| {});
        assert_eq!(newest, Some(path_of(&checkpoints, 2)));
        assert_eq!(steps_in(&checkpoints), stay, "keep {keep_checkpoints}");
        assert_eq!(newest_step(&checkpoints), 2);
    }
}

/// The leftovers of a killed save are neither listed nor in the way.
#[test]
fn leftovers_of_a_kill_are_not_checkpoints() {
    let (parent, checkpoints) = run(&Setup { steps: 1, ..three_steps() });
    let leftovers = [".writing-step-000002", ".writing-step-000009", ".writing-step-000001.old"];
    let leftovers = leftovers.map(|name| checkpoints.join(name));
    for leftover in &leftovers {
        fs::create_dir(leftover).expect("a new folder");
        write(&leftover.join(MODEL_FILE), b"half a tensor");
    }
    let foreign = checkpoints.join("notes");
    write(&foreign, b"not ours to delete");
    assert_eq!(steps_in(&checkpoints), [1]);
    let start = Start::Resume(path_of(&checkpoints, 1));
    three_steps().run(&parent.path().join("run"), &start, |_: &_, _: &_| {});
    assert_eq!(steps_in(&checkpoints), [3, 2, 1]);
    assert!(verify(&path_of(&checkpoints, 2)).is_ok() && foreign.exists());
    assert!(!leftovers.iter().any(|leftover| leftover.exists()), "the leftovers of a killed save were not swept");
}

/// Steps whose checkpoint was saved, and steps whose checkpoint failed.
#[derive(Default)]
struct Saves {
    saved: Vec<u64>,
    failed: Vec<u64>,
}

impl Saves {
    fn take(&mut self, event: &Event) {
        match event {
            Event::CheckpointSaved { step, .. } => self.saved.push(*step),
            Event::CheckpointFailed { step, reason } => {
                assert!(reason.contains("step-"), "{reason}");
                self.failed.push(*step);
            }
            _ => {}
        }
    }
}

/// A disk without space for the checkpoint after the second step.
#[derive(Debug)]
struct NoSecond;

impl Watch for NoSecond {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        match operation {
            Operation::CreateFile(path) if path.ends_with(".writing-step-000002/optimizer.safetensors") => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_failed_checkpoint_is_reported_and_training_continues() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let checkpoints = folder.join("checkpoints");
    let mut saves = Saves::default();
    let view = |event: &Event, _: &AtomicBool| saves.take(event);
    let outcome = three_steps().run_on(Disk::watched(Arc::new(NoSecond)), &folder, &Start::Fresh, view);
    let outcome = outcome.expect("a session without an error");
    assert_eq!((outcome.ending, saves.saved, saves.failed), (Ending::Finished, vec![1, 3], vec![2]));
    assert_eq!(bits(&all_losses(&outcome.report, 3)), bits(&three_steps().losses()));
    assert_eq!((steps_in(&checkpoints), outcome.saved), (vec![3, 1], Some((3, path_of(&checkpoints, 3)))));
    assert_eq!((outcome.unsaved, outcome.unreported.is_none()), (None, true));
    assert!([1, 3].iter().all(|&step| verify(&path_of(&checkpoints, step)).is_ok()));
    let names = fs::read_dir(&checkpoints).expect("a folder").count();
    assert_eq!(names, 2, "the partial second checkpoint is deleted");
}

/// Names the run's folder for the session below.
const FULL_DISK: &str = "PLIMSOLL_TEST_FULL_DISK";

/// A limit of about 20 KiB per file simulates a full disk: weights need more, the journal less.
#[cfg(unix)]
#[test]
fn a_full_disk_loses_only_checkpoints() {
    let (parent, checkpoints) = run(&Setup { steps: 1, ..three_steps() });
    let session =
        "ulimit -f 40 && trap '' XFSZ && exec \"$0\" --exact checkpoints::session_on_a_full_disk --ignored --nocapture";
    let child = std::process::Command::new("sh")
        .args(["-c", session])
        .arg(std::env::current_exe().expect("this test's binary"))
        .env(FULL_DISK, parent.path().join("run"))
        .output()
        .expect("a shell");
    let talk = [child.stdout, child.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(child.status.success() && talk.contains("1 passed"), "{talk}");
    assert_eq!(verify(&path_of(&checkpoints, 1)).expect("the old one stays whole").step, 1);
    let names = fs::read_dir(&checkpoints).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["step-000001"], "leftovers were found");
}

#[test]
#[ignore = "started by a_full_disk_loses_only_checkpoints in a separate process"]
fn session_on_a_full_disk() {
    let Some(folder) = std::env::var_os(FULL_DISK).map(PathBuf::from) else { return };
    let checkpoint = path_of(&folder.join("checkpoints"), 1);
    let mut saves = Saves::default();
    let view = |event: &Event, _: &AtomicBool| saves.take(event);
    let (ending, report, newest) = three_steps().run(&folder, &Start::Resume(checkpoint.clone()), view);
    assert_eq!((ending, newest), (Ending::Finished, Some(checkpoint)));
    // The last one is retried when the run ends.
    assert_eq!((saves.saved, saves.failed), (vec![], vec![2, 3, 3]));
    assert_eq!(bits(&all_losses(&report, 3)), bits(&report_of(&folder)));
}

/// The losses in a run's report.json.
fn report_of(folder: &Path) -> Vec<f64> {
    let report = serde_json::from_slice(&read(&folder.join("report.json"))).expect("a report");
    all_losses(&report, 3)
}

proptest! {
    /// Every float must survive a round trip through JSON, or a state would fail its own checksum.
    #[test]
    fn a_state_reads_back_for_any_seconds(seconds in prop::num::f64::POSITIVE, step in 0..=1u64 << 56) {
        prop_assume!(seconds.is_finite());
        let state = RunState {
            branch: step,
            base: None,
            base_codes: None,
            updates: step,
            loss_scale: None,
            precision: String::new(),
            version: RunState::VERSION,
            step,
            samples_seen: step,
            seen: TrainingCounts { tokens: step, ..TrainingCounts::default() },
            target_len: None,
            seconds,
            seed: u64::MAX - step,
            global_batch: 1,
            seq_len: 1,
            data_fingerprint: String::new(),
            tokenizer: String::new(),
            files: vec![],
            checksum: String::new(),
        };
        let read = RunState::from_json(&state.to_json()).map_err(TestCaseError::fail)?;
        prop_assert_eq!(read.seconds.to_bits(), seconds.to_bits());
    }
}

/// The result of `load_weights` for a folder with this file.
fn load(engine: &mut Engine, file: &[u8]) -> Result<(), TrainError> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&folder.path().join(MODEL_FILE), file);
    load_weights(engine, folder.path())
}

/// The variant of an error, and the tensor that it names.
fn kind(result: Result<(), TrainError>) -> (&'static str, String) {
    let Err(error) = result else { return ("accepted", String::new()) };
    assert!(error.to_string().contains(MODEL_FILE), "{error}");
    match error {
        TrainError::Checkpoint(CheckpointError::Damaged { .. }) => ("damaged", String::new()),
        TrainError::Checkpoint(CheckpointError::Io { .. }) => ("io", String::new()),
        TrainError::Checkpoint(CheckpointError::MissingTensor { tensor, .. }) => ("missing", tensor),
        TrainError::Checkpoint(CheckpointError::ForeignTensor { tensor, .. }) => ("foreign", tensor),
        TrainError::Checkpoint(CheckpointError::WrongTensor { tensor, .. }) => ("wrong", tensor),
        TrainError::Checkpoint(CheckpointError::UnsupportedDtype { tensor, .. }) => ("dtype", tensor),
        TrainError::Checkpoint(CheckpointError::OtherFamily { .. }) => ("family", String::new()),
        other => panic!("{other:?}"),
    }
}

/// A norm of the tiny model: 24 floats, like `OTHER`.
const NORM: &str = "transformer.h.0.ln_1.weight";
const OTHER: &str = "transformer.h.1.ln_2.weight";
/// A matrix of (16, 24) floats.
const MATRIX: &str = "transformer.wpe.weight";

#[test]
fn inconsistent_headers_are_refused() {
    let mut engine = Setup::default().engine();
    let right = serialize(&right_tensors(&engine));
    let with_change = |change: fn(&mut Value)| with_header(&right, change);
    let with_length = |length: u64| [&length.to_le_bytes(), &right[8..]].concat();
    let files = [
        ("an empty file", vec![]),
        ("half a length", right[..7].to_vec()),
        ("a length and nothing else", right[..8].to_vec()),
        ("the largest length", with_length(u64::MAX)),
        ("a length that overflows by the length's own bytes", with_length(u64::MAX - 7)),
        ("a length past the end", with_length(right.len() as u64 - 7)),
        ("a length of zero", with_length(0)),
        ("a length that is too short", with_length(100)),
        ("data cut off", right[..right.len() - 1].to_vec()),
        ("data to spare", [&right[..], &[0]].concat()),
        ("a header that is not text", with_raw_header(b"\xff\xfe{}", &[])),
        ("a header that is not JSON", with_raw_header(b"{", &[])),
        ("a header that is a list", with_raw_header(b"[]", &[])),
        ("a header that is null", with_raw_header(b"null", &[])),
        ("a tensor that is a number", with_change(|h| h[NORM] = json!(7))),
        ("a dtype that is a number", with_change(|h| h[NORM]["dtype"] = json!(32))),
        ("two tensors in one place", with_change(|h| h[NORM]["data_offsets"] = h[OTHER]["data_offsets"].clone())),
        ("offsets past the end", with_change(|h| h[NORM]["data_offsets"] = json!([1u64 << 40, (1u64 << 40) + 96]))),
        ("offsets in the wrong order", with_change(|h| h[NORM]["data_offsets"] = json!([96, 0]))),
        ("offsets below zero", with_change(|h| h[NORM]["data_offsets"] = json!([-96, 0]))),
        ("more bytes than the shape has", with_change(|h| h[NORM]["shape"] = json!([23]))),
        ("a shape whose product overflows", with_change(|h| h[NORM]["shape"] = json!([1u64 << 63, 2]))),
        ("a shape whose bytes overflow", with_change(|h| h[NORM]["shape"] = json!([1u64 << 62]))),
        ("a shape below zero", with_change(|h| h[NORM]["shape"] = json!([-24]))),
    ];
    for (what, file) in files {
        assert_eq!(kind(load(&mut engine, &file)).0, "damaged", "{what}");
    }
    assert_eq!(kind(load(&mut engine, &right)).0, "accepted");
}

#[test]
fn tensors_that_do_not_fit_the_model_are_named() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    for (what, expected, tensor, instead) in [
        ("transposed", "wrong", MATRIX, Some(zeros(Dtype::F32, &[24, 16]))),
        ("flat", "wrong", MATRIX, Some(zeros(Dtype::F32, &[384]))),
        ("integers", "dtype", NORM, Some(zeros(Dtype::I32, &[24]))),
        ("doubles", "dtype", NORM, Some(zeros(Dtype::F64, &[24]))),
        ("empty", "wrong", NORM, Some(zeros(Dtype::F32, &[0]))),
        ("gone", "missing", OTHER, None),
        ("too many", "foreign", "h.2.ln_1.weight", Some(zeros(Dtype::F32, &[24]))),
    ] {
        let mut tensors = right.clone();
        match instead {
            Some(instead) => tensors.insert(tensor.to_owned(), instead),
            None => tensors.remove(tensor),
        };
        assert_eq!(kind(load(&mut engine, &serialize(&tensors))), (expected, tensor.to_owned()), "{what}");
    }
}

/// Foreign weights have no checksums; ours do, and are not loaded if they don't match.
#[test]
fn our_own_weights_must_match_their_checksum() {
    let (_parent, checkpoints) = run(&Setup { steps: 1, ..three_steps() });
    let checkpoint = path_of(&checkpoints, 1);
    let mut engine = Setup::default().engine();
    fs::remove_file(checkpoint.join(OPTIMIZER_FILE)).expect("moments, which weights don't need");
    assert_eq!(kind(load_weights(&mut engine, &checkpoint)).0, "accepted");
    spoil(&checkpoint);
    assert_eq!(kind(load_weights(&mut engine, &checkpoint)).0, "damaged");
    fs::remove_file(checkpoint.join(STATE_FILE)).expect("checksums");
    assert_eq!(kind(load_weights(&mut engine, &checkpoint)).0, "accepted");
}

#[test]
fn anything_but_a_file_is_a_system_error() {
    let mut engine = Setup::default().engine();
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_eq!(kind(load_weights(&mut engine, folder.path())).0, "io");
    fs::create_dir(folder.path().join(MODEL_FILE)).expect("a new folder");
    assert_eq!(kind(load_weights(&mut engine, folder.path())).0, "io");
}

/// The weights after loading a file with these tensors.
fn loaded(engine: &mut Engine, tensors: &Tensors) -> Vec<(TensorId, Vec<u8>)> {
    load(engine, &serialize(tensors)).expect("weights of this model");
    let weights = engine.parameters().iter().map(|p| p.tensor);
    weights.map(|id| (id, engine.view(id).expect("a weight").into_owned())).collect()
}

/// In the format of `GPT2Model`, and of old versions of transformers.
#[test]
fn weights_without_the_prefix_and_with_masks_are_loaded() {
    let mut engine = Setup::default().engine();
    let right = right_tensors(&engine);
    let expected = loaded(&mut engine, &right);
    let right_bytes = |(id, bytes): &(TensorId, Vec<u8>)| *bytes == right[engine.name(*id)].2;
    assert!(expected.iter().all(right_bytes));
    let bare = right.iter().map(|(name, tensor)| (name.replacen("transformer.", "", 1), tensor.clone()));
    let mut foreign = bare.collect::<Tensors>();
    let no_parameters = [
        ("h.0.attn.bias", zeros(Dtype::U8, &[1, 1, 16, 16])),
        ("h.1.attn.masked_bias", zeros(Dtype::F32, &[])),
        ("lm_head.weight", right["transformer.wte.weight"].clone()),
    ];
    foreign.extend(no_parameters.map(|(name, tensor)| (name.to_owned(), tensor)));
    engine.initialize(1).expect("weights can be written");
    assert!(loaded(&mut engine, &foreign) == expected);
    // A head that is not a copy of the embedding would be lost silently.
    foreign.insert("lm_head.weight".to_owned(), zeros(Dtype::F32, &[61, 24]));
    assert_eq!(kind(load(&mut engine, &serialize(&foreign))), ("foreign", "lm_head.weight".to_owned()));
    // A checkpoint of our own must have our own names.
    let folder = tempfile::tempdir().expect("a temporary folder");
    write(&folder.path().join(MODEL_FILE), &serialize(&foreign));
    assert_eq!(kind(restore(&mut engine, folder.path())).0, "missing");
}

/// A file of random bytes, or a valid one damaged in some places.
fn broken_file(right: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let length = right.len();
    let hits = prop::collection::vec((0..length.min(6000), any::<u8>()), 1..6);
    let hit = (hits, 0..=length).prop_map(move |(hits, cut)| {
        let mut file = right.clone();
        for (place, byte) in hits {
            file[place] = byte;
        }
        file.truncate(if cut % 2 == 0 { length } else { cut });
        file
    });
    let shape_and_place = r#""shape":\[[0-9]{0,20}\],"data_offsets":\[[0-9]{1,20},[0-9]{1,20}\]"#;
    let header = format!(r#"\{{("[a-z.]{{1,9}}":\{{"dtype":"F(16|32)",{shape_and_place}\}},?){{0,3}}\}}"#);
    let invented = (string_regex(&header).expect("a pattern"), prop::collection::vec(any::<u8>(), 0..64));
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        hit,
        invented.prop_map(|(header, data)| with_raw_header(header.as_bytes(), &data)),
    ]
}

#[test]
fn no_file_makes_loading_panic() {
    let engine = RefCell::new(Setup::default().engine());
    let right = serialize(&right_tensors(&engine.borrow()));
    let result = TestRunner::default().run(&broken_file(right), |file| {
        kind(load(&mut engine.borrow_mut(), &file));
        Ok(())
    });
    assert!(result.is_ok(), "{result:?}");
}

/// Forges a checkpoint's state, with a valid checksum.
fn forge(checkpoint: &Path, change: impl FnOnce(&mut RunState)) {
    let text = String::from_utf8(read(&checkpoint.join(STATE_FILE))).expect("text");
    let mut state = RunState::from_json(&text).expect("a sound state");
    change(&mut state);
    write(&checkpoint.join(STATE_FILE), state.to_json().as_bytes());
}

/// The step determines the length of the list of losses, and the position in the data.
#[test]
fn a_state_that_claims_absurd_steps_is_refused() {
    let (parent, checkpoints) = run(&three_steps());
    for (step, samples) in [(1u64 << 32, 8u64 << 32), (1 << 40, 8 << 40), (1 << 62, 0), (u64::MAX, u64::MAX)] {
        let checkpoint = path_of(&checkpoints, 3);
        let sound = read(&checkpoint.join(STATE_FILE));
        forge(&checkpoint, |state| (state.step, state.samples_seen) = (step, samples));
        let result =
            three_steps().try_run(&parent.path().join("run"), &Start::Resume(checkpoint.clone()), |_: &_, _: &_| {});
        let Err(TrainError::Checkpoint(error)) = result else { panic!("step {step}: {result:?}") };
        match error {
            CheckpointError::NoHistory { known, .. } => assert_eq!((known, step < 1 << 56), (3, true)),
            CheckpointError::Damaged { problem, .. } => assert!(problem.contains("samples"), "{problem}"),
            other => panic!("step {step}: {other}"),
        }
        write(&checkpoint.join(STATE_FILE), &sound);
    }
}

/// Names in a state must not be paths, and must refer to regular files; anything else in their place is damage.
#[cfg(unix)]
#[test]
fn entries_that_are_not_checkpoint_files_are_damage_and_never_block() {
    let (_parent, checkpoints) = run(&three_steps());
    let checkpoint = path_of(&checkpoints, 3);
    let sound = read(&checkpoint.join(STATE_FILE));
    for name in ["/dev/zero", "../step-000002/model.safetensors", "/proc/self/pagemap", "state.json", ""] {
        let empty = FileSum { name: name.to_owned(), bytes: 0, blake3: blake3::hash(&[]).to_hex().to_string() };
        forge(&checkpoint, |state| state.files.push(empty));
        let error = verify(&checkpoint).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{name}: {error}");
        write(&checkpoint.join(STATE_FILE), &sound);
    }
    for file in FILES {
        let (path, aside) = (checkpoint.join(file), checkpoint.join("aside"));
        fs::rename(&path, &aside).expect("renamed");
        let status = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(status.success());
        let error = verify(&checkpoint).unwrap_err();
        assert!(error.is_damage() && error.to_string().contains("a named pipe"), "{file}: {error}");
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(verify(&checkpoint).unwrap_err().is_damage(), "{file}");
        fs::remove_file(&path).expect("removed");
        fs::rename(&aside, &path).expect("renamed");
    }
    assert_eq!(verify(&checkpoint).expect("all is back").step, 3);
}

/// A missing folder and an unreadable one differ: only the first means that a run has no checkpoint.
#[test]
fn an_unlistable_folder_is_an_error_and_not_empty() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("checkpoints");
    write(&file, b"no folder");
    for result in [list(&file).map(|_| ()), newest_whole(&file).map(|_| ())] {
        assert!(matches!(result, Err(CheckpointError::Io { .. })), "{result:?}");
    }
    assert_eq!(list(&folder.path().join("nowhere")).expect("nothing is there"), []);
}

/// A disk that is full from the second step on.
#[derive(Debug, Default)]
struct Filling(AtomicBool);

impl Watch for Filling {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let is_full = self.0.load(Ordering::Relaxed);
        let needs_room =
            matches!(operation, Operation::CreateFile(_) | Operation::CreateFolder(_) | Operation::Append(..));
        if is_full && needs_room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// Every refusal of the disk at the end is reported, together with what is on disk.
#[test]
fn a_run_without_its_last_state_on_disk_is_not_finished() {
    for interrupted in [false, true] {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let folder = parent.path().join("run");
        let disk = Arc::new(Filling::default());
        let mut seen = Vec::new();
        let view = |event: &Event, stop: &AtomicBool| {
            if matches!(event, Event::CheckpointSaved { step: 1, .. }) {
                disk.0.store(true, Ordering::Relaxed);
            }
            if interrupted && matches!(event, Event::Step { step: 2, .. }) {
                stop.store(true, Ordering::Relaxed);
            }
            seen.push(event.clone());
        };
        let outcome = three_steps().run_on(Disk::watched(disk.clone()), &folder, &Start::Fresh, view);
        let outcome = outcome.expect("a refusal of the disk is not an error of the run");
        let (ending, last) = if interrupted { (Ending::Interrupted, 2) } else { (Ending::Finished, 3) };
        let first = path_of(&folder.join("checkpoints"), 1);
        assert_eq!((outcome.ending, outcome.saved.clone()), (ending, Some((1, first.clone()))));
        assert!(outcome.unsaved.is_some_and(|reason| reason.contains(&format!("step-{last:06}"))));
        assert!(outcome.unreported.is_some() && !folder.join("report.json").exists());
        let report = &outcome.report;
        assert_eq!((report.status.as_str(), report.saved_step), ("unsaved", Some(1)));
        assert!(report.journal_events_lost >= 4, "{}", report.journal_events_lost);
        let unsaved = Event::Unsaved { step: last, saved_step: Some(1), checkpoint: Some(first) };
        assert!(seen.contains(&unsaved), "{seen:?}");
        assert!(!seen.iter().any(|e| matches!(e, Event::Finished { .. } | Event::Interrupted { .. })), "{seen:?}");
        let lost =
            seen.iter().filter_map(|e| if let Event::EventsLost { events, .. } = e { Some(*events) } else { None });
        assert_eq!(
            lost.collect::<Vec<_>>(),
            [1, report.journal_events_lost],
            "reported when it started, and at the end"
        );
        assert_eq!(newest_step(&folder.join("checkpoints")), 1);
    }
}
