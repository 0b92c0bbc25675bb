//! Pairs through the public interface: from files to padded batches, and the independence from the micro-batch.

use plimsoll_data::{
    Batch, Column, DataError, Dataset, HeldOut, Loader, PairColumns, PairSettings, Pairs, Progress, Sources, Tokenizer,
    TokenizerSpec, prepare_pairs, resolve, tokenize_pairs,
};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const SETTINGS: PairSettings = PairSettings {
    source_len_max: 20,
    target_len_max: 12,
    bucket: 4,
    end_token: Some(1),
    decoder_start: 0,
    seed: 7,
    held_out: HeldOut::Usual,
};

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&TokenizerSpec::Bytes).unwrap()
}

fn written(folder: &Path, name: &str, text: &str) -> Sources {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    resolve(&[path.to_str().unwrap()], "text").unwrap()
}

/// Pairs whose texts have these lengths.
fn pairs(lengths: &[(usize, usize)], settings: PairSettings) -> Dataset {
    let folder = TempDir::new().unwrap();
    let side = |length: usize, index: usize| char::from(b'a' + (index % 26) as u8).to_string().repeat(length);
    let rows = lengths.iter().enumerate().map(|(i, &(s, t))| format!("{}\t{}\n", side(s, i), side(t, i)));
    let sources = written(folder.path(), "a.tsv", &rows.collect::<String>());
    let store = tokenize_pairs(&sources, &PairColumns::default(), &tokenizer(), &|_| {}).unwrap();
    Dataset::Pairs(Pairs::new(store, settings).unwrap())
}

/// The candidates of a batch are all positives, then all negatives, each padded and truncated by itself.
#[test]
fn negatives_follow_the_positives() {
    let folder = TempDir::new().unwrap();
    let sources = written(folder.path(), "a.tsv", "aaa\tbb\tccccc\nd\te\tffffffffffffffffffff\ngg\thhh\ti\n");
    let columns = PairColumns { negatives: vec![Column::Number(3)], ..PairColumns::default() };
    let store = tokenize_pairs(&sources, &columns, &tokenizer(), &|_| {}).unwrap();
    let dataset = Dataset::Pairs(Pairs::for_encoder(store, SETTINGS, &[9]).unwrap());
    let step = dataset.step(0, 2, 2).unwrap();
    let batch = &step.micro[0];
    let (rows, length) = (2, batch.target_len.unwrap());
    assert_eq!((length, batch.decoder_tokens.len(), &batch.targets[..]), (12, 2 * rows * length, &[0, 1][..]));
    let text = |row: usize| {
        let real = batch.decoder_segments[row * length..][..length].iter().filter(|&&segment| segment == 1).count();
        let row = &batch.decoder_tokens[row * length..][..length];
        assert!(row[real..].iter().all(|&token| token == 0));
        row[..real].to_vec()
    };
    for row in 0..rows {
        let is_first = batch.tokens[row * batch.source_len + 1] == 97;
        let (positive, negative) = if is_first { (vec![98, 98], vec![99; 5]) } else { (vec![101], vec![102; 10]) };
        assert_eq!(text(row), [&[9][..], &positive, &[1]].concat());
        assert_eq!(text(rows + row), [&[9][..], &negative, &[1]].concat());
    }
    assert_eq!(step.tokens, (5 + 4 + 7) + (3 + 3 + 12));
    assert_eq!((step.tokens + step.padding) as usize, rows * batch.source_len + 2 * rows * length);
}

/// The samples of a batch: source, decoder input and targets of each row, without padding.
fn samples(batch: &Batch) -> Vec<[Vec<i32>; 3]> {
    let target_len = batch.target_len.unwrap();
    let row = |row: usize| {
        let segments = &batch.segments.as_ref().unwrap()[row * batch.source_len..][..batch.source_len];
        let real = segments.iter().filter(|&&segment| segment == 1).count();
        let targets = &batch.targets[row * target_len..][..target_len];
        let predicted = targets.iter().filter(|&&target| target != -1).count();
        assert!(segments[real..].iter().all(|&segment| segment == 0) && targets[predicted..].iter().all(|&t| t == -1));
        [
            batch.tokens[row * batch.source_len..][..real].to_vec(),
            batch.decoder_tokens[row * target_len..][..predicted].to_vec(),
            targets[..predicted].to_vec(),
        ]
    };
    (0..batch.rows).map(row).collect()
}

