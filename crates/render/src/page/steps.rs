//! Distances between the ticks of axes.

/// The power of two that cuts `ceiling` into no more than `most` parts.
pub(crate) fn byte_step(ceiling: u64, most: u64) -> u64 {
    (ceiling / most.max(1)).max(1).next_power_of_two()
}

/// The 1, 2 or 5 times a power of ten that cuts `count` into no more than `most` parts.
pub(crate) fn decimal_step(count: usize, most: usize) -> usize {
    let mut power = 1;
    loop {
        if let Some(step) = [1, 2, 5].map(|n| n * power).into_iter().find(|step| count <= step * most) {
            return step;
        }
        power *= 10;
    }
}
