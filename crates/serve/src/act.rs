//! The actions of the page's buttons: orders for Plimsoll's own runs, signals for other programs. `guard.rs` checks who
//! may press them.

use plimsoll_orders::{GiveError, Order, give};
use plimsoll_units::Bytes;
use plimsoll_watch::{Kind, RunView, Standing};
use serde::{Deserialize, Serialize};

/// A button on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Wait, and keep the memory.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Save and end.
    Stop,
    /// Plan again for another budget.
    Budget,
}

/// Request to act on a run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionRequest {
    pub(crate) action: Action,
    /// The budget, in the format of `train`.
    #[serde(default)]
    pub(crate) budget: Option<String>,
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActError {
    /// The run's current state does not allow the action.
    #[error("{0}")]
    Unavailable(String),
    /// The budget is not a size.
    #[error("a budget is a size such as 6 (GiB) or 600MiB: {0}")]
    BadBudget(String),
    /// The order could not be delivered.
    #[error(transparent)]
    Order(#[from] GiveError),
}

/// Actions that a run accepts now.
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

/// Performs the action and returns a message for the user. Errors: the action is not possible.
pub(crate) fn act(run: &RunView, request: &ActionRequest) -> Result<String, ActError> {
    if run.kind == Kind::Supervised {
        return supervised::act(run, request.action);
    }
    let (order, said) = match request.action {
        Action::Pause => (Order::Pause, "pausing after the current micro-batch"),
        Action::Resume => (Order::Resume, "resuming"),
        Action::Stop => (Order::Stop, "stopping after the current step; the run saves a checkpoint"),
        Action::Budget => {
            let size = request.budget.as_deref().unwrap_or_default();
            let bytes = size.parse::<Bytes>().map_err(|error| ActError::BadBudget(error.to_string()))?;
            (Order::Budget { bytes: bytes.0 }, "planning again after the current step")
        }
    };
    give(&run.folder, order)?;
    Ok(said.to_owned())
}

#[cfg(unix)]
mod supervised {
    use super::{ActError, Action, RunView};
    use plimsoll_registry::{Entry, PauseError, pause, resume, stop};
    use std::time::Duration;

    /// Time from SIGINT to SIGTERM, and from SIGTERM to SIGKILL.
    const GRACE: Duration = Duration::from_secs(60);

    pub(super) fn act(run: &RunView, action: Action) -> Result<String, ActError> {
        let not = |why: &dyn std::fmt::Display| ActError::Unavailable(why.to_string());
        let entry = Entry::read(&run.folder).map_err(|error| not(&error))?;
        let refused = |error: PauseError| not(&error);
        match action {
            Action::Pause => pause(&entry).map(|()| "paused".to_owned()).map_err(refused),
            Action::Resume => resume(&entry).map(|()| "resumed".to_owned()).map_err(refused),
            Action::Stop => {
                entry.trusted().map_err(|error| not(&error))?;
                // The program may take up to two minutes to end.
                let stopped = move || {
                    let _ = stop(&entry, Some(GRACE), &mut |_| {});
                };
                std::thread::Builder::new().name("stop".to_owned()).spawn(stopped).map_err(|error| not(&error))?;
                Ok("stopping: SIGINT, SIGTERM after a minute, SIGKILL after two".to_owned())
            }
            Action::Budget => Err(not(&"only a run of `plimsoll train` has a memory budget")),
        }
    }
}

#[cfg(not(unix))]
mod supervised {
    use super::{ActError, Action, RunView};

    pub(super) fn act(_: &RunView, _: Action) -> Result<String, ActError> {
        Err(ActError::Unavailable("supervised runs are not available on this system".to_owned()))
    }
}
