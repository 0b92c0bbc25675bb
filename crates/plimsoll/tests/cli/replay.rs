//! `plimsoll replay`: valid and invalid snapshots of PyTorch's memory.

use crate::support::torch::snapshot;
use crate::support::{Said, Sandbox};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use std::io::Write;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::default());
    encoder.write_all(bytes).expect("into memory");
    encoder.finish().expect("into memory")
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("snapshot.pickle", snapshot());
    sandbox.write("snapshot.pickle.gz", gzip(&snapshot()));
    sandbox
}

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stderr))
}

#[test]
fn a_snapshot_is_explained_compressed_or_not() {
    let sandbox = sandbox();
    let said = sandbox.run("replay snapshot.pickle");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let text = said.stdout_text();
    for words in [
        "the simulated allocator agrees: ",
        "forward (train.py:31)",
        "PyTorch's defaults (recorded)",
        "recommended: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "grows from step to step, over 4 steps",
        "log (train.py:77): 3.00 MiB a step",
        "the same 6 tensors exist 2 times at the peak",
        "made by load (train.py:10)",
        "made by main (train.py:14)",
    ] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    let compressed = sandbox.run("replay snapshot.pickle.gz");
    assert_eq!(compressed.stdout_text().replace(".pickle.gz", ".pickle"), text);
}

/// A snapshot as `_dump_snapshot` writes it without recording: segments, and the event of the snapshot itself.
#[test]
fn a_snapshot_without_history_shows_only_its_state() {
    const STATE: &str = "{'segments': [{'address': 4096, 'total_size': 943718400, 'stream': 0, 'segment_type': 'large', \
        'device': 0, 'blocks': [{'address': 4096, 'size': 41943040, 'requested_size': 41943040, \
        'state': 'active_allocated', 'frames': [{'name': 'load', 'filename': 'train.py', 'line': 10}]}, \
        {'address': 41947136, 'size': 901775360, 'requested_size': 0, 'state': 'inactive', 'frames': []}]}], \
        'device_traces': [[{'action': 'snapshot', 'addr': 0, 'size': 23068672, 'stream': 0}]]}";
    let sandbox = Sandbox::new();
    sandbox.write("state.pickle", pickled(STATE));
    let said = sandbox.run("replay state.pickle --html page.html --svg picture.svg");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let text = said.stdout_text();
    for words in ["no history of allocations", "load (train.py:10)", "40.0 MiB", "settings can't be compared"] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    for words in ["recommended", "agrees", "PyTorch's defaults (recorded)", "expandable_segments:True"] {
        assert!(!text.contains(words), "{words} is in\n{text}");
    }
    let card = &json(&sandbox.run("replay state.pickle --json"))["cards"][0];
    assert_eq!((&card["has_history"], &card["recommended"]), (&Value::Bool(false), &Value::Null));
    assert_eq!(card["settings"], serde_json::json!([]));
    assert_eq!(card["peak"]["reserved_bytes"], 943_718_400);
}

/// Plain data as a protocol 0 pickle, from its Python literal.
fn pickled(text: &str) -> Vec<u8> {
    fn put(value: &Value, out: &mut Vec<u8>) {
        match value {
            Value::Object(map) => {
                out.extend(b"(");
                for (key, value) in map {
                    put(&Value::String(key.clone()), out);
                    put(value, out);
                }
                out.extend(b"d");
            }
            Value::Array(values) => {
                out.extend(b"(");
                values.iter().for_each(|value| put(value, out));
                out.extend(b"l");
            }
            Value::String(text) => out.extend(format!("V{text}\n").bytes()),
            number => out.extend(format!("I{number}\n").bytes()),
        }
    }
    let mut out = vec![];
    put(&serde_json::from_str(&text.replace('\'', "\"")).expect("plain data"), &mut out);
    out.extend(b".");
    out
}

