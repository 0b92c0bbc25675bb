//! The CSV reader: accepted text, error messages, and no panic for any input.

use crate::{Buffer, CsvProblem, Problem, Solution, read_csv, write_csv};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn refuses(text: &str, expected: Expect) {
    expected.assert_eq(&read_csv(text).expect_err("this text is invalid").to_string());
}

fn two_buffers() -> CsvProblem {
    let buffers = vec![Buffer::new(0, 3, 4), Buffer::new(3, 9, 16)];
    CsvProblem { ids: vec!["a".into(), "b".into()], problem: Problem { buffers, alignment: 1 } }
}

#[test]
fn reads_files_of_the_benchmark() {
    for text in [
        "id,lower,upper,size\na,0,3,4\nb,3,9,16\n",
        "id,lower,upper,size\na,0,3,4\nb,3,9,16",
        "id,lower,upper,size\r\na,0,3,4\r\nb,3,9,16\r\n\r\n",
        "\u{feff}id,lower,upper,size\na,0,3,4\nb,3,9,16",
        "size, offset, id, upper, lower\n4,7,a,3,0\n16,none,b,9,3\n",
    ] {
        assert_eq!(read_csv(text), Ok(two_buffers()), "{text:?}");
    }
}

#[test]
fn a_header_alone_is_an_empty_problem() {
    assert_eq!(read_csv("id,lower,upper,size\n").unwrap().problem.buffers, []);
}

#[test]
fn writes_the_offsets() {
    let solution = Solution { offsets: vec![8, 0], peak: 16 };
    expect![[r#"
        id,lower,upper,size,offset
        a,0,3,4,8
        b,3,9,16,0
    "#]]
    .assert_eq(&write_csv(&two_buffers(), Some(&solution)).unwrap());
    expect![[r#"
        id,lower,upper,size
        a,0,3,4
        b,3,9,16
    "#]]
    .assert_eq(&write_csv(&two_buffers(), None).unwrap());
    let mut csv = two_buffers();
    csv.ids[1] = "b,c".into();
    expect!["line 3, column 1 (id): found the id `b,c`, expected one without commas, quotes, line breaks or surrounding blanks"].assert_eq(&write_csv(&csv, None).unwrap_err().to_string());
}

#[test]
fn rejects_a_bad_header() {
    refuses("", expect!["line 1, column 1: found an empty file, expected the header `id,lower,upper,size`"]);
    refuses("\n \n", expect!["line 1, column 1: found an empty file, expected the header `id,lower,upper,size`"]);
    refuses(
        "id,lower,size\na,0,4\n",
        expect!["line 1: found the header `id,lower,size`, expected a column `upper` in it"],
    );
    refuses(
        "id,lower,upper,size,lower\n",
        expect!["line 1, column 5 (lower): found a second column of this name, expected only column 2 to have it"],
    );
    refuses(
        "\"id\",lower,upper,size\n",
        expect![[r#"line 1, column 1: found a quote in `"id"`, expected plain fields (this format has no quoting)"#]],
    );
}

#[test]
fn rejects_a_bad_line() {
    let refuses = |line: &str, expected| refuses(&format!("id,lower,upper,size\na,0,3,4\n{line}\n"), expected);
    refuses("b,0,3", expect!["line 3, column 3: found 3 field(s), expected 4 as in the header"]);
    refuses("b,0,3,4,5", expect!["line 3, column 5: found 5 field(s), expected 4 as in the header"]);
    refuses(
        "b,0,3,\"4\"",
        expect![[
            r#"line 3, column 4 (size): found a quote in `"4"`, expected plain fields (this format has no quoting)"#
        ]],
    );
    refuses("b,zero,3,4", expect!["line 3, column 2 (lower): found `zero`, expected a whole number"]);
    refuses("b,0,,4", expect!["line 3, column 3 (upper): found ``, expected a whole number"]);
    refuses("b,0,3,4.5", expect!["line 3, column 4 (size): found `4.5`, expected a whole number"]);
    refuses("b,0,3,-4", expect!["line 3, column 4 (size): found `-4`, expected a number that is not negative"]);
    refuses(
        "b,0,3,18446744073709551616",
        expect![
            "line 3, column 4 (size): found `18446744073709551616`, expected a number of at most 64 bits (18446744073709551615)"
        ],
    );
    refuses("b,5,3,4", expect!["line 3, column 3 (upper): found the end 3, expected no less than the start 5"]);
    refuses("a,0,3,4", expect!["line 3, column 1 (id): found the id `a` again, expected it only on line 2"]);
    refuses(
        "b,0,3,9223372036854775804",
        expect![
            "line 3, column 4 (size): found 9223372036854775804 bytes after 4, expected at most 9223372036854775807 bytes in all"
        ],
    );
    refuses("\nb,0,3,4", expect!["line 3, column 1: found 1 field(s), expected 4 as in the header"]);
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC*|[0-9,a-z\" \r\n-]*|id,lower,upper,size\n([0-9a]{0,3},[0-9]{0,2},[0-9-]{0,20},[0-9]{0,20}\r?\n)*") {
        let _ = read_csv(&text);
    }

    #[test]
    fn written_text_reads_back_unchanged(rows in prop::collection::vec((0u64..1 << 60, 0u64..1 << 60, 0u64..1 << 50), 0..40)) {
        let buffers = rows.iter().map(|&(lower, length, size)| Buffer::new(lower, lower + length, size));
        let ids = (0..rows.len()).map(|i| format!("tensor {i}")).collect();
        let csv = CsvProblem { ids, problem: Problem { buffers: buffers.collect(), alignment: 1 } };
        let solution = Solution { offsets: rows.iter().map(|row| row.2).collect(), peak: 0 };
        prop_assert_eq!(&read_csv(&write_csv(&csv, None).unwrap()).unwrap(), &csv);
        prop_assert_eq!(&read_csv(&write_csv(&csv, Some(&solution)).unwrap()).unwrap(), &csv);
    }
}
