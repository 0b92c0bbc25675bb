//! The formats in which rows store chats, and the messages of a row in the common form for chat templates.
//! Not here: detecting the data's format (`detect.rs`), and rendering messages (`spans.rs`).

use super::preference_data::PreferenceData;
use crate::{DataError, RowNumber};
use plimsoll_jinja::Value;
use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;

/// How a row stores a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatFormat {
    /// OpenAI's: a list `messages` (or `conversations`) of objects with `role` and `content`, which templates receive
    /// unchanged, and optionally `tools`. Or two such lists, `prompt` and `completion`; the second is trained on.
    Messages,
    /// ShareGPT's: a list `conversations` (or `messages`) of objects with `from` and `value`, and optionally `system`.
    ShareGpt,
    /// Alpaca's: `instruction`, `input` and `output`, and optionally `system` and `history`.
    Alpaca,
    /// Texts `prompt` and `completion`, which are not rendered by a template.
    Completion,
}

impl fmt::Display for ChatFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Messages => "messages",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Completion => "completion",
        })
    }
}

impl ChatFormat {
    /// The fields of each of its rows.
    fn fields(self) -> &'static str {
        match self {
            Self::Messages => "`messages` with `role` and `content`",
            Self::ShareGpt => "`conversations` with `from` and `value`",
            Self::Alpaca => "`instruction` and `output`",
            Self::Completion => "texts `prompt` and `completion`",
        }
    }
}

/// The messages of a row.
#[derive(Debug, Clone)]
pub(super) struct Conversation {
    /// Objects with `role`, and `content` or `tool_calls`; at least one.
    pub messages: Vec<Value>,
    /// The tools that the assistant may call; `none` if the row has no such field.
    pub tools: Value,
    /// The messages with call arguments as the row's original text, if it has text: some templates write that.
    pub with_texts: Option<Vec<Value>>,
    /// How many messages at the start form a prompt, which is not trained on.
    pub prompt: usize,
}

/// Why a row is not a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatError {
    /// Not a JSON object.
    NotAnObject(String),
    /// What is wrong with it.
    NotAChat(String),
}

impl ChatError {
    /// Converts to the error for a row of a file.
    pub(crate) fn in_file(self, path: PathBuf, row: RowNumber) -> DataError {
        match self {
            Self::NotAnObject(message) => DataError::BadJsonLine { path, row, message },
            Self::NotAChat(message) => DataError::NotAChat { path, row, message },
        }
    }

    /// The message without a file.
    pub(super) fn into_words(self) -> String {
        match self {
            Self::NotAnObject(message) => format!("it is not a JSON object: {message}"),
            Self::NotAChat(message) => message,
        }
    }
}

/// The field names of [`Fields`].
pub(super) const FIELDS: &[&str] = &[
    "messages",
    "conversations",
    "instruction",
    "input",
    "output",
    "system",
    "history",
    "tools",
    "prompt",
    "completion",
    "chosen",
    "rejected",
    "label",
];

/// The fields of a row that may belong to a chat. Other fields are checked but not kept.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    messages: Option<Value>,
    conversations: Option<Value>,
    instruction: Option<Value>,
    input: Option<Value>,
    output: Option<Value>,
    system: Option<Value>,
    history: Option<Value>,
    tools: Option<Value>,
    pub(super) prompt: Option<Value>,
    pub(super) completion: Option<Value>,
    pub(super) chosen: Option<Value>,
    pub(super) rejected: Option<Value>,
    pub(super) label: Option<Value>,
}

impl Fields {
    /// The fields of a row; `None` for a blank row.
    pub(super) fn of_row(row: &str) -> Result<Option<Self>, ChatError> {
        if row.trim().is_empty() {
            return Ok(None);
        }
        if !row.trim_start().starts_with('{') {
            return Err(ChatError::NotAnObject("it does not begin with {".to_owned()));
        }
        serde_json::from_str(row).map(Some).map_err(|error| ChatError::NotAnObject(error.to_string()))
    }

