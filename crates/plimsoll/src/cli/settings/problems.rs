//! Reports all problems of a file of settings together.

use crate::cli::Failure;
use crate::cli::words::sentence;
use plimsoll_trainers::words::Reason;
use std::path::Path;

/// A problem of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) line: u64,
    pub(super) what: String,
    /// What to do; equal solutions have equal words.
    pub(super) hint: Option<String>,
    /// It is not a problem if one of these is set elsewhere.
    pub(super) gives_way_to: Vec<&'static str>,
}

/// The most problems to list; a file with more is probably not a file of settings.
pub(super) const PROBLEMS_MAX: usize = 50;

/// Where all settings are listed.
const ALL: &str = "`plimsoll train --help` lists all settings";

/// The failure with all problems of a file, at least one, in the order of their lines, grouped by their hint.
pub(super) fn failure(path: &Path, mut problems: Vec<Problem>) -> Failure {
    problems.sort_by_key(|problem| problem.line);
    // Training on preferences is the only problem worth reporting: the others do not matter then.
    let on_preferences = sentence(Reason::NoPreferences);
    if let Some(other) = problems.iter().position(|problem| problem.hint.as_deref() == Some(on_preferences)) {
        problems = vec![problems.swap_remove(other)];
    }
    let path = path.display();
    if let [Problem { line, what, hint, .. }] = &problems[..] {
        let failure = Failure::bad_flag(format!("{path}, line {line}: {what}"));
        return failure.hint(hint.clone().unwrap_or_else(|| ALL.to_owned()));
    }
    let mut message = format!("{path} has {} problems", problems.len());
    let others = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    while !problems.is_empty() {
        let hint = problems[0].hint.clone();
        let (alike, others) = problems.into_iter().partition(|problem| hint.is_some() && problem.hint == hint);
        let (mut alike, mut others): (Vec<Problem>, Vec<Problem>) = (alike, others);
        if alike.is_empty() {
            alike.push(others.remove(0));
        }
        problems = others;
        for Problem { line, what, .. } in &alike {
            message += &format!("\n  line {line}: {what}");
        }
        message += &hint.map_or(String::new(), |hint| format!("\n    {hint}"));
    }
    if others > 0 {
        message += &format!("\n  and {others} more");
    }
    Failure::bad_flag(message).hint(ALL)
}

/// Keys by their reason, in the order of the first of each.
pub(super) fn keys_by_reason(keys_with_reasons: &[(String, &'static str)]) -> String {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (key, why) in keys_with_reasons {
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, keys)) => keys.push(format!("`{key}`")),
            None => reasons.push((why, vec![format!("`{key}`")])),
        }
    }
    let groups = reasons.iter().map(|(why, keys)| format!("{} ({why})", keys.join(", ")));
    groups.collect::<Vec<_>>().join("; ")
}
