//! Ends that a restart of the same command would repeat, so that the supervisor does not restart it.
//! Not here: the meaning of ends (`ends/`), and out-of-memory errors, which a changed command may avoid (`mender/`).

use crate::ends::{Fault, Reason};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Exit codes of shells for a command that can't be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Exit codes of `plimsoll train` that a restart would repeat. In other programs, they mean something else.
const OWN: [(i32, &str); 5] = [
    (2, "`plimsoll train` rejects its command line"),
    (3, "`plimsoll train` does not fit in memory"),
    (4, "`plimsoll train` rejects its input"),
    (6, "`plimsoll train` stopped for heat"),
    (7, "`plimsoll train` diverged, and would again"),
];

/// Why a command will never start training; `None` if it may.
pub(crate) fn never_begins(argv: &[OsString], code: Option<i32>, reason: &Reason) -> Option<String> {
    let own = || OWN.into_iter().find(|(own, _)| Some(*own) == code && is_own_training(argv));
    if code.is_some_and(|code| NOT_STARTED.contains(&code)) {
        return Some("the command can't be started".to_owned());
    }
    if let Some((code, why)) = own() {
        return Some(format!("{why} (exit code {code})"));
    }
    let why = match reason.fault()? {
        Fault::Configuration => "its settings are invalid",
        Fault::Script => "its script is missing or can't be parsed",
        Fault::Import => "a module can't be loaded",
        _ => return None,
    };
    Some(format!("{why}{}", reason.said()))
}

/// Whether a command runs `plimsoll train`.
fn is_own_training(argv: &[OsString]) -> bool {
    let is_program = |word: &OsString| Path::new(word).file_name() == Some(OsStr::new("plimsoll"));
    argv.windows(2).any(|words| is_program(&words[0]) && words[1] == "train")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::classify;
    use crate::repair::Ending;

    fn check(command: &str, code: i32, output: &str) -> Option<String> {
        let argv = command.split(' ').map(OsString::from).collect::<Vec<_>>();
        let ending = Ending { code: Some(code), tail: output.as_bytes().to_vec(), ..Ending::default() };
        never_begins(&argv, ending.code, &classify(&ending))
    }

    #[test]
    fn commands_that_never_start_are_recognized() {
        for (command, code, output, why) in [
            (
                "python3 a.py",
                2,
                "/usr/bin/python3: can't open file '/a.py': [Errno 2] No such file or directory\n",
                "script",
            ),
            ("sh a.sh", 2, "sh: 0: cannot open a.sh: No such file\n", "script"),
            ("python3 -m a", 1, "/usr/bin/python3: No module named a\n", "module"),
            (
                "python a.py",
                1,
                "  File \"a.py\", line 1\n    def f(:\n          ^\nSyntaxError: invalid syntax\n",
                "script",
            ),
            ("python a.py", 1, "  File \"a.py\", line 2\n    x\nIndentationError: unexpected indent\n", "script"),
            (
                "python a.py",
                1,
                "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nModuleNotFoundError: No module named 'x'\n",
                "module",
            ),
            ("python a.py", 2, "usage: a.py [-h]\na.py: error: unrecognized arguments: --y\n", "settings"),
            (
                "python a.py",
                2,
                "Usage: a.py [OPTIONS]\nTry 'a.py --help' for help.\n\nError: No such option: --y\n",
                "No such option: --y",
            ),
            ("./a", 2, "error: unexpected argument '--y' found\n\nUsage: a [OPTIONS]\n", "unexpected argument '--y'"),
            ("a", 127, "", "can't be started"),
            ("/opt/plimsoll train --vram 1", 3, "", "does not fit"),
            ("nice plimsoll train", 7, "", "diverged"),
        ] {
            let reason = check(command, code, output);
            assert!(reason.as_deref().is_some_and(|reason| reason.contains(why)), "{command}, {code}: {reason:?}");
        }
        for (command, code, output) in [
            ("python a.py", 3, ""),
            ("python a.py", 2, ""),
            ("python a.py", 1, "Usage: a.py\n"),
            ("python a.py", 1, "ValueError: x\n"),
            ("plimsoll train", 5, ""),
            ("python a.py --out plimsoll", 3, ""),
            ("python a.py", 1, "reader: can't open file 'x'\n"),
        ] {
            assert_eq!(check(command, code, output), None, "{command}, {code}: {output}");
        }
    }
}
