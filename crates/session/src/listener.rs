//! Reads the orders in a run's folder. Not here: how orders are written and checked (`plimsoll-orders`).

use crate::control::Shared;
use crate::notice::Notices;
use plimsoll_orders::{Inbox, NewOrders};
use plimsoll_telemetry::Event;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks at the inbox.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads a run's inbox until it is dropped.
pub(crate) struct Listener {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Listener {
    /// Reads the inbox in a run's folder, on a thread of its own: a card's driver may block the thread that samples, and
    /// samples may be far apart. Errors: the folder takes no orders, or the system starts no thread.
    pub(crate) fn start(run: &Path, shared: &Arc<Shared>, notices: &Notices) -> io::Result<Self> {
        let mut inbox = Inbox::open(run)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, shared, notices) = (is_over.clone(), shared.clone(), notices.clone());
        let listen = move || {
            while !over.load(Ordering::Relaxed) {
                let NewOrders { orders, lost } = inbox.poll();
                for (number, order) in orders {
                    shared.obey(number, order, &notices);
                }
                if let Some(why) = lost {
                    let reason = format!("no more orders are taken: {why}");
                    let mut state = shared.lock();
                    let step = state.step;
                    state.tell(Event::OrderRefused { step, order: None, reason });
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("orders".to_owned()).spawn(listen)?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If the thread panicked, the run is over nevertheless.
            let _ = thread.join();
        }
    }
}
