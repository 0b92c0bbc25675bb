//! The loop: what comes in makes the next state, which is drawn; what is to be done outside is done here.
//! Not here: what keys mean (`state/`), how it looks (`draw/`).

mod screen;
mod signals;
mod sources;

use crate::draw::draw;
use crate::palette::Palette;
use crate::state::{Action, Input, Replay, State};
use plimsoll_telemetry::{history, now_s};
use plimsoll_watch::{MachineView, Places, ProcessInfo, RunFollower, WatchError, has_own_numbers};
use screen::Screen;
use signals::signal;
use sources::{Message, Sources};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Between two looks at the clock, and between two pictures of a replay. What comes by itself meanwhile is drawn with the next;
/// keys are answered at once.
const TICK: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(100);

/// What a replay shows of the machine before the slider, in seconds.
const BEFORE_S: f64 = 600.0;

/// Messages that wait.
const WAITING: usize = 64;

/// What is shown, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// What things look like.
    pub palette: Palette,
    /// Time between two samples, in seconds.
    pub every_s: f64,
    /// Where runs are looked for.
    pub places: Places,
    /// Folders of runs that are shown instead.
    pub named: Vec<PathBuf>,
    /// The folder of a run that is shown as it was; nothing else is then.
    pub replay: Option<PathBuf>,
}

