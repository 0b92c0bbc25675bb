//! A resumed run equals one that was never stopped, bit for bit.

use crate::support::{Outcome, Setup, View, adapted, all_losses, bits, encoders, families, tiny_gpt2};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{MemoryId, TrainShape};
use plimsoll_plan::{Average, Level, Levers, Precision, Recompute};
use plimsoll_telemetry::{Event, read_journal};
use plimsoll_train::checkpoint::{
    ADAPTER_FILE, AVERAGE_FILE, CheckpointError, MODEL_FILE, OPTIMIZER_FILE, list, newest_whole,
};
use plimsoll_train::{Ending, LossScale, Start, TrainError};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests a stop after a step, or before the first; u64::MAX never stops.
pub fn stop_after(last: u64) -> impl View {
    move |event: &Event, stop: &AtomicBool| {
        let is_it = match event {
            Event::RunStarted { .. } => last == 0,
            Event::Step { step, .. } => *step == last,
            _ => false,
        };
        if is_it {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// A run in sessions that are stopped after these steps, each resumed from the newest checkpoint of the previous one.
pub fn run_with_stops(setup: &Setup, folder: &Path, stops: &[u64]) -> Outcome {
    let mut start = Start::Fresh;
    for &step in stops {
        let (ending, report, checkpoint) = setup.run(folder, &start, stop_after(step));
        assert_eq!((ending, report.status.as_str()), (Ending::Interrupted, "interrupted"));
        assert_eq!(report.losses.len() as u64, step);
        let checkpoint = checkpoint.expect("an interrupted run saves a checkpoint");
        let newest = newest_whole(&folder.join("checkpoints")).expect("a folder that can be read");
        assert_eq!(newest.found.map(|(path, _)| path).as_ref(), Some(&checkpoint), "it is what `auto` finds");
        start = Start::Resume(checkpoint);
    }
    setup.run(folder, &start, stop_after(u64::MAX))
}

/// Panics unless two finished runs have the same bits in their reports and in their last checkpoints.
pub fn assert_same_run(what: &str, setup: &Setup, found: &Outcome, expected: &Outcome) {
    let losses = |outcome: &Outcome| bits(&all_losses(&outcome.1, setup.steps));
    let held_out = |outcome: &Outcome| outcome.1.eval.iter().map(|e| (e.step, e.loss.to_bits())).collect::<Vec<_>>();
    assert_eq!((found.0, expected.0), (Ending::Finished, Ending::Finished), "{what}");
    assert_eq!(losses(found), losses(expected), "losses, {what}");
    assert_eq!(held_out(found), held_out(expected), "held-out losses, {what}");
    assert_eq!(found.1.tokens_seen, expected.1.tokens_seen, "{what}");
    let weights = if setup.shape.adapters.is_some() { ADAPTER_FILE } else { MODEL_FILE };
    for file in [weights, OPTIMIZER_FILE] {
        let contents = |outcome: &Outcome| fs::read(last_checkpoint(outcome).join(file)).expect("a whole checkpoint");
        assert!(contents(found) == contents(expected), "{file} differs, {what}");
    }
}

pub fn last_checkpoint(outcome: &Outcome) -> &PathBuf {
    outcome.2.as_ref().expect("a run that ended has a checkpoint")
}

#[test]
fn invariant_7_a_resumed_run_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::default();
    assert!(tiny_gpt2().attn_pdrop > 0.0 && setup.eval_every == Some(4));
    let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
    assert_eq!(whole.1.eval.iter().map(|e| e.step).collect::<Vec<_>>(), [4, 8, 12]);
    let cases = [&[5][..], &[0], &[1], &[4], &[11], &[2, 3, 9], &[0, 3]];
    println!("evidence: {} runs", cases.len());
    for stops in cases {
        let what = format!("stopped after {stops:?}");
        let outcome = run_with_stops(&setup, &parent.path().join(&what), stops);
        assert_same_run(&what, &setup, &outcome, &whole);
    }
}

#[test]
fn regular_checkpoints_that_would_take_too_much_time_are_skipped() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    for (part, expected) in [(None, &[12, 9, 6, 3][..]), (Some(1e9), &[12, 9, 6, 3]), (Some(1e-9), &[12, 3])] {
        let folder = parent.path().join(format!("{part:?}"));
        let setup = Setup { checkpoint_every: Some(3), checkpoint_time_part: part, ..Setup::default() };
        setup.run(&folder, &Start::Fresh, stop_after(u64::MAX));
        let saved = list(&folder.join("checkpoints")).expect("a folder").into_iter().map(|(step, _)| step);
        assert_eq!(saved.collect::<Vec<_>>(), expected, "{part:?}");
    }
}

/// An evaluation may take long, and a stop does not wait for it.
#[test]
fn an_evaluation_that_a_stop_prevents_is_made_by_the_next_session() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    for (setup, stop) in [(Setup::default(), 4), (Setup { eval_every: None, ..Setup::default() }, 12)] {
        let folder = parent.path().join(stop.to_string());
        let (ending, report, checkpoint) = setup.run(&folder, &Start::Fresh, stop_after(stop));
        assert_eq!((ending, report.eval.len()), (Ending::Interrupted, 0));
        let start = Start::Resume(checkpoint.expect("a checkpoint"));
        let (ending, report, _) = setup.run(&folder, &start, stop_after(u64::MAX));
        assert_eq!((ending, report.eval[0].step), (Ending::Finished, stop));
    }
}