    /// The fields of a row with these messages, and the same tools.
    pub(super) fn with_messages(&self, messages: Vec<Value>) -> Self {
        Self { messages: Some(Value::list(messages)), tools: self.tools.clone(), ..Self::default() }
    }

    /// The format that the row appears to have.
    pub(super) fn format(&self) -> Option<ChatFormat> {
        if let Some(first) = self.turns().and_then(|turns| turns.as_list()?.first().cloned()) {
            let has = |name| first.get(name).is_some();
            return if has("from") { Some(ChatFormat::ShareGpt) } else { has("role").then_some(ChatFormat::Messages) };
        }
        let is_text = |field: &Option<Value>| field.as_ref().is_some_and(|field| field.as_str().is_some());
        match () {
            () if is_text(&self.instruction) && is_text(&self.output) => Some(ChatFormat::Alpaca),
            () if is_text(&self.prompt) && is_text(&self.completion) => Some(ChatFormat::Completion),
            () => None,
        }
    }

    /// The kind of preferences, if the row holds preferences and no chat.
    pub(super) fn preferences(&self) -> Option<PreferenceData> {
        if self.messages.is_some() || self.conversations.is_some() || self.format() == Some(ChatFormat::Alpaca) {
            return None;
        }
        let is_chosen = self.chosen.is_some() && self.rejected.is_some();
        let is_judged = self.completion.is_some() && matches!(self.label, Some(Value::Bool(_)));
        is_chosen.then_some(PreferenceData::Paired).or(is_judged.then_some(PreferenceData::Judged))
    }

    /// The list of turns, under either name. Columns of a table may hold one list per field instead of a list of
    /// objects.
    fn turns(&self) -> Option<Value> {
        match self.messages.as_ref().or(self.conversations.as_ref()) {
            Some(turns) => list_of_turns(turns),
            None => {
                let lists = [self.prompt_messages()?, list_of_turns(self.completion.as_ref()?)?];
                Some(Value::list(lists.iter().flat_map(|list| list.as_list().unwrap_or_default()).cloned().collect()))
            }
        }
    }

    /// The messages of a prompt that is a list, if the completion is a separate field.
    fn prompt_messages(&self) -> Option<Value> {
        let is_apart = self.messages.is_none() && self.conversations.is_none();
        list_of_turns(self.prompt.as_ref().filter(|_| is_apart)?)
    }

    /// Converts to messages. Errors: the row has another format, or lacks a field.
    pub(super) fn conversation(self, format: ChatFormat) -> Result<Conversation, ChatError> {
        self.messages_as(format).map_err(ChatError::NotAChat)
    }