/// Why nothing can be shown any more.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The terminal does not do what it is asked to.
    #[error("the terminal: {0}")]
    Terminal(#[source] io::Error),
    /// The system starts no thread, or takes no handler of signals.
    #[error("a thread: {0}")]
    Thread(#[source] io::Error),
    /// A run can't be shown.
    #[error(transparent)]
    Run(#[from] WatchError),
    /// A part of this program failed; what it said is on the terminal.
    #[error("a part of the program failed")]
    Failed,
}

/// Shows the machine and its runs until somebody leaves; the number of the signal that asked for the end, if one did.
/// Errors: the terminal is gone, or a run that is named is none.
pub fn run(options: Options) -> Result<Option<i32>, TopError> {
    let (send, messages) = sync_channel(WAITING);
    // What can't be shown is said before the screen is taken.
    let mut state = first_state(&options)?;
    let sources = Sources::start(&options, &send)?;
    signals::listen(&send).map_err(TopError::Thread)?;
    let mut screen = Screen::enter().map_err(TopError::Terminal)?;
    sources::read_keys(&send).map_err(TopError::Thread)?;
    let users = Input::Users(users());
    (state, _) = state.take(users);
    let mut top = Top { options, sources, send, messages };
    let end = top.show(state, &mut screen);
    drop(screen);
    end
}

fn first_state(options: &Options) -> Result<State, TopError> {
    Ok(match &options.replay {
        Some(folder) => {
            State::replaying(options.palette, Replay::new(RunFollower::open(folder)?.view().as_ref().clone()))
        }
        None => State::new(options.palette, options.every_s, std::process::id(), has_own_numbers()),
    })
}

/// The names of users, by number; those that the system's own file has.
fn users() -> BTreeMap<u32, String> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(user).collect()
}

struct Top {
    options: Options,
    sources: Sources,
    send: SyncSender<Message>,
    messages: Receiver<Message>,
}

/// What has come for the first time, for which nobody is to wait.
#[derive(Default)]
struct Firsts {
    has_sample: bool,
    has_runs: bool,
}

impl Firsts {
    /// Whether a message is to be drawn at once.
    fn is_urgent(&mut self, message: &Message) -> bool {
        let Message::Input(input) = message else { return true };
        match &**input {
            Input::Sample(_) => !std::mem::replace(&mut self.has_sample, true),
            Input::Runs(..) => !std::mem::replace(&mut self.has_runs, true),
            _ => true,
        }
    }
}

/// What a message leads to.
enum Next {
    Go(Box<State>),
    End(Option<i32>),
}

impl Top {
    fn show(&mut self, mut state: State, screen: &mut Screen) -> Result<Option<i32>, TopError> {
        let mut next_tick = Instant::now();
        let mut is_due = true;
        let mut firsts = Firsts::default();
        if let Some(replay) = &state.replay {
            let load = Action::Load(replay.at_s);
            state = match self.act(state, vec![load], screen)? {
                Next::Go(state) => *state,
                Next::End(signal) => return Ok(signal),
            };
        }
        loop {
            if next_tick <= Instant::now() {
                let (next, actions) = state.take(Input::Tick(now_s()));
                match self.act(next, actions, screen)? {
                    Next::Go(next) => state = *next,
                    Next::End(signal) => return Ok(signal),
                }
                next_tick = Instant::now() + self.tick();
                is_due = true;
            }
            if is_due {
                screen.draw(|area, buffer| draw(&state, area, buffer)).map_err(TopError::Terminal)?;
                is_due = false;
            }
            let wait = next_tick.saturating_duration_since(Instant::now());
            let mut message = match self.messages.recv_timeout(wait) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Err(TopError::Failed),
            };
            // All that waits is taken before the next picture.
            for _ in 0..WAITING {
                let Some(taken) = message else { break };
                is_due |= firsts.is_urgent(&taken);
                match self.receive(state, taken, screen)? {
                    Next::Go(next) => state = *next,
                    Next::End(signal) => return Ok(signal),
                }
                message = self.messages.try_recv().ok();
            }
            if screen::has_failed() {
                return Err(TopError::Failed);
            }
        }
    }

    /// Between two pictures that nobody asks for.
    fn tick(&self) -> Duration {
        match self.options.replay {
            Some(_) => FRAME,
            None => TICK.min(Duration::from_secs_f64(self.options.every_s)),
        }
    }

    fn receive(&mut self, state: State, message: Message, screen: &mut Screen) -> Result<Next, TopError> {
        match message {
            Message::Input(input) => {
                let (state, actions) = state.take(*input);
                self.act(state, actions, screen)
            }
            Message::Resized => Ok(Next::Go(Box::new(state))),
            Message::Suspend => self.act(state, vec![Action::Suspend], screen),
            Message::Resumed => self.act(state, vec![Action::Redraw], screen),
            Message::End(signal) => Ok(Next::End(Some(signal))),
            Message::TerminalGone => Ok(Next::End(None)),
        }
    }

    fn act(&mut self, mut state: State, actions: Vec<Action>, screen: &mut Screen) -> Result<Next, TopError> {
        for action in actions {
            let input = match action {
                Action::Quit => return Ok(Next::End(None)),
                Action::Suspend => {
                    screen.suspend().map_err(TopError::Terminal)?;
                    None
                }
                Action::Redraw => {
                    screen.take_again().map_err(TopError::Terminal)?;
                    None
                }
                Action::Find(pid) => Some(Input::Found(pid, ProcessInfo::of(pid))),
                Action::Signal { process, is_kill } => Some(Input::Signaled(process.pid, signal(&process, is_kill))),
                Action::SetInterval(every_s) => {
                    self.options.every_s = every_s;
                    self.sources.sample_every(&self.options, &self.send)?;
                    None
                }
                Action::Load(at_s) => {
                    let folder = self.options.replay.as_deref();
                    Some(Input::Machine(Box::new(
                        folder.map_or_else(MachineView::default, |folder| machine_at(folder, at_s)),
                    )))
                }
            };
            if let Some(input) = input {
                // What these answer asks for nothing.
                (state, _) = state.take(input);
            }
        }
        Ok(Next::Go(Box::new(state)))
    }
}

/// The machine at a time of a run, as far as samples were kept.
fn machine_at(folder: &Path, at_s: f64) -> MachineView {
    MachineView::of(history(folder, at_s - BEFORE_S..at_s + 0.5).unwrap_or_default())
}
