//! The screen's state, as a value. Each input (key, sample, runs) produces the next state and actions to perform. Pure:
//! no clock, files or processes.

mod keys;
mod kill;
mod list;
mod processes;
mod replay;

pub use keys::Key;
pub(crate) use kill::Confirm;
pub(crate) use list::List;
pub(crate) use processes::{ProcessRow, ProcessSort, process_rows};
pub use replay::Replay;

use crate::palette::Palette;
use plimsoll_telemetry::{Level, Sample};
use plimsoll_watch::{MachineView, ProcessInfo, RunView};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An input.
#[derive(Debug, Clone)]
pub enum Input {
    /// A key.
    Key(Key),
    /// A sample of the machine.
    Sample(Box<Sample>),
    /// The current runs, and the number of runs not listed.
    Runs(Vec<Arc<RunView>>, usize),
    /// The time, in seconds since 1970.
    Tick(f64),
    /// The machine at the time that a replay shows.
    Machine(Box<MachineView>),
    /// A process that was looked up; `None` if it is gone.
    Found(u32, Option<ProcessInfo>),
    /// Result of sending a signal; the error says why it was not sent.
    Signaled(u32, Result<(), String>),
    /// The names of users.
    Users(BTreeMap<u32, String>),
}

/// An action to perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Quit.
    Quit,
    /// Suspend the process, as Ctrl-Z does.
    Suspend,
    /// Redraw everything: other programs may have written to the terminal.
    Redraw,
    /// Look up a process.
    Find(u32),
    /// Send a signal to a process.
    Signal {
        /// The process.
        process: ProcessInfo,
        /// SIGKILL, not SIGTERM.
        is_kill: bool,
    },
    /// Sample at this interval, in seconds.
    SetInterval(f64),
    /// Load the samples up to this time, in seconds since 1970.
    Load(f64),
}

/// A pane with a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pane {
    Cards,
    Processes,
    Runs,
}

/// An overlay over the panes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Overlay {
    None,
    /// The keys, scrolled to this line.
    Help(usize),
    /// Details of the selection, scrolled to this line.
    Details(Pane, usize),
    /// A question before a process is ended.
    Confirm(Confirm),
}

/// Machine and runs at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub machine: MachineView,
    pub runs: Vec<Arc<RunView>>,
    pub more_runs: usize,
    pub now_s: f64,
}

/// Intervals that + and - select, in seconds.
const INTERVALS_S: [f64; 10] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// State of the screen.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) palette: Palette,
    /// The current machine and runs.
    live: Snapshot,
    /// The ones shown while the view is frozen.
    frozen: Option<Box<Snapshot>>,
    pub(crate) focus: Pane,
    pub(crate) cards: List<String>,
    pub(crate) processes: List<(u32, Option<u32>)>,
    pub(crate) runs: List<String>,
    pub(crate) sort: ProcessSort,
    /// Text that shown rows contain.
    pub(crate) filter: String,
    /// Whether keys edit the filter.
    pub(crate) is_filtering: bool,
    pub(crate) overlay: Overlay,
    pub(crate) interval_s: f64,
    /// Message in the footer.
    pub(crate) message: Option<(Level, String)>,
    pub(crate) users: BTreeMap<u32, String>,
    pub(crate) replay: Option<Replay>,
    /// Processes that received SIGTERM, and may now receive SIGKILL.
    terminated: Vec<ProcessInfo>,
    /// Pid of this process.
    own_pid: u32,
    /// Whether the driver's pids are of another pid namespace.
    is_contained: bool,
}

impl State {
    /// The initial state. `own_pid`: pid of this process, which cannot be ended here; `is_contained`: whether the
    /// driver's pids are of another pid namespace.
    pub fn new(palette: Palette, interval_s: f64, own_pid: u32, is_contained: bool) -> Self {
        Self {
            palette,
            live: Snapshot::default(),
            frozen: None,
            focus: Pane::Runs,
            cards: List::default(),
            processes: List::default(),
            runs: List::default(),
            sort: ProcessSort::Memory,
            filter: String::new(),
            is_filtering: false,
            overlay: Overlay::None,
            interval_s,
            message: None,
            users: BTreeMap::new(),
            replay: None,
            terminated: Vec::new(),
            own_pid,
            is_contained,
        }
    }

