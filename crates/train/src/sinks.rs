//! The receivers of events: the journal, and any number of other sinks.
//!
//! All receivers get the same events. Events that the journal loses are counted and reported.

use plimsoll_telemetry::{Event, Journal, Sink};

/// The journal and the other sinks.
pub(crate) struct Sinks<'a> {
    journal: Journal,
    others: Vec<&'a mut dyn Sink>,
    /// Lost events that were reported to the sinks.
    reported_lost: u64,
}

impl<'a> Sinks<'a> {
    pub(crate) fn new(journal: Journal, others: Vec<&'a mut dyn Sink>) -> Self {
        Self { journal, others, reported_lost: 0 }
    }

    /// Sends an event to all of them. Lost events of the journal are reported to the others once, and again at the end.
    pub(crate) fn emit(&mut self, event: &Event) {
        self.journal.take(event);
        self.emit_to_others(event);
        if self.reported_lost == 0 {
            self.report_lost();
        }
    }

    /// Makes the journal's events durable.
    pub(crate) fn sync(&mut self) {
        self.journal.sync();
        if self.reported_lost == 0 {
            self.report_lost();
        }
    }

    /// Reports the events that the journal lost, also to the journal if it can write again, and makes them durable.
    pub(crate) fn finish(&mut self) {
        self.journal.sync();
        self.report_lost();
        if let Some(event) = self.lost_event() {
            self.journal.take(&event);
            self.journal.sync();
        }
    }

    /// Number of lost events that were reported to the sinks.
    pub(crate) fn reported_lost(&self) -> u64 {
        self.reported_lost
    }

    fn report_lost(&mut self) {
        if let Some(event) = self.lost_event().filter(|_| self.journal.lost() > self.reported_lost) {
            self.reported_lost = self.journal.lost();
            self.emit_to_others(&event);
        }
    }

    fn lost_event(&self) -> Option<Event> {
        let (events, reason) = (self.journal.lost(), self.journal.reason().to_owned());
        (events > 0).then_some(Event::EventsLost { events, reason })
    }

    fn emit_to_others(&mut self, event: &Event) {
        for sink in &mut self.others {
            sink.take(event);
        }
    }
}
