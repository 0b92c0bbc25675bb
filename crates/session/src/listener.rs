//! Reads the orders in a run's folder. Not here: how orders are written and checked (`plimsoll-orders`).

use crate::control::Shared;
use crate::notice::Notices;
use crate::surroundings::Repeated;
use plimsoll_orders::{Inbox, NewOrders};
use plimsoll_telemetry::Event;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at the inbox.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads the inbox in a run's folder until the result is dropped, on a thread of its own: a card's driver may block the thread
/// that samples, and samples may be far apart. Errors: the folder takes no orders, or the system starts no thread.
pub(crate) fn listen(run: &Path, shared: &Arc<Shared>, notices: &Notices) -> io::Result<Repeated> {
    let mut inbox = Inbox::open(run)?;
    let (theirs, notices) = (shared.clone(), notices.clone());
    let look = move || {
        let NewOrders { orders, lost } = inbox.poll();
        for (number, order) in orders {
            theirs.obey(number, order, &notices);
        }
        if let Some(why) = lost {
            let reason = format!("no more orders are taken: {why}");
            let mut state = theirs.lock();
            let step = state.step;
            state.tell(Event::OrderRefused { step, order: None, reason });
        }
    };
    shared.surroundings.repeat("orders", LOOK_EVERY, Box::new(look))
}
