//! Every instruction by hand-written bytes, refusals, and mutations of whole pickles.

use super::*;
use proptest::prelude::*;

fn whole(bytes: &[u8]) -> Document<'_> {
    read(bytes).unwrap_or_else(|error| panic!("{error}"))
}

/// Python's `repr` of a value, so that a test shows what was read.
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

/// `pickle.dumps([{'a': 1, 'b': (True, None, 2.5)}, 'a', 140632496537600, -3, 70000], protocol)`, as CPython writes it.
const BY_PYTHON: [&[u8]; 3] = [
    b"(lp0\n(dp1\nVa\np2\nI1\nsVb\np3\n(I01\nNF2.5\ntp4\nsag2\naL140632496537600L\naI-3\naI70000\na.",
    b"\x80\x02]q\x00(}q\x01(X\x01\x00\x00\x00aq\x02K\x01X\x01\x00\x00\x00bq\x03\x88NG@\x04\x00\x00\x00\x00\x00\x00\x87q\x04uh\x02\x8a\x06\x00\x00\x00\x8e\xe7\x7fJ\xfd\xff\xff\xffJp\x11\x01\x00e.",
    b"\x80\x05\x954\x00\x00\x00\x00\x00\x00\x00]\x94(}\x94(\x8c\x01a\x94K\x01\x8c\x01b\x94\x88NG@\x04\x00\x00\x00\x00\x00\x00\x87\x94uh\x02\x8a\x06\x00\x00\x00\x8e\xe7\x7fJ\xfd\xff\xff\xffJp\x11\x01\x00e.",
];

#[test]
fn what_python_writes_in_each_protocol_is_read() {
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
fn nothing_is_imported_called_or_built() {
    refuse(
        b"cos\nsystem\n(S'ls'\ntR.",
        "it is no plain data: at byte 0 it asks to import os.system, which is not done",
    );
    refuse(
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93.",
        "it is no plain data: at byte 17 it asks to import posix.system, which is not done",
    );
    refuse(b"\x80\x04NN\x93.", "it is no plain data: at byte 4 it asks to import ?.?, which is not done");
    for code in [b'R', b'o', b'b', b'P', b'Q', 0x81, 0x82, 0x83, 0x84, 0x8f, 0x90, 0x91, 0x92, 0x97, 0x98] {
        let error = read(&[0x80, 4, b'N', b'N', b'(', code, 1, 0, 0, 0, b'\n', b'.']).unwrap_err();
        assert!(matches!(error, PickleError::NotPlain { at: 5, .. }), "{code:02x}: {error}");
    }
}

#[test]
fn what_is_no_pickle_is_refused() {
    refuse(b"", "it is cut off: it ends at byte 0, inside the pickle");
    refuse(b"PK\x03\x04", "it is not a pickle: its first byte is 0x50");
    refuse(b"\x80\x09.", "it is a pickle of protocol 9, and protocols 0 to 5 are read");
    refuse(b"\x80\x02\xfe", "it is damaged: byte 2 is 0xfe, which is no instruction of a pickle");
    refuse(b"\x80\x02.", "it is damaged: the instruction at byte 2 lacks its operands");
    refuse(b"\x80\x02h\x07.", "it is damaged: the instruction at byte 2 fetches what was never stored");
    refuse(b"\x80\x02NNa.", "it is damaged: the instruction at byte 4 fills what is no container");
    refuse(b"\x80\x02}(Nu.", "it is damaged: the instruction at byte 5 sets a key without a value");
    refuse(b"\x80\x02N(\x85.", "it is damaged: the instruction at byte 4 lacks its operands");
    refuse(b"Ix\n.", "it is damaged: the instruction at byte 0 has no number");
}

/// Stated lengths are believed only as far as there are bytes, and stored places only as far as there were.
#[test]
fn lengths_and_places_beyond_the_bytes_cost_nothing() {
    refuse(b"\x80\x02X\xff\xff\xff\xffab", "it is cut off: it ends at byte 9, inside the pickle");
    refuse(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffab", "it is cut off: it ends at byte 13, inside the pickle");
    refuse(
        b"\x80\x02Nr\xff\xff\xff\xff.",
        "it is damaged: the instruction at byte 3 stores further than anything was read",
    );
    refuse(b"N(p99999999999\n.", "it is damaged: the instruction at byte 2 lacks its operands");
}

/// Depth would overflow a reader that recurses, and one that drops what it read by recursion.
#[test]
fn a_million_lists_inside_each_other_are_read_and_dropped() {
    let mut bytes = vec![b']'; 1_000_000];
    bytes.extend([b'a'; 999_999]);
    bytes.push(b'.');
    let document = whole(&bytes);
    assert_eq!(document.items(document.root()).unwrap().len(), 1);
}

/// A few bytes of gzip unpack to as many lists as one likes: they are counted, and memory stays bounded.
#[test]
fn more_values_than_any_snapshot_has_are_refused() {
    let lists = vec![b']'; (1 << 23) + 2];
    assert_eq!(read(&lists).unwrap_err(), PickleError::TooManyValues { limit: 1 << 23 });
    let values = vec![b'N'; (1 << 25) + 2];
    assert_eq!(read(&values).unwrap_err(), PickleError::TooManyValues { limit: 1 << 25 });
    let marks = vec![b'('; (1 << 25) + 2];
    assert_eq!(read(&marks).unwrap_err(), PickleError::TooManyValues { limit: 1 << 25 });
    assert!(matches!(read(&vec![b'N'; (1 << 28) + 1]), Err(PickleError::TooLong { .. })));
}

/// Forty lists of the same list twice: 2^40 values to a reader that copies what is shared.
#[test]
fn shared_values_are_not_copied() {
    let mut bytes = vec![b']'];
    for _ in 0..40 {
        bytes.extend(b"2\x86");
    }
    bytes.push(b'.');
    assert_eq!(whole(&bytes).lists.len(), 41);
    // A list that holds itself.
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
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let mut framed = vec![0x80, 4];
        framed.extend(bytes);
        let _ = read(&framed);
    }

    #[test]
    fn no_mutation_of_a_pickle_makes_it_panic(
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
