//! Who is told what happens: the journal, and any number of sinks beside it.

use plimsoll_telemetry::{Event, Journal, Sink};

/// The journal and the other sinks.
pub(crate) struct Sinks<'a> {
    journal: Journal,
    others: Vec<&'a mut dyn Sink>,
    /// Lost events that were told of.
    told_lost: u64,
}

impl<'a> Sinks<'a> {
    pub(crate) fn new(journal: Journal, others: Vec<&'a mut dyn Sink>) -> Self {
        Self { journal, others, told_lost: 0 }
    }

    /// Tells all of them. Of events that the journal loses the others are told once, and again at the end.
    pub(crate) fn tell(&mut self, event: &Event) {
        self.journal.take(event);
        self.tell_others(event);
        if self.told_lost == 0 {
            self.tell_lost();
        }
    }

    /// Makes what the journal was told durable.
    pub(crate) fn sync(&mut self) {
        self.journal.sync();
        if self.told_lost == 0 {
            self.tell_lost();
        }
    }

    /// Tells of the events that the journal lost, the journal too if it can write again, and makes them durable.
    pub(crate) fn finish(&mut self) {
        self.journal.sync();
        self.tell_lost();
        if let Some(event) = self.lost_event() {
            self.journal.take(&event);
            self.journal.sync();
        }
    }

    /// Events that the journal lost, as far as the others were told.
    pub(crate) fn told_lost(&self) -> u64 {
        self.told_lost
    }

    fn tell_lost(&mut self) {
        if let Some(event) = self.lost_event().filter(|_| self.journal.lost() > self.told_lost) {
            self.told_lost = self.journal.lost();
            self.tell_others(&event);
        }
    }

    fn lost_event(&self) -> Option<Event> {
        let (events, reason) = (self.journal.lost(), self.journal.reason().to_owned());
        (events > 0).then_some(Event::EventsLost { events, reason })
    }

    fn tell_others(&mut self, event: &Event) {
        for sink in &mut self.others {
            sink.take(event);
        }
    }
}
