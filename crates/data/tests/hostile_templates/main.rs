//! Chat templates come with models from untrusted sources: every template is rendered or refused within bounds on time,
//! memory and stack, and the process survives. A separate process, since it measures its heap.

mod templates;

use peak_alloc::PeakAlloc;
use plimsoll_data::{
    ChatFormat, ChatSettings, ChatTemplate, DataError, Date, Sources, Tokenizer, TokenizerSpec, TrainOn, prepare_chats,
    resolve,
};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use templates::templates;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const HEAP_BYTES_MAX: usize = 64 << 20;
const TIME_MAX: Duration = Duration::from_secs(2);

const CHAT: &str = r#"{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello, you"}]}"#;

/// Renders the chat. Returns the length of its text in bytes.
fn rendered(folder: &Path, sources: &Sources, template: &str) -> Result<u64, DataError> {
    let path = folder.join("template.jinja");
    fs::write(&path, template).unwrap();
    let tokenizer = Tokenizer::open(&TokenizerSpec::Bytes)?;
    let template = ChatTemplate::open(&tokenizer, Some(&path), Date::of_unix_seconds(0))?;
    let settings = ChatSettings { format: ChatFormat::Messages, template: &template, train_on: TrainOn::All };
    let cache = tempfile::tempdir_in(folder).unwrap();
    prepare_chats(sources, &settings, &tokenizer, cache.path(), &|_| {}).map(|store| store.tokens().len())
}

#[test]
fn any_template_is_rendered_or_refused_in_bounds() {
    let all = templates();
    assert!(all.len() >= 150, "{} templates", all.len());
    println!("evidence: {} templates", all.len());
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("chats.jsonl");
    fs::write(&data, format!("{CHAT}\n")).unwrap();
    let sources = resolve(&[data.to_str().unwrap()], "text").unwrap();
    // Threads of the pool have stacks of 2 MiB, like this one.
    let judged = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let mut problems = Vec::new();
        for (name, template) in all {
            // With `--nocapture`, shows the template even if the process dies.
            eprintln!("{name}");
            let before = HEAP.current_usage();
            HEAP.reset_peak_usage();
            let begin = Instant::now();
            let result = rendered(folder.path(), &sources, &template);
            let (took, heap) = (begin.elapsed(), HEAP.peak_usage().saturating_sub(before));
            eprintln!("    {took:.2?}, {:.1} MiB: {result:.200?}", heap as f64 / f64::from(1 << 20));
            let is_known = match &result {
                Ok(_) | Err(DataError::Empty { .. } | DataError::NoAnswers { .. }) => true,
                Err(DataError::BadChatTemplate { message, .. } | DataError::ChatTemplateFailed { message, .. }) => {
                    !message.is_empty()
                }
                Err(_) => false,
            };
            if took > TIME_MAX || heap > HEAP_BYTES_MAX || !is_known {
                problems.push(format!("{name}: {took:?}, {heap} bytes, {result:?}"));
            }
        }
        problems
    });
    let problems = judged.unwrap().join().unwrap();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
