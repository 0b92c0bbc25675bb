//! Splits a run's output into lines: without colors, with each redraw of a progress bar as a line, and with the process
//! that printed it.
//! Not here: the meaning of lines (`statements.rs`).

/// A line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// A launcher's prefix that names the process, such as `[rank0]`; empty if there is none.
    pub source: String,
    /// The rest, without colors and trailing whitespace.
    pub text: String,
}

/// The lines of a text, in order. Each redraw of a progress bar is a line.
pub(super) fn lines(output: &str) -> Vec<Line> {
    // Windows ends lines with both characters. Splitting at each would add empty lines, which end a message.
    let output = output.replace("\r\n", "\n");
    output.split(['\n', '\r']).map(|line| split_source(&without_escapes(line))).collect()
}

/// Removes escape sequences for colors and titles (ECMA-48: CSI and OSC sequences).
fn without_escapes(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => match rest.next() {
                Some('[') => drop(rest.find(|c| ('@'..='~').contains(c))),
                Some(']') => drop(rest.find(|c| *c == '\u{7}')),
                _ => {}
            },
            c if c.is_control() && c != '\t' => {}
            c => text.push(c),
        }
    }
    text
}

/// Splits off a launcher's prefix: `[rank0]: ` (PyTorch), `[default0]:` (torchrun), `[1,0]<stderr>:` (Open MPI), `0: `
/// (Slurm), `worker-1: ` (pdsh), `(train pid=77) ` (Ray), `trainer-1  | ` (Docker Compose).
fn split_source(line: &str) -> Line {
    let split = |end: usize| Line {
        source: line[..end].trim_end().to_owned(),
        text: line[end..].strip_prefix(' ').unwrap_or(&line[end..]).trim_end().to_owned(),
    };
    let bracketed = ["[rank", "[default"].iter().find_map(|start| {
        let (number, _) = line.strip_prefix(start)?.split_once("]:")?;
        is_number(number).then(|| start.len() + number.len() + 2)
    });
    let mpi = || {
        let (numbers, rest) = line.strip_prefix('[')?.split_once(']')?;
        let stream = ["<stderr>:", "<stdout>:"].into_iter().find(|stream| rest.starts_with(stream))?;
        let (job, rank) = numbers.split_once(',')?;
        (is_number(job) && is_number(rank)).then(|| numbers.len() + 2 + stream.len())
    };
    let colon = || {
        let (name, _) = line.split_once(": ")?;
        (is_number(name) || name.strip_prefix("worker-").is_some_and(is_number)).then(|| name.len() + 1)
    };
    let ray = || {
        let (process, _) = line.strip_prefix('(')?.split_once(") ")?;
        let (_, pid) = process.split_once(" pid=")?;
        is_number(pid.split(',').next().unwrap_or_default()).then(|| process.len() + 2)
    };
    let compose = || {
        let (name, _) = line.split_once("| ")?;
        let trimmed = name.trim_end();
        let is_name = !trimmed.is_empty() && trimmed.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        // A tqdm bar also starts like that: `3%|`.
        (is_name && trimmed.len() < name.len()).then(|| name.len() + 1)
    };
    match bracketed.or_else(mpi).or_else(colon).or_else(ray).or_else(compose) {
        Some(end) => split(end),
        None => Line { source: String::new(), text: line.trim_end().to_owned() },
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() < 8 && text.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_of_launchers_and_escape_sequences_are_removed() {
        let cases = [
            ("[rank3]: ValueError: x", "[rank3]:", "ValueError: x"),
            ("[default0]:  File \"a.py\"", "[default0]:", " File \"a.py\""),
            ("[1,2]<stderr>:MemoryError", "[1,2]<stderr>:", "MemoryError"),
            ("7:   File", "7:", "  File"),
            ("worker-1: x", "worker-1:", "x"),
            ("(Worker pid=77, ip=10.0.0.1) x", "(Worker pid=77, ip=10.0.0.1)", "x"),
            ("trainer-1  | x", "trainer-1  |", "x"),
            ("\u{1b}[31mError\u{1b}[0m: y", "", "Error: y"),
            (" 3%|# | 3/100 [00:01<00:30]", "", " 3%|# | 3/100 [00:01<00:30]"),
            ("KeyError: 'x'", "", "KeyError: 'x'"),
        ];
        for (line, source, text) in cases {
            assert_eq!(lines(line), [Line { source: source.into(), text: text.into() }]);
        }
        assert_eq!(lines("a\rb\r\nc").len(), 3, "a redrawn bar and a Windows line end");
    }

    proptest! {
        #[test]
        fn any_text_is_split_into_lines(text in "(\\PC|[\u{1b}\\[\\]():| \n\r0-9a-z])*") {
            let found = lines(&text);
            prop_assert_eq!(found.len(), text.replace("\r\n", "\n").split(['\n', '\r']).count());
            let escapes = found.iter().filter(|line| line.text.contains(char::is_control)).count();
            prop_assert_eq!(escapes, found.iter().filter(|line| line.text.contains('\t')).count());
        }
    }
}
