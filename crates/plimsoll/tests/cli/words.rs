//! Words that readers of this project stumbled over, in all of its sources and documents. Each names no actor, or has a
//! plainer word: see the list.

use std::path::{Path, PathBuf};

/// Words and phrases, with what to write instead.
const BANNED: &[(&str, &str)] = &[
    ("somebody", "the actor: a process, a user, a thread"),
    ("nobody", "the actor: a process, a user, a thread"),
    ("anybody", "the actor: a process, a user, a thread"),
    ("whoever", "the actor: a process, a user, a thread"),
    ("is told", "receives, is notified, is set"),
    ("are told", "receive, are notified, are set"),
    ("was told", "received, was notified, was set"),
    ("were told", "received, were notified, were set"),
    ("lies", "is, is stored, is at"),
    ("lie", "be, be stored, be at"),
    ("goes on", "continues"),
    ("go on", "continue"),
    ("beside", "next to, in addition to"),
    ("none where", "`None` if"),
    ("; none:", "`None` if"),
    ("anew", "again"),
    ("what comes of", "the result of"),
];

/// Files of the repository that people write and read, except for results of past measurements and test data.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let is_ours = !name.starts_with('.') && !["target", "results", "vendor", "golden"].contains(&name.as_str());
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if path.is_dir() && is_ours {
                folders.push(path);
            } else if ["rs", "md", "toml", "cu", "cuh", "js", "css", "html", "sh"].contains(&extension) {
                files.push(path);
            }
        }
    }
    files.retain(|path| !path.ends_with("cli/words.rs"));
    files
}

/// Whether a line has a phrase as whole words, not as the name of a flag.
fn has(line: &str, phrase: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(phrase).any(|(at, _)| {
        let after = line[at + phrase.len()..].chars().next();
        let is_cut = is_letter(after) && phrase.ends_with(char::is_alphanumeric);
        let is_inside = is_letter(line[..at].chars().next_back()) && phrase.starts_with(char::is_alphanumeric);
        let is_flag = line[..at].ends_with("--") || (line[..at].ends_with('"') && after == Some('"'));
        !is_inside && !is_cut && !is_flag
    })
}

#[test]
fn banned_words_are_in_no_source_and_no_document() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = files(&root);
    assert!(files.len() > 1_000, "only {} files were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let line = line.to_lowercase();
            let phrases = BANNED.iter().filter(|(phrase, _)| has(&line, phrase));
            found.extend(
                phrases.map(|(phrase, instead)| format!("{}:{}: `{phrase}` -> {instead}", file.display(), number + 1)),
            );
        }
    }
    assert!(found.is_empty(), "{} banned words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn phrases_are_found_as_whole_words() {
    assert!(has("it lies here", "lies") && has("lies", "lies") && has("x; none: y", "; none:"));
    assert!(!has("`--beside pytorch`", "beside") && has("a plan, beside it", "beside"));
    assert!(!has("the families", "lies") && !has("besides", "beside") && !has("lies_of", "lies"));
}
