//! Trains language models inside an exact memory budget.
