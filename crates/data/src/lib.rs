//! Text in, padded integer batches out.