    fn messages_as(self, format: ChatFormat) -> Result<Conversation, String> {
        match self.format() {
            Some(found) if found == format => {}
            Some(found) => return Err(format!("it has {}, not {}", found.fields(), format.fields())),
            None => return Err(format!("it has no {}", format.fields())),
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system.as_ref().filter(|_| format != ChatFormat::Messages) {
            let text = text_of(system, "`system`")?;
            messages.extend((!text.is_empty()).then(|| message("system", text)));
        }
        match format {
            ChatFormat::Alpaca => self.append_alpaca(&mut messages)?,
            ChatFormat::Completion => unreachable!("`completion.rs` reads texts"),
            ChatFormat::Messages | ChatFormat::ShareGpt => {
                let turns = self.turns().expect("the format was detected from them");
                for (turn, number) in turns.as_list().unwrap_or_default().iter().zip(1..) {
                    let of_turn = |problem| format!("message {number} {problem}");
                    let turn = whole(turn)?;
                    let read = if format == ChatFormat::Messages { checked(turn) } else { of_sharegpt(&turn) };
                    messages.push(read.map_err(of_turn)?);
                }
            }
        }
        let tools = parsed_tools(self.tools.as_ref().map_or(Ok(Value::None), whole)?)?;
        let given = messages.clone();
        let mut has_texts = false;
        for (message, number) in messages.iter_mut().zip(1..) {
            has_texts |= parse_arguments(message).map_err(|problem| format!("message {number} {problem}"))?;
        }
        let prompt = self.prompt_messages().map_or(0, |prompt| prompt.as_list().unwrap_or_default().len());
        Ok(Conversation { messages, tools, with_texts: has_texts.then_some(given), prompt })
    }

    /// `input` becomes a second paragraph of the instruction.
    fn append_alpaca(&self, messages: &mut Vec<Value>) -> Result<(), String> {
        if let Some(history) = &self.history {
            for pair in history.as_list().ok_or("its `history` is not a list")? {
                for (at, role) in [(0, "user"), (1, "assistant")] {
                    let text = pair.as_list().and_then(|pair| pair.get(at)).filter(|text| text.as_str().is_some());
                    let text = text.ok_or("its `history` is not a list of pairs of texts")?;
                    messages.push(message(role, text_of(text, "`history`")?));
                }
            }
        }
        let input = self.input.as_ref().map_or(Ok(String::new()), |input| text_of(input, "`input`"))?;
        let instruction = field_text(&self.instruction, "`instruction`")?;
        let asked = if input.trim().is_empty() { instruction } else { format!("{instruction}\n\n{input}") };
        messages.push(message("user", asked));
        messages.push(message("assistant", field_text(&self.output, "`output`")?));
        Ok(())
    }
}

pub(super) fn message(role: &str, content: String) -> Value {
    Value::dict([("role", Value::from(role)), ("content", Value::from(content))])
}

/// Checks that an OpenAI message can be passed to a template.
fn checked(turn: Value) -> Result<Value, String> {
    if turn.get("role").and_then(Value::as_str).is_none() {
        return Err("has no `role`".to_owned());
    }
    if turn.get("content").or(turn.get("tool_calls")).is_some() {
        Ok(turn)
    } else {
        Err("has neither `content` nor `tool_calls`".to_owned())
    }
}

/// Converts a ShareGPT message to OpenAI's form.
fn of_sharegpt(turn: &Value) -> Result<Value, String> {
    let from = turn.get("from").ok_or("has no `from`")?;
    let role = match from.as_str() {
        Some("human" | "user") => "user",
        Some("gpt" | "chatgpt" | "assistant" | "model" | "bing" | "bard" | "function_call") => "assistant",
        Some("system") => "system",
        Some("tool" | "function" | "observation" | "function_response") => "tool",
        from => {
            let from = from.unwrap_or("what is not text");
            return Err(format!("is from `{from:.40}`, not `human`, `gpt`, `system` or `tool`"));
        }
    };
    Ok(message(role, text_of(turn.get("value").ok_or("has no `value`")?, "`value`")?))
}

/// The text of a field. Errors: the field is absent or not text.
pub(super) fn field_text(field: &Option<Value>, what: &str) -> Result<String, String> {
    field.as_ref().map_or_else(|| Err(format!("it has no {what}")), |field| text_of(field, what))
}

fn text_of(value: &Value, what: &str) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| format!("{what} is not text"))?;
    without_marks(text)?;
    Ok(text.to_owned())
}

/// Parses a value that may be JSON in a text, since a table's column can't hold objects of different types.
fn parsed(value: Value) -> Result<Value, String> {
    match value.as_str() {
        Some(text) => whole(&serde_json::from_str(text).map_err(|error| error.to_string())?),
        None => Ok(value),
    }
}

