//! What is on the screen: a value. What comes in (keys, samples, runs) makes the next one, and says what is to be done outside.
//! No clock, no files, no processes.

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

/// Something that comes in.
#[derive(Debug, Clone)]
pub enum Input {
    /// A key.
    Key(Key),
    /// A sample of the machine.
    Sample(Box<Sample>),
    /// The runs as they are now, and how many others there are.
    Runs(Vec<Arc<RunView>>, usize),
    /// The time: seconds since 1970.
    Tick(f64),
    /// The samples up to the time that a replay shows.
    Machine(Box<MachineView>),
    /// A process that was looked for; none if it is gone.
    Found(u32, Option<ProcessInfo>),
    /// What came of a signal: nothing, or why it was not sent.
    Signaled(u32, Result<(), String>),
    /// The names of users.
    Users(BTreeMap<u32, String>),
}

/// Something that is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Leave.
    Quit,
    /// Stop, as Ctrl-Z asks for, until somebody lets it go on.
    Suspend,
    /// Draw everything again: others may have written on the screen.
    Redraw,
    /// Look for a process.
    Find(u32),
    /// Ask a process to end, or end it.
    Signal {
        /// Which.
        process: ProcessInfo,
        /// Whether it is not asked.
        is_kill: bool,
    },
    /// Take a sample each so many seconds.
    SetInterval(f64),
    /// Hand in the samples up to this time: seconds since 1970.
    Load(f64),
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pane {
    Cards,
    Processes,
    Runs,
}

/// What lies over the panes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Overlay {
    None,
    /// Keys, from this line on.
    Help(usize),
    /// All that is known of what is selected, from this line on.
    Details(Pane, usize),
    /// A question.
    Confirm(Confirm),
}

/// What is shown of the outside.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub machine: MachineView,
    pub runs: Vec<Arc<RunView>>,
    pub more_runs: usize,
    pub now_s: f64,
}

/// The intervals that + and - go through, in seconds.
const INTERVALS_S: [f64; 10] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// What is on the screen.
#[derive(Debug, Clone)]
pub struct State {
    pub(crate) palette: Palette,
    /// The outside as it is.
    live: Seen,
    /// As it was when the view was paused.
    frozen: Option<Box<Seen>>,
    pub(crate) focus: Pane,
    pub(crate) cards: List<String>,
    pub(crate) processes: List<(u32, Option<u32>)>,
    pub(crate) runs: List<String>,
    pub(crate) sort: ProcessSort,
    /// What rows must have in them.
    pub(crate) filter: String,
    /// Whether keys are letters of it.
    pub(crate) is_filtering: bool,
    pub(crate) overlay: Overlay,
    pub(crate) interval_s: f64,
    /// Something to say, below.
    pub(crate) message: Option<(Level, String)>,
    pub(crate) users: BTreeMap<u32, String>,
    pub(crate) replay: Option<Replay>,
    /// Processes that were asked to end, which may be ended.
    asked: Vec<ProcessInfo>,
    /// This process.
    own_pid: u32,
    /// Whether the driver counts processes otherwise.
    is_contained: bool,
}

impl State {
    /// Before anything is known. `own_pid`: this process, which is not to be ended from here; `is_contained`: whether the
    /// driver's numbers of processes are not those of here.
    pub fn new(palette: Palette, interval_s: f64, own_pid: u32, is_contained: bool) -> Self {
        Self {
            palette,
            live: Seen::default(),
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
            asked: Vec::new(),
            own_pid,
            is_contained,
        }
    }

    /// Of a run that is shown as it was, from its beginning.
    pub fn replaying(palette: Palette, replay: Replay) -> Self {
        let mut state = Self::new(palette, 1.0, 0, false);
        state.replay = Some(replay);
        state.show_replay();
        state
    }

    /// What comes in makes the next state, and says what is to be done.
    pub fn take(mut self, input: Input) -> (Self, Vec<Action>) {
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

    /// What is shown.
    pub(crate) fn seen(&self) -> &Seen {
        self.frozen.as_deref().unwrap_or(&self.live)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// The runs that the filter lets through.
    pub(crate) fn shown_runs(&self) -> Vec<&RunView> {
        let filter = self.filter.to_lowercase();
        let has = |run: &&RunView| {
            let words = [run.name.as_str(), run.model.as_deref().unwrap_or(""), run.standing_words()];
            filter.is_empty() || words.iter().any(|word| word.to_lowercase().contains(&filter))
        };
        self.seen().runs.iter().map(|run| &**run).filter(has).collect()
    }

    /// The processes that the filter lets through, sorted.
    pub(crate) fn shown_processes(&self) -> Vec<ProcessRow> {
        let mut rows = process_rows(self.seen(), &self.users);
        let filter = self.filter.to_lowercase();
        if !filter.is_empty() {
            rows.retain(|row| row.has(&filter));
        }
        self.sort.apply(&mut rows);
        rows
    }

    /// The run that is selected.
    pub(crate) fn selected_run(&self) -> Option<&RunView> {
        let runs = self.shown_runs();
        let index = self.runs.index(runs.iter().map(|run| &run.id));
        index.map(|index| runs[index])
    }

    /// Time passes.
    fn tick(&mut self, now_s: f64) -> Vec<Action> {
        let Some(replay) = &mut self.replay else {
            self.live.now_s = now_s;
            return vec![];
        };
        if replay.play(now_s) { self.show_replay() } else { vec![] }
    }

    /// Shows a replay where its slider is.
    fn show_replay(&mut self) -> Vec<Action> {
        let Some(replay) = &self.replay else { return vec![] };
        self.live.runs = vec![Arc::new(replay.run.at(replay.at_s))];
        self.live.now_s = replay.at_s;
        vec![Action::Load(replay.at_s)]
    }

    /// Selections follow their rows; rows that are gone leave theirs to the next.
    fn settle(&mut self) {
        let cards = self.seen().machine.cards.iter().map(|card| card.sample.uuid.clone()).collect::<Vec<_>>();
        let processes = self.shown_processes().iter().map(ProcessRow::key).collect::<Vec<_>>();
        let runs = self.shown_runs().iter().map(|run| run.id.clone()).collect::<Vec<_>>();
        self.cards.settle(&cards);
        self.processes.settle(&processes);
        self.runs.settle(&runs);
    }
}
