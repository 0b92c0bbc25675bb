//! Notebooks as files of settings: the keyword arguments of the calls that load a model and train it, as in notebooks
//! of Unsloth and TRL. No code is executed; only plain values are read.

use crate::document::{Document, Entry, EntryPlace, Node, Value};
use plimsoll_units::Bytes;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The calls whose arguments are settings.
const CALLS: &[&str] = &[
    "DPOConfig",
    "DPOTrainer",
    "from_pretrained",
    "get_peft_model",
    "KTOConfig",
    "KTOTrainer",
    "LoraConfig",
    "ORPOConfig",
    "ORPOTrainer",
    "SFTConfig",
    "SFTTrainer",
    "TrainingArguments",
    "Trainer",
    "UnslothTrainer",
    "UnslothTrainingArguments",
];

/// Calls that train on preferences or rewards.
const PREFERENCES: &[&str] = &["DPOConfig", "GRPOConfig", "KTOConfig", "ORPOConfig", "PPOConfig", "RewardConfig"];

/// Limit on the code that is read; other parts of a notebook may be longer.
const CODE_BYTES_MAX: usize = 1 << 20;

/// Limit on the tokens of a call.
const CALL_TOKENS_MAX: usize = 4096;

/// Limit on a notebook's settings; no trainer has this many.
const SETTINGS_MAX: usize = 1000;

/// The method, of any class, whose first argument names the weights.
const LOADS_WEIGHTS: &str = "from_pretrained";

/// Arguments that are objects of the notebook, not settings.
const OBJECTS: &[&str] =
    &["model", "tokenizer", "processing_class", "train_dataset", "args", "data_collator", "peft_config"];

/// The parts of a notebook that are read.
#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    #[serde(default)]
    source: Source,
}

/// A cell's text: one string, or its lines.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    Text(String),
    Lines(Vec<String>),
}

impl Default for Source {
    fn default() -> Self {
        Self::Lines(vec![])
    }
}

/// The settings of a notebook; line numbers count through its code cells. Errors: it is not a notebook, with the
/// reason.
pub fn parse(text: &str) -> Result<Document, String> {
    let notebook: Notebook = serde_json::from_str(text).map_err(|error| format!("it is not a notebook: {error}"))?;
    let code = notebook.cells.into_iter().filter(|cell| cell.cell_type == "code").map(|cell| match cell.source {
        Source::Text(text) => text + "\n",
        Source::Lines(lines) => lines.concat() + "\n",
    });
    parse_code(&code.collect::<String>())
}

/// The settings of a Python script, as exported from a notebook. Errors: it is too long, with the limit.
pub fn parse_code(code: &str) -> Result<Document, String> {
    if code.len() > CODE_BYTES_MAX {
        return Err(format!(
            "it is not a notebook of settings: its code is longer than {}",
            Bytes(CODE_BYTES_MAX as u64)
        ));
    }
    Ok(Document(arguments(&tokens(code))))
}

/// A token of Python, and its line.
#[derive(Debug, Clone, PartialEq)]
struct Token {
    line: u64,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    /// A name, a number or a keyword; a dotted name is one word.
    Word(String),
    Text(String),
    Sign(char),
}

/// The tokens of a text, without comments. Text that is not Python gives tokens too.
fn tokens(code: &str) -> Vec<Token> {
    let (mut tokens, mut line) = (Vec::new(), 1);
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => {
                let (text, length) = string(rest);
                tokens.push(Token { line, kind: Kind::Text(text) });
                length
            }
            _ if is_word(first) => {
                let length = word_length(rest);
                tokens.push(Token { line, kind: Kind::Word(rest[..length].to_owned()) });
                length
            }
            _ => {
                if !first.is_whitespace() {
                    tokens.push(Token { line, kind: Kind::Sign(first) });
                }
                first.len_utf8()
            }
        };
        line += rest[..length].matches('\n').count() as u64;
        rest = &rest[length..];
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// The length of a word; the sign of an exponent is part of a number.
fn word_length(text: &str) -> usize {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let mut before = ' ';
    let end = text.char_indices().find(|&(_, c)| {
        let is_in = is_word(c) || (is_number && "+-".contains(c) && "eE".contains(before));
        before = c;
        !is_in
    });
    end.map_or(text.len(), |(end, _)| end)
}

/// The text of the string that begins here, in one or three quotes, and its length with the quotes.
fn string(code: &str) -> (String, usize) {
    let quote = &code[..1];
    let triple = quote.repeat(3);
    let quotes = if code.starts_with(&triple) { &triple } else { quote };
    let (mut text, mut is_escaped) = (String::new(), false);
    for (at, c) in code.char_indices().skip(quotes.len()) {
        if !is_escaped && code[at..].starts_with(quotes) {
            return (text, at + quotes.len());
        }
        if !is_escaped && c == '\n' && quotes.len() == 1 {
            return (text, at);
        }
        is_escaped = c == '\\' && !is_escaped;
        if !is_escaped {
            text.push(c);
        }
    }
    (text, code.len())
}

