//! Error statements of one process of a run: exceptions at the ends of tracebacks, and last messages of libraries.
//! Ignores lines of source inside a traceback.
//! Not here: the meaning of a message (`messages.rs`), the statement that ended the run (`mod.rs`).

use super::messages::{CARDS, Meaning, SHORT, meaning};
use super::native::native;
use super::statement::{Numbered, Statement, Weight, message_lines};
use super::{AllocatorSizes, CardAllocator, Cause, Fault, HostShortage};

/// Lines of other processes to skip between a traceback's frames and its exception.
const STRAY_LINES: usize = 40;

/// The error statements, in order.
pub(super) fn statements(lines: &Numbered<'_>) -> Vec<Statement> {
    let mut found: Vec<Statement> = Vec::new();
    let mut next = 0;
    while next < lines.len() {
        let here = next;
        next += 1;
        if begins_traceback(lines[here].1) {
            let (exception, end) = exception_after(lines, here);
            next = end;
            let Some(exception) = exception else { continue };
            let Some(weight) = weight_of_traceback(lines, here) else { continue };
            let mut meaning = meaning_of_exception(lines, here, exception);
            if follows_another(lines, here) {
                inherit(&mut meaning, found.last());
            }
            found.push(Statement { at: lines[exception].0, weight, meaning });
        } else if let Some((weight, meaning)) = last_words(lines, here).or_else(|| printed(lines[here].1)) {
            found.push(Statement { at: lines[here].0, weight, meaning });
        }
    }
    found
}

/// Whether this is the first line of a traceback or, if the output starts inside one, a frame.
fn begins_traceback(line: &str) -> bool {
    line.contains("Traceback (most recent call last)") || is_frame(line)
}

fn is_frame(line: &str) -> bool {
    line.starts_with("  File \"") && line.contains(", line ")
}

/// The index of the exception of the traceback at `start`, if there is one, and the index to continue at.
fn exception_after(lines: &Numbered<'_>, start: usize) -> (Option<usize>, usize) {
    let indent = lines[start].1.find("Traceback").map_or(0, |_| indentation(lines[start].1));
    let mut strays = 0;
    for (i, (_, line)) in lines.iter().enumerate().skip(start + 1) {
        if line.contains("Traceback (most recent call last)") {
            return (None, i);
        }
        let is_source =
            line.is_empty() || indentation(line) > indent || line.trim_start().starts_with(['│', '╭', '╰', '❱']);
        if is_source {
            continue;
        }
        if exception(line.trim_start()).is_some() {
            return (Some(i), i + 1);
        }
        strays += 1;
        if strays > STRAY_LINES {
            return (None, i);
        }
    }
    (None, lines.len())
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Splits `torch.OutOfMemoryError: CUDA out of memory.` into name and message, if a line has this form.
fn exception(line: &str) -> Option<(&str, &str)> {
    let (name, message) = line.split_once(": ").unwrap_or((line.trim_end_matches(':'), ""));
    // `ray.exceptions.RayTaskError(OutOfMemoryError)`
    let plain = name.split('(').next().unwrap_or_default();
    let is_name = !plain.is_empty() && plain.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
    let is_class = plain.rsplit('.').next()?.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase());
    (is_name && is_class).then_some((plain, message))
}

/// How final a traceback is, by the line before it; `None` if Python only prints it and continues.
fn weight_of_traceback(lines: &Numbered<'_>, start: usize) -> Option<Weight> {
    let before = line_before(lines, start);
    if ["Exception ignored in", "Error in atexit", "Error in sys.excepthook"].iter().any(|s| before.contains(s)) {
        None
    } else if before.starts_with("Exception in thread") {
        Some(Weight::Thread)
    } else {
        Some(Weight::Final)
    }
}

fn line_before<'a>(lines: &Numbered<'a>, start: usize) -> &'a str {
    lines[..start].iter().rev().map(|(_, line)| *line).find(|line| !line.is_empty()).unwrap_or_default()
}

fn follows_another(lines: &Numbered<'_>, start: usize) -> bool {
    let before = line_before(lines, start);
    before.starts_with("During handling of the above exception")
        || before.starts_with("The above exception was the direct")
}

