//! The choices of routers where logits are equal or are not numbers, for the kernels of all devices.

use plimsoll_exec::cases::{Case, Noise, encode};
use plimsoll_exec::reference::Value;
use plimsoll_graph::ops::Route;
use plimsoll_graph::{DType, Example, Fill, Scalars, TensorType};

/// Of equal logits the lower indices are chosen first, and both zeros are equal. NaN is chosen before all numbers, so
/// that each token has different experts whatever its logits are, and its weights are NaN.
pub fn check_routes(results: impl Fn(&Case) -> Vec<Vec<u8>>) {
    const NAN: f32 = f32::NAN;
    let tokens = [
        ([1.0, 1.0, 1.0, 1.0], [0, 1, 2]),
        ([-NAN, 1.0, NAN, f32::INFINITY], [0, 2, 3]),
        ([-0.0, 0.0, f32::NEG_INFINITY, -1.0], [0, 1, 3]),
        ([NAN, NAN, NAN, NAN], [0, 1, 2]),
        ([-1.0, 2.0, 2.0, 3.0], [3, 1, 2]),
    ];
    let logits = tokens.iter().flat_map(|(logits, _)| *logits).collect::<Vec<_>>();
    let experts = tokens.iter().flat_map(|(_, experts)| *experts).collect::<Vec<_>>();
    for normalized in [false, true] {
        let example = Example {
            op: Route { experts_per_token: 3, normalized, sums: true }.into(),
            inputs: vec![(TensorType::f32(&[1, 5, 4]), Fill::Uniform)],
            state: Fill::Uniform,
            scalars: Scalars::default(),
        };
        let mut case = Case::new(&example, &mut Noise::new(1));
        case.inputs[0] = Value::Float(logits.clone());
        let found = results(&case);
        let integers = |values: &[i32]| encode(DType::I32, &values.iter().map(|&x| x as f32).collect::<Vec<_>>());
        assert!(found[1] == integers(&experts), "experts: {:?}", found[1]);
        assert!(found[2] == integers(&[0, 4, 8, 1, 9, 12, 2, 5, 13, 3, 6, 10, 14, 7, 11]), "places: {:?}", found[2]);
        assert!(found[3] == integers(&[0, 4, 8, 12, 15]), "bounds: {:?}", found[3]);
        let weights = found[0].as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect::<Vec<_>>();
        let is_nan = weights.iter().map(|weight| weight.is_nan()).collect::<Vec<_>>();
        let rows = [false, true, false, true, false].map(|is_nan| [is_nan; 3]).concat();
        assert_eq!(is_nan, rows, "{weights:?}");
        assert!((weights[0] - if normalized { 1.0 / 3.0 } else { 0.25 }).abs() < 1e-6, "{weights:?}");
    }
}
