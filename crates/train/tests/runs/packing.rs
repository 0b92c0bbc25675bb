//! A packed row equals its documents: they do not affect each other, and each starts at position 0.

use crate::support::{families, plan_training};
use plimsoll_data::{Batch, PADDING_TARGET};
use plimsoll_graph::{Optimizer, ProgramKind, Scalars, TrainShape};
use plimsoll_plan::Levers;
use plimsoll_train::Engine;

const ROW: usize = 16;

/// A row with these documents and padding.
fn row_of(documents: &[&[i32]]) -> Batch {
    let (mut tokens, mut targets, mut segments) = (vec![], vec![], vec![]);
    for (document, number) in documents.iter().zip(1..) {
        tokens.extend_from_slice(document);
        targets.extend_from_slice(&document[1..]);
        targets.push(PADDING_TARGET);
        segments.extend(vec![number; document.len()]);
    }
    tokens.resize(ROW, 0);
    targets.resize(ROW, PADDING_TARGET);
    segments.resize(ROW, 0);
    Batch { rows: 1, source_len: ROW, tokens, targets, segments: Some(segments), ..Batch::default() }
}

#[test]
fn the_loss_of_a_packed_row_is_that_of_its_documents() {
    let documents: [&[i32]; 3] = [&[5, 9, 2, 7, 1], &[3, 3, 8], &[20, 4, 11, 30, 6, 2]];
    let packed = families().into_iter().filter(|(_, setup)| setup.shape.packed);
    let mut covered = 0;
    for (family, setup) in packed {
        let shape = TrainShape { micro_batch: 1, seq_len: ROW, packed: true, evaluates: true, ..setup.shape };
        let (graph, plan) = plan_training(&setup.model, &shape, &Optimizer::default(), &Levers::default(), 1, 1);
        let mut engine =
            Engine::new(Box::new(plimsoll_exec::CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
        engine.initialize(3).expect("a sound plan");
        let mut loss = |batch: &Batch| {
            let program = engine.run_batch(ProgramKind::Evaluate, batch, &Scalars::default()).expect("a sound plan");
            let port = engine.ports(program).loss.expect("there is a loss");
            f64::from(engine.read_one(port).expect("a loss is a number"))
        };
        let together = loss(&row_of(&documents));
        let apart = documents.iter().map(|document| loss(&row_of(&[document]))).sum::<f64>();
        assert!((together / apart - 1.0).abs() < 1e-5, "{family}: {together} together, {apart} apart");
        let others = loss(&row_of(&[&[40, 41, 42, 43, 44], documents[1], documents[2]]));
        assert!((others / together - 1.0).abs() > 1e-3, "{family}: the contents of a document make no difference");
        covered += 1;
    }
    assert_eq!(covered, 2, "families with packed rows");
}
