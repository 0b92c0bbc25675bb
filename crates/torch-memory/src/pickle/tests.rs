//! Every instruction from hand-written bytes, refusals, and mutations of complete pickles.

use super::*;
use proptest::prelude::*;

fn whole(bytes: &[u8]) -> Document<'_> {
    read(bytes).unwrap_or_else(|error| panic!("{error}"))
}

/// Python's `repr` of a value.
fn repr(document: &Document, value: Value) -> String {
    let list = |value| document.items(value).unwrap().iter().map(|item| repr(document, *item)).collect::<Vec<_>>();
    match value {
        Value::None => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::HugeInt => "huge".to_owned(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(_) => format!("{:?}", document.text(value).unwrap()),
        Value::Bytes => "bytes".to_owned(),
        Value::List(_) => format!("[{}]", list(value).join(", ")),
        Value::Tuple(_) => format!("({})", list(value).join(", ")),
        Value::Dict(_) => {
            let entry = |(key, item): &(Value, Value)| format!("{}: {}", repr(document, *key), repr(document, *item));
            format!("{{{}}}", document.entries(value).unwrap().iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

#[track_caller]
fn check(bytes: &[u8], expected: &str) {
    let document = whole(bytes);
    assert_eq!(repr(&document, document.root()), expected);
}

/// The output of CPython's `pickle.dumps([{'a': 1, 'b': (True, None, 2.5)}, 'a', 140632496537600, -3, 70000],
/// protocol)`.
const BY_PYTHON: [&[u8]; 3] = [
    b"(lp0\n(dp1\nVa\np2\nI1\nsVb\np3\n(I01\nNF2.5\ntp4\nsag2\naL140632496537600L\naI-3\naI70000\na.",
    b"\x80\x02]q\x00(}q\x01(X\x01\x00\x00\x00aq\x02K\x01X\x01\x00\x00\x00bq\x03\x88NG@\x04\x00\x00\x00\x00\x00\x00\x87q\x04uh\x02\x8a\x06\x00\x00\x00\x8e\xe7\x7fJ\xfd\xff\xff\xffJp\x11\x01\x00e.",
    b"\x80\x05\x954\x00\x00\x00\x00\x00\x00\x00]\x94(}\x94(\x8c\x01a\x94K\x01\x8c\x01b\x94\x88NG@\x04\x00\x00\x00\x00\x00\x00\x87\x94uh\x02\x8a\x06\x00\x00\x00\x8e\xe7\x7fJ\xfd\xff\xff\xffJp\x11\x01\x00e.",
];

#[test]
fn pythons_output_in_each_protocol_is_read() {
    for bytes in BY_PYTHON {
        check(bytes, "[{\"a\": 1, \"b\": (True, None, 2.5)}, \"a\", 140632496537600, -3, 70000]");
    }
}

#[test]
fn numbers_of_every_width() {
    check(b"\x80\x02\x8a\x00.", "0");
    check(b"\x80\x02\x8a\x01\xff.", "-1");
    check(b"\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", "9223372036854775807");
    check(b"\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", "-9223372036854775808");
    check(b"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.", "huge");
    check(b"\x80\x02\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\x00.", "1");
    check(b"\x80\x02\x8b\x01\x00\x00\x00\x05.", "5");
    check(b"L-12L\n.", "-12");
    check(b"I99999999999999999999\n.", "huge");
    check(b"F1e3\n.", "1000.0");
    check(b"\x80\x02M\xff\xff.", "65535");
}

#[test]
fn texts_bytes_and_containers_of_every_kind() {
    check(b"S'x'\n.", "\"x\"");
    check(b"\x80\x02T\x01\x00\x00\x00x.", "\"x\"");
    check(b"\x80\x02U\x01x.", "\"x\"");
    check(b"\x80\x04\x8d\x01\x00\x00\x00\x00\x00\x00\x00x.", "\"x\"");
    check(b"\x80\x03B\x01\x00\x00\x00xC\x01y\x86.", "(bytes, bytes)");
    check(b"\x80\x05\x8e\x01\x00\x00\x00\x00\x00\x00\x00x0\x96\x01\x00\x00\x00\x00\x00\x00\x00x.", "bytes");
    check(b"\x80\x02(K\x01K\x02d.", "{1: 2}");
    check(b"\x80\x02)}\x86.", "((), {})");
    check(b"\x80\x02]K\x07a2\x86.", "([7], [7])");
    check(b"\x80\x02K\x01\x85(K\x051.", "(1)");
    check(b"\x80\x04N(0.", "None");
    check(b"\x80\x02K\x01q\x05r\x02\x00\x00\x000h\x05j\x02\x00\x00\x00\x86.", "(1, 1)");
}

#[track_caller]
fn refuse(bytes: &[u8], expected: &str) {
    assert_eq!(read(bytes).unwrap_err().to_string(), expected);
}

#[test]
fn pickles_that_import_call_or_construct_are_refused() {
    refuse(
        b"cos\nsystem\n(S'ls'\ntR.",
        "it is not plain data: at byte 0 it asks to import os.system, which is refused",
    );
    refuse(
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
        "it is not plain data: at byte 17 it asks to import posix.system, which is refused",
    );
    refuse(b"\x80\x04NN\x93.", "it is not plain data: at byte 4 it asks to import ?.?, which is refused");
    for code in [b'R', b'o', b'b', b'P', b'Q', 0x81, 0x82, 0x83, 0x84, 0x8f, 0x90, 0x91, 0x92, 0x97, 0x98] {
        let error = read(&[0x80, 4, b'N', b'N', b'(', code, 1, 0, 0, 0, b'\n', b'.']).unwrap_err();
        assert!(matches!(error, PickleError::NotPlain { at: 5, .. }), "{code:02x}: {error}");
    }
}

#[test]
fn invalid_pickles_are_refused() {
    refuse(b"", "it is truncated: it ends at byte 0, inside the pickle");
    refuse(b"PK\x03\x04", "it is not a pickle: its first byte is 0x50");
    refuse(b"\x80\x09.", "it uses pickle protocol 9; protocols 0 to 5 are supported");
    refuse(b"\x80\x02\xfe", "it is damaged: byte 2 is 0xfe, which is not a pickle instruction");
    refuse(b"\x80\x02.", "it is damaged: the instruction at byte 2 lacks its operands");
    refuse(b"\x80\x02h\x07.", "it is damaged: the instruction at byte 2 fetches a value that was never stored");
    refuse(b"\x80\x02NNa.", "it is damaged: the instruction at byte 4 adds to a value that is not a container");
    refuse(b"\x80\x02}(Nu.", "it is damaged: the instruction at byte 5 sets a key without a value");
    refuse(b"\x80\x02N(\x85.", "it is damaged: the instruction at byte 4 lacks its operands");
    refuse(b"Ix\n.", "it is damaged: the instruction at byte 0 has an invalid number");
}

/// Stated lengths are limited by the remaining bytes, and memo indices by the entries stored.
#[test]
fn lengths_and_indices_out_of_range_cost_no_memory() {
    refuse(b"\x80\x02X\xff\xff\xff\xffab", "it is truncated: it ends at byte 9, inside the pickle");
    refuse(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffab", "it is truncated: it ends at byte 13, inside the pickle");
    refuse(
        b"\x80\x02Nr\xff\xff\xff\xff.",
        "it is damaged: the instruction at byte 3 stores to an index that is out of range",
    );
    refuse(b"N(p99999999999\n.", "it is damaged: the instruction at byte 2 lacks its operands");
}

/// Nesting would overflow the stack of a recursive reader or a recursive drop.
#[test]
fn a_million_nested_lists_are_read_and_dropped() {
    let mut bytes = vec![b']'; 1_000_000];
    bytes.extend([b'a'; 999_999]);
    bytes.push(b'.');
    let document = whole(&bytes);
    assert_eq!(document.items(document.root()).unwrap().len(), 1);
}

/// A few bytes of gzip can unpack to any number of lists: they are counted, and memory stays bounded.
#[test]
fn too_many_values_are_refused() {
    let lists = vec![b']'; (1 << 23) + 2];
    assert_eq!(read(&lists).unwrap_err(), PickleError::TooManyValues { limit: 1 << 23 });
    let values = vec![b'N'; (1 << 25) + 2];
    assert_eq!(read(&values).unwrap_err(), PickleError::TooManyValues { limit: 1 << 25 });
    let marks = vec![b'('; (1 << 25) + 2];
    assert_eq!(read(&marks).unwrap_err(), PickleError::TooManyValues { limit: 1 << 25 });
    assert!(matches!(read(&vec![b'N'; (1 << 28) + 1]), Err(PickleError::TooLong { .. })));
}

/// Forty lists that each contain the previous one twice: 2^40 values for a reader that copies shared values.
#[test]
fn shared_values_are_not_copied() {
    let mut bytes = vec![b']'];
    for _ in 0..40 {
        bytes.extend(b"2\x86");
    }
    bytes.push(b'.');
    assert_eq!(whole(&bytes).lists.len(), 41);
    // A list that contains itself.
    assert_eq!(whole(b"\x80\x02]2a.").lists, [[Value::List(0)]]);
}

#[test]
fn every_truncation_is_an_error() {
    for bytes in BY_PYTHON {
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "cut at {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 16))]

    #[test]
    fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let mut framed = vec![0x80, 4];
        framed.extend(bytes);
        let _ = read(&framed);
    }

    #[test]
    fn no_mutation_of_a_pickle_causes_a_panic(
        which in 0..3usize,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let mut bytes = BY_PYTHON[which].to_vec();
        for (place, byte, kind) in edits {
            let place = place.index(bytes.len());
            match kind {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                _ => drop(bytes.remove(place)),
            }
            if bytes.is_empty() {
                break;
            }
        }
        let _ = read(&bytes);
    }
}
