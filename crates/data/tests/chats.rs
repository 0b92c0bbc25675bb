//! Token ids and trained masks of chats match those of transformers for every file format; hostile tables are refused.

use plimsoll_data::{
    Batch, ChatFormat, ChatSettings, ChatStore, ChatTemplate, DataError, DataFormat, Dataset, Date, HeldOut,
    PreferenceData, PreferencePairs, PreferenceRows, PreferenceSettings, RowNumber, Tokenizer, TokenizerSpec, TrainOn,
    detect_format, detect_preferences, prepare, prepare_chats, prepare_preferences, resolve,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Made by scripts/golden_chat.py.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden_json() -> Value {
    serde_json::from_slice(&fs::read(golden("chats.json")).unwrap()).unwrap()
}

/// The chats as lines of a .jsonl, with fields in the order that templates see.
fn rows(golden: &Value) -> Vec<String> {
    golden["rows"].as_array().unwrap().iter().map(|row| format!("{}\n", row.as_str().unwrap())).collect()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&TokenizerSpec::File(golden("tokenizer.json"))).unwrap()
}

/// The chats of a file, rendered by a template and tokenized.
fn prepared(folder: &TempDir, data: &Path, template: &str) -> Result<ChatStore, DataError> {
    let path = folder.path().join("template.jinja");
    fs::write(&path, template).unwrap();
    let tokenizer = tokenizer();
    let template = ChatTemplate::open(&tokenizer, Some(&path), Date::of_unix_seconds(0))?;
    let sources = resolve(&[data.to_str().unwrap()], "text")?;
    let settings = ChatSettings { format: ChatFormat::Messages, template: &template, train_on: TrainOn::Answers };
    prepare_chats(&sources, &settings, &tokenizer, &folder.path().join("cache"), &|_| {})
}

/// The ids of each chat, and its trained mask as digits.
fn contents(store: &ChatStore) -> Vec<(Vec<u64>, String)> {
    let (mut found, mut start) = (Vec::new(), 0);
    store
        .for_each_end(|end| {
            let mut ids = vec![0; (end - start) as usize];
            let mut trained = vec![false; ids.len()];
            store.tokens().read(start, &mut ids).unwrap();
            store.read_trained(start, &mut trained).unwrap();
            let digits = trained.iter().map(|&trained| if trained { '1' } else { '0' }).collect();
            found.push((ids.iter().map(|&id| id as u64).collect(), digits));
            start = end;
        })
        .unwrap();
    found
}

fn expected(chat: &Value) -> (Vec<u64>, String) {
    let ids = chat["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    (ids, chat["trained"].as_str().unwrap().to_owned())
}

/// Each family's template with `{% generation %}`, and the same without it; there, the answers are found in the text.
#[test]
fn ids_and_masks_are_those_of_transformers() {
    let golden = golden_json();
    let rows = rows(&golden);
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("chats.jsonl");
    let mut compared = 0;
    for (name, family) in golden["families"].as_object().unwrap() {
        let made = family["chats"].as_array().unwrap();
        for template in ["marked", "plain"].map(|kind| family[kind].as_str().unwrap()) {
            let writable = rows.iter().zip(made).filter(|(_, made)| !made.is_null());
            fs::write(&data, writable.clone().map(|(row, _)| row.as_str()).collect::<String>()).unwrap();
            let found = contents(&prepared(&folder, &data, template).unwrap());
            assert_eq!(found.len(), writable.clone().count(), "{name}");
            for ((found, (_, made)), row) in found.iter().zip(writable).zip(&rows) {
                assert_eq!(found, &expected(made), "{name} {row} {template}");
                compared += 1;
            }
            for (row, _) in rows.iter().zip(made).filter(|(_, made)| made.is_null()) {
                fs::write(&data, row).unwrap();
                let refused = prepared(&folder, &data, template);
                assert!(matches!(refused, Err(DataError::ChatTemplateFailed { .. })), "{name} {row}: {refused:?}");
            }
        }
    }
    assert!(compared > 50, "{compared} chats");
}

/// Snappy, gzip, zstd and no compression; pages of both versions; several row groups; a nested column.
#[test]
fn tables_are_read_like_json_lines() {
    let golden_values = golden_json();
    let family = &golden_values["families"]["chatml"];
    let folder = tempfile::tempdir().unwrap();
    let chats = rows(&golden_values).into_iter().zip(family["chats"].as_array().unwrap());
    let expected: Vec<_> =
        chats.filter(|(row, _)| !row.contains("tool_calls")).map(|(_, made)| expected(made)).collect();
    for codec in ["snappy", "gzip", "zstd", "none"] {
        let path = golden(&format!("chats-{codec}.parquet"));
        let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
        assert_eq!(detect_format(&sources).unwrap(), DataFormat::Chats(ChatFormat::Messages), "{codec}");
        let store = prepared(&folder, &path, family["plain"].as_str().unwrap()).unwrap();
        assert_eq!(contents(&store), expected, "{codec}");
    }
}

fn read_as_text(path: &Path, field: &str) -> Result<u64, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let sources = resolve(&[path.to_str().unwrap()], field)?;
    let store = prepare(&sources, &Tokenizer::open(&TokenizerSpec::Bytes)?, folder.path(), &|_| {})?;
    Ok(store.len())
}