/// Replaces the meaning of an exception that was raised while handling an out-of-memory error with the latter.
fn inherit(meaning: &mut Meaning, before: Option<&Statement>) {
    match before.map(|statement| &statement.meaning) {
        Some(Meaning::Cause(cause)) if cause.is_memory() => *meaning = Meaning::Cause(cause.clone()),
        _ => {}
    }
}

fn meaning_of_exception(lines: &Numbered<'_>, start: usize, at: usize) -> Meaning {
    let (mut name, mut message) = exception(lines[at].1.trim_start()).expect("it was found by its form");
    let more = message_lines(lines, at);
    // PyTorch's compilers print the exception that they caught on the next line.
    if let Some(raised) = message.ends_with("raised:").then(|| exception(more.lines().next()?)).flatten() {
        (name, message) = raised;
    }
    let said = meaning(name, message, &more);
    // Copies to a GPU use pinned host memory. The driver reports both kinds of memory with the same error.
    let pins = lines[start..at].iter().rev().take(4).any(|(_, line)| line.contains("pin_memory"));
    match said {
        Meaning::Cause(Cause::CardMemory { by: CardAllocator::Driver, .. }) if pins => {
            Meaning::Cause(Cause::HostMemory(HostShortage::Pinned))
        }
        Meaning::Cause(Cause::CardMemory { by: CardAllocator::PyTorch, sizes })
            if asks_deepspeed(&lines[start..at]) =>
        {
            Meaning::Cause(Cause::CardMemory { by: CardAllocator::DeepSpeed, sizes })
        }
        said => said,
    }
}

/// Whether the innermost frame outside PyTorch is code of DeepSpeed that holds parameters, gradients and moments
/// (`deepspeed/runtime/zero` and its optimizers), and not code that calls the model.
fn asks_deepspeed(traceback: &Numbered<'_>) -> bool {
    const PLACES: [&str; 4] = [
        "/deepspeed/runtime/zero/",
        "/deepspeed/runtime/fp16/",
        "/deepspeed/runtime/bf16_optimizer",
        "/deepspeed/ops/adam/",
    ];
    let files = traceback.iter().rev().filter(|(_, line)| line.trim_start().starts_with("File \""));
    let innermost = files.map(|(_, line)| line.replace('\\', "/")).find(|line| !line.contains("/torch/"));
    // DeepSpeed calls the backward pass, which runs in PyTorch.
    let is_backward = traceback.iter().any(|(_, line)| line.contains("/torch/autograd/"));
    !is_backward && innermost.is_some_and(|line| PLACES.iter().any(|place| line.contains(place)))
}

/// The last message, without a traceback, of code that then ends the process.
fn last_words(lines: &Numbered<'_>, here: usize) -> Option<(Weight, Meaning)> {
    let line = lines[here].1;
    uncaught_in_cpp(lines, here)
        .or_else(|| bitsandbytes(line))
        .or_else(|| usage_error(lines, here))
        .or_else(|| no_script(line))
        .or_else(|| signal_of_child(line).map(Meaning::Signal))
        .map(|meaning| (Weight::Final, meaning))
        .or_else(|| native(lines, here))
}

fn uncaught_in_cpp(lines: &Numbered<'_>, here: usize) -> Option<Meaning> {
    let (_, rest) = lines[here].1.split_once("terminate called after throwing an instance of '")?;
    let name = rest.split('\'').next()?;
    let what = lines.get(here + 1).and_then(|(_, line)| line.trim_start().strip_prefix("what():"));
    Some(match what {
        _ if name == "std::bad_alloc" => Meaning::Cause(Cause::HostMemory(HostShortage::Cpp)),
        Some(message) => meaning(&name.replace("::", "."), message.trim_start(), &message_lines(lines, here + 1)),
        None => Meaning::Cause(Cause::Fault(Fault::Exception { name: name.to_owned() })),
    })
}

