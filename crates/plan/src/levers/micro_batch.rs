//! How many samples pass through the model at a time; the global batch is the user's and stays.

/// All divisors of `n`, ascending. `n` must be above zero.
pub fn divisors(n: usize) -> Vec<usize> {
    let mut low = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d)).collect::<Vec<_>>();
    let high = low.iter().rev().map(|d| n / d).filter(|d| d * d > n).collect::<Vec<_>>();
    low.extend(high);
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_are_complete_and_ascending() {
        for n in 1..500 {
            assert_eq!(divisors(n), (1..=n).filter(|d| n % d == 0).collect::<Vec<_>>());
        }
    }
}