#[test]
fn a_missing_column_lists_the_existing_ones() {
    match read_as_text(&golden("chats-snappy.parquet"), "body") {
        Err(DataError::NoSuchColumn { name, present, .. }) => {
            assert_eq!((name.as_str(), present), ("body", vec!["id".to_owned(), "messages".to_owned()]));
        }
        other => panic!("{other:?}"),
    }
    let number = read_as_text(&golden("chats-snappy.parquet"), "id").unwrap_err();
    assert!(matches!(number, DataError::FieldIsNotText { row: RowNumber::Row(1), found: "a number", .. }), "{number}");
}

#[test]
fn files_that_claim_huge_contents_are_refused_before_allocation() {
    let refused = read_as_text(&golden("bomb-page.parquet"), "text").unwrap_err().to_string();
    assert!(refused.contains("at row 1: ") && refused.contains("a page of 30000"), "{refused}");
    let refused = read_as_text(&golden("bomb-row.parquet"), "messages").unwrap_err().to_string();
    assert!(refused.contains("a row with too many values"), "{refused}");
}

/// A table that is cut anywhere, or has any byte changed, is read or refused; it never panics.
#[test]
fn broken_tables_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.parquet");
    for codec in ["snappy", "none", "zstd"] {
        let whole = fs::read(golden(&format!("chats-{codec}.parquet"))).unwrap();
        for end in (0..whole.len()).step_by(97) {
            fs::write(&path, &whole[..end]).unwrap();
            let refused = read_as_text(&path, "messages");
            assert!(matches!(refused, Err(DataError::BadTable { .. })), "{end}: {refused:?}");
        }
        for at in (0..whole.len()).step_by(41) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            fs::write(&path, &changed).unwrap();
            let sources = resolve(&[path.to_str().unwrap()], "text").unwrap();
            let _ = detect_format(&sources);
            let _ = prepared(&folder, &path, "{{ messages | length }}{{ messages }}");
        }
    }
}

/// The text of each chat, and its trained text, with a tokenizer of bytes.
fn texts(rows: &str, template: &str, train_on: TrainOn) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let (data, path) = (folder.path().join("chats.jsonl"), folder.path().join("template.jinja"));
    fs::write(&data, rows).unwrap();
    fs::write(&path, template).unwrap();
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes).unwrap();
    let template = ChatTemplate::open(&tokenizer, Some(&path), Date::of_unix_seconds(0)).unwrap();
    let sources = resolve(&[data.to_str().unwrap()], "text").unwrap();
    let settings = ChatSettings { format: ChatFormat::Messages, template: &template, train_on };
    let store = prepare_chats(&sources, &settings, &tokenizer, &folder.path().join("cache"), &|_| {}).unwrap();
    let text_of = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let chats = contents(&store).into_iter().map(|(ids, trained)| {
        let bytes: Vec<u8> = ids.iter().map(|&id| u8::try_from(id).unwrap()).collect();
        let answers = bytes.iter().zip(trained.chars()).filter(|(_, digit)| *digit == '1').map(|(&byte, _)| byte);
        (text_of(bytes.clone()), text_of(answers.collect()))
    });
    chats.collect()
}

const TWO_CHATS: &str = r#"{"messages":[{"role":"user","content":"How deep?"},{"role":"assistant","content":"To the line."}]}
{"messages":[{"role":"user","content":"x2 + 2?"},{"role":"assistant","content":"I think that it is\n\n4"}]}
"#;

#[test]
fn a_jinja_methods() {
    let template = "{{ '%d turns' % (messages | length) }}{% for m in messages %}<|{{ m.role }}|>{{ m.content.removeprefix('x') }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    let expected = [
        ("2 turns<|user|>How deep?<|im_end|>\n<|assistant|>To the line.<|im_end|>\n", "To the line.<|im_end|>"),
        (
            "2 turns<|user|>2 + 2?<|im_end|>\n<|assistant|>I think that it is\n\n4<|im_end|>\n",
            "I think that it is\n\n4<|im_end|>",
        ),
    ];
    assert_eq!(
        texts(TWO_CHATS, template, TrainOn::Answers),
        expected.map(|(text, trained)| (text.to_owned(), trained.to_owned()))
    );
    for method in ["partition('+')[0]", "rsplit(' ', 1)[0]", "zfill(40)", "removesuffix('?')"] {
        let template = template.replace("removeprefix('x')", method);
        assert!(!texts(TWO_CHATS, &template, TrainOn::All).is_empty(), "{method}");
    }
    let joined = "{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.content }}{% endfor %}{{ strftime_now(' %j') }}";
    assert_eq!(texts(TWO_CHATS, joined, TrainOn::All)[0].0, "How deep?, To the line. 001");
}

