//! The name of what a command runs.

use std::path::Path;

/// The name of a command's script, or else of its program: the part of a command that may be sent to other machines.
/// Arguments and variables may contain tokens, as may a whole command that is one word for a shell.
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
    fn no_argument_is_in_the_name() {
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