/// Both texts of an encoder begin and end with their tokens, have segments of their own, and one target a row.
#[test]
fn texts_of_an_encoder_are_padded_on_both_sides() {
    let folder = TempDir::new().unwrap();
    let sources = written(folder.path(), "a.tsv", "aaa\tbb\ncc\tddddddddddddddd\n");
    let store = tokenize_pairs(&sources, &PairColumns::default(), &tokenizer(), &|_| {}).unwrap();
    let dataset = Dataset::Pairs(Pairs::for_encoder(store, SETTINGS, &[9]).unwrap());
    let step = dataset.step(0, 1, 1).unwrap();
    let batch = &step.micro[0];
    assert_eq!((batch.source_len, batch.target_len), (8, Some(4)));
    assert_eq!(batch.tokens, [9, 97, 97, 97, 1, 0, 0, 0]);
    assert_eq!(batch.segments.as_deref(), Some(&[1, 1, 1, 1, 1, 0, 0, 0][..]));
    assert_eq!((&batch.decoder_tokens[..], &batch.decoder_segments[..]), (&[9, 98, 98, 1][..], &[1; 4][..]));
    assert_eq!((&batch.targets[..], step.targets), (&[0][..], 1));
    // The held-out batch has a row without a pair, whose positive is cut to its most tokens.
    let held_out = dataset.held_out_batches(9, 2).unwrap().next().unwrap().unwrap();
    assert_eq!(held_out.decoder_tokens[..12], [&[9][..], &[100; 10], &[1]].concat());
    assert_eq!(held_out.targets, [0, -1]);
    assert_eq!(held_out.decoder_segments[12..], [0; 12]);
}

#[test]
fn rows_are_padded_ended_cut_and_shifted() {
    let dataset = pairs(&[(3, 2), (30, 2), (9, 9)], SETTINGS);
    let Dataset::Pairs(pairs) = &dataset else { unreachable!() };
    assert_eq!((dataset.training(), dataset.held_out(), pairs.truncated()), (2, 1, 1));
    let step = dataset.step(0, 2, 2).unwrap();
    let batch = &step.micro[0];
    assert_eq!((batch.source_len, batch.target_len), (20, Some(4)));
    assert_eq!(batch.tokens[..6], [97, 97, 97, 1, 0, 0]);
    assert_eq!(batch.tokens[20..], [&[98; 19][..], &[1]].concat());
    assert_eq!(batch.targets, [97, 97, 1, -1, 98, 98, 1, -1]);
    assert_eq!(batch.decoder_tokens, [0, 97, 97, 0, 0, 98, 98, 0]);
    assert_eq!((step.targets, step.tokens, step.padding, step.truncated), (6, 30, 18, 1));
    let held_out: Vec<Batch> = dataset.held_out_batches(9, 2).unwrap().map(Result::unwrap).collect();
    assert_eq!((held_out.len(), held_out[0].rows, held_out[0].real_targets()), (1, 2, 10));
    assert_eq!(held_out[0].tokens[..10], [&[99; 9][..], &[1]].concat());
}

#[test]
fn without_an_end_token_nothing_is_added() {
    let dataset = pairs(&[(3, 2)], PairSettings { end_token: None, ..SETTINGS });
    let batch = &dataset.step(0, 1, 1).unwrap().micro[0];
    assert_eq!((&batch.tokens[..4], &batch.targets[..]), (&[97, 97, 97, 0][..], &[97, 97, -1, -1][..]));
}

#[test]
fn the_cache_key_covers_columns_and_prefix() {
    let folder = TempDir::new().unwrap();
    let sources = written(folder.path(), "a.csv", "x,y\nab,c\n");
    let cache = folder.path().join("cache");
    let fingerprints = RefCell::new(BTreeSet::new());
    let open = |columns: &PairColumns| {
        let seen = Mutex::new("");
        let progress = |report: Progress<'_>| match report {
            Progress::CacheHit { .. } => *seen.lock().unwrap() = "hit",
            Progress::CacheDamaged { .. } => *seen.lock().unwrap() = "damaged",
            Progress::Written { .. } if seen.lock().unwrap().is_empty() => *seen.lock().unwrap() = "written",
            _ => {}
        };
        let store = prepare_pairs(&sources, columns, &tokenizer(), &cache, &progress).unwrap();
        let fresh = tokenize_pairs(&sources, columns, &tokenizer(), &|_| {}).unwrap();
        assert_eq!((store.fingerprint(), store.fingerprint().len()), (fresh.fingerprint(), 64));
        let text = |pair: u64| {
            let [source, target] = store.lengths(pair).unwrap();
            let mut out = vec![0; source + target];
            store.read_source(pair, &mut out[..source]).unwrap();
            store.read_target(pair, &mut out[source..]).unwrap();
            out.iter().map(|&id| char::from(id as u8)).collect::<String>()
        };
        let texts = (0..store.len()).map(text).collect::<Vec<_>>().join(" ");
        fingerprints.borrow_mut().insert(store.fingerprint());
        (seen.into_inner().unwrap(), texts)
    };
    let swapped = PairColumns {
        source: Some(Column::Name("y".into())),
        target: Some(Column::Number(1)),
        prefix: ">".into(),
        ..PairColumns::default()
    };
    assert_eq!(open(&PairColumns::default()), ("written", "xy abc".to_owned()));
    assert_eq!(open(&swapped), ("written", ">cab".to_owned()));
    assert_eq!(open(&PairColumns::default()).0, "hit");
    assert_eq!(open(&swapped).0, "hit");
    let files: Vec<_> = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2);
    for file in files {
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
    }
    assert_eq!(open(&swapped), ("damaged", ">cab".to_owned()));
    assert_eq!(fingerprints.into_inner().len(), 2, "one for each choice of columns");
}

