//! Generates text up to the maximum length.

use crate::support::{Setup, families};
use plimsoll_train::{Sampling, Writer};

/// The number of tokens that a model generates when asked for many.
fn written(setup: &Setup, asked: usize) -> usize {
    let mut engine = setup.engine();
    engine.initialize(7).expect("a loaded plan");
    let sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 3 };
    let (vocab, start, mut count) = (setup.model.vocab_size(), setup.model.decoder_start(), 0);
    let mut writer = Writer::new(&mut engine, start);
    let mut on_token = |_: usize, _: u32| {
        count += 1;
        true
    };
    writer.write(&[&[3, 1, 4]], asked, vocab, &[], &sampling, &mut on_token).expect("a sound plan");
    count
}

/// A decoder stops when its cache is full; other models drop the oldest tokens and continue.
#[test]
fn an_answer_ends_when_the_decoders_cache_is_full() {
    for (family, setup) in families() {
        let longest = setup.shape.target_len.unwrap_or(200);
        assert_eq!(written(&setup, 200), longest, "{family}");
        assert_eq!(written(&setup, 5), 5, "{family}");
    }
}
