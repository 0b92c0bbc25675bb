//! The validator's violations and their messages.

use crate::{Buffer, Problem, Solution, validate};
use expect_test::{Expect, expect};

/// ```text
///   24 |     +--c--+
///   16 |  +--+--+--+        a = [0, 4), b = [2, 8), c = [3, 6), and d, which takes no room
///    8 |  +-----b--+
///    0 +--+-a-+-------
/// ```
fn problem() -> Problem {
    let buffers = vec![Buffer::new(0, 4, 8), Buffer::new(2, 8, 7), Buffer::new(3, 6, 5), Buffer::new(3, 3, 9)];
    Problem { buffers, alignment: 8 }
}

fn check(offsets: &[u64], peak: u64, capacity: Option<u64>, expected: Expect) {
    let solution = Solution { offsets: offsets.to_vec(), peak };
    let text = match validate(&problem(), &solution, capacity) {
        Ok(()) => "ok".to_owned(),
        Err(violation) => violation.to_string(),
    };
    expected.assert_eq(&text);
}

#[test]
fn a_packing_is_accepted() {
    check(&[0, 8, 16, 0], 24, None, expect!["ok"]);
    check(&[0, 8, 16, 0], 24, Some(24), expect!["ok"]);
    check(&[0, 8, 16, 8000], 24, Some(24), expect!["ok"]);
}

#[test]
fn a_clash_names_both() {
    check(
        &[0, 0, 16, 0],
        24,
        None,
        expect!["buffers 0 and 1 clash: 0 is live in [0, 4) at bytes [0, 8), 1 is live in [2, 8) at bytes [0, 8)"],
    );
    check(
        &[16, 8, 8, 0],
        24,
        None,
        expect!["buffers 1 and 2 clash: 1 is live in [2, 8) at bytes [8, 16), 2 is live in [3, 6) at bytes [8, 16)"],
    );
}

#[test]
fn other_violations() {
    check(&[0, 8, 16], 24, None, expect!["the solution has 3 offsets for 4 buffers"]);
    check(&[0, 8, 17, 0], 24, None, expect!["buffer 2 is at offset 17, which is not a multiple of 8"]);
    check(&[0, 8, 16, 1], 24, None, expect!["buffer 3 is at offset 1, which is not a multiple of 8"]);
    check(&[0, 8, 16, 0], 24, Some(23), expect!["buffer 2 ends at 24, over the capacity of 23 bytes by 1"]);
    check(&[0, 8, 16, 0], 21, None, expect!["the solution gives its peak as 21 bytes, but its buffers reach 24"]);
    check(
        &[0, 8, u64::MAX - 7, 0],
        24,
        None,
        expect!["buffer 2 of 5 bytes at offset 18446744073709551608 ends beyond 64 bits"],
    );
}

#[test]
fn alignment_0_is_a_violation() {
    let solution = Solution { offsets: vec![0], peak: 5 };
    let problem = Problem { buffers: vec![Buffer::new(0, 1, 5)], alignment: 0 };
    expect!["the problem's alignment is 0, expected at least 1 byte"]
        .assert_eq(&validate(&problem, &solution, None).unwrap_err().to_string());
}
