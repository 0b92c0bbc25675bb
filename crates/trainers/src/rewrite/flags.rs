//! Rewrites command lines with new settings: replaces existing arguments in place and appends missing ones. If the
//! trainer also has a settings file, changes each key where it is set.

use super::edit::{Edit, Literal, Notation};
use super::{RewriteError, edits, entangled, text};
use crate::change::SettingChange;
use crate::command::{Command, command};
use crate::document::Document;
use crate::flags::{self, Flag, Style};
use crate::kind::TrainerKind;

/// A command line and the trainer's file that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The arguments, the program first.
    pub argv: Vec<String>,
    /// The new text of the file that it names.
    pub file: Option<String>,
}

/// Rewrites a command line. Keeps the arguments of launchers, scripts and interpreters before the trainer's own.
/// Errors: those of [`RewriteError`]; `NoCommand` if the arguments do not start this trainer.
pub fn rewrite_flags(
    kind: TrainerKind,
    argv: &[String],
    changes: &[SettingChange],
) -> Result<Vec<String>, RewriteError> {
    let command = command(argv).filter(|command| command.kind == kind).ok_or(RewriteError::NoCommand { kind })?;
    rewrite_command(&command, argv, None, changes).map(|rewritten| rewritten.argv)
}

/// Rewrites a command line and the trainer's file: changes each key where it is set, in the arguments if it is in both.
/// Adds missing keys to the file if there is one. `file`: the text of `command.config`.
/// Errors: those of [`RewriteError`]; all changes are made or none.
pub fn rewrite_command(
    command: &Command,
    argv: &[String],
    file: Option<&str>,
    changes: &[SettingChange],
) -> Result<Rewritten, RewriteError> {
    let mut rewritten = Rewritten { argv: argv.to_vec(), file: file.map(str::to_owned) };
    for change in changes {
        let given = flags::read(&rewritten.argv, command.own, command.style);
        let all = flags::overlay(&parse(rewritten.file.as_deref())?, &given);
        for edit in edits(command.kind, change, &all)? {
            rewritten.edit(command, &edit)?;
        }
    }
    Ok(rewritten)
}

fn parse(file: Option<&str>) -> Result<Document, RewriteError> {
    let document = file.map(|text| Document::parse(text).map_err(|what| RewriteError::Unreadable { what }));
    document.unwrap_or_else(|| Ok(Document::default()))
}

impl Rewritten {
    pub(super) fn edit(&mut self, command: &Command, edit: &Edit) -> Result<(), RewriteError> {
        let found = flags::flags(&self.argv, command.own, command.style);
        let root = edit.key().split('.').next().unwrap_or_default();
        let is_meant = |flag: &&Flag| flag.key == edit.key() || (flag.key == root && command.style != Style::Assign);
        match (found.iter().rfind(is_meant), &mut self.file) {
            (Some(flag), _) => self.edit_flag(command.style, &flag.clone(), edit),
            (None, Some(file)) => {
                let document = parse(Some(file))?;
                *file = text::apply(file, &document, edit).ok_or_else(|| entangled(&document, edit))?;
                Ok(())
            }
            (None, None) => self.add_flag(command, edit),
        }
    }

    /// Changes an existing argument.
    fn edit_flag(&mut self, style: Style, flag: &Flag, edit: &Edit) -> Result<(), RewriteError> {
        let all = flag.at..flag.values.end.max(flag.at + 1);
        let entangled = || RewriteError::Entangled { key: edit.key().to_owned(), line: None };
        let words = match edit {
            Edit::Remove(key) if *key == flag.key => vec![],
            Edit::Set(key, literal) | Edit::Replace(key, literal) if *key == flag.key => {
                written(style, flag, literal, &self.argv)
            }
            Edit::Push(key, item) if *key == flag.key => {
                let mut items = self.argv[flag.values.clone()].to_vec();
                items.extend((!items.contains(item)).then(|| item.clone()));
                written(style, flag, &Literal::List(items), &self.argv)
            }
            // The argument's value is an object that contains the key.
            within => {
                let object = flag.inline.as_ref().or_else(|| self.argv.get(flag.values.start)).ok_or_else(entangled)?;
                let document = Document::parse(object).map_err(|_| entangled())?;
                let part = within.within(&flag.key).ok_or_else(entangled)?;
                let object = text::apply(object, &document, &part).ok_or_else(entangled)?;
                written(style, flag, &Literal::Text(object), &self.argv)
            }
        };
        self.argv.splice(all, words);
        Ok(())
    }

    /// Adds a missing argument.
    fn add_flag(&mut self, command: &Command, edit: &Edit) -> Result<(), RewriteError> {
        let literal = match edit {
            Edit::Set(_, literal) => literal.clone(),
            Edit::Push(_, item) => Literal::List(vec![item.clone()]),
            Edit::Replace(..) | Edit::Remove(_) => return Ok(()),
        };
        let keys = edit.key().split('.').collect::<Vec<_>>();
        let words = match (command.style, &keys[..]) {
            (Style::Assign, _) => vec![format!("{}={}", edit.key(), assigned(&literal))],
            (Style::Argparse, [key]) => with_values(format!("--{key}"), &literal),
            (Style::Argparse, [key, rest @ ..]) => vec![format!("--{key}"), Notation::Json.nested(rest, &literal)],
            (Style::Click, [key]) => clicked(key, &literal),
            (Style::Click | Style::Argparse, _) => {
                return Err(RewriteError::Entangled { key: edit.key().to_owned(), line: None });
            }
        };
        let end = (command.own..self.argv.len()).find(|at| self.argv[*at] == "--").unwrap_or(self.argv.len());
        self.argv.splice(end..end, words);
        Ok(())
    }
}

/// An argument with a new value, in its existing form.
fn written(style: Style, flag: &Flag, literal: &Literal, argv: &[String]) -> Vec<String> {
    let spelled = argv[flag.at].split('=').next().unwrap_or_default().to_owned();
    match style {
        Style::Assign => vec![format!("{}={}", flag.key, assigned(literal))],
        Style::Click if flag.inline.is_none() => clicked(&flag.key, literal),
        _ if flag.inline.is_some() && !matches!(literal, Literal::List(_)) => {
            vec![format!("{spelled}={}", plain(literal))]
        }
        Style::Argparse if *literal == Literal::Bool(true) && flag.values.is_empty() => vec![spelled],
        Style::Click | Style::Argparse => with_values(spelled, literal),
    }
}

/// A flag followed by its values.
fn with_values(flag: String, literal: &Literal) -> Vec<String> {
    match literal {
        Literal::List(items) => std::iter::once(flag).chain(items.iter().cloned()).collect(),
        single => vec![flag, plain(single)],
    }
}

fn clicked(key: &str, literal: &Literal) -> Vec<String> {
    let key = key.replace('_', "-");
    match literal {
        Literal::Bool(true) => vec![format!("--{key}")],
        Literal::Bool(false) => vec![format!("--no-{key}")],
        other => vec![format!("--{key}"), plain(other)],
    }
}

/// A value in OmegaConf's notation.
fn assigned(literal: &Literal) -> String {
    match literal {
        Literal::List(items) => format!("[{}]", items.join(",")),
        single => plain(single),
    }
}

/// A value without quotes, since an argument needs none.
fn plain(literal: &Literal) -> String {
    match literal {
        Literal::Text(text) => text.clone(),
        Literal::List(items) => items.join(","),
        other => Notation::Json.literal(other),
    }
}
