//! What the page's buttons do: orders for runs of our own, signals for other programs. Not here: who may (`guard.rs`).

use plimsoll_orders::{GiveError, Order, give};
use plimsoll_units::Bytes;
use plimsoll_watch::{Kind, RunView, Standing};
use serde::{Deserialize, Serialize};

/// A button.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Wait, with its memory held.
    Pause,
    /// Go on after a pause.
    Resume,
    /// Save and end.
    Stop,
    /// Plan again for another budget.
    Budget,
}

/// What a button was pressed for.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pressed {
    pub(crate) action: Action,
    /// The budget, as `train` has it.
    #[serde(default)]
    pub(crate) budget: Option<String>,
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    /// The run is in no state for it.
    #[error("{0}")]
    Not(String),
    /// The budget is no size.
    #[error("a budget is a size such as 6 (GiB) or 600MiB: {0}")]
    NoSize(String),
    /// The order could not be given.
    #[error(transparent)]
    Order(#[from] GiveError),
}

/// What a run can be asked to do now.
pub(crate) fn actions(run: &RunView) -> Vec<Action> {
    if run.standing != Standing::Running {
        return vec![];
    }
    match run.kind {
        _ if run.is_paused => vec![Action::Resume, Action::Stop],
        Kind::Train if run.folder.join(plimsoll_orders::FILE).is_file() => {
            vec![Action::Pause, Action::Budget, Action::Stop]
        }
        Kind::Train => vec![],
        Kind::Supervised => vec![Action::Pause, Action::Stop],
    }
}

/// Does it. Returns what there is to say. Errors: it can't be done.
pub(crate) fn act(run: &RunView, pressed: &Pressed) -> Result<String, ActError> {
    if run.kind == Kind::Supervised {
        return supervised::act(run, pressed.action);
    }
    let (order, said) = match pressed.action {
        Action::Pause => (Order::Pause, "asked to pause; it does so between two micro-batches"),
        Action::Resume => (Order::Resume, "asked to go on"),
        Action::Stop => (Order::Stop, "asked to stop; it finishes its step and saves"),
        Action::Budget => {
            let size = pressed.budget.as_deref().unwrap_or_default();
            let bytes = size.parse::<Bytes>().map_err(|error| ActError::NoSize(error.to_string()))?;
            (Order::Budget { bytes: bytes.0 }, "asked to plan again; it does so after its step")
        }
    };
    give(&run.folder, order)?;
    Ok(said.to_owned())
}

#[cfg(unix)]
mod supervised {
    use super::{ActError, Action, RunView};
    use plimsoll_supervise::{Entry, PauseError, pause, resume, stop};
    use std::time::Duration;

    /// Time after SIGINT before SIGTERM, and after that before SIGKILL.
    const GRACE: Duration = Duration::from_secs(60);

    pub(super) fn act(run: &RunView, action: Action) -> Result<String, ActError> {
        let not = |why: &dyn std::fmt::Display| ActError::Not(why.to_string());
        let entry = Entry::read(&run.folder).map_err(|error| not(&error))?;
        let refused = |error: PauseError| not(&error);
        match action {
            Action::Pause => pause(&entry).map(|()| "paused".to_owned()).map_err(refused),
            Action::Resume => resume(&entry).map(|()| "goes on".to_owned()).map_err(refused),
            Action::Stop => {
                entry.trusted().map_err(|error| not(&error))?;
                // It may take as long as its program has to end.
                let stopped = move || {
                    let _ = stop(&entry, Some(GRACE), &mut |_| {});
                };
                std::thread::Builder::new().name("stop".to_owned()).spawn(stopped).map_err(|error| not(&error))?;
                Ok("asked to stop: SIGINT, then SIGTERM after a minute, then SIGKILL".to_owned())
            }
            Action::Budget => Err(not(&"only runs of `plimsoll train` plan their memory")),
        }
    }
}

#[cfg(not(unix))]
mod supervised {
    use super::{ActError, Action, RunView};

    pub(super) fn act(_: &RunView, _: Action) -> Result<String, ActError> {
        Err(ActError::Not("this system has no supervised runs".to_owned()))
    }
}