/// `Error out of memory at line 88 in file csrc/ops.cu`, perhaps after a progress bar. The library exits after it.
fn bitsandbytes(line: &str) -> Option<Meaning> {
    let (before, place) = line.split_once(" at line ")?;
    let (_, error) = before.rsplit_once("Error ")?;
    if !place.contains(" in file ") {
        return None;
    }
    let cause = match error {
        "out of memory" => Cause::CardMemory { by: CardAllocator::Bitsandbytes, sizes: AllocatorSizes::default() },
        "an illegal memory access was encountered" => Cause::Fault(Fault::IllegalAccess),
        _ => Cause::Fault(Fault::Cuda),
    };
    Some(Meaning::Cause(cause))
}

/// `train.py: error: unrecognized arguments: --x` or `Error: No such option: --x`, after the usage.
fn usage_error(lines: &Numbered<'_>, here: usize) -> Option<Meaning> {
    const LONGEST_USAGE: usize = 400;
    let line = lines[here].1;
    let is_error = line.split_once(": error: ").is_some_and(|(program, _)| !program.contains(": "));
    let mut before = lines[..here].iter().rev().take(LONGEST_USAGE);
    let is_usage = |line: &str| line.starts_with("usage: ") || line.starts_with("Usage: ");
    let has_usage = (is_error || line.starts_with("Error: ")) && before.any(|(_, line)| is_usage(line));
    has_usage.then_some(Meaning::Cause(Cause::Fault(Fault::Configuration)))
}

/// Messages of interpreters about a missing script or module: Python's `can't open file` and `No module named`, and
/// dash's `cannot open`.
fn no_script(line: &str) -> Option<Meaning> {
    let (program, what) = line.split_once(": ")?;
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_python = name.starts_with("python") || name.starts_with("pypy");
    let fault = match what {
        what if is_python && what.starts_with("can't open file ") => Fault::Script,
        what if is_python && what.starts_with("No module named ") => Fault::Import,
        what if name == "sh" && what.starts_with("0: cannot open ") => Fault::Script,
        _ => return None,
    };
    Some(Meaning::Cause(Cause::Fault(fault)))
}

/// Messages of launchers about a process that a signal ended, except SIGTERM, which launchers send themselves.
fn signal_of_child(line: &str) -> Option<i32> {
    const SENT: i32 = 15;
    let number = ["exits with return code = -", "failed (exitcode: -", "exitcode  : -", "terminated with signal "]
        .into_iter()
        .find_map(|before| Some(line.split_once(before)?.1))?;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    let signal = match number.starts_with("SIG") {
        true => {
            ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"]
                .into_iter()
                .zip([9, 11, 6, 7])
                .find(|(n, _)| number.starts_with(n))?
                .1
        }
        false => digits.parse().ok()?,
    };
    (signal != SENT).then_some(signal)
}

/// An error printed by a program that caught it: at the start of a line, or after a word for errors.
fn printed(line: &str) -> Option<(Weight, Meaning)> {
    if line.starts_with([' ', '\t', '#', '>', '|']) {
        return None;
    }
    if let Some((name, message)) =
        exception(line).filter(|(name, _)| name.ends_with("Error") || name.ends_with("Exception"))
    {
        return Some((Weight::Printed, meaning(name, message, "")));
    }
    let message = SHORT.iter().find_map(|words| line.find(words)).and_then(|at| {
        let is_at_start = CARDS.iter().any(|card| line.starts_with(card));
        let from = if is_at_start { 0 } else { after_word_for_errors(&line[..at])? };
        Some(line[from..].trim_start_matches([':', ' ', '-', ']', '!', ',', '|', '(', '"']))
    });
    let said = meaning("RuntimeError", message?, "");
    matches!(&said, Meaning::Cause(cause) if cause.is_memory()).then_some((Weight::Printed, said))
}

/// The end of the last word for errors in a text.
fn after_word_for_errors(text: &str) -> Option<usize> {
    const WORDS: [&str; 8] = ["ERROR", "Error", "error", "CRITICAL", "FATAL", "Fatal", "OOM", "failed"];
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.rfind(|word| WORDS.contains(word)).and_then(|word| Some(text.rfind(word)? + word.len()))
}
