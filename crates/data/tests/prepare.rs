//! `prepare` through the public interface: tokenizing, caching, and damaged caches.

use plimsoll_data::{
    DEFAULT_TEXT_FIELD, Damage, DataError, Progress, RowNumber, Sources, TokenStore, Tokenizer, TokenizerSpec, prepare,
    resolve,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tempfile::TempDir;

/// A folder with data and a cache.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let fixture = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.data()).unwrap();
        for (name, bytes) in files {
            fs::write(fixture.data().join(name), bytes).unwrap();
        }
        fixture
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn sources(&self) -> Sources {
        resolve(&[self.data().to_str().unwrap()], DEFAULT_TEXT_FIELD).unwrap()
    }

    fn prepare(&self, spec: &TokenizerSpec) -> Result<(TokenStore, Vec<String>), DataError> {
        prepare_in(&self.sources(), spec, &self.cache())
    }

    fn cache_files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.cache()).map(|entries| entries.map(|e| e.unwrap().path()).collect()).unwrap_or_default()
    }
}

/// The store, and the reported events except for progress.
fn prepare_in(sources: &Sources, spec: &TokenizerSpec, cache: &Path) -> Result<(TokenStore, Vec<String>), DataError> {
    let seen = Mutex::new(Vec::new());
    let progress = |report: Progress<'_>| match report {
        Progress::Hashing { done, total } | Progress::Tokenizing { done, total, .. } => assert!(done <= total),
        Progress::CacheHit { .. } => seen.lock().unwrap().push("hit".to_owned()),
        Progress::CacheDamaged { damage, .. } => seen.lock().unwrap().push(format!("damaged: {damage}")),
        Progress::Written { tokens, .. } => seen.lock().unwrap().push(format!("written {tokens}")),
    };
    let store = prepare(sources, &Tokenizer::open(spec)?, cache, &progress)?;
    Ok((store, seen.into_inner().unwrap()))
}

fn tokens(store: &TokenStore) -> Vec<i32> {
    let mut out = vec![0; store.len() as usize];
    store.read(0, &mut out).unwrap();
    out
}

/// A megabyte of varied text, with a word longer than a piece.
fn long_text() -> String {
    let sources =
        [include_str!("../src/sources.rs"), include_str!("../src/documents.rs"), include_str!("../src/error.rs")];
    let line = |n: usize| format!("{n} {}\n", sources[n % 3].lines().nth(n / 3 % 150).unwrap());
    (0..15_000).map(line).collect::<String>() + &"漢字".repeat(60_000) + " the end.\n"
}

#[test]
fn documents_follow_each_other_with_separators() {
    let fixture = Fixture::new(&[
        ("a.txt", b"ab"),
        ("b.jsonl", b"{\"text\":\"c\"}\n{\"text\":\"\"}\n{\"text\":\"d\"}\n"),
        ("empty.txt", b""),
        ("z.md", b"\xff"),
    ]);
    let (store, seen) = fixture.prepare(&TokenizerSpec::Bytes).unwrap();
    assert_eq!(tokens(&store), [97, 98, 0, 99, 0, 100, 0, 255, 0]);
    assert_eq!((store.vocab_size(), store.bytes_of_text().0, store.fingerprint().len()), (256, 5, 64));
    assert_eq!(seen, ["written 9"]);
}

#[test]
fn a_tokenizer_file_may_have_large_ids_and_no_separator() {
    let fixture = Fixture::new(&[("a.txt", b"one two"), ("b.txt", b"two other")]);
    let file = fixture.folder.path().join("tokenizer.json");
    let json = r#"{"pre_tokenizer": {"type": "Whitespace"}, "model":
        {"type": "WordLevel", "vocab": {"one": 0, "two": 70000, "?": 1}, "unk_token": "?"}}"#;
    fs::write(&file, json).unwrap();
    let (store, _) = fixture.prepare(&TokenizerSpec::File(file.clone())).unwrap();
    assert_eq!((tokens(&store), store.vocab_size()), (vec![0, 70_000, 70_000, 1], 70_001));

    fs::write(&file, json.replace("70000", "2")).unwrap();
    let (store, seen) = fixture.prepare(&TokenizerSpec::File(file)).unwrap();
    assert_eq!((tokens(&store), seen), (vec![0, 2, 2, 1], vec!["written 4".to_owned()]));
}

