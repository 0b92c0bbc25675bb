//! Mutated files of every format that this crate reads, templates first: each is read or refused within bounds on time
//! and memory, without a panic. A seed determines the cases, so running the test again repeats a failure.
//!
//! A few hundred cases per format by default. For longer:
//!
//!     PLIMSOLL_FUZZ_SECONDS=600 cargo test -p plimsoll-data --test fuzz
//!
//! A separate process, since it measures its heap.

use peak_alloc::PeakAlloc;
use plimsoll_data::{
    ChatFormat, ChatSettings, ChatTemplate, DataError, Dataset, Date, HeldOut, PreferenceData, PreferencePairs,
    PreferenceRows, PreferenceSettings, Tokenizer, TokenizerSpec, TrainOn, detect_format, detect_preferences, prepare,
    prepare_chats, prepare_preferences, resolve,
};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The tests share the measured heap, so they take turns.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const CASES: usize = 300;
const TIME_MAX: Duration = Duration::from_secs(5);
const HEAP_BYTES_MAX: usize = 96 << 20;

/// SplitMix64, by Steele et al. 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Splits into words, and into single bytes between them.
fn atoms(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.chunk_by(|a, b| a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric()).collect()
}

/// Applies a few changes to the atoms of a seed; some new atoms come from the dictionary or another seed.
fn mutated(random: &mut Random, seeds: &[Vec<u8>], dictionary: &[&str]) -> Vec<u8> {
    let seed = random.below(seeds.len());
    let other = random.below(seeds.len());
    let (mut all, others) = (atoms(&seeds[seed]), atoms(&seeds[other]));
    for _ in 0..=random.below(6) {
        let at = random.below(all.len() + 1);
        let end = (at + 1 + random.below(12)).min(all.len());
        match random.below(7) {
            0 => drop(all.drain(at.min(end)..end)),
            1 => all.insert(at, dictionary[random.below(dictionary.len())].as_bytes()),
            2 if at < end => all[at] = dictionary[random.below(dictionary.len())].as_bytes(),
            3 => all.truncate(at),
            4 if at < end => {
                let repeated = all[at..end].repeat(1 << random.below(9));
                all.splice(at..at, repeated);
            }
            5 => {
                let from = random.below(others.len());
                let to = (from + random.below(40)).min(others.len());
                all.splice(at..at, others[from..to].iter().copied());
            }
            _ if at + 1 < all.len() => all.swap(at, at + 1),
            _ => {}
        }
    }
    let mut bytes = all.concat();
    if random.below(4) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

/// Reads mutated files. On a panic, or above the limits on time or memory, panics with the file.
fn fuzz(seeds: &[Vec<u8>], dictionary: &[&str], read: impl Fn(&Path, &[u8]) -> Result<(), DataError>) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seconds: Option<u64> = std::env::var("PLIMSOLL_FUZZ_SECONDS").ok().map(|text| text.parse().unwrap());
    let begin = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(1);
    let mut whole = 0;
    for case in 0.. {
        if seconds.map_or(case >= CASES, |seconds| begin.elapsed() > Duration::from_secs(seconds)) {
            break;
        }
        let bytes = if case < seeds.len() { seeds[case].clone() } else { mutated(&mut random, seeds, dictionary) };
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| read(folder.path(), &bytes)));
        let (took, heap) = (started.elapsed(), HEAP.peak_usage().saturating_sub(before));
        let shown = || format!("case {case}: {took:?}, {heap} bytes: {}", bytes.escape_ascii());
        assert!(result.is_ok() && took < TIME_MAX && heap < HEAP_BYTES_MAX, "{}", shown());
        whole += usize::from(matches!(result, Ok(Ok(()))));
    }
    assert!(whole >= seeds.len(), "{whole} of the {} seeds and mutants are read", seeds.len());
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The chats in a file, by a template.
fn read_chats(folder: &Path, data: &Path, template: &ChatTemplate, train_on: TrainOn) -> Result<(), DataError> {
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes)?;
    let sources = resolve(&[data.to_str().unwrap()], "text")?;
    detect_format(&sources)?;
    let settings = ChatSettings { format: ChatFormat::Messages, template, train_on };
    let cache = tempfile::tempdir_in(folder).unwrap();
    prepare_chats(&sources, &settings, &tokenizer, cache.path(), &|_| {}).map(|_| ())
}

/// The preferences in a file.
fn read_preferences(folder: &Path, data: &Path, rows: PreferenceRows) -> Result<(), DataError> {
    let is_judged = matches!(rows, PreferenceRows::Judged { .. });
    let kind = if is_judged { PreferenceData::Judged } else { PreferenceData::Paired };
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes)?;
    let sources = resolve(&[data.to_str().unwrap()], "text")?;
    let (format, template) = (detect_preferences(&sources, kind)?, ChatTemplate::chatml(Date::of_unix_seconds(0)));
    let cache = tempfile::tempdir_in(folder).unwrap();
    let store = prepare_preferences(&sources, kind, format, &template, &tokenizer, cache.path(), &|_| {})?;
    let settings = PreferenceSettings { len_max: 64, bucket: 16, seed: 1, held_out: HeldOut::Nothing, rows };
    Dataset::Preferences(PreferencePairs::new(store, settings)?).step(0, 2, 1).map(|_| ())
}

