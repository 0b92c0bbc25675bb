//! The name of the program that a command runs.

use std::path::Path;

/// The name of a command's script or, without a script, of its program. Safe to send to other machines: arguments and
/// environment variables may contain tokens, and so may a shell command that is a single argument.
pub fn program_name(command: &[String]) -> String {
    let is_script = |word: &&String| {
        let is_plain = !word.starts_with('-') && !word.contains(|c: char| c.is_whitespace() || "=?&@".contains(c));
        is_plain && [".py", ".sh"].iter().any(|ending| word.ends_with(ending))
    };
    let named = command.iter().find(is_script).or(command.first()).map(|word| Path::new(word).file_name());
    named.flatten().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_contains_no_arguments() {
        for (command, name) in [
            (&["python", "-u", "src/train.py", "--token", "hf_CANARY"][..], "train.py"),
            (&["python", "-c", "token = 'CANARY'"], "python"),
            (&["sh", "-c", "WANDB_API_KEY=CANARY python train.py"], "sh"),
            (&["env", "KEY=CANARY.py", "--token=CANARY.py", "python", "a.py"], "a.py"),
            (&["/usr/bin/train", "https://me:CANARY@host/a.py"], "train"),
            (&[], ""),
        ] {
            assert_eq!(program_name(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()), name);
        }
    }
}