/// The keyword arguments of the calls with settings, the first of each name, and the data that is loaded.
fn arguments(tokens: &[Token]) -> Vec<Entry> {
    let variables = variables(tokens);
    let mut found: Vec<Entry> = Vec::new();
    let mut add = |key: &str, line: u64, value: &[Token]| {
        let is_room = found.len() < SETTINGS_MAX;
        if is_room && !OBJECTS.contains(&key) && found.iter().all(|entry| entry.key != key) {
            let value = value_of(value, &variables).unwrap_or(Value::Code);
            found.push(Entry { key: key.to_owned(), line, value, place: EntryPlace::default() });
        }
    };
    for (at, pair) in tokens.windows(2).enumerate() {
        let (Kind::Word(name), Kind::Sign('(')) = (&pair[0].kind, &pair[1].kind) else { continue };
        let name = name.rsplit('.').next().unwrap_or(name);
        if PREFERENCES.contains(&name) {
            add("rl", pair[0].line, &[Token { line: pair[0].line, kind: Kind::Text(name.to_owned()) }]);
        }
        let loads_data = name == "load_dataset";
        if !loads_data && !CALLS.contains(&name) {
            continue;
        }
        for (place, argument) in parts(&tokens[at + 2..]).into_iter().enumerate() {
            match argument {
                [Token { line, kind: Kind::Word(key) }, Token { kind: Kind::Sign('='), .. }, value @ ..] => {
                    let is_setting = !loads_data || key == "data_files";
                    let key = if loads_data { "dataset.data_files" } else { key };
                    if is_setting {
                        add(key, *line, value);
                    }
                }
                [first, ..] if loads_data && place == 0 => add("dataset.source", first.line, argument),
                [first, ..] if name == LOADS_WEIGHTS && place == 0 => add("model_name", first.line, argument),
                _ => {}
            }
        }
    }
    found
}

/// Names that a line of their own sets to a plain value.
fn variables(tokens: &[Token]) -> BTreeMap<&str, Vec<Token>> {
    let mut variables = BTreeMap::new();
    let mut before = 0;
    for (at, token) in tokens.iter().enumerate() {
        let is_first = token.line > before;
        before = token.line;
        if let (Kind::Word(name), Some(Token { kind: Kind::Sign('='), .. }), true) =
            (&token.kind, tokens.get(at + 1), is_first)
        {
            let value = tokens[at + 2..].iter().take_while(|next| next.line == token.line);
            variables.entry(name.as_str()).or_insert_with(|| value.cloned().collect());
        }
    }
    variables
}

/// The comma-separated parts, up to the bracket that closes around them.
fn parts(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, token) in tokens.iter().take(CALL_TOKENS_MAX).enumerate() {
        match token.kind {
            Kind::Sign('(' | '[' | '{') => depth += 1,
            Kind::Sign(')' | ']' | '}') if depth == 0 => {
                parts.push(&tokens[start..at]);
                break;
            }
            Kind::Sign(')' | ']' | '}') => depth -= 1,
            Kind::Sign(',') if depth == 0 => {
                parts.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}

/// A plain value, a name of one, or a list of such; `None` for an expression that would have to be executed.
fn value_of(tokens: &[Token], variables: &BTreeMap<&str, Vec<Token>>) -> Option<Value> {
    let word = |text: &str| match text {
        "None" => Some(Value::Null),
        "True" => Some(Value::Plain("true".to_owned())),
        "False" => Some(Value::Plain("false".to_owned())),
        number => number.parse::<f64>().ok().map(|_| Value::Plain(number.to_owned())),
    };
    match tokens {
        [Token { kind: Kind::Text(text), .. }] => Some(Value::Plain(text.clone())),
        // A variable whose value is another variable has no plain value.
        [Token { kind: Kind::Word(text), .. }] => {
            word(text).or_else(|| value_of(variables.get(text.as_str())?, &BTreeMap::new()))
        }
        [Token { kind: Kind::Sign('-'), .. }, Token { kind: Kind::Word(text), .. }] => match word(text)? {
            Value::Plain(number) => Some(Value::Plain(format!("-{number}"))),
            other => Some(other),
        },
        [Token { kind: Kind::Sign('[' | '('), .. }, inner @ .., Token { kind: Kind::Sign(']' | ')'), .. }] => {
            let closed = [inner, &[Token { line: 0, kind: Kind::Sign(']') }]].concat();
            let items = parts(&closed).into_iter().filter(|part| !part.is_empty());
            let items =
                items.map(|part| Some(Node { line: part[0].line, value: value_of(part, variables)?, place: 0..0 }));
            items.collect::<Option<Vec<_>>>().map(Value::List)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(code: &str) -> Vec<(String, u64, String)> {
        let entries = arguments(&tokens(code));
        entries.into_iter().map(|entry| (entry.key, entry.line, entry.value.to_string())).collect()
    }

    #[test]
    fn keyword_arguments_of_known_calls_are_read() {
        let code = "max_seq_length = 2048 # a comment, with (brackets)\n\
                    model, tok = FastLanguageModel.from_pretrained(\n  model_name = \"a/b\", # \"x\"\n  load_in_4bit=False,\n\
                    max_seq_length = max_seq_length,\n)\nother(lr=3)\n\
                    t = SFTTrainer(model = model, args = SFTConfig(learning_rate = 2e-4, betas=(0.9, 0.95),\n  \
                    target=['q', \"v\\\"w\"], fp16 = not is_bf16(), warmup_steps = -1, note = '''two\nlines''', \
                    seed = 3407), packing = True)\n";
        let expected = [
            ("model_name", 3, "a/b"),
            ("load_in_4bit", 4, "false"),
            ("max_seq_length", 5, "2048"),
            ("packing", 10, "true"),
            ("learning_rate", 8, "2e-4"),
            ("betas", 8, "[0.9, …]"),
            ("target", 9, "[q, …]"),
            ("fp16", 9, "…"),
            ("warmup_steps", 9, "-1"),
            ("note", 9, "two\nlines"),
            ("seed", 10, "3407"),
        ];
        let expected = expected.map(|(key, line, value)| (key.to_owned(), line, value.to_owned()));
        assert_eq!(read(code), expected);
    }

    proptest! {
        #[test]
        fn no_text_ends_the_program(code in "(from_pretrained\\(|SFTConfig\\(|a=|[\\[\\](){}'\"\\\\#,= \n\u{e9}]|\\PC){0,60}") {
            read(&code);
        }
    }
}