#[test]
fn invariant_7_a_resumed_run_of_any_family_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    for (family, setup) in families().into_iter().chain(encoders()).chain(adapted()) {
        let folder = |what: &str| parent.path().join(format!("{family}, {what}"));
        let whole = run_with_stops(&setup, &folder("whole"), &[]);
        let resumed = run_with_stops(&setup, &folder("resumed"), &[3, 7]);
        assert_same_run(family, &setup, &resumed, &whole);
        let padding = |outcome: &Outcome| (outcome.1.padding_tokens, outcome.1.truncated_samples);
        assert_eq!(padding(&resumed), padding(&whole), "{family}");
    }
}

/// Like after a power cut: steps were made after the last checkpoint, and the journal has them.
#[test]
fn invariant_7_a_run_resumed_from_an_older_checkpoint_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup { checkpoint_every: Some(2), ..Setup::default() };
    let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
    let folder = parent.path().join("cut");
    setup.run(&folder, &Start::Fresh, stop_after(9));
    let journal = folder.join("journal.jsonl");
    let torn = fs::read(&journal).expect("a journal");
    fs::write(&journal, &torn[..torn.len() - 9]).expect("written");
    for (step, checkpoint) in list(&folder.join("checkpoints")).expect("a folder") {
        let what = format!("resumed from step {step}");
        let outcome = setup.run(&folder, &Start::Resume(checkpoint), stop_after(u64::MAX));
        assert_same_run(&what, &setup, &outcome, &whole);
    }
    let resumed = read_journal(&folder.join("journal.jsonl")).expect("a journal").into_iter().filter_map(|record| {
        let Event::Resumed { step, .. } = record.event else { return None };
        Some(step)
    });
    assert_eq!(resumed.collect::<Vec<_>>(), [9, 8, 6, 4, 2]);
}