/// Tools and their parameters, each an object or JSON in a text.
fn parsed_tools(tools: Value) -> Result<Value, String> {
    if tools.as_str().is_some_and(|text| text.trim().is_empty()) {
        return Ok(Value::None);
    }
    let not_json = |error| format!("its `tools` are not JSON: {error}");
    let tools = parsed(tools).map_err(not_json)?;
    let Some(list) = tools.as_list() else { return Ok(tools) };
    let tool = |tool: &Value| {
        let tool = parsed(tool.clone())?;
        let function = field(&tool, "function").map(parsed).transpose()?;
        let described = function.as_ref().unwrap_or(&tool);
        let Some(parameters) = field(described, "parameters") else { return Ok(tool) };
        let described = with_field(described, "parameters", parsed(parameters)?);
        Ok(if function.is_some() { with_field(&tool, "function", described) } else { described })
    };
    list.iter().map(tool).collect::<Result<Vec<Value>, String>>().map(Value::list).map_err(not_json)
}

/// Parses calls and arguments that are JSON in a text, as in OpenAI's format. Returns whether there were any.
fn parse_arguments(message: &mut Value) -> Result<bool, String> {
    let not_json = |what: &str, error| format!("has {what} that are not JSON: {error}");
    let Some(calls) = field(message, "tool_calls") else { return Ok(false) };
    let mut changed = calls.as_str().is_some();
    let calls = parsed(calls).map_err(|error| not_json("`tool_calls`", error))?;
    let mut parsed_calls = Vec::new();
    for call in calls.as_list().ok_or("has `tool_calls` that are not a list")? {
        let call = call.clone();
        let function = field(&call, "function");
        let called = function.as_ref().unwrap_or(&call);
        let text = field(called, "arguments").filter(|arguments| arguments.as_str().is_some());
        let Some(text) = text else {
            parsed_calls.push(call);
            continue;
        };
        changed = true;
        let is_blank = text.as_str().is_some_and(|text| text.trim().is_empty());
        let text = if is_blank { Value::from("{}") } else { text };
        let arguments = parsed(text).map_err(|error| not_json("`arguments` of a call", error))?;
        let called = with_field(called, "arguments", arguments);
        parsed_calls.push(if function.is_some() { with_field(&call, "function", called) } else { called });
    }
    if changed {
        *message = with_field(message, "tool_calls", Value::list(parsed_calls));
    }
    Ok(changed)
}

/// A field of an object; `None` if it is absent or null.
pub(super) fn field(value: &Value, name: &str) -> Option<Value> {
    value.get(name).filter(|value| !value.is_none()).cloned()
}

/// Replaces the value of an existing field of an object.
pub(super) fn with_field(object: &Value, name: &str, value: Value) -> Value {
    let fields = object.as_dict().into_iter().flat_map(|object| object.iter());
    Value::dict(fields.map(|(key, old)| (key.clone(), if key.as_str() == Some(name) { &value } else { old }.clone())))
}

/// A list of messages; columns of a table may hold it as an object of lists, or as JSON in a text.
pub(super) fn list_of_turns(turns: &Value) -> Option<Value> {
    let turns = parsed(turns.clone()).ok()?;
    match turns {
        Value::List(_) => Some(turns),
        _ => rows_of_columns(&turns),
    }
}

/// Converts an object of lists to a list of objects. `None` if the lists have different lengths.
fn rows_of_columns(columns: &Value) -> Option<Value> {
    let mut rows: Vec<Vec<(Value, Value)>> = Vec::new();
    for (at, (name, column)) in columns.as_dict()?.iter().enumerate() {
        let column = column.as_list()?;
        if at == 0 {
            rows.resize(column.len(), Vec::new());
        }
        if column.len() != rows.len() {
            return None;
        }
        rows.iter_mut().zip(column).for_each(|(row, cell)| row.push((name.clone(), cell.clone())));
    }
    Some(Value::list(rows.into_iter().map(Value::dict).collect()))
}

/// Removes fields that are null: tables fill up objects with them, and a template treats a null field as present.
/// Errors: a text contains a mark of trained spans.
fn whole(value: &Value) -> Result<Value, String> {
    if let Some(items) = value.as_list() {
        return items.iter().map(whole).collect::<Result<Vec<_>, _>>().map(Value::list);
    }
    let Some(object) = value.as_dict() else {
        value.as_str().map_or(Ok(()), without_marks)?;
        return Ok(value.clone());
    };
    let fields = object.iter().filter(|(_, field)| !field.is_none());
    let fields = fields.map(|(name, field)| Ok((name.clone(), whole(field)?)));
    fields.collect::<Result<Vec<_>, String>>().map(Value::dict)
}

