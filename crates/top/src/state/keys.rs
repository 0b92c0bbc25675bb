//! Keys, following htop and nvitop.

use super::{Action, INTERVALS_S, Overlay, Pane, ProcessRow, State};
use plimsoll_telemetry::Level;

/// A key, independent of the terminal library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "keys are called what is on them")]
pub enum Key {
    Char(char),
    Ctrl(char),
    F(u8),
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    PageUp,
    PageDown,
    Tab,
    BackTab,
    Enter,
    Esc,
    Backspace,
}

/// Maximum length of a filter.
const FILTER: usize = 40;

/// Rows per page.
const PAGE: isize = 10;

impl State {
    pub(super) fn press(&mut self, key: Key) -> Vec<Action> {
        // These keys work in every overlay.
        match key {
            Key::Ctrl('c') => return vec![Action::Quit],
            Key::Ctrl('z') => return vec![Action::Suspend],
            Key::Ctrl('l') => return vec![Action::Redraw],
            _ => {}
        }
        self.message = None;
        if self.is_filtering {
            self.type_filter(key);
            return vec![];
        }
        match std::mem::replace(&mut self.overlay, Overlay::None) {
            Overlay::None => self.press_in_panes(key),
            Overlay::Help(line) => {
                self.overlay = scrolled(key, line).map_or(Overlay::None, Overlay::Help);
                vec![]
            }
            Overlay::Details(pane, line) => {
                self.overlay = Overlay::Details(pane, line);
                self.press_in_details(key, pane, line)
            }
            Overlay::Confirm(confirm) => match key {
                Key::Char('y' | 'Y') => self.confirmed(confirm),
                _ => {
                    self.message = Some((Level::Info, format!("process {} was not signaled", confirm.process.pid)));
                    vec![]
                }
            },
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_filtering = false,
            Key::Esc => (self.is_filtering, self.filter) = (false, String::new()),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(letter) if !letter.is_control() && self.filter.chars().count() < FILTER => {
                self.filter.push(letter);
            }
            _ => {}
        }
    }

    fn press_in_details(&mut self, key: Key, pane: Pane, line: usize) -> Vec<Action> {
        match key {
            Key::Esc | Key::Enter | Key::Backspace | Key::Char('q') | Key::F(10) => self.overlay = Overlay::None,
            Key::F(9) | Key::Char('k') if pane == Pane::Processes => {
                self.overlay = Overlay::None;
                return self.ask_to_kill();
            }
            Key::Char(' ') | Key::Left | Key::Right | Key::Home | Key::End if self.replay.is_some() => {
                return self.move_slider(key);
            }
            Key::Char(' ') => self.pause(),
            _ => {
                if let Some(line) = scrolled(key, line) {
                    self.overlay = Overlay::Details(pane, line);
                }
            }
        }
        vec![]
    }

    fn press_in_panes(&mut self, key: Key) -> Vec<Action> {
        match key {
            Key::Char('q') | Key::F(10) => return vec![Action::Quit],
            Key::F(1) | Key::Char('h' | '?') => self.overlay = Overlay::Help(0),
            Key::Tab => self.focus = after(self.focus),
            Key::BackTab => self.focus = after(after(self.focus)),
            Key::Up => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            // `k` moves up as in vi, except in the process pane, where it kills.
            Key::Char('k') if self.focus != Pane::Processes => self.step(-1),
            Key::PageUp => self.step(-PAGE),
            Key::PageDown => self.step(PAGE),
            Key::Left | Key::Right | Key::Home | Key::End | Key::Char(' ') if self.replay.is_some() => {
                return self.move_slider(key);
            }
            Key::Home | Key::Char('g') => self.step(isize::MIN),
            Key::End | Key::Char('G') => self.step(isize::MAX),
            Key::F(9) if self.focus != Pane::Processes => {
                self.focus = Pane::Processes;
                self.message = Some((Level::Info, "select a process, then press F9 again".to_owned()));
            }
            Key::F(9) | Key::Char('k') => return self.ask_to_kill(),
            Key::F(6) | Key::Char('s') => {
                self.sort = self.sort.next();
                self.message = Some((Level::Info, format!("processes by {}", self.sort.words())));
            }
            Key::Char('/') | Key::F(4) => self.is_filtering = true,
            Key::Esc => self.filter.clear(),
            Key::Char(' ') => self.pause(),
            Key::Enter => self.overlay = Overlay::Details(self.focus, 0),
            Key::Char('+' | '=') => return self.change_interval(1),
            Key::Char('-') => return self.change_interval(-1),
            _ => {}
        }
        vec![]
    }

    fn step(&mut self, rows: isize) {
        match self.focus {
            Pane::Cards => {
                let keys =
                    self.snapshot().machine.cards.iter().map(|card| card.sample.uuid.clone()).collect::<Vec<_>>();
                self.cards.step(&keys, rows);
            }
            Pane::Processes => {
                let keys = self.shown_processes().iter().map(ProcessRow::key).collect::<Vec<_>>();
                self.processes.step(&keys, rows);
            }
            Pane::Runs => {
                let keys = self.shown_runs().iter().map(|run| run.id.clone()).collect::<Vec<_>>();
                self.runs.step(&keys, rows);
            }
        }
    }

    /// Freezes or unfreezes the view.
    fn pause(&mut self) {
        self.frozen = match self.frozen.take() {
            Some(_) => None,
            None => Some(Box::new(self.live.clone())),
        };
    }

    fn move_slider(&mut self, key: Key) -> Vec<Action> {
        let Some(replay) = &mut self.replay else { return vec![] };
        match key {
            Key::Left => replay.go(-1.0),
            Key::Right => replay.go(1.0),
            Key::Home => replay.go(f64::MIN),
            Key::End => replay.go(f64::MAX),
            _ => replay.play_or_stop(),
        }
        self.show_replay()
    }

    fn change_interval(&mut self, by: isize) -> Vec<Action> {
        if self.replay.is_some() {
            return vec![];
        }
        let now = self.interval_s;
        let next = match by {
            1.. => INTERVALS_S.into_iter().find(|interval| *interval > now),
            _ => INTERVALS_S.into_iter().rev().find(|interval| *interval < now),
        };
        let Some(next) = next else { return vec![] };
        self.interval_s = next;
        vec![Action::SetInterval(next)]
    }
}

fn after(pane: Pane) -> Pane {
    match pane {
        Pane::Cards => Pane::Processes,
        Pane::Processes => Pane::Runs,
        Pane::Runs => Pane::Cards,
    }
}

/// The new scroll position; `None` for a key that closes the overlay.
fn scrolled(key: Key, line: usize) -> Option<usize> {
    Some(match key {
        Key::Down | Key::Char('j') => line.saturating_add(1),
        Key::Up | Key::Char('k') => line.saturating_sub(1),
        Key::PageDown => line.saturating_add(10),
        Key::PageUp => line.saturating_sub(10),
        Key::Home => 0,
        _ => return None,
    })
}