#[test]
fn another_run_is_not_resumed() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let setup = Setup::default();
    let start = Start::Resume(last_checkpoint(&setup.run(&folder, &Start::Fresh, stop_after(1))).clone());
    let shorter = TrainShape { seq_len: 8, ..setup.shape.clone() };
    for (expected, other) in [
        ("data", Setup { text_seed: 2, ..setup.clone() }),
        ("a seed of", Setup { seed: 8, ..setup.clone() }),
        ("a global batch of", Setup { global_batch: 16, ..setup.clone() }),
        ("a sequence length of", Setup { shape: shorter, ..setup.clone() }),
    ] {
        match other.try_run(&folder, &start, stop_after(u64::MAX)) {
            Err(TrainError::Checkpoint(CheckpointError::OtherRun { what, .. })) => assert_eq!(what, expected),
            Err(TrainError::Checkpoint(CheckpointError::OtherData { .. })) => assert_eq!(expected, "data"),
            result => panic!("{expected}: {result:?}"),
        }
    }
    assert_eq!(setup.run(&folder, &start, stop_after(u64::MAX)).0, Ending::Finished);
}

/// Attention heads do not affect shapes, and epsilon has none.
#[test]
fn another_model_of_the_same_shapes_is_not_resumed() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let setup = Setup::default();
    let start = Start::Resume(last_checkpoint(&setup.run(&folder, &Start::Fresh, stop_after(1))).clone());
    let gpt2 = |change: fn(&mut Gpt2Config)| {
        let mut model = tiny_gpt2();
        change(&mut model);
        Setup { model: ModelConfig::Gpt2(model), ..setup.clone() }
    };
    let both = gpt2(|model| (model.n_head, model.n_positions) = (4, 64));
    for (expected, other) in [
        (&["attention heads 2 instead of 4"][..], gpt2(|model| model.n_head = 4)),
        (&["`layer_norm_epsilon` "], gpt2(|model| model.layer_norm_epsilon = 1e-3)),
        (&["`initializer_range` "], gpt2(|model| model.initializer_range = 0.2)),
        (&["attention heads 2 instead of 4", "context "], both),
    ] {
        match other.try_run(&folder, &start, stop_after(u64::MAX)) {
            Err(TrainError::Checkpoint(CheckpointError::OtherModel { differences, .. })) => {
                assert_eq!(differences.len(), expected.len(), "{differences:?}");
                let matches = |(found, words): (&String, &&str)| found.starts_with(*words);
                assert!(differences.iter().zip(expected).all(matches), "{differences:?}");
            }
            result => panic!("{expected:?}: {result:?}"),
        }
    }
    // Dropout is a setting of the run and may change.
    let (ending, ..) = gpt2(|model| model.attn_pdrop = 0.0).run(&folder, &start, stop_after(2));
    assert_eq!(ending, Ending::Interrupted);
}

#[test]
fn losses_that_the_journal_lost_are_null() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let setup = Setup::default();
    let start = Start::Resume(last_checkpoint(&setup.run(&folder, &Start::Fresh, stop_after(3))).clone());
    let journal = folder.join("journal.jsonl");
    let text = fs::read_to_string(&journal).expect("a journal");
    let damaged = text.replace("\"event\":\"step\",\"step\":2", "\"event\":\"step\",\"step\":");
    assert_ne!(text, damaged);
    fs::write(&journal, damaged).expect("written");
    let losses = setup.run(&folder, &start, stop_after(u64::MAX)).1.losses;
    let lost = (1..=losses.len()).filter(|step| losses[step - 1].is_none()).collect::<Vec<_>>();
    assert_eq!((lost, losses.len()), (vec![2], 12));
}