#[test]
fn nothing_to_read_is_an_error_and_leaves_no_cache() {
    let folder = TempDir::new().unwrap();
    let cache = folder.path().join("cache");
    let prepare = |name: &str, text: &str| {
        let sources = written(folder.path(), name, text);
        prepare_pairs(&sources, &PairColumns::default(), &tokenizer(), &cache, &|_| {}).unwrap_err()
    };
    assert!(matches!(prepare("a.tsv", "\n\n"), DataError::Empty { .. }));
    assert!(matches!(prepare("b.tsv", "a\tb\nc\n"), DataError::RowTooShort { line: 2, .. }));
    assert!(matches!(prepare("c.md", "text"), DataError::NotPairs { .. }));
    assert!(fs::read_dir(&cache).map_or(0, Iterator::count) == 0);
}

#[test]
fn a_loader_started_at_any_step_equals_the_dataset() {
    let lengths: Vec<(usize, usize)> = (0..500).map(|i| (1 + i * 7 % 19, 1 + i * 5 % 11)).collect();
    let dataset = Arc::new(pairs(&lengths, SETTINGS));
    for first in [0, 37] {
        let mut loader = Loader::start(Arc::clone(&dataset), first, 12, 4, 3);
        for step in first..first + 60 {
            let batches = loader.next_step().unwrap();
            assert_eq!(batches, dataset.step(step, 12, 4).unwrap(), "step {step}");
            loader.give_back(batches);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_samples_in_the_same_order_for_any_micro_batch(
        lengths in proptest::collection::vec((1usize..30, 1usize..20), 1..150), seed: u64, step in 0u64..90,
    ) {
        let dataset = pairs(&lengths, PairSettings { seed, ..SETTINGS });
        let rows = |micro_batch: usize| -> Vec<_> {
            let batches = dataset.step(step, 12, micro_batch).unwrap();
            for (index, batch) in batches.micro.iter().enumerate() {
                assert!(dataset.shapes().contains(&batch.shape()), "{:?}", batch.shape());
                assert_eq!(batch.first_sample, step * 12 + (index * micro_batch) as u64);
                let real: usize = samples(batch).iter().map(|[source, _, target]| source.len() + target.len()).sum();
                assert_eq!(batch.real_tokens(), real as u64);
            }
            batches.micro.iter().flat_map(samples).collect()
        };
        let whole = rows(12);
        for micro_batch in [1, 2, 3, 4, 6] {
            prop_assert_eq!(&rows(micro_batch), &whole);
        }
    }

    #[test]
    fn an_epoch_of_whole_groups_has_every_training_pair_once(
        lengths in proptest::collection::vec((1usize..25, 1usize..15), 2..120), global_batch in 1usize..5,
    ) {
        let dataset = pairs(&lengths, SETTINGS);
        let count = |batches: &mut dyn Iterator<Item = Batch>| {
            let mut counts = BTreeMap::new();
            batches.flat_map(|batch| samples(&batch)).for_each(|sample| *counts.entry(sample).or_insert(0u64) += 1);
            counts
        };
        // As many epochs as a group has batches make whole groups.
        let group = (dataset.training() / global_batch as u64).clamp(1, 32);
        let steps = dataset.training() * group;
        let mut all = (0..steps).flat_map(|step| dataset.step(step, global_batch, global_batch).unwrap().micro);
        let epochs = group * global_batch as u64;
        let counts = count(&mut all);
        let training = counts.values().sum::<u64>();
        prop_assert_eq!(training, dataset.training() * epochs);
        prop_assert!(counts.values().all(|count| count % epochs == 0));
    }
}
