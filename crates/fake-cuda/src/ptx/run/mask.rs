//! Masks of a warp's lanes.

/// The lanes of a mask.
pub(super) fn each(lanes: u32) -> impl Iterator<Item = usize> {
    let mut left = lanes;
    std::iter::from_fn(move || {
        let lane = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (lane < 32).then_some(lane)
    })
}
