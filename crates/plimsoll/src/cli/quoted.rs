//! Words of commands that are printed, so that they can be pasted into a shell.

/// A word of a command, in quotes if a shell would take it for more than that.
pub(super) fn for_a_shell(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
