//! The main loop: each message produces the next state, which is drawn; actions are performed here. Not here: the
//! meaning of keys (`state/`), drawing (`draw/`).

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

/// Time between two ticks, live and in a replay. Samples and runs are drawn with the next tick; keys immediately.
const TICK: Duration = Duration::from_secs(1);
const FRAME: Duration = Duration::from_millis(100);

/// Seconds of the machine's history that a replay shows before the slider.
const HISTORY_S: f64 = 600.0;

/// Capacity of the message queue.
const QUEUE: usize = 64;

/// Options of the screen.
#[derive(Debug, Clone)]
pub struct Options {
    /// Colors and styles.
    pub palette: Palette,
    /// Time between two samples, in seconds.
    pub every_s: f64,
    /// Folders to search for runs.
    pub places: Places,
    /// Folders of runs to show instead.
    pub named: Vec<PathBuf>,
    /// Folder of a run to replay; shows nothing else.
    pub replay: Option<PathBuf>,
}

/// Why the screen ended or did not start.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The terminal failed.
    #[error("the terminal: {0}")]
    Terminal(#[source] io::Error),
    /// The system cannot start a thread or install a signal handler.
    #[error("a thread: {0}")]
    Thread(#[source] io::Error),
    /// A run cannot be shown.
    #[error(transparent)]
    Run(#[from] WatchError),
    /// A thread panicked; its message is on the terminal.
    #[error("a thread of the program panicked")]
    Failed,
}

/// Shows machine and runs until the user quits. Returns the signal that ended it, if any. Errors: the terminal is gone,
/// or a named run does not exist.
pub fn run(options: Options) -> Result<Option<i32>, TopError> {
    let (send, messages) = sync_channel(QUEUE);
    // Report errors before taking over the screen.
    let mut state = first_state(&options)?;
    let sources = Sources::start(&options, &send)?;
    signals::listen(&send).map_err(TopError::Thread)?;
    let mut screen = Screen::enter().map_err(TopError::Terminal)?;
    sources::read_keys(&send).map_err(TopError::Thread)?;
    let users = Input::Users(users());
    (state, _) = state.handle(users);
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

/// Names of users by id, from `/etc/passwd`.
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

/// Whether the first sample and the first runs have arrived. They are drawn immediately.
#[derive(Default)]
struct FirstInputs {
    has_sample: bool,
    has_runs: bool,
}

impl FirstInputs {
    /// Whether to draw a message immediately.
    fn is_urgent(&mut self, message: &Message) -> bool {
        let Message::Input(input) = message else { return true };
        match &**input {
            Input::Sample(_) => !std::mem::replace(&mut self.has_sample, true),
            Input::Runs(..) => !std::mem::replace(&mut self.has_runs, true),
            _ => true,
        }
    }
}

/// Result of handling a message.
enum Outcome {
    Continue(Box<State>),
    Quit(Option<i32>),
}

impl Top {
    fn show(&mut self, mut state: State, screen: &mut Screen) -> Result<Option<i32>, TopError> {
        let mut next_tick = Instant::now();
        let mut is_due = true;
        let mut first_inputs = FirstInputs::default();
        if let Some(replay) = &state.replay {
            let load = Action::Load(replay.at_s);
            state = match self.act(state, vec![load], screen)? {
                Outcome::Continue(state) => *state,
                Outcome::Quit(signal) => return Ok(signal),
            };
        }
        loop {
            if next_tick <= Instant::now() {
                let (next, actions) = state.handle(Input::Tick(now_s()));
                match self.act(next, actions, screen)? {
                    Outcome::Continue(next) => state = *next,
                    Outcome::Quit(signal) => return Ok(signal),
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
            // Handle all pending messages before drawing.
            for _ in 0..QUEUE {
                let Some(taken) = message else { break };
                is_due |= first_inputs.is_urgent(&taken);
                match self.receive(state, taken, screen)? {
                    Outcome::Continue(next) => state = *next,
                    Outcome::Quit(signal) => return Ok(signal),
                }
                message = self.messages.try_recv().ok();
            }
            if screen::has_failed() {
                return Err(TopError::Failed);
            }
        }
    }

    /// Time between two frames without input.
    fn tick(&self) -> Duration {
        match self.options.replay {
            Some(_) => FRAME,
            None => TICK.min(Duration::from_secs_f64(self.options.every_s)),
        }
    }

    fn receive(&mut self, state: State, message: Message, screen: &mut Screen) -> Result<Outcome, TopError> {
        match message {
            Message::Input(input) => {
                let (state, actions) = state.handle(*input);
                self.act(state, actions, screen)
            }
            Message::Resized => Ok(Outcome::Continue(Box::new(state))),
            Message::Suspend => self.act(state, vec![Action::Suspend], screen),
            Message::Resumed => self.act(state, vec![Action::Redraw], screen),
            Message::End(signal) => Ok(Outcome::Quit(Some(signal))),
            Message::TerminalGone => Ok(Outcome::Quit(None)),
        }
    }

    fn act(&mut self, mut state: State, actions: Vec<Action>, screen: &mut Screen) -> Result<Outcome, TopError> {
        for action in actions {
            let input = match action {
                Action::Quit => return Ok(Outcome::Quit(None)),
                Action::Suspend => {
                    screen.suspend().map_err(TopError::Terminal)?;
                    None
                }
                Action::Redraw => {
                    screen.retake().map_err(TopError::Terminal)?;
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
                // The answer to an action causes no further action.
                (state, _) = state.handle(input);
            }
        }
        Ok(Outcome::Continue(Box::new(state)))
    }
}

/// The machine at a time of a run, from its stored samples.
fn machine_at(folder: &Path, at_s: f64) -> MachineView {
    MachineView::of(history(folder, at_s - HISTORY_S..at_s + 0.5).unwrap_or_default())
}
