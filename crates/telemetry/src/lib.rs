//! What is observed: events, the journal, the machine.
