//! The reference pages of the manual: each command and each flag of `--help` is in them, and they name no other flag.

use crate::docs::pages;
use crate::support::Sandbox;
use std::collections::{BTreeMap, BTreeSet};

/// Commands whose flags are in a page of their own, next to the section of `commands.md`.
const OF_SETTINGS: &[&str] =
    &["train", "plan", "bench", "generate", "embed", "merge", "run", "calibrate", "notify test"];

/// Flags that every command has.
const EVERYWHERE: &[&str] = &["--help", "--version"];

fn page(name: &str) -> String {
    pages().into_iter().find(|(page, _)| page == name).expect("a page of the manual").1
}

/// The names after `--` in a text, with the hyphens.
fn flags(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let after = text.split("--").skip(1).map(|rest| rest.split(|c| !is_of_name(c)).next().unwrap_or_default());
    after.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase())).map(|name| format!("--{name}")).collect()
}

/// The flags in the first column of the tables of a text.
fn listed(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `-"));
    rows.flat_map(|row| flags(&format!("-{}", row.split(" | ").next().unwrap_or_default()))).collect()
}

/// The flags that a command's help defines.
fn defined(help: &str) -> BTreeSet<String> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.flat_map(|line| flags(line.split("  ").next().unwrap_or(line))).collect()
}

/// The commands of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// The helps of all commands, by name; a command with subcommands is replaced by these.
fn helps() -> BTreeMap<String, String> {
    let sandbox = Sandbox::new();
    let help = |command: &str| sandbox.run(format!("{command} --help").trim()).stdout_text().to_owned();
    let mut all = BTreeMap::new();
    for command in subcommands(&help("")) {
        let own = help(&command);
        match &subcommands(&own)[..] {
            [] => drop(all.insert(command, own)),
            parts => all.extend(parts.iter().map(|part| {
                let name = format!("{command} {part}");
                let text = help(&name);
                (name, text)
            })),
        }
    }
    all
}

/// The sections of `commands.md`, by command.
fn sections(commands: &str) -> BTreeMap<String, &str> {
    let sections = commands.split("\n## `plimsoll ").skip(1);
    sections.filter_map(|section| section.split_once('`')).map(|(name, text)| (name.to_owned(), text)).collect()
}

#[test]
fn every_command_and_flag_is_in_the_reference() {
    let (commands, settings) = (page("commands.md"), page("settings.md"));
    let (sections, helps) = (sections(&commands), helps());
    assert!(helps.len() > 20, "{:?}", helps.keys());
    assert_eq!(sections.keys().collect::<Vec<_>>(), helps.keys().collect::<Vec<_>>(), "sections of commands.md");
    let mut problems = Vec::new();
    for (name, help) in &helps {
        let own = flags(sections[name]);
        let mut described = own.clone();
        if OF_SETTINGS.contains(&name.as_str()) {
            described.extend(listed(&settings));
        }
        let defined = defined(help);
        let is_missing = |flag: &&String| !described.contains(*flag) && !EVERYWHERE.contains(&flag.as_str());
        problems.extend(defined.iter().filter(is_missing).map(|flag| format!("`{name} {flag}` is not described")));
        let stale = listed(sections[name]).into_iter().filter(|flag| !defined.contains(flag));
        problems.extend(stale.map(|flag| format!("`{name}` has no `{flag}`")));
    }
    let defined = defined(&helps["train"]);
    let stale = listed(&settings).into_iter().filter(|flag| !defined.contains(flag));
    problems.extend(stale.map(|flag| format!("`train` has no `{flag}`")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn flags_are_found_in_helps_and_tables() {
    let help = "Options:\n  -f, --follow\n          As `--lines`\n      --compile[=<X>]\n      --to <FILE>  The file of `--of`\n";
    assert_eq!(defined(help), ["--compile", "--follow", "--to"].map(str::to_owned).into());
    let table = "| `--a X`, `-b`, `--c-d` | as `--e` |\n| `f` | `--g` |\n";
    assert_eq!(listed(table), ["--a", "--c-d"].map(str::to_owned).into());
}
