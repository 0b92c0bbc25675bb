//! Changes as server-sent events: `runs` (the list), `run` (the one that the page shows, with new points of its curves
//! only), and `machine`. A client receives the newest snapshot once it has read the previous one, so a slow client
//! skips some and blocks nothing. A client that reconnects sends the id of its last event and receives what changed
//! since.

use crate::act::actions;
use crate::listen::stopped;
use crate::poller::Snapshot;
use crate::shared::Shared;
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

/// A comment is sent after this long without an event, so that both sides notice a lost connection.
const QUIET: Duration = Duration::from_secs(10);

/// Time after which a browser reconnects.
const RETRY: Duration = Duration::from_secs(2);

/// A client and its state.
struct Client {
    shared: Arc<Shared>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    ending: watch::Receiver<bool>,
    /// The run that its page shows.
    run: Option<String>,
    /// Version of the snapshot that it has.
    has: u64,
    /// The run as it has it.
    had: Option<Arc<RunView>>,
    waiting: VecDeque<Event>,
    _place: OwnedSemaphorePermit,
}

/// Events for a client whose page shows `run`; `last` is the id of the last event that it received.
pub(crate) fn events(
    shared: Arc<Shared>,
    run: Option<String>,
    last: Option<&str>,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
    let (mut snapshot, ending) = (shared.poller.follow(), shared.ending.clone());
    let own = last.and_then(|id| id.strip_prefix(&shared.start)?.strip_prefix('-'));
    let has = own.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0);
    // If the run has not changed since that event, the client has its current state.
    let had = run
        .as_ref()
        .and_then(|id| snapshot.borrow().run(id).filter(|(_, since)| *since <= has).map(|run| run.0.clone()));
    snapshot.mark_changed();
    let waiting = VecDeque::from([Event::default().retry(RETRY).comment("plimsoll")]);
    let client = Client { shared, snapshot, ending, run, has, had, waiting, _place: place };
    unfold(client, |mut client| async move {
        loop {
            if let Some(event) = client.waiting.pop_front() {
                return Some((Ok(event), client));
            }
            client.shared.poller.keep_awake();
            tokio::select! {
                changed = client.snapshot.changed() => { changed.ok()?; }
                () = stopped(&mut client.ending) => return None,
                () = tokio::time::sleep(QUIET) => {
                    client.waiting.push_back(Event::default().comment(""));
                    continue;
                }
            }
            let snapshot = client.snapshot.borrow_and_update().clone();
            client.take(&snapshot);
        }
    })
}

impl Client {
    fn take(&mut self, snapshot: &Snapshot) {
        let id = format!("{}-{}", self.shared.start, snapshot.version);
        let event = |name: &str| Event::default().event(name).id(&id);
        if snapshot.list.1 > self.has {
            self.waiting.push_back(event("runs").data(&*snapshot.list.0));
        }
        if let Some((run, since)) = self.run.as_ref().and_then(|id| snapshot.run(id))
            && (*since > self.has || self.had.is_none())
        {
            let detail = Detail::of(run, actions(run));
            let data = json!({ "run": detail, "curves": curves(run, self.had.as_deref()) });
            self.waiting.push_back(event("run").data(data.to_string()));
            self.had = Some(run.clone());
        }
        if snapshot.machine_json.1 > self.has {
            self.waiting.push_back(event("machine").data(&*snapshot.machine_json.0));
        }
        self.has = snapshot.version;
    }
}
