//! Noise on the embeddings of tokens: which programs have it, and where.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{
    AdapterSettings, AdapterTargets, Adapters, Graph, Node, Objective, Op, Optimizer, Preferences, ProgramKind,
    TrainShape, build_training,
};

fn built(model: &ModelConfig, objective: Objective, adapters: Option<Adapters>) -> Graph {
    let objective = Objective { embedding_noise: Some(5.0), ..objective };
    let sample_prefill = objective.preferences.is_none().then_some(4);
    let shape = TrainShape {
        seq_len: 8,
        target_len: model.takes_pairs().then_some(8),
        head_chunk: 8,
        evaluates: true,
        objective,
        sample_prefill,
        adapters,
        ..TrainShape::default()
    };
    build_training(model, &Optimizer::default(), &shape).expect("a sensible model")
}

fn noise(graph: &Graph, program: ProgramKind) -> Vec<&Node> {
    let nodes = &graph.program(program).expect("a program of the run").nodes;
    nodes.iter().filter(|node| matches!(node.op, Op::UniformNoise(_))).collect()
}

#[test]
fn only_training_has_noise_and_each_embedding_its_own() {
    for (name, expected) in [("nano", 1), ("t5-small", 2)] {
        let model = ModelConfig::preset(name).expect("a preset");
        for (r_drop, passes) in [(None, 1), (Some(1.0), 2)] {
            let graph = built(&model, Objective { r_drop, ..Objective::default() }, None);
            let found = noise(&graph, ProgramKind::MicroStep);
            let mut sites = found.iter().map(|node| format!("{:?}", node.op)).collect::<Vec<_>>();
            sites.sort();
            sites.dedup();
            assert_eq!((found.len(), sites.len()), (passes * expected, passes * expected), "{name}: {sites:?}");
            // Alpha over √(8 tokens · C channels).
            let channels = graph.tensors[found[0].outputs[0].index()].ty.columns() as f32;
            let amplitudes = found.iter().map(|node| match node.op {
                Op::UniformNoise(noise) => noise.amplitude,
                _ => unreachable!("noise"),
            });
            let expected = 5.0 / (8.0 * channels).sqrt();
            assert!(amplitudes.into_iter().all(|found| (found - expected).abs() < 1e-6), "{name}: {sites:?}");
            for program in [ProgramKind::Evaluate, ProgramKind::Sample] {
                assert!(noise(&graph, program).is_empty(), "{name}: {program:?}");
            }
        }
    }
}

/// As in TRL, the reference reads embeddings without noise; as in transformers, noise is added after the adapter.
#[test]
fn a_reference_has_no_noise_and_an_adapted_embedding_has_it_last() {
    let model = ModelConfig::preset("smollm2-135m").expect("a preset");
    let targets = AdapterTargets::Named(vec!["embed_tokens".to_owned(), "q_proj".to_owned()]);
    let adapters = Adapters::of(&model, &AdapterSettings { targets, ..AdapterSettings::default() });
    let preferences = Objective { preferences: Some(Preferences::default()), ..Objective::default() };
    let graph = built(&model, preferences, Some(adapters.expect("layers of the model")));
    let [noise] = noise(&graph, ProgramKind::MicroStep)[..] else { panic!("noise of the policy alone") };
    let nodes = &graph.program(ProgramKind::MicroStep).expect("a program of the run").nodes;
    let before = nodes.iter().find(|node| node.outputs[0] == noise.inputs[0]).expect("an embedding");
    assert!(matches!(before.op, Op::LinearAdd(_)), "{before:?}");
}
