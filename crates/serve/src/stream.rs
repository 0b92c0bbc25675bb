//! What changes, as server-sent events: `runs` (the list), `run` (the one that a page shows; of its curves only what is new),
//! `machine`. A client is told when it has taken what it was told before, so that a slow one misses what lies between, and keeps
//! nobody waiting. It comes back with the number of the last event that it had, and gets what has changed since.

use crate::act::actions;
use crate::listen::over;
use crate::looker::Seen;
use crate::routes::Shared;
use crate::wire::{Detail, curves};
use axum::response::sse::Event;
use futures_util::stream::{Stream, unfold};
use plimsoll_watch::RunView;
use serde_json::json;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// A comment is sent after so long without an event, so that both sides see that the other is there.
const QUIET: Duration = Duration::from_secs(10);

/// Time after which a browser comes back.
const RETRY: Duration = Duration::from_secs(2);

/// A client, and what it has.
struct Client {
    shared: Arc<Shared>,
    seen: watch::Receiver<Arc<Seen>>,
    ending: watch::Receiver<bool>,
    /// The run that its page shows.
    run: Option<String>,
    /// The version of what it has.
    has: u64,
    /// The run as it has it.
    had: Option<Arc<RunView>>,
    waiting: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

/// Events for a client whose page shows a run, and whose last event is known by its id, if it had one.
pub(crate) fn events(
    shared: Arc<Shared>,
    run: Option<String>,
    last: Option<&str>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
    let (mut seen, ending) = (shared.looker.follow(), shared.ending.clone());
    let own = last.and_then(|id| id.strip_prefix(&shared.start)?.strip_prefix('-'));
    let has = own.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
    // What has not changed since then it has as it is now.
    let had =
        run.as_ref().and_then(|id| seen.borrow().run(id).filter(|(_, since)| *since <= has).map(|run| run.0.clone()));
    seen.mark_changed();
    let waiting = VecDeque::from([Event::default().retry(RETRY).comment("plimsoll")]);
    let client = Client { shared, seen, ending, run, has, had, waiting, _place: place };
    unfold(client, |mut client| async move {
        loop {
            if let Some(event) = client.waiting.pop_front() {
                return Some((Ok(event), client));
            }
            client.shared.looker.is_followed();
            tokio::select! {
                changed = client.seen.changed() => { changed.ok()?; }
                () = over(&mut client.ending) => return None,
                () = tokio::time::sleep(QUIET) => {
                    client.waiting.push_back(Event::default().comment(""));
                    continue;
                }
            }
            let seen = client.seen.borrow_and_update().clone();
            client.take(&seen);
        }
    })
}

impl Client {
    fn take(&mut self, seen: &Seen) {
        let id = format!("{}-{}", self.shared.start, seen.version);
        let event = |name: &str| Event::default().event(name).id(&id);
        if seen.list.1 > self.has {
            self.waiting.push_back(event("runs").data(&*seen.list.0));
        }
        if let Some((run, since)) = self.run.as_ref().and_then(|id| seen.run(id))
            && (*since > self.has || self.had.is_none())
        {
            let detail = Detail::of(run, actions(run));
            let data = json!({ "run": detail, "curves": curves(run, self.had.as_deref()) });
            self.waiting.push_back(event("run").data(data.to_string()));
            self.had = Some(run.clone());
        }
        if seen.machine_json.1 > self.has {
            self.waiting.push_back(event("machine").data(&*seen.machine_json.0));
        }
        self.has = seen.version;
    }
}
