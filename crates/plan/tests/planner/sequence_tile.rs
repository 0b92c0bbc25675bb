//! Tiles of the sequence: used where nothing fits without them, and what they save.

use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{AdapterSettings, Adapters, DType, Op, Targets, WeightCodes};
use plimsoll_plan::{
    Budget, LeverRequest, Machine, Precision, Rates, Request, SequenceTile, can_fit, card, search, validate,
};
use plimsoll_units::Bytes;

/// A step of one long sample of Llama 3.2 1B with adapters over NF4, within mebibytes of an RTX 3060.
fn request(mib: u64, seq_len: usize, sequence_tile: Option<SequenceTile>) -> Request {
    let model = ModelConfig::preset("llama-3.2-1b").expect("a preset");
    let adapters = Adapters::of(&model, &AdapterSettings::default()).expect("layers that can have adapters");
    let machine = Machine::of_rates(Rates::of_card(card("3060").expect("a known card")));
    let levers = LeverRequest {
        precision: Precision::Bf16,
        base_weights: Some(WeightCodes::Nf4),
        sequence_tile,
        ..LeverRequest::default()
    };
    Request {
        seq_len,
        adapters: Some(adapters),
        budget: Budget::apart(Bytes::mib(mib), Bytes::gib(64)),
        levers,
        evaluates: true,
        sample_prefill: Some(32),
        ..Request::new(model, Targets::cuda((8, 6), 4), machine)
    }
}

/// Room for a step in tiles, and not for one without.
const FEW: u64 = 2560;
const LENGTH: usize = 1 << 15;
const TILED: Option<SequenceTile> = Some(SequenceTile::Rows(2048));

#[test]
fn tiles_are_chosen_only_where_nothing_fits_without() {
    let whole = search(&request(8 << 10, LENGTH, None)).expect("a sensible request").expect("it fits");
    assert_eq!(whole.settings.levers.sequence_tile, None);
    let off = search(&request(FEW, LENGTH, Some(SequenceTile::Off))).expect("a sensible request");
    let Err(misfit) = off else { panic!("all rows at a time take more") };
    let tile = misfit.nearest.iter().find(|nearest| nearest.changes[0].setting == "sequence-tile");
    assert_eq!(tile.map(|nearest| nearest.changes[0].value.as_str()), Some("2048"), "{:?}", misfit.nearest);
    assert!(can_fit(&request(FEW, LENGTH, None)).expect("a sensible request"));
    let tiled = search(&request(FEW, LENGTH, None)).expect("a sensible request").expect("it fits in tiles");
    assert_eq!(tiled.settings.levers.sequence_tile, Some(2048));
    assert_eq!(validate(&tiled.plan), Ok(()));
    // Samples of one tile have nothing to gain.
    let short = search(&request(1 << 10, 2048, None)).expect("a sensible request");
    assert!(short.map_or(true, |found| found.settings.levers.sequence_tile.is_none()));
}

/// The feed-forward layers exist for one tile only, with their weights in codes.
#[test]
fn the_widest_tensors_are_those_of_a_tile() {
    let width = 8192;
    for (tile, is_tiled) in [(Some(SequenceTile::Off), false), (TILED, true)] {
        let found = search(&request(64 << 10, LENGTH, tile)).expect("a sensible request").expect("it fits");
        let widest = |ty: &plimsoll_graph::TensorType| ty.rows() == LENGTH && ty.columns() == width;
        let nodes = found.graph.programs.iter().flat_map(|program| &program.nodes);
        let made = nodes.clone().flat_map(|node| &node.outputs).any(|&id| widest(&found.graph[id].ty));
        assert_eq!(made, !is_tiled);
        let chains = nodes.filter_map(|node| match &node.op {
            Op::ByRows(op) => Some((node, &op.chain)),
            Op::ByRowsGrad(op) => Some((node, &op.first)),
            _ => None,
        });
        let chains = chains.collect::<Vec<_>>();
        // In each of 16 blocks: a forward and a backward pass, and one of evaluation.
        assert_eq!(chains.len(), if is_tiled { 48 } else { 0 });
        for (node, chain) in chains {
            let codes = node.inputs.iter().filter(|&&id| found.graph[id].ty.dtype == DType::U8).count();
            assert!(codes >= 4, "the output projection, and the three matrices of the feed-forward layer");
            assert_eq!(node.inputs.len(), chain.has_rows.len());
        }
    }
}
