//! Counts the values in the rows of a page from their repetition levels: level 0 begins a row.
//! Source: parquet-format, Encodings.md, "Run Length Encoding / Bit-Packing Hybrid".

use super::header::varint;

/// Maximum values of a row in one column: enough for the messages of a chat, not for the pixels of an image.
pub(super) const ROW_VALUES_MAX: u64 = 1 << 16;

/// Counts on from `in_row` values of the row in progress. `level_max`: the largest level. Returns the number of values
/// in the last row; `None` if a row exceeds the limit, or if the levels end too early.
pub(super) fn values_of_last_row(levels: &[u8], level_max: i16, values: u32, in_row: u64) -> Option<u64> {
    let width = u32::from(level_max.cast_unsigned()).checked_ilog2().map_or(0, |log| log + 1) as usize;
    let (mut at, mut left, mut in_row) = (0, u64::from(values), in_row);
    while left > 0 {
        let run = varint(levels, &mut at)?;
        let mut count = |level: u64, times: u64| {
            in_row = if level == 0 { 1 } else { in_row.saturating_add(times) };
            (in_row <= ROW_VALUES_MAX).then_some(())
        };
        if run & 1 == 0 {
            let bytes = levels.get(at..at + width.div_ceil(8))?;
            at += bytes.len();
            let level = bytes.iter().rev().fold(0, |level, &byte| level << 8 | u64::from(byte));
            let times = (run >> 1).min(left);
            count(level, times)?;
            left -= times;
        } else {
            let groups = usize::try_from(run >> 1).ok()?;
            let end = groups.checked_mul(width)?.checked_add(at)?.min(levels.len());
            let packed = &levels[at..end];
            at = end;
            let times = ((packed.len() * 8 / width.max(1)) as u64).min(left);
            if times == 0 {
                return None;
            }
            for value in 0..times as usize {
                let bits = value * width..(value + 1) * width;
                let level = bits.rev().fold(0, |level, bit| level << 1 | u64::from(packed[bit / 8] >> (bit % 8) & 1));
                count(level, 1)?;
            }
            left -= times;
        }
    }
    Some(in_row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows_are_counted_over_runs_and_packed_levels() {
        // 0 1 1 0 1 0 0 1, packed; then seven times 1.
        let levels = [3, 0b1001_0110, 14, 1];
        assert_eq!(values_of_last_row(&levels, 1, 8, 0), Some(2));
        assert_eq!(values_of_last_row(&levels, 1, 15, 0), Some(9));
        assert_eq!(values_of_last_row(&levels, 1, 16, 0), None, "the levels end");
        assert_eq!(values_of_last_row(&[14, 1], 1, 7, 3), Some(10));
    }

    #[test]
    fn a_run_of_millions_is_too_long_a_row() {
        // 2^30 times level 1.
        let levels = [0x80, 0x80, 0x80, 0x80, 8, 1];
        assert_eq!(values_of_last_row(&levels, 1, 1 << 30, 1), None);
        assert_eq!(values_of_last_row(&levels, 1, 1000, 1), Some(1001));
        assert_eq!(values_of_last_row(&[0x80, 0x80, 0x80, 0x80, 8, 0], 1, 1 << 30, 1), Some(1), "rows of one value");
    }

    proptest! {
        #[test]
        fn any_levels_are_counted_or_refused(levels in proptest::collection::vec(any::<u8>(), 0..40), max in 0i16..9, values in 0u32..99999) {
            let _ = values_of_last_row(&levels, max, values, 0);
        }
    }
}