#[test]
fn the_agreement_and_all_findings_are_in_the_json() {
    let sandbox = sandbox();
    let value = json(&sandbox.run("replay snapshot.pickle --json"));
    let card = &value["cards"][0];
    for value in [&value, card] {
        let [recorded, simulated, equal] =
            ["recorded", "simulated", "equal"].map(|key| value["segment_events"][key].as_u64());
        assert!(recorded > Some(10) && recorded == simulated && recorded == equal, "{value}");
        // Two models with six tensors, and five steps with 21.
        assert_eq!(value["addresses"], serde_json::json!({ "events": 117, "equal": 117 }));
    }
    assert_eq!(card["contradictions"], 0);
    assert_eq!(card["recommended"]["line"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    let saved = card["recommended"]["saved_bytes"].as_u64();
    let reserved = |index: usize| card["settings"][index]["peak_reserved_bytes"].as_u64().expect("bytes");
    assert_eq!(saved, Some(reserved(0) - reserved(1)));
    assert_eq!(
        reserved(0),
        card["peak_reserved_bytes"],
        "recorded from the beginning, the recording is the first setting"
    );
    let bound = card["least"]["bound_bytes"].as_u64().expect("bytes");
    assert!(card["least"]["arena_bytes"].as_u64() >= Some(bound) && reserved(1) >= bound);
    let elements = 5_000_000 + 768 * 1024 + 768 + 2 * 768 * 3072 + 3072;
    assert_eq!(card["copies"][0]["wasted_bytes"], 4 * elements);
    assert_eq!(card["copies"][0]["copies"][0]["line"], 10);
    // Tensors that the first step leaves are permanent and not counted.
    let grown = &card["growth"]["owners"][0];
    assert_eq!((&grown["line"], &grown["bytes"], &grown["steps"]), (&77.into(), &(6 << 20).into(), &2.into()));
}

#[test]
fn invalid_snapshots_are_refused_with_a_hint() {
    let sandbox = sandbox();
    let whole = snapshot();
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    (0..257).for_each(|_| encoder.write_all(&[b'N'; 1 << 20]).expect("into memory"));
    let bomb = encoder.finish().expect("into memory");
    let cases: &[(&str, &[u8], &str)] = &[
        ("cut.pickle", &whole[..whole.len() / 2], "is truncated"),
        ("cut.pickle.gz", &gzip(&whole)[..2000], "can't be decompressed"),
        ("text.txt", b"Hello", "is not a pickle: its first byte is 0x48"),
        ("empty.pickle", b"", "is truncated: it ends at byte 0"),
        ("list.pickle", b"\x80\x02].", "not a PyTorch memory snapshot: its top level is not a dictionary"),
        ("dict.pickle", b"\x80\x02}.", "not a PyTorch memory snapshot: it has no `segments`"),
        (
            "nothing.pickle",
            b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u.",
            "has neither segments nor events",
        ),
        ("evil.pickle", b"cposix\nsystem\n(S'touch owned'\ntR.", "asks to import posix.system, which is refused"),
        ("escape.pickle", b"c\x1b[31mos\nsystem\n.", "asks to import ?[31mos.system"),
        ("deep.pickle", &[b'('; 4_000_000], "is truncated"),
        ("bomb.pickle.gz", &bomb, "the limit is 268435456"),
    ];
    for (name, bytes, words) in cases {
        sandbox.write(name, bytes);
        let said = sandbox.run(&format!("replay {name}"));
        assert_eq!(said.code, Some(4), "{name}: {}", said.stderr);
        assert!(
            said.stderr.starts_with(&format!("error: {name}")) && said.stderr.contains(words),
            "{name}: {}",
            said.stderr
        );
        assert!(said.stderr.contains("\nhint: ") && said.stdout.is_empty(), "{name}: {}", said.stderr);
    }
    assert!(!sandbox.path("owned").exists());
    for (arguments, code) in [("replay", 2), ("replay missing.pickle", 4), ("replay tiny", 4)] {
        let said = sandbox.run(arguments);
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
    }
}

/// Settings of future versions are listed, and the rest is read.
#[test]
fn unknown_settings_are_listed() {
    let sandbox = sandbox();
    let bytes = snapshot();
    let at = bytes.windows(19).position(|window| window == b"expandable_segments").expect("a key");
    let mut changed = bytes.clone();
    changed[at] = b'x';
    sandbox.write("changed.pickle", changed);
    let said = sandbox.run("replay changed.pickle");
    assert_eq!(said.code, Some(0));
    assert_eq!(said.stderr, "warning: ignoring unknown setting `xxpandable_segments` in changed.pickle\n");
}

#[test]
fn a_page_and_a_picture_are_written() {
    let sandbox = sandbox();
    let said = sandbox.run("replay snapshot.pickle --html memory.html --svg memory.svg");
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    for name in ["memory.html", "memory.svg"] {
        let text = sandbox.text(name);
        for words in ["snapshot.pickle: where its memory went", "forward (train.py:31)", "peak ", "segments by address"]
        {
            assert!(text.contains(words), "{words} is not in {name}");
        }
    }
    assert!(sandbox.text("memory.html").contains("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
    let said = sandbox.run("replay snapshot.pickle --html nowhere/memory.html");
    assert_eq!(said.code, Some(5), "{}", said.stderr);
}

#[test]
fn a_requested_setting_is_tried_too() {
    let sandbox = sandbox();
    let said = sandbox.run("replay snapshot.pickle --alloc-conf expandable_segments:True,max_split_size_mb:77");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stdout_text().contains("max_split_size_mb:77"), "{}", said.stdout_text());
    let said = sandbox.run("replay snapshot.pickle --alloc-conf expandible:True");
    assert!(said.code == Some(2) && said.stderr.contains("unknown setting expandible:True"), "{}", said.stderr);
}