#[test]
fn a_crlf_template() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\r\n{{ m.content }}<|im_end|>\r\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\r\n{% endif %}";
    let chats = texts(TWO_CHATS, template, TrainOn::Answers);
    assert_eq!(chats, texts(TWO_CHATS, &template.replace("\r\n", "\n"), TrainOn::Answers));
    let text = "<|im_start|>user\nHow deep?<|im_end|>\n<|im_start|>assistant\nTo the line.<|im_end|>\n";
    assert_eq!(chats[0], (text.to_owned(), "To the line.<|im_end|>".to_owned()));
}

/// The tokens of TRL's `DPOTrainer`, made by scripts/golden_preferences.py.
#[test]
fn preferences_are_tokenized_as_by_trl() {
    let golden: Value = serde_json::from_slice(&fs::read(golden("preferences.json")).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (template, data) = (folder.path().join("template.jinja"), folder.path().join("rows.jsonl"));
    fs::write(&template, golden["template"].as_str().unwrap()).unwrap();
    let tokenizer = tokenizer();
    let template = ChatTemplate::open(&tokenizer, Some(&template), Date::of_unix_seconds(0)).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        fs::write(&data, rows(case).concat()).unwrap();
        let sources = resolve(&[data.to_str().unwrap()], "text").unwrap();
        let (format, cache) =
            (detect_preferences(&sources, PreferenceData::Paired).unwrap(), folder.path().join("cache"));
        let store =
            prepare_preferences(&sources, PreferenceData::Paired, format, &template, &tokenizer, &cache, &|_| {})
                .unwrap();
        let ids = |list: &Value| list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect::<Vec<_>>();
        let sequences = case["examples"].as_array().unwrap().iter().flat_map(|example| {
            let [prompt, chosen, rejected] = [0, 1, 2].map(|part| ids(&example[part]));
            [chosen, rejected].map(|answer| {
                let mask = "0".repeat(prompt.len()) + &"1".repeat(answer.len());
                ([prompt.clone(), answer].concat(), mask)
            })
        });
        assert_eq!(contents(&store), sequences.collect::<Vec<_>>(), "{case}");
    }
}

/// A batch of KTO has each prompt with the answer to the example before it, which keeps the prompt's own label.
#[test]
fn mismatched_answers_are_those_to_the_example_before() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows.jsonl");
    let rows = [("p", "ab", true), ("qrs", "cdefgh", false), ("t", "i", true)];
    let row =
        |(prompt, completion, label)| json!({"prompt": prompt, "completion": completion, "label": label}).to_string();
    fs::write(&data, rows.map(row).join("\n")).unwrap();
    let sources = resolve(&[data.to_str().unwrap()], "text").unwrap();
    let format = detect_preferences(&sources, PreferenceData::Judged).unwrap();
    let (template, tokenizer) =
        (ChatTemplate::chatml(Date::of_unix_seconds(0)), Tokenizer::open(&TokenizerSpec::Bytes).unwrap());
    let batch_of = |len_max, mismatches| {
        let cache = tempfile::tempdir().unwrap();
        let kind = PreferenceData::Judged;
        let store = prepare_preferences(&sources, kind, format, &template, &tokenizer, cache.path(), &|_| {}).unwrap();
        let rows = PreferenceRows::Judged { mismatches };
        let settings = PreferenceSettings { len_max, bucket: 1, seed: 1, held_out: HeldOut::Nothing, rows };
        let dataset = Dataset::Preferences(PreferencePairs::new(store, settings).unwrap());
        dataset.step(0, 3, 3).unwrap().micro.pop().unwrap()
    };
    // Each row's text, and its trained targets: in lower case if they are of the first group, else in upper case.
    let texts = |batch: &Batch| {
        let rows = batch.tokens.chunks(batch.source_len).zip(batch.targets.chunks(batch.source_len));
        let mut texts = rows.map(|(tokens, targets)| {
            let text = tokens.iter().map(|&token| char::from(token as u8)).filter(|c| c.is_ascii_alphabetic());
            let trained = targets.iter().map(|&target| match target {
                -1 => '.',
                ..-1 => char::from((-2 - target) as u8).to_ascii_uppercase(),
                _ => char::from(target as u8),
            });
            (text.collect::<String>(), trained.filter(char::is_ascii_alphabetic).collect::<String>())
        });
        let mut texts = texts.by_ref().collect::<Vec<_>>();
        texts.sort();
        texts
    };
    let of = |pairs: [(&str, &str); 3]| pairs.map(|(text, trained)| (text.to_owned(), trained.to_owned())).to_vec();
    let batch = batch_of(64, true);
    assert_eq!(texts(&batch), of([("pab", "ab"), ("qrscdefgh", "CDEFGH"), ("ti", "i")]));
    let other = batch.mismatched.expect("the loss needs it");
    assert_eq!(texts(&other), of([("pi", "i"), ("qrsab", "AB"), ("tcdefgh", "cdefgh")]));
    assert_eq!((other.real_targets(), other.rows, other.first_sample), (3, 3, batch.first_sample));
    let cut = batch_of(5, true).mismatched.expect("the loss needs it");
    assert_eq!(texts(&cut), of([("pi", "i"), ("qrsab", "AB"), ("tcdef", "cdef")]));
    assert!(batch_of(64, false).mismatched.is_none());
}