#[test]
fn preferences() {
    let seeds = [
        r#"{"prompt":"a b","chosen":" c","rejected":" d e"}
{"prompt":"f","chosen":" g","rejected":" h"}"#,
        r#"{"chosen":"Deep? Yes.","rejected":"Deep? No.","score":1.5}"#,
        r#"{"prompt":[{"role":"user","content":"a"}],"chosen":[{"role":"assistant","content":"b"}],"rejected":[{"role":"assistant","content":"c"}],"tools":[]}"#,
        r#"{"prompt":"a","chosen":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"rejected":[{"role":"user","content":"a"},{"role":"assistant","content":"c","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]}"#,
    ];
    let dictionary = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "null",
        "true",
        "7",
        "\"\"",
        " ",
        "\n",
        "prompt",
        "chosen",
        "rejected",
        "label",
        "completion",
        "messages",
        "role",
        "content",
        "tools",
        "user",
        "assistant",
        "\\ud83d",
        "\\ufdd0",
        "é",
    ];
    fuzz(&seeds.map(|seed| seed.as_bytes().to_vec()), &dictionary, |folder, bytes| {
        let path = folder.join("preferences.jsonl");
        fs::write(&path, bytes).unwrap();
        read_preferences(folder, &path, PreferenceRows::AnswersAndPrompt)
    });
    let judged = [
        r#"{"prompt":"a b","completion":" c","label":true}
{"prompt":"f","completion":" g","label":false}"#,
        r#"{"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}],"label":false}
{"prompt":"a","completion":[{"role":"assistant","content":"b"}],"label":true}"#,
    ];
    fuzz(&judged.map(|seed| seed.as_bytes().to_vec()), &dictionary, |folder, bytes| {
        let path = folder.join("judged.jsonl");
        fs::write(&path, bytes).unwrap();
        read_preferences(folder, &path, PreferenceRows::Judged { mismatches: true })
    });
}

const CHAT: &str = r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[1,2.5,null,true]}}}]}"#;

#[test]
fn chat_templates() {
    let golden: serde_json::Value = serde_json::from_slice(&fs::read(golden("chats.json")).unwrap()).unwrap();
    let families = golden["families"].as_object().unwrap().values();
    let of_families = families.flat_map(|family| ["marked", "plain"].map(|kind| family[kind].as_str().unwrap()));
    let own = [
        "{%- macro f(x, y=[1]) -%}{{ x ~ y | join(', ') }}{%- endmacro -%}{{ f(messages, y=range(3)) }}",
        "{% set n = namespace(x=[], d={'a': 1}) %}{% for m in messages[::-1] recursive %}{% set n.x = n.x + [m] %}{% endfor %}{{ n.x | tojson(indent=2) }}",
        "{% for t in tools or [] %}{{ t | tojson }}{{ t.function.name.split('_')[-1] | upper | trim('F') }}{% else %}-{% endfor %}",
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length > 1 and not tools is none %}a{% elif 'x' in 'xy' %}{% raw %}{{{% endraw %}{% endif %}",
        "{% set x %}{% filter upper | replace('A', 'b') %}a{{ 'c' * 3 }}{% endfilter %}{% endset %}{{ x if x is defined else strftime_now('%d %B') }}",
        "{% call(a) f() %}{{ a }}{% endcall %}{% with a = 1, b = (2, 3) %}{{ b[0] ** a // 2 % 3 - 1 / 4 }}{% endwith %}{# c #}",
    ];
    let seeds: Vec<_> = of_families.chain(own).map(|template| template.as_bytes().to_vec()).collect();
    let dictionary = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{%-",
        "-%}",
        "{#",
        "#}",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "|",
        "~",
        "+",
        "*",
        "**",
        ".",
        ",",
        ":",
        "=",
        "==",
        "not ",
        " in ",
        " is ",
        " if ",
        " else ",
        " and ",
        "for ",
        "endfor",
        "set ",
        "endset",
        "macro ",
        "endmacro",
        "call ",
        "endcall",
        "elif ",
        "endif",
        "raw",
        "endraw",
        "generation",
        "endgeneration",
        "filter ",
        "namespace()",
        "range(99999)",
        "loop",
        "loop.changed",
        "messages",
        "content",
        "'a'",
        "\"",
        "\\",
        "|list",
        "|join",
        "|tojson",
        "|map('upper')",
        "|sort",
        "|batch(3)",
        ".split('')",
        ".replace('', 'aa')",
        "|replace('', 'aa')",
        ".format(9)",
        "'%9999d'|format(1)",
        "99999999",
        "-1",
        "0",
        "none",
        "true",
        "\n",
        "é",
    ];
    fuzz(&seeds, &dictionary, |folder, bytes| {
        let (data, path) = (folder.join("chats.jsonl"), folder.join("template.jinja"));
        fs::write(&data, format!("{CHAT}\n")).unwrap();
        fs::write(&path, bytes).unwrap();
        let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes)?;
        let template = ChatTemplate::open(&tokenizer, Some(&path), Date::of_unix_seconds(0))?;
        match read_chats(folder, &data, &template, TrainOn::Answers) {
            // For a valid template, only its output can be bad.
            Err(DataError::ChatTemplateFailed { .. } | DataError::UnclearAnswer { .. } | DataError::Empty { .. }) => {
                Ok(())
            }
            Err(DataError::NoAnswers { .. }) => Ok(()),
            other => other,
        }
    });
}