#[test]
fn the_second_time_is_a_hit_even_for_a_copy_in_another_folder() {
    let (here, there) = (Fixture::new(&[("a.txt", b"hello")]), Fixture::new(&[("b.txt", b"hello")]));
    let (first, _) = here.prepare(&TokenizerSpec::Gpt2).unwrap();
    let (second, seen) = prepare_in(&there.sources(), &TokenizerSpec::Gpt2, &here.cache()).unwrap();
    assert_eq!(seen, ["hit"]);
    assert_eq!((tokens(&first), first.fingerprint()), (tokens(&second), second.fingerprint()));
    assert_eq!(tokens(&first), [31373, 50256]);

    let (other, seen) = here.prepare(&TokenizerSpec::Bytes).unwrap();
    assert_eq!(seen, ["written 6"]);
    assert_ne!(other.fingerprint(), first.fingerprint());
    fs::write(here.data().join("a.txt"), "hello again").unwrap();
    assert_eq!(here.prepare(&TokenizerSpec::Bytes).unwrap().1, ["written 12"]);
    assert_eq!(here.cache_files().len(), 3);
}

#[test]
fn any_number_of_threads_gives_the_same_file() {
    let text = long_text();
    let fixture = Fixture::new(&[("a.txt", text.as_bytes()), ("b.txt", b"short"), ("c.txt", &text.as_bytes()[70..])]);
    for spec in [TokenizerSpec::Bytes, TokenizerSpec::Gpt2] {
        let file_with = |threads: usize| {
            let cache = tempfile::tempdir().unwrap();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (store, _) = pool.install(|| prepare_in(&fixture.sources(), &spec, cache.path())).unwrap();
            fs::read(cache.path().join(format!("{}.tokens", store.fingerprint()))).unwrap()
        };
        let one = file_with(1);
        assert!(one == file_with(2) && one == file_with(7), "{spec}");
    }
}

#[test]
fn the_store_holds_the_tokenizer_s_ids() {
    let text = long_text();
    let fixture = Fixture::new(&[("a.txt", text.as_bytes())]);
    let tokenizer = Tokenizer::open(&TokenizerSpec::Gpt2).unwrap();
    let (store, _) = fixture.prepare(&TokenizerSpec::Gpt2).unwrap();
    let ids: Vec<u32> = tokens(&store).into_iter().map(|token| token as u32).collect();
    let (separator, ids) = ids.split_last().unwrap();
    assert_eq!(Some(*separator), tokenizer.separator());
    assert_eq!(ids, tokenizer.encode(text.as_bytes()).unwrap());
    assert_eq!(tokenizer.decode(ids), text.as_bytes());
    assert_eq!(store.bytes_of_text().0, text.len() as u64);
}

