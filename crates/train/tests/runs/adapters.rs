//! What adapters compute that no golden file has.

use crate::support::{adapted, assert_close};
use plimsoll_graph::{Adapters, TrainShape};

/// Adapters that are not trained yet add nothing, so that what dropout leaves of their inputs does not matter.
#[test]
fn dropout_of_untrained_adapters_with_magnitudes_changes_no_loss() {
    let find = |(family, setup)| (family == "Llama with magnitudes and dropout").then_some(setup);
    let dropped = adapted().into_iter().find_map(find).expect("such a run");
    let mut whole = dropped.clone();
    let adapters = dropped.shape.adapters.clone().map(|adapters| Adapters { dropout: 0.0, ..adapters });
    whole.shape = TrainShape { adapters, ..whole.shape };
    let [dropped, whole] = [dropped, whole].map(|setup| setup.losses());
    assert_close("the first loss", &dropped[..1], &whole[..1], 1e-5 * whole[0]);
    let largest = dropped.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(largest > 1e-4, "trained adapters have dropout");
}