    /// The initial state for a replay, at its start.
    pub fn replaying(palette: Palette, replay: Replay) -> Self {
        let mut state = Self::new(palette, 1.0, 0, false);
        state.replay = Some(replay);
        state.show_replay();
        state
    }

    /// Handles an input: returns the next state and the actions to perform.
    pub fn handle(mut self, input: Input) -> (Self, Vec<Action>) {
        let actions = match input {
            Input::Key(key) => self.press(key),
            Input::Sample(sample) => {
                self.live.machine.observe(&sample);
                vec![]
            }
            Input::Runs(runs, more) => {
                (self.live.runs, self.live.more_runs) = (runs, more);
                vec![]
            }
            Input::Machine(machine) => {
                self.live.machine = *machine;
                vec![]
            }
            Input::Tick(now_s) => self.tick(now_s),
            Input::Users(users) => {
                self.users = users;
                vec![]
            }
            Input::Found(pid, process) => {
                self.found(pid, process);
                vec![]
            }
            Input::Signaled(pid, result) => {
                self.signaled(pid, result);
                vec![]
            }
        };
        self.settle();
        (self, actions)
    }

    /// The snapshot to show: frozen or live.
    pub(crate) fn snapshot(&self) -> &Snapshot {
        self.frozen.as_deref().unwrap_or(&self.live)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// The runs that match the filter.
    pub(crate) fn shown_runs(&self) -> Vec<&RunView> {
        let filter = self.filter.to_lowercase();
        let has = |run: &&RunView| {
            let words = [run.name.as_str(), run.model.as_deref().unwrap_or(""), run.standing_words()];
            filter.is_empty() || words.iter().any(|word| word.to_lowercase().contains(&filter))
        };
        self.snapshot().runs.iter().map(|run| &**run).filter(has).collect()
    }

    /// The processes that match the filter, sorted.
    pub(crate) fn shown_processes(&self) -> Vec<ProcessRow> {
        let mut rows = process_rows(self.snapshot(), &self.users);
        let filter = self.filter.to_lowercase();
        if !filter.is_empty() {
            rows.retain(|row| row.has(&filter));
        }
        self.sort.apply(&mut rows);
        rows
    }

    /// The selected run.
    pub(crate) fn selected_run(&self) -> Option<&RunView> {
        let runs = self.shown_runs();
        let index = self.runs.index(runs.iter().map(|run| &run.id));
        index.map(|index| runs[index])
    }

    /// Handles the passing of time.
    fn tick(&mut self, now_s: f64) -> Vec<Action> {
        let Some(replay) = &mut self.replay else {
            self.live.now_s = now_s;
            return vec![];
        };
        if replay.play(now_s) { self.show_replay() } else { vec![] }
    }

    /// Shows the replay at its slider's time.
    fn show_replay(&mut self) -> Vec<Action> {
        let Some(replay) = &self.replay else { return vec![] };
        self.live.runs = vec![Arc::new(replay.run.at(replay.at_s))];
        self.live.now_s = replay.at_s;
        vec![Action::Load(replay.at_s)]
    }

    /// Updates selections: they follow their rows, or take the next row if theirs is gone.
    fn settle(&mut self) {
        let cards = self.snapshot().machine.cards.iter().map(|card| card.sample.uuid.clone()).collect::<Vec<_>>();
        let processes = self.shown_processes().iter().map(ProcessRow::key).collect::<Vec<_>>();
        let runs = self.shown_runs().iter().map(|run| run.id.clone()).collect::<Vec<_>>();
        self.cards.settle(&cards);
        self.processes.settle(&processes);
        self.runs.settle(&runs);
    }
}
