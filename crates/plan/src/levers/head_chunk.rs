//! How many rows of logits the head holds at a time.

/// Logits beyond this many bytes buy no speed: products are large enough long before.
const LOGITS_BYTES: usize = 52 << 20;

/// Rows of logits such that they take at most 52 MiB, at least 64 rows, in multiples of 16; all rows if they fit.
pub fn default_head_chunk(rows: usize, vocab_size: usize) -> usize {
    let fitting = LOGITS_BYTES / 4 / vocab_size.max(1);
    if fitting >= rows { rows } else { (fitting / 16 * 16).max(64).min(rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_heads_are_not_chunked_and_large_ones_stay_small() {
        assert_eq!(default_head_chunk(2048, 256), 2048);
        assert_eq!(default_head_chunk(1024, 50257), 256);
        assert_eq!(default_head_chunk(1024, 1 << 24), 64);
        assert_eq!(default_head_chunk(3, 1 << 24), 3);
    }
}