pub(super) fn without_marks(text: &str) -> Result<(), String> {
    match text.find(super::marks::is_mark) {
        Some(at) => Err(format!("a text holds a noncharacter of Unicode, at byte {at}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, Date};
    use super::*;

    /// `role: content` of each message, in the format of the row or the given one.
    fn read(row: &str, format: Option<ChatFormat>) -> Result<Vec<String>, ChatError> {
        let fields = Fields::of_row(row)?.expect("a row that is not blank");
        let format = format.or(fields.format()).ok_or_else(|| ChatError::NotAChat("no format".to_owned()))?;
        let text = |m: &Value, name| m.get(name).and_then(Value::as_str).unwrap().to_owned();
        let shown = |m: &Value| format!("{}: {}", text(m, "role"), text(m, "content"));
        Ok(fields.conversation(format)?.messages.iter().map(shown).collect())
    }

    /// The JSON that a template writes for a value.
    fn json(value: &Value) -> String {
        let template = "{{ tools | tojson(separators=(',', ':')) }}";
        let template = ChatTemplate::of_text(template, Date::of_unix_seconds(0)).unwrap();
        template.render(&[], value, false).unwrap()
    }

    fn problem(row: &str, format: ChatFormat) -> String {
        match read(row, Some(format)) {
            Err(ChatError::NotAChat(problem)) => problem,
            other => panic!("{row}: {other:?}"),
        }
    }

    #[test]
    fn each_format_gives_messages() {
        for (row, expected) in [
            (
                r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"id":7}"#,
                vec!["user: a", "assistant: b"],
            ),
            (r#"{"conversations":[{"role":"user","content":"a"}],"system":"unused"}"#, vec!["user: a"]),
            (
                r#"{"system":"s","conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"},{"from":"tool","value":"c"}]}"#,
                vec!["system: s", "user: a", "assistant: b", "tool: c"],
            ),
            (r#"{"conversations":{"from":["human","gpt"],"value":["a","b"]}}"#, vec!["user: a", "assistant: b"]),
            (r#"{"instruction":"a","input":"","output":"b"}"#, vec!["user: a", "assistant: b"]),
            (
                r#"{"instruction":"a","input":"c","output":"b","system":"s","history":[["d","e"]],"text":"t"}"#,
                vec!["system: s", "user: d", "assistant: e", "user: a\n\nc", "assistant: b"],
            ),
        ] {
            assert_eq!(read(row, None).unwrap(), expected, "{row}");
        }
        assert!(Fields::of_row(" \r\n").unwrap().is_none());
        assert_eq!(Fields::of_row(r#"{"text":"a","instruction":7}"#).unwrap().unwrap().format(), None);
    }

    #[test]
    fn rows_that_are_not_chats_are_explained() {
        use ChatFormat::{Alpaca, Messages, ShareGpt};
        let sharegpt = r#"{"conversations":[{"from":"human","value":"a"}]}"#;
        assert_eq!(
            problem(sharegpt, Messages),
            "it has `conversations` with `from` and `value`, not `messages` with `role` and `content`"
        );
        assert_eq!(problem(r#"{"messages":[]}"#, Messages), "it has no `messages` with `role` and `content`");
        assert_eq!(problem(r#"{"text":"a"}"#, Alpaca), "it has no `instruction` and `output`");
        let messages = |second: &str| format!(r#"{{"messages":[{{"role":"user","content":"a"}},{second}]}}"#);
        assert_eq!(problem(&messages(r#"{"content":"b"}"#), Messages), "message 2 has no `role`");
        let neither = "message 2 has neither `content` nor `tool_calls`";
        assert_eq!(problem(&messages(r#"{"role":"assistant","content":null}"#), Messages), neither);
        assert_eq!(
            problem(&messages(r#"{"role":"user","content":"\ufdd0"}"#), Messages),
            "a text holds a noncharacter of Unicode, at byte 0"
        );
        let from = problem(r#"{"conversations":[{"from":"Bob","value":"a"}]}"#, ShareGpt);
        assert_eq!(from, "message 1 is from `Bob`, not `human`, `gpt`, `system` or `tool`");
        for row in ["[1]", "{", "7", r#"{"messages":[{"role":"a","content":"b"}],"messages":[]}"#] {
            assert!(matches!(read(row, None), Err(ChatError::NotAnObject(_))), "{row}");
        }
        let deep = format!(r#"{{"messages":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(matches!(read(&deep, None), Err(ChatError::NotAnObject(message)) if message.contains("recursion")));
    }

    #[test]
    fn json_in_texts_is_parsed() {
        let call = |arguments: &str| format!(r#"{{"function":{{"name":"tide","arguments":{arguments}}}}}"#);
        let row = |arguments: &str| {
            format!(r#"{{"messages":[{{"role":"assistant","content":null,"tool_calls":[{}]}}]}}"#, call(arguments))
        };
        let read = |row: &str| Fields::of_row(row).unwrap().unwrap().conversation(ChatFormat::Messages);
        let arguments = |chat: &Conversation| {
            let calls = chat.messages[0].get("tool_calls").and_then(Value::as_list).unwrap();
            json(calls[0].get("function").unwrap().get("arguments").unwrap())
        };
        let chat = read(&row(r#""{\"port\": \"Hull\", \"a\": 1}""#)).unwrap();
        assert_eq!(arguments(&chat), r#"{"port":"Hull","a":1}"#);
        assert!(json(&Value::list(chat.with_texts.clone().unwrap())).contains(r#""arguments":"{\"port\""#));
        let chat = read(&row(r#"{"port": "Hull"}"#)).unwrap();
        assert_eq!((arguments(&chat).as_str(), chat.with_texts.is_none()), (r#"{"port":"Hull"}"#, true));
        assert_eq!(arguments(&read(&row(r#""""#)).unwrap()), "{}");
        let bad = read(&row(r#""{port""#)).unwrap_err();
        assert!(
            matches!(&bad, ChatError::NotAChat(why) if why.starts_with("message 1 has `arguments` of a call that are not")),
            "{bad:?}"
        );
        let texts = r#"{"messages":"[{\"role\":\"user\",\"content\":\"a\"}]","tools":"[{\"function\":{\"name\":\"t\",\"parameters\":\"{\\\"type\\\":1}\"}}]"}"#;
        assert_eq!(Fields::of_row(texts).unwrap().unwrap().format(), Some(ChatFormat::Messages));
        let chat = read(texts).unwrap();
        assert_eq!(json(&chat.tools), r#"[{"function":{"name":"t","parameters":{"type":1}}}]"#);
        let calls = r#"{"messages":[{"role":"assistant","tool_calls":"[{\"function\":{\"name\":\"t\",\"arguments\":\"{}\"}}]"}]}"#;
        assert_eq!(arguments(&read(calls).unwrap()), "{}");
    }

    #[test]
    fn null_fields_are_removed_and_others_kept() {
        let row = r#"{"messages":[{"role":"assistant","name":null,"tool_calls":[{"z":1,"a":null,"b":[null]}]}],"tools":"[{\"t\":1}]"}"#;
        let read = Fields::of_row(row).unwrap().unwrap().conversation(ChatFormat::Messages).unwrap();
        let messages = json(&Value::list(read.messages));
        assert_eq!(messages, r#"[{"role":"assistant","tool_calls":[{"z":1,"b":[null]}]}]"#);
        assert_eq!(json(&read.tools), r#"[{"t":1}]"#);
    }
}