#[test]
fn a_damaged_cache_is_rebuilt_and_reported() {
    let fixture = Fixture::new(&[("a.txt", b"some text that is worth keeping")]);
    let (store, _) = fixture.prepare(&TokenizerSpec::Bytes).unwrap();
    let good = tokens(&store);
    drop(store);
    let path = fixture.cache_files().remove(0);
    let whole = fs::read(&path).unwrap();
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let other_key = {
        let elsewhere = Fixture::new(&[("a.txt", b"other text")]);
        elsewhere.prepare(&TokenizerSpec::Bytes).unwrap();
        fs::read(&elsewhere.cache_files()[0]).unwrap()
    };
    let tokens_bytes = (whole.len() - 128) as u64;
    for (bytes, damage) in [
        (Vec::new(), Damage::NoHeader { found_bytes: 0 }),
        (whole[..100].to_vec(), Damage::NoHeader { found_bytes: 100 }),
        (
            whole[..whole.len() - 2].to_vec(),
            Damage::WrongLength { expected_bytes: tokens_bytes, found_bytes: tokens_bytes - 2 },
        ),
        (flipped(0), Damage::WrongMagic),
        (flipped(30), Damage::BadHeader),
        (flipped(whole.len() - 1), Damage::BadTokens),
        (other_key, Damage::WrongKey),
    ] {
        fs::write(&path, bytes).unwrap();
        let (store, seen) = fixture.prepare(&TokenizerSpec::Bytes).unwrap();
        assert_eq!(seen, [format!("damaged: {damage}"), format!("written {}", good.len())]);
        assert_eq!(tokens(&store), good);
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn concurrent_builders_agree() {
    let text = long_text();
    let fixture = Fixture::new(&[("a.txt", text.as_bytes())]);
    let stores: Vec<TokenStore> = std::thread::scope(|scope| {
        let builder = || fixture.prepare(&TokenizerSpec::Gpt2).unwrap().0;
        let builders: Vec<_> = (0..4).map(|_| scope.spawn(builder)).collect();
        builders.into_iter().map(|builder| builder.join().unwrap()).collect()
    });
    assert!(stores.iter().all(|store| tokens(store) == tokens(&stores[0])));
    assert_eq!(fixture.cache_files().len(), 1, "a temporary file remains");
}

#[test]
fn a_killed_build_does_no_harm() {
    let fixture = Fixture::new(&[("a.txt", b"text")]);
    fs::create_dir(fixture.cache()).unwrap();
    let (recent, old) = (fixture.cache().join("k.1-0.unfinished"), fixture.cache().join("k.2-0.unfinished"));
    fs::write(&recent, "half of").unwrap();
    fs::write(&old, "half of").unwrap();
    let days_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3 * 24 * 3600);
    fs::File::options().write(true).open(&old).unwrap().set_modified(days_ago).unwrap();
    assert_eq!(fixture.prepare(&TokenizerSpec::Bytes).unwrap().1, ["written 5"]);
    assert!(recent.exists() && !old.exists());
}

#[test]
fn failures_name_the_path_and_leave_no_files() {
    let mut text = long_text().into_bytes();
    let offset = text.len() - 3;
    text[offset] = 0xff;
    let fixture = Fixture::new(&[("a.txt", b"good"), ("b.txt", &text)]);
    match fixture.prepare(&TokenizerSpec::Gpt2) {
        Err(DataError::NotUtf8 { path, offset: found }) => {
            assert_eq!((path, found), (fixture.data().join("b.txt"), offset as u64));
        }
        other => panic!("{other:?}"),
    }
    assert!(fixture.cache_files().is_empty());

    let empty = Fixture::new(&[("a.txt", b""), ("b.jsonl", b"{\"text\":\"\"}\n")]);
    assert!(matches!(empty.prepare(&TokenizerSpec::Bytes), Err(DataError::Empty { files: 2, .. })));
    assert!(empty.cache_files().is_empty());

    let sources = Fixture::new(&[("a.txt", b"text")]);
    let not_a_folder = sources.data().join("a.txt");
    match prepare_in(&sources.sources(), &TokenizerSpec::Bytes, &not_a_folder.join("cache")) {
        Err(DataError::CacheUnwritable { folder, .. }) => assert!(folder.starts_with(&not_a_folder)),
        other => panic!("{other:?}"),
    }
}

/// Two containers that share a folder both count processes from 1, so neither may derive the name of its temporary file
/// from the process number.
#[test]
fn builders_with_the_same_process_number_leave_each_other_alone() {
    let fixture = Fixture::new(&[("a.txt", b"text")]);
    fixture.prepare(&TokenizerSpec::Bytes).unwrap();
    let cache = fixture.cache_files().remove(0);
    let key = cache.file_stem().unwrap().to_str().unwrap().to_owned();
    fs::remove_file(&cache).unwrap();
    let theirs = |n: u32| fixture.cache().join(format!("{key}.{}-{n}.unfinished", std::process::id()));
    (0..200).for_each(|n| fs::write(theirs(n), "theirs").unwrap());
    assert_eq!(fixture.prepare(&TokenizerSpec::Bytes).unwrap().1, ["written 5"]);
    assert!((0..200).all(|n| fs::read(theirs(n)).unwrap() == b"theirs"), "another builder's file was touched");
}

/// A cache may be valid by its checksums and key but not for its tokenizer: a process that can write the file can also write
/// those.
#[test]
fn a_validly_hashed_cache_with_foreign_ids_is_rebuilt() {
    let fixture = Fixture::new(&[("a.txt", b"one two")]);
    let file = fixture.folder.path().join("tokenizer.json");
    let json = r#"{"pre_tokenizer": {"type": "Whitespace"}, "model":
        {"type": "WordLevel", "vocab": {"one": 0, "two": 1}, "unk_token": "one"}}"#;
    fs::write(&file, json).unwrap();
    let spec = TokenizerSpec::File(file);
    let good = tokens(&fixture.prepare(&spec).unwrap().0);
    let path = fixture.cache_files().remove(0);
    let forged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        let tokens_hash = *blake3::hash(&bytes[128..]).as_bytes();
        bytes[40..72].copy_from_slice(&tokens_hash);
        let check = *blake3::hash(&bytes[..104]).as_bytes();
        bytes[104..128].copy_from_slice(&check[..24]);
        bytes
    };
    for (change, damage) in [
        (
            &(|bytes: &mut Vec<u8>| bytes[128..130].copy_from_slice(&9u16.to_le_bytes())) as &dyn Fn(&mut Vec<u8>),
            Damage::ForeignToken { token: 9, vocab_size: 2 },
        ),
        (&|bytes: &mut Vec<u8>| bytes[16..24].copy_from_slice(&60_000u64.to_le_bytes()), Damage::WrongKey),
    ] {
        let bytes = forged(change);
        fs::write(&path, bytes).unwrap();
        let (store, seen) = fixture.prepare(&spec).unwrap();
        assert_eq!(seen, [format!("damaged: {damage}"), format!("written {}", good.len())]);
        assert_eq!(tokens(&store), good);
    }
}

