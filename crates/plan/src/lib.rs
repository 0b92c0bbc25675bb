//! Where every byte lies and when: schedule, arena, search.
