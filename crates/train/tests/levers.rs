//! Levers change bytes and time, never the result.

mod support;

use graph::TrainShape;
use graph::models::Gpt2Config;
use plan::Recompute;
use support::{GLOBAL_BATCH, Setup, assert_close, bits};

/// Where only the order of a sum changes, losses may differ by this, relatively.
const ROUNDING: f64 = 1e-5;

/// Long enough for a difference to grow.
fn run_of(shape: TrainShape) -> Setup {
    Setup { shape, steps: 20, ..Setup::default() }
}

fn shape_of(micro_batch: usize) -> TrainShape {
    TrainShape { micro_batch, accumulates: micro_batch < GLOBAL_BATCH, ..Setup::default().shape }
}

fn assert_equal_to_rounding(what: &str, found: &[f64], expected: &[f64]) {
    for (step, (f, e)) in found.iter().zip(expected).enumerate() {
        assert_close(&format!("{what}, step {step}"), &[*f], &[*e], ROUNDING * e);
    }
}

#[test]
fn invariant_5_levers_the_micro_batch_does_not_change_the_losses() {
    let whole = run_of(shape_of(GLOBAL_BATCH)).losses();
    assert!(whole[19] < 0.9 * whole[0], "nothing is learnt: {whole:?}");
    for micro_batch in [1, 2, 4] {
        let losses = run_of(shape_of(micro_batch)).losses();
        assert_equal_to_rounding(&format!("micro-batch {micro_batch}"), &losses, &whole);
    }
}

#[test]
fn invariant_5_levers_the_head_chunk_does_not_change_the_losses() {
    let rows = 4 * 16;
    let whole = run_of(TrainShape { head_chunk: rows, ..shape_of(4) }).losses();
    for head_chunk in [1, 7, 32, 10 * rows] {
        let losses = run_of(TrainShape { head_chunk, ..shape_of(4) }).losses();
        assert_equal_to_rounding(&format!("head chunk {head_chunk}"), &losses, &whole);
    }
}

#[test]
fn invariant_5_levers_recomputing_does_not_change_a_bit() {
    for micro_batch in [4, GLOBAL_BATCH] {
        let [kept, made_again] = [Recompute::None, Recompute::Cheap].map(|recompute| {
            let biased = Setup { recompute, ..run_of(shape_of(micro_batch)) };
            let bare = Setup { model: Gpt2Config { bias: false, ..biased.model.clone() }, ..biased.clone() };
            (bits(&biased.losses()), bits(&bare.losses()), biased.plan().1.peak_bytes)
        });
        assert_eq!((made_again.0, made_again.1), (kept.0, kept.1), "micro-batch {micro_batch}");
        assert!(made_again.2 < kept.2, "recomputing saves nothing: {} of {}", made_again.2, kept.2);
    }
}

#[test]
fn invariant_5_levers_threads_do_not_change_a_bit() {
    // Wide enough that kernels do share their work out.
    let model = Gpt2Config { n_embd: 96, vocab_size: 300, ..Setup::default().model };
    let wide = Setup { model, ..run_of(shape_of(GLOBAL_BATCH)) };
    let one = wide.losses();
    for threads in [2, 3] {
        assert_eq!(bits(&Setup { threads, ..wide.clone() }.losses()), bits(&one), "{threads} threads");
    }
}

#[test]
fn invariant_5_levers_what_else_is_in_the_plan_does_not_change_a_bit() {
    let with = |evaluates, sample_prefill, eval_every| {
        let setup = run_of(TrainShape { evaluates, sample_prefill, ..shape_of(4) });
        bits(&Setup { eval_every, ..setup }.losses())
    };
    let all = with(true, Some(8), Some(3));
    for (evaluates, sample_prefill, eval_every) in
        [(false, None, None), (false, Some(1), Some(1)), (true, None, None), (true, Some(16), Some(1))]
    {
        assert_eq!(with(evaluates, sample_prefill, eval_every), all, "{evaluates} {sample_prefill:?} {eval_every:?}");
    }
}

/// The others would prove nothing if dropout were off or drew from nothing.
#[test]
fn the_seed_does_change_the_losses() {
    let setup = run_of(shape_of(4));
    let other_seed = Setup { seed: 8, ..setup.clone() };
    let no_dropout = Setup { model: Gpt2Config { attn_pdrop: 0.0, ..setup.model.clone() }, ..setup.clone() };
    let losses = setup.losses();
    assert_ne!(bits(&losses), bits(&other_seed.losses()));
    assert_ne!(bits(&losses), bits(&no_dropout.losses()));
}
