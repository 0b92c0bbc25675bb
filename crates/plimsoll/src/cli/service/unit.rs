//! The text of a systemd unit. Pure. Sources: systemd.service(5), systemd.exec(5), systemd.syntax(7), and "Command
//! lines" in systemd.service(5) for quoting.
//! Not here: which command the unit runs (`mod.rs`), installing it (`systemd.rs`).

use std::path::Path;

/// The first line of a unit that this program made.
pub(super) const MARK: &str = "# Made by `plimsoll install-service`, which also removes it: `--uninstall`.";

/// A systemd unit of a user.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unit<'a> {
    /// The service's name.
    pub(super) name: &'a str,
    /// The absolute path of this program.
    pub(super) program: &'a str,
    /// The program's arguments.
    pub(super) words: &'a [String],
    /// The absolute path of the folder to run in.
    pub(super) folder: &'a str,
    /// Environment variables.
    pub(super) variables: &'a [(String, String)],
    /// When systemd starts it again, and when it no longer does.
    pub(super) policy: Policy,
}

/// When systemd starts a unit again, and when it no longer does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Policy {
    /// The ends after which systemd restarts it: a value of `Restart=`.
    pub(super) restart: &'static str,
    /// Exit codes that a restart would repeat.
    pub(super) final_codes: &'static str,
    /// Exit codes, apart from 0, of a command that was asked to end.
    pub(super) stopped_codes: &'static str,
    /// Seconds from SIGTERM to SIGKILL.
    pub(super) stop_s: u64,
    /// Whether exit code 0 means that nothing is left to do at the next start of the machine.
    pub(super) ends: bool,
}

impl Unit<'_> {
    /// The unit's name for systemd.
    pub(super) fn full_name(name: &str) -> String {
        format!("plimsoll-{name}.service")
    }

    /// The unit's text. Errors: a path or an argument that a unit can't contain.
    pub(super) fn text(&self) -> Result<String, String> {
        let Self { name, program, words, folder, variables, policy } = self;
        let Policy { restart, final_codes, stopped_codes, stop_s, ends } = policy;
        // The path of the program is not expanded, so `$` in it stays single.
        let command = [quoted(program)?].into_iter().map(Ok).chain(words.iter().map(|word| argument(word)));
        let command = command.collect::<Result<Vec<_>, String>>()?.join(" ");
        let variables = variables.iter().map(|(name, value)| quoted(&format!("{name}={value}")));
        let variables = variables.map(|pair| Ok(format!("Environment={}\n", pair?)));
        let variables = variables.collect::<Result<String, String>>()?;
        let kind = words.first().map_or("", String::as_str);
        // A service that has nothing left to do is not started at the next boot.
        let done = match ends {
            true => format!(
                "ExecStopPost=-/bin/sh -c 'test \"$$EXIT_STATUS\" != 0 || systemctl --user disable {}'\n",
                Self::full_name(name)
            ),
            false => String::new(),
        };
        let folder = plain(folder)?;
        Ok(format!(
            "{MARK}\n\
             [Unit]\n\
             Description=plimsoll {kind} ({name})\n\
             \n\
             [Service]\n\
             ExecStart={command}\n\
             {done}\
             WorkingDirectory={folder}\n\
             {variables}\
             Restart={restart}\n\
             RestartSec=30s\n\
             RestartPreventExitStatus={final_codes}\n\
             SuccessExitStatus={stopped_codes}\n\
             KillMode=mixed\n\
             KillSignal=SIGTERM\n\
             TimeoutStopSec={stop_s}s\n\
             OOMPolicy=continue\n\
             \n\
             [Install]\n\
             WantedBy=default.target\n"
        ))
    }
}

/// An argument of a command line: quoted, and without the expansion of variables.
fn argument(word: &str) -> Result<String, String> {
    quoted(&word.replace('$', "$$"))
}

/// A word in quotation marks, without the expansion of specifiers.
fn quoted(word: &str) -> Result<String, String> {
    let mut text = String::from("\"");
    for character in word.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '%' => text.push_str("%%"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\0' => return Err("a unit can't contain a zero byte".to_owned()),
            control if control.is_ascii_control() => text.push_str(&format!("\\x{:02x}", control as u32)),
            other => text.push(other),
        }
    }
    text.push('"');
    Ok(text)
}

/// A path as the whole value of a setting, which has no quotation.
fn plain(path: &str) -> Result<String, String> {
    let is_cut = path.chars().any(char::is_control) || path.trim() != path || path.ends_with('\\');
    match is_cut || !Path::new(path).is_absolute() {
        true => Err(format!("a unit can't run in the folder {path:?}")),
        false => Ok(path.replace('%', "%%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: Policy =
        Policy { restart: "on-failure", final_codes: "2 3", stopped_codes: "130", stop_s: 60, ends: true };

    fn text(words: &[&str], folder: &str) -> Result<String, String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let variables = [("PATH".to_owned(), "/a b:/c%".to_owned())];
        let program = "/opt/a $b/plimsoll";
        Unit { name: "night", program, words: &words, folder, variables: &variables, policy: POLICY }.text()
    }

    fn line<'a>(text: &'a str, key: &str) -> &'a str {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).expect(key)
    }

    #[test]
    fn arguments_reach_the_program_as_given() {
        let text = text(&["train", "--data", "a b", "50%", "$HOME", "a\"b\\", "{x}", "'", ""], "/a 50%").expect("fit");
        let command = r#""/opt/a $b/plimsoll" "train" "--data" "a b" "50%%" "$$HOME" "a\"b\\" "{x}" "'" """#;
        assert_eq!(line(&text, "ExecStart"), command);
        assert_eq!(line(&text, "Environment"), r#""PATH=/a b:/c%%""#);
        assert_eq!(line(&text, "WorkingDirectory"), "/a 50%%");
        assert!(text.contains("disable plimsoll-night.service") && line(&text, "Restart") == "on-failure");
    }

    #[test]
    fn values_that_a_unit_cannot_contain_are_errors() {
        assert!(text(&["train", "a\0"], "/a").is_err());
        for folder in ["a", "/a\nExecStart=/bin/sh", "/a\\", "/a "] {
            assert!(text(&["train"], folder).is_err(), "{folder:?}");
        }
    }

    /// What systemd reads from a quoted word: `extract_first_word` with escapes, then specifiers, then variables.
    fn read_back(text: &str) -> Option<String> {
        let inner = text.strip_prefix('"')?.strip_suffix('"')?;
        let (mut read, mut rest) = (String::new(), inner.chars());
        while let Some(character) = rest.next() {
            read.push(match character {
                '\\' => match rest.next()? {
                    'n' => '\n',
                    't' => '\t',
                    'x' => char::from_u32(
                        u32::from_str_radix(&[rest.next()?, rest.next()?].iter().collect::<String>(), 16).ok()?,
                    )?,
                    same @ ('\\' | '"') => same,
                    _ => return None,
                },
                '"' => return None,
                other => other,
            });
        }
        let is_paired = |text: &str, sign: char| text.split(|c| c != sign).all(|signs| signs.len() % 2 == 0);
        (is_paired(&read, '%') && is_paired(&read, '$')).then(|| read.replace("%%", "%").replace("$$", "$"))
    }

    proptest! {
        #[test]
        fn any_argument_is_one_line_that_systemd_reads_back(word in "\\PC{0,12}|[%$\\\\\"' \n\t\r\x01]{0,12}") {
            let text = argument(&word).expect("no zero byte");
            prop_assert!(!text.contains(['\n', '\r']));
            prop_assert_eq!(read_back(&text), Some(word));
        }
    }
}