/// Half precision with its loss scale, quantized moments, averages: the checkpoints contain the full state of a run.
#[test]
fn invariant_7_a_resumed_run_is_the_run_in_every_precision() {
    let average = Some(Average { decay: 0.9, memory: MemoryId::HOST });
    for (precision, optimizer_state, average) in [
        (Precision::Bf16, StateFormat::F32, None),
        (Precision::Fp16, StateFormat::Bf16, average),
        (Precision::Bf16Pure, StateFormat::Blockwise8, average),
        (Precision::Fp32, StateFormat::Blockwise8, None),
    ] {
        let parent = tempfile::tempdir().expect("a temporary folder");
        // A scale so large that the first sessions skip updates.
        let loss_scale = precision.scales_gradients().then_some(LossScale { scale: 2f32.powi(24), good_steps: 0 });
        let plain = Setup::default();
        let setup = Setup {
            levers: Levers { precision, optimizer_state, average, ..plain.levers },
            loss_scale,
            // Wide enough that some moments are quantized.
            model: ModelConfig::Gpt2(Gpt2Config { n_embd: 48, ..tiny_gpt2() }),
            ..plain
        };
        let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
        let stopped = run_with_stops(&setup, &parent.path().join("stopped"), &[9]);
        assert_same_run(&format!("{precision:?} {optimizer_state:?}"), &setup, &stopped, &whole);
        if average.is_some() {
            let averages = |outcome: &Outcome| fs::read(last_checkpoint(outcome).join(AVERAGE_FILE)).expect("averages");
            assert!(averages(&stopped) == averages(&whole), "{precision:?}: averages differ");
        }
    }
}

/// The location of the optimizer and the recomputed tensors may change from session to session.
#[test]
fn invariant_7_a_run_resumed_under_other_levers_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let plain = Setup::default();
    let moved = Levers { optimizer_offload: 1.0, recompute: Recompute::all(Level::Block), ..plain.levers };
    let elsewhere = Setup { levers: moved, ..plain.clone() };
    let whole = run_with_stops(&plain, &parent.path().join("whole"), &[]);
    let folder = parent.path().join("moved");
    let (_, _, first) = plain.run(&folder, &Start::Fresh, stop_after(4));
    let (_, _, second) = elsewhere.run(&folder, &Start::Resume(first.expect("a checkpoint")), stop_after(9));
    let last = plain.run(&folder, &Start::Resume(second.expect("a checkpoint")), stop_after(u64::MAX));
    assert_same_run("moved to the host and back", &plain, &last, &whole);
}

#[test]
fn a_run_is_not_resumed_in_another_precision() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let plain = Setup::default();
    let (_, _, first) = plain.run(parent.path(), &Start::Fresh, stop_after(4));
    let half = Setup { levers: Levers { precision: Precision::Bf16, ..plain.levers }, ..plain };
    let error = half.try_run(parent.path(), &Start::Resume(first.expect("a checkpoint")), stop_after(9)).unwrap_err();
    assert!(error.to_string().contains("a precision of fp32, but this run has bf16"), "{error}");
}

/// Produces the figure of `bench/results/reliability.md`: a run is stopped at each of its steps in turn, and the next
/// session uses other threads and levers.
#[test]
#[ignore = "evidence at scale, minutes: `cargo test -p plimsoll-train --test runs -- --ignored --nocapture evidence`"]
fn evidence_of_resumes() {
    let mut points = 0;
    for (family, setup) in families() {
        for seed in [7, 8, 9] {
            let setup = Setup { seed, steps: 30, ..setup.clone() };
            let parent = tempfile::tempdir().expect("a temporary folder");
            let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
            for point in 0..setup.steps {
                let what = format!("{family}, seed {seed}, stopped after {point}");
                let folder = parent.path().join(format!("{point}"));
                let (_, _, checkpoint) = setup.run(&folder, &Start::Fresh, stop_after(point));
                let level = [Level::None, Level::Cheap, Level::Attention, Level::Block][point as usize % 4];
                let optimizer_offload = (point % 3) as f64 / 2.0;
                let levers = Levers { recompute: Recompute::all(level), optimizer_offload, ..setup.levers };
                let other = Setup { threads: 1 + point as usize % 3, levers, ..setup.clone() };
                let resumed = other.run(&folder, &Start::Resume(checkpoint.expect("saved")), stop_after(u64::MAX));
                assert_same_run(&what, &setup, &resumed, &whole);
                fs::remove_dir_all(folder).expect("it was there");
                points += 1;
            }
        }
    }
    println!("evidence: {points} points");
    assert!(points >= 500, "{points}");
}