const JSON_ATOMS: [&str; 26] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "0",
    "-1",
    "1e999",
    "18446744073709551616",
    "\"a\"",
    "\\u0000",
    "\\ud800",
    "\"messages\":",
    "\"role\":",
    "\"content\":",
    "\"from\":",
    "\"value\":",
    "\"assistant\"",
    "\n",
    " ",
    "{}",
    "é",
];

#[test]
fn rows_of_chats() {
    let seeds = [
        CHAT.to_owned(),
        r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":"s"}"#.to_owned(),
        r#"{"instruction":"a","input":"c","output":"b","history":[["d","e"]]}"#.to_owned(),
        format!("{CHAT}\n{CHAT}\n"),
        format!("[{CHAT},{CHAT}]"),
    ]
    .map(String::into_bytes);
    for name in ["chats.jsonl", "chats.json"] {
        fuzz(&seeds, &JSON_ATOMS, |folder, bytes| {
            let data = folder.join(name);
            fs::write(&data, bytes).unwrap();
            match read_chats(folder, &data, &ChatTemplate::chatml(Date::of_unix_seconds(0)), TrainOn::All) {
                // Not every seed has this format and layout.
                Err(DataError::NotAChat { .. } | DataError::BadJsonLine { .. }) => Ok(()),
                other => other,
            }
        });
    }
}

#[test]
fn tokenizer_files() {
    let seeds = [fs::read(golden("tokenizer.json")).unwrap()];
    let dictionary = [
        &JSON_ATOMS[..],
        &[
            "\"Split\"",
            "\"Regex\"",
            "(a|a)*b",
            "((((",
            "\"Sequence\"",
            "\"Replace\"",
            "\"Precompiled\"",
            "\"Strip\"",
            "\"BPE\"",
        ],
    ]
    .concat();
    fuzz(&seeds, &dictionary, |folder, bytes| {
        let path = folder.join("tokenizer.json");
        fs::write(&path, bytes).unwrap();
        let tokenizer = Tokenizer::open(&TokenizerSpec::File(path))?;
        let data = folder.join("text.txt");
        fs::write(&data, "Hello <s> aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa world\n").unwrap();
        let cache = tempfile::tempdir_in(folder).unwrap();
        prepare(&resolve(&[data.to_str().unwrap()], "text")?, &tokenizer, cache.path(), &|_| {}).map(|_| ())
    });
}

#[test]
fn tokenizer_configs() {
    let seeds = [
        fs::read(golden("tokenizer_config.json")).unwrap(),
        br#"{"chat_template":[{"name":"default","template":"{{ messages }}"}],"bos_token":{"content":"<s>"}}"#.to_vec(),
    ];
    fuzz(
        &seeds,
        &[&JSON_ATOMS[..], &["\"chat_template\":", "\"default\"", "\"name\":", "_token"]].concat(),
        |folder, bytes| {
            fs::copy(golden("tokenizer.json"), folder.join("tokenizer.json")).unwrap();
            fs::write(folder.join("tokenizer_config.json"), bytes).unwrap();
            let tokenizer = Tokenizer::open(&TokenizerSpec::File(folder.join("tokenizer.json")))?;
            ChatTemplate::open(&tokenizer, None, Date::of_unix_seconds(0)).map(|_| ())
        },
    );
}

#[test]
fn tables() {
    let seeds =
        ["none", "snappy", "gzip", "zstd"].map(|codec| fs::read(golden(&format!("chats-{codec}.parquet"))).unwrap());
    fuzz(&seeds, &["PAR1", "\u{0}", "\u{1}", "\u{7f}", "messages", "list", "element"], |folder, bytes| {
        let data = folder.join("chats.parquet");
        fs::write(&data, bytes).unwrap();
        read_chats(folder, &data, &ChatTemplate::chatml(Date::of_unix_seconds(0)), TrainOn::All)
    });
}