#[cfg(unix)]
#[test]
fn a_cache_is_no_more_readable_than_the_data() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let fixture = Fixture::new(&[("a.txt", b"public"), ("b.txt", b"private")]);
    for (of_b, of_cache) in [(0o600, 0o600), (0o640, 0o600), (0o644, 0o644)] {
        let _ = fs::remove_dir_all(fixture.cache());
        fs::set_permissions(fixture.data().join("b.txt"), fs::Permissions::from_mode(of_b)).unwrap();
        fixture.prepare(&TokenizerSpec::Bytes).unwrap();
        let path = fixture.cache_files().remove(0);
        assert_eq!(mode(&path) & !of_cache, 0, "{:o}", mode(&path));
        assert_eq!(mode(&fixture.cache()), 0o700);
    }
    // A private copy of public data hits the cache of the public data.
    fs::set_permissions(fixture.data().join("b.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fixture.prepare(&TokenizerSpec::Bytes).unwrap().1, ["hit"]);
    assert_eq!(mode(&fixture.cache_files()[0]), 0o600);
}

/// Accessing a mapped page that the file no longer has would kill the process with a signal.
#[test]
fn truncating_a_cache_in_use_is_an_error() {
    let fixture = Fixture::new(&[("a.txt", &b"sixteen letters\n".repeat(1 << 20))]);
    let (store, _) = fixture.prepare(&TokenizerSpec::Bytes).unwrap();
    let path = fixture.cache_files().remove(0);
    let file = fs::File::options().write(true).open(&path).unwrap();
    let mut out = [0; 6000];
    store.read(store.len() - 6000, &mut out).unwrap();
    file.set_len(4096).unwrap();
    match store.read(store.len() - 6000, &mut out) {
        Err(DataError::CacheChanged { path: found }) => assert_eq!(found, path),
        other => panic!("{other:?}"),
    }
    // The same length as before, with ids outside the vocabulary: 256 ids of two bytes.
    file.set_len(128 + 2 * store.len()).unwrap();
    std::io::Write::write_all(&mut &file, &[0xff; 4096]).unwrap();
    assert!(matches!(store.read(0, &mut out), Err(DataError::CacheChanged { .. })));
}

#[test]
fn lines_have_a_maximum_length_and_text_files_do_not() {
    let line = |bytes: usize| format!("{{\"text\":\"{}\"}}", "a".repeat(bytes - 11));
    let fixture = Fixture::new(&[("a.jsonl", format!("{}\n{}\n", line(1000), line(1001)).as_bytes())]);
    let mut sources = fixture.sources();
    sources.line_bytes_max = 1001;
    match prepare_in(&sources, &TokenizerSpec::Bytes, &fixture.cache()) {
        Err(DataError::LineTooLong { path, row, limit }) => {
            assert_eq!((path, row, limit.0), (fixture.data().join("a.jsonl"), RowNumber::Line(2), 1001));
        }
        other => panic!("{other:?}"),
    }
    sources.line_bytes_max = 1002;
    prepare_in(&sources, &TokenizerSpec::Bytes, &fixture.cache()).unwrap();
    let fixture = Fixture::new(&[("a.txt", &[b'a'; 100_000])]);
    let mut sources = fixture.sources();
    sources.line_bytes_max = 10;
    prepare_in(&sources, &TokenizerSpec::Bytes, &fixture.cache()).unwrap();
}

/// Tokenizers for which the library panics, or that turn a line into gigabytes. The first has a state without an entry.
#[test]
fn a_tokenizer_that_panics_or_grows_the_text_is_an_error() {
    let text = "a".repeat(1 << 16);
    let fixture = Fixture::new(&[("a.txt", text.as_bytes())]);
    let file = fixture.folder.path().join("tokenizer.json");
    let refused = |json: &str| {
        fs::write(&file, json).unwrap();
        fixture.prepare(&TokenizerSpec::File(file.clone())).unwrap_err().to_string()
    };
    let unigram = r#"{"model": {"type": "Unigram", "unk_id": null, "vocab": [["b", -1.0]]}}"#;
    let error = refused(unigram);
    assert!(error.contains("tokenizer.json") && error.contains("failed on"), "{error}");
    let ten = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}"#;
    let model = r#""model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}"#;
    let grown = |times: usize| {
        let steps = vec![ten; times].join(",");
        format!(r#"{{"normalizer": {{"type": "Sequence", "normalizers": [{steps}]}}, {model}}}"#)
    };
    let error = refused(&grown(9));
    assert!(error.contains("is not a usable tokenizer: its normalizer could make text 1000000000 times"), "{error}");
    let error = refused(&grown(4));
    assert!(error.contains("more than 8 times as long"), "{error}");
}
