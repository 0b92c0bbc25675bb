//! `--download`, from a stand-in for the Hugging Face hub on this machine.

use crate::support::hub::{COMMIT, Hub, HubState, etag};
use crate::support::{Random, Said, Sandbox, tiny_config};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Its folder in the cache.
const MODEL: &str = "home/hub/models--org--tiny";

const PLAN: &str = "plan --init org/tiny --download --vram 1 --seq-len 16 --json";

/// A model with random weights, for commands that only read its configuration.
fn model() -> HubState {
    let mut random = Random(5);
    let noise = (0..1 << 18).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect::<Vec<_>>();
    let files = [
        ("config.json", tiny_config(&json!({})).into_bytes()),
        (WEIGHTS, noise),
        ("pytorch_model.bin", b"not to be fetched".to_vec()),
        ("tokenizer_config.json", b"{}".to_vec()),
    ];
    HubState { model: "org/tiny".to_owned(), files: owned(files), ..HubState::default() }
}

fn owned<const N: usize>(files: [(&str, Vec<u8>); N]) -> BTreeMap<String, Vec<u8>> {
    files.into_iter().map(|(name, contents)| (name.to_owned(), contents)).collect()
}

fn command(sandbox: &Sandbox, hub: &Hub, arguments: &str) -> Command {
    let mut command = sandbox.command(arguments.split_whitespace());
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", sandbox.path("home"));
    command
}

fn run(sandbox: &Sandbox, hub: &Hub, arguments: &str) -> Said {
    Said::of(command(sandbox, hub, arguments).output().expect("the binary runs"))
}

#[track_caller]
fn assert_said(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, Some(code), "{}", said.stderr);
    for words in words {
        assert!(said.stderr.contains(words), "lacks `{words}`: {}", said.stderr);
    }
}

/// Checks that the cache's files have these contents under their names, and that blobs are named by their hashes.
#[track_caller]
fn assert_cached(sandbox: &Sandbox, hub: &Hub, files: &[&str]) {
    let state = hub.state();
    let snapshot = format!("{MODEL}/snapshots/{COMMIT}");
    for &file in files {
        let contents = &state.files[file];
        assert!(sandbox.read(&format!("{snapshot}/{file}")) == *contents, "{file} differs");
        let blob = format!("{MODEL}/blobs/{}", etag(contents, file.ends_with(".safetensors")));
        assert!(sandbox.read(&blob) == *contents, "{file}");
    }
    let here = fs::read_dir(sandbox.path(&snapshot)).expect("a folder").count();
    let blobs = fs::read_dir(sandbox.path(&format!("{MODEL}/blobs"))).expect("a folder").count();
    assert_eq!((here, blobs), (files.len(), files.len()), "other files were downloaded, or remain");
    assert_eq!(sandbox.text(&format!("{MODEL}/refs/main")), COMMIT);
}

#[test]
fn a_downloaded_model_runs_and_is_not_downloaded_twice() {
    let sandbox = Sandbox::new();
    sandbox.must_train("--name mine --max-steps 1 --checkpoint-every 1");
    let from = "runs/mine/checkpoints/step-000001";
    let hub = Hub::new(HubState {
        files: owned(["config.json", WEIGHTS].map(|file| (file, sandbox.read(&format!("{from}/{file}"))))),
        ..model()
    });
    let generate = "generate --checkpoint org/tiny --tokenizer bytes --max-tokens 4 --temperature 0 --vram 0.1";
    let said = run(&sandbox, &hub, generate);
    assert_said(&said, 4, &["the weights of org/tiny are not in ", "hint: `--download` downloads them"]);
    assert!(hub.state().asked.is_empty(), "everything was cached");
    let fetched = run(&sandbox, &hub, &format!("{generate} --download"));
    assert_said(&fetched, 0, &["fetching org/tiny: 2 files", &format!("weights: {}", sandbox.path(MODEL).display())]);
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS]);
    let asked = hub.state().asked.len();
    for again in [generate.to_owned(), format!("{generate} --download")] {
        let said = run(&sandbox, &hub, &again);
        assert_said(&said, 0, &["weights: "]);
        assert_eq!(said.stdout, fetched.stdout);
    }
    assert_eq!(hub.state().asked.len(), asked, "cached files need no hub");
    let own = sandbox.run(&generate.replace("org/tiny", from));
    assert_eq!(own.stdout, fetched.stdout);
}

/// `--model` needs the configuration and the tokenizer only.
#[test]
fn a_model_that_is_planned_is_downloaded_without_weights() {
    let sandbox = Sandbox::new();
    let hub = Hub::new(model());
    for command in ["plan --model org/tiny --vram 1 --seq-len 16 --json", "estimate --model org/tiny --seq-len 16"] {
        let said = run(&sandbox, &hub, command);
        assert_said(&said, 2, &["`--download` fetches its config.json and tokenizer"]);
    }
    assert!(hub.state().asked.is_empty(), "nothing was asked for");
    let said = run(&sandbox, &hub, "plan --model org/tiny --download --vram 1 --seq-len 16 --json");
    assert_said(&said, 0, &["fetching org/tiny: 2 files"]);
    assert_cached(&sandbox, &hub, &["config.json", "tokenizer_config.json"]);
    let asked = hub.state().asked.len();
    assert_said(&run(&sandbox, &hub, "estimate --model org/tiny --download --seq-len 16"), 0, &["model: "]);
    assert_eq!(hub.state().asked.len(), asked, "the cached file needs no hub");
    // Weights are fetched when they are needed.
    assert_said(&run(&sandbox, &hub, PLAN), 0, &["fetching org/tiny: 3 files"]);
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
}

#[test]
fn exactly_the_shards_are_downloaded() {
    let sandbox = Sandbox::new();
    let mut state = model();
    let weights = state.files.remove(WEIGHTS).expect("it is there");
    let names = [1, 2].map(|n| format!("model-0000{n}-of-00002.safetensors"));
    let index = json!({ "weight_map": { "a": names[0], "b": names[1], "c": names[0] } }).to_string();
    state.files.extend(owned([
        (INDEX, index.into_bytes()),
        (&names[0], weights[..99].to_vec()),
        (&names[1], weights[99..999].to_vec()),
        ("consolidated.safetensors", b"all of it again".to_vec()),
        ("tokenizer.json", b"{ }".to_vec()),
    ]));
    let hub = Hub::new(HubState { busy: 1, ..state });
    assert_said(&run(&sandbox, &hub, PLAN), 0, &["fetching org/tiny: 6 files", "status 503; retrying in 0.5 s"]);
    let files = ["config.json", INDEX, &names[0], &names[1], "tokenizer.json", "tokenizer_config.json"];
    assert_cached(&sandbox, &hub, &files);
    // Other programs that stop in the middle leave an index without its shards.
    fs::remove_file(sandbox.path(&format!("{MODEL}/snapshots/{COMMIT}/{}", names[1]))).expect("it is there");
    let without = PLAN.replace(" --download", "");
    assert_said(&run(&sandbox, &hub, &without), 4, &["the weights of org/tiny are not in "]);
    assert_said(&run(&sandbox, &hub, PLAN), 0, &["of which 0 B are missing"]);
    assert_eq!(hub.sent(".safetensors"), 999, "a shard was sent twice");
    // A settings file can request a download too.
    fs::remove_file(sandbox.path(&format!("{MODEL}/snapshots/{COMMIT}/{INDEX}"))).expect("it is there");
    sandbox.write("run.yaml", "init: org/tiny\ndownload: true\n");
    let said = run(&sandbox, &hub, "plan --config run.yaml --vram 1 --seq-len 16");
    assert_said(&said, 0, &["fetching org/tiny: 6 files"]);
}

#[test]
fn bytes_received_before_a_broken_connection_are_not_sent_again() {
    let sandbox = Sandbox::new();
    let hub = Hub::new(HubState { cuts: vec![200_000, 1_000_000], ..model() });
    let size = hub.state().files[WEIGHTS].len();
    assert_said(&run(&sandbox, &hub, PLAN), 0, &["retrying in 0.5 s"]);
    assert_eq!(hub.sent(WEIGHTS), size);
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
    let ranges = hub.state().asked.iter().filter_map(|asked| asked.range.clone()).collect::<Vec<_>>();
    assert_eq!(ranges, ["bytes=1000000-", "bytes=1200000-"]);
}

#[test]
fn a_silent_server_is_retried() {
    let sandbox = Sandbox::new();
    let hub = Hub::new(HubState { cuts: vec![300_000], silence: Duration::from_secs(20), ..model() });
    let mut command = command(&sandbox, &hub, PLAN);
    let start = Instant::now();
    let said = Said::of(command.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").output().expect("the binary runs"));
    assert_said(&said, 0, &["retrying"]);
    assert!(start.elapsed() < Duration::from_secs(15), "it waited too long");
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
}

/// Runs until the first bytes of the weights are on disk, then interrupts the command.
#[cfg(unix)]
fn interrupt(sandbox: &Sandbox, hub: &Hub, bytes: u64) {
    (hub.state().cuts, hub.state().silence) = (vec![bytes as usize], Duration::from_secs(60));
    let mut child = command(sandbox, hub, PLAN).stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("it runs");
    let blob = sandbox.path(&format!("{MODEL}/blobs/{}.incomplete", etag(&hub.state().files[WEIGHTS], true)));
    let start = Instant::now();
    while blob.metadata().map_or(0, |found| found.len()) < bytes {
        assert!(start.elapsed() < Duration::from_secs(60), "no bytes arrive");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: sends a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    assert!(!child.wait().expect("it ends").success());
    assert!(!sandbox.path(&format!("{MODEL}/snapshots")).exists(), "an incomplete file is visible in the cache");
}

#[test]
#[cfg(unix)]
fn the_next_run_continues() {
    let sandbox = Sandbox::new();
    let hub = Hub::new(model());
    interrupt(&sandbox, &hub, 700_000);
    let size = hub.state().files[WEIGHTS].len();
    let said = run(&sandbox, &hub, PLAN);
    assert_said(&said, 0, &["3 files, 2.00 MiB, of which 1.33 MiB are missing"]);
    assert_eq!(hub.sent(WEIGHTS), size);
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
}

#[test]
#[cfg(unix)]
fn a_server_without_ranges_starts_over_and_wrong_ranges_are_refused() {
    for is_wrong in [false, true] {
        let sandbox = Sandbox::new();
        let hub = Hub::new(HubState { sends_all: !is_wrong, ..model() });
        interrupt(&sandbox, &hub, 700_000);
        hub.state().range = is_wrong.then(|| "bytes 0-99/100".to_owned());
        let said = run(&sandbox, &hub, PLAN);
        if is_wrong {
            assert_said(&said, 4, &["asked for `bytes 700000-", "it sends `bytes 0-99/100`"]);
        } else {
            assert_said(&said, 0, &[]);
            assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
        }
    }
}

#[test]
fn files_with_a_wrong_hash_are_deleted() {
    let wrong = [
        (HubState { etags: [(WEIGHTS.to_owned(), "0".repeat(64))].into(), ..model() }, "its hash is "),
        (HubState { etags: [("config.json".to_owned(), "0".repeat(40))].into(), ..model() }, "its hash is "),
    ];
    for (state, words) in wrong {
        let sandbox = Sandbox::new();
        let hub = Hub::new(state);
        let said = run(&sandbox, &hub, PLAN);
        assert_said(&said, 4, &[words, "hint: it was deleted; the same command downloads it again"]);
        let left = sandbox.tree("home");
        let incomplete = left.keys().filter(|path| path.extension().is_some_and(|end| end == "incomplete"));
        assert_eq!(incomplete.count(), 0, "{:?}", left.keys());
        assert!(!sandbox.path(&format!("{MODEL}/snapshots")).exists());
        (hub.state().etags, hub.state().sizes) = (BTreeMap::new(), BTreeMap::new());
        assert_said(&run(&sandbox, &hub, PLAN), 0, &[]);
        assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
    }
}

#[test]
fn abandoned_partial_files_are_removed_after_a_day() {
    let (sandbox, hub) = (Sandbox::new(), Hub::new(model()));
    for name in ["old", "held", "new"] {
        sandbox.write(&format!("{MODEL}/blobs/{name}.incomplete"), "part");
    }
    let day_before = std::time::SystemTime::now() - Duration::from_secs(25 * 3600);
    for name in ["old", "held"] {
        let part = fs::File::options().write(true).open(sandbox.path(&format!("{MODEL}/blobs/{name}.incomplete")));
        part.and_then(|part| part.set_modified(day_before)).expect("an older file");
    }
    let lock = "home/hub/.locks/models--org--tiny/held.lock";
    sandbox.write(lock, "");
    let held = fs::File::open(sandbox.path(lock)).expect("a lock");
    held.lock().expect("no process holds it");
    assert_said(&run(&sandbox, &hub, PLAN), 0, &[]);
    let is_there = |name: &str| sandbox.path(&format!("{MODEL}/blobs/{name}.incomplete")).exists();
    assert_eq!(["old", "held", "new"].map(is_there), [false, true, true]);
}

#[test]
fn contradictory_sizes_are_refused() {
    let sandbox = Sandbox::new();
    let hub = Hub::new(HubState { sizes: [(WEIGHTS.to_owned(), 1000)].into(), ..model() });
    assert_said(&run(&sandbox, &hub, PLAN), 4, &["it must send 1000 bytes, but announces 2097152"]);
    assert!(!sandbox.path(&format!("{MODEL}/snapshots")).exists());
    hub.state().sizes = BTreeMap::new();
    assert_said(&run(&sandbox, &hub, PLAN), 0, &[]);
    assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
}

/// A file without a hash may be anything: weights are refused, other files have a warning.
#[test]
fn unverifiable_weights_are_refused() {
    for etag in ["abc", "d41d8cd98f00b204e9800998ecf8427e", &"x".repeat(64), &"0-1".repeat(10)] {
        let sandbox = Sandbox::new();
        let hub = Hub::new(HubState { etags: [(WEIGHTS.to_owned(), etag.to_owned())].into(), ..model() });
        let words = [
            "model.safetensors: it can't be verified: the server sends no hash of its contents",
            "hint: use a server that sends hashes",
        ];
        assert_said(&run(&sandbox, &hub, PLAN), 4, &words);
        assert_eq!(hub.sent(WEIGHTS), 0);
    }
    let sandbox = Sandbox::new();
    let hub = Hub::new(HubState { etags: [("config.json".to_owned(), "abc".to_owned())].into(), ..model() });
    assert_said(&run(&sandbox, &hub, PLAN), 0, &["warning: config.json: it can't be verified"]);
    // Other contents with the same name and length are not mistaken for the cached ones.
    fs::remove_dir_all(sandbox.path(&format!("{MODEL}/snapshots"))).expect("it was fetched");
    let mut other = hub.state().files["config.json"].clone();
    other.reverse();
    hub.state().files.insert("config.json".to_owned(), other.clone());
    run(&sandbox, &hub, PLAN);
    assert!(sandbox.read(&format!("{MODEL}/blobs/abc")) == other);
}

/// Each attempt starts at the first byte and gets equally far.
#[test]
fn a_server_that_cuts_every_answer_is_given_up() {
    for sends_all in [true, false] {
        let sandbox = Sandbox::new();
        // A server that supports ranges, but sends only a trickle each time.
        let cut = if sends_all { 300_000 } else { 100 };
        let hub = Hub::new(HubState { cuts: vec![cut; 100], sends_all, ..model() });
        let said = run(&sandbox, &hub, PLAN);
        assert_said(&said, 5, &["in 4 s", "Peer disconnected", "hint: the same command continues the download"]);
        assert_eq!(
            said.stderr.contains("disconnected; the server sends no parts of files"),
            sends_all,
            "{}",
            said.stderr
        );
        assert!(hub.state().asked.iter().filter(|asked| asked.sent == cut).count() <= 6);
    }
}

#[test]
fn file_names_from_the_hub_cannot_leave_the_cache() {
    let shards = |names: &[&str]| {
        let mut state = model();
        state.files.remove(WEIGHTS);
        let map =
            names.iter().enumerate().map(|(i, name)| (i.to_string(), json!(name))).collect::<serde_json::Map<_, _>>();
        state.files.extend(owned([(INDEX, json!({ "weight_map": map }).to_string().into_bytes())]));
        // The hub claims to have all of them.
        state.files.extend(names.iter().map(|name| ((*name).to_owned(), b"weights".to_vec())));
        state
    };
    let many = (0..3000).map(|i| format!("{i}.safetensors")).collect::<Vec<_>>();
    let without_index = |index: &str| {
        let mut state = shards(&["a.safetensors"]);
        state.files.insert(INDEX.to_owned(), index.as_bytes().to_vec());
        state
    };
    let no_file = "which is not a file in the same folder";
    let hostile = [
        (shards(&["../../../../x.safetensors"]), no_file),
        (shards(&["/tmp/x.safetensors"]), no_file),
        (shards(&["a/b.safetensors"]), no_file),
        (shards(&["..\\x.safetensors"]), no_file),
        (shards(&["a.safetensors", "weights.bin"]), no_file),
        (without_index(r#"{"weight_map": {"a": "b.safetensors"}}"#), no_file),
        (shards(&many.iter().map(String::as_str).collect::<Vec<_>>()), "it names 3000 shards"),
        (shards(&[]), "it names 0 shards"),
        (without_index("[1"), "can't download"),
        (HubState { commit: Some("../../x".to_owned()), ..model() }, "the name of its commit"),
        (
            HubState { etags: [(WEIGHTS.to_owned(), "../../x".to_owned())].into(), ..model() },
            "its ETag does not identify",
        ),
        (HubState { sizes: [("config.json".to_owned(), 1 << 30)].into(), ..model() }, "more than 64.0 MiB"),
    ];
    for (state, words) in hostile {
        let sandbox = Sandbox::new();
        let before = sandbox.tree("");
        let said = run(&sandbox, &Hub::new(state), PLAN);
        assert_said(&said, 4, &[words]);
        assert!(sandbox.tree("") == before, "{words}: something was written");
    }
}

#[test]
fn refusals_have_a_hint_and_write_nothing() {
    let no_weights = || {
        let mut state = model();
        state.files.remove(WEIGHTS);
        state
    };
    let huge = HubState { sizes: [(WEIGHTS.to_owned(), u64::MAX / 2)].into(), ..model() };
    let gated = || HubState { token: Some("hf_right".to_owned()), ..model() };
    type Case = (HubState, &'static [(&'static str, &'static str)], &'static str, i32, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        (no_weights(), &[], "org/tiny", 4, &["has no weights in safetensors", "hint: other formats can run code"]),
        (huge, &[], "org/tiny", 5, &["has room for ", "8388608 TiB must still be downloaded", "hint: free some space"]),
        (gated(), &[], "org/tiny", 4, &["status 401", "hint: `export HF_TOKEN=hf_...`", "accept the model's license"]),
        (
            gated(),
            &[("HF_TOKEN", "hf_wrong")],
            "org/tiny",
            4,
            &["status 401", "is invalid or has no access to this model"],
        ),
        (HubState { status: Some(403), ..model() }, &[], "org/tiny", 4, &["status 403", "accept the model's license"]),
        (
            model(),
            &[],
            "google/flan-t5-bas",
            4,
            &["has no model google/flan-t5-bas", "did you mean `google/flan-t5-base`"],
        ),
        (model(), &[], "org/nothing-like-it", 4, &["has no model", "hint: `plimsoll models` lists"]),
        (
            model(),
            &[("HF_HUB_OFFLINE", "1")],
            "org/tiny",
            2,
            &["HF_HUB_OFFLINE is set", "hint: `unset HF_HUB_OFFLINE`"],
        ),
        (model(), &[("HF_ENDPOINT", "ftp://x")], "org/tiny", 2, &["HF_ENDPOINT is `ftp://x`"]),
        (model(), &[("HF_TOKEN", "a secret")], "org/tiny", 2, &["the token of HF_TOKEN has invalid characters"]),
        (model(), &[], "nano", 4, &["the weights of nano are not in "]),
    ];
    for (state, variables, name, code, words) in cases {
        let sandbox = Sandbox::new();
        let before = sandbox.tree("");
        let hub = Hub::new(state);
        let mut command = command(&sandbox, &hub, &PLAN.replace("org/tiny", name));
        let said = Said::of(command.envs(variables.iter().copied()).output().expect("the binary runs"));
        assert_said(&said, code, words);
        assert!(!said.stderr.contains("secret") && !said.stderr.contains("hf_wrong"), "{}", said.stderr);
        assert!(sandbox.tree("") == before, "{words:?}: something was written");
        assert!(code != 2 || hub.state().asked.is_empty(), "{words:?}: it asked");
    }
    assert_said(&Sandbox::new().run("plan --download --vram 1"), 2, &["`--download` needs `--init`"]);
}

#[test]
fn a_server_that_stays_busy_is_given_up() {
    let sandbox = Sandbox::new();
    let said = run(&sandbox, &Hub::new(HubState { status: Some(503), ..model() }), PLAN);
    assert_said(&said, 5, &["in 0.5 s", "in 1 s", "in 2 s", "in 4 s", "hint: the same command continues the download"]);
}

/// Reads a request's head, after the request for a tunnel if there is one.
fn head(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with("\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
        text.push(char::from(byte[0]));
    }
    text
}

#[test]
fn the_token_is_not_sent_without_tls() {
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = proxy.local_addr().expect("an address");
    let heads = std::thread::spawn(move || {
        let (mut stream, _) = proxy.accept().expect("a request");
        let mut heads = head(&mut stream);
        if heads.starts_with("CONNECT") {
            stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").expect("sent");
            heads += &head(&mut stream);
        }
        stream.write_all(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n").expect("sent");
        heads
    });
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(PLAN.split_whitespace());
    command.env("HF_ENDPOINT", "http://hub.example").env("HF_HOME", sandbox.path("home"));
    command.env("http_proxy", format!("http://{address}")).env("HF_TOKEN", "hf_secret");
    let said = Said::of(command.output().expect("the binary runs"));
    assert_said(&said, 4, &["hint: your token was not sent, because HF_ENDPOINT does not use TLS"]);
    let heads = heads.join().expect("no panic");
    assert!(heads.contains("/api/models/org/tiny") && !heads.contains("hf_secret"), "{heads}");
    let mut command = sandbox.command(PLAN.split_whitespace());
    let refused =
        Said::of(command.env("HF_ENDPOINT", "https://me:hf_secret@hub.example").output().expect("the binary runs"));
    assert_said(&refused, 2, &["error: HF_ENDPOINT has a name or a password in it"]);
    assert!(!refused.stderr.contains("hf_secret"), "{}", refused.stderr);
}

#[test]
fn the_token_is_sent_only_to_the_hub() {
    let storage = Hub::new(model());
    let state = || HubState { storage: Some(storage.endpoint.clone()), token: Some("hf_secret".to_owned()), ..model() };
    let of_user = |sandbox: &Sandbox, hub: &Hub| {
        sandbox.write("home/token", "hf_secret\n");
        run(sandbox, hub, PLAN)
    };
    let of_variable = |sandbox: &Sandbox, hub: &Hub| {
        let mut command = command(sandbox, hub, PLAN);
        Said::of(command.env("HF_TOKEN", "hf_secret").output().expect("the binary runs"))
    };
    for is_in_file in [true, false] {
        let (sandbox, hub) = (Sandbox::new(), Hub::new(state()));
        let said = if is_in_file { of_user(&sandbox, &hub) } else { of_variable(&sandbox, &hub) };
        assert_said(&said, 0, &[]);
        assert!(!said.stderr.contains("hf_secret"), "{}", said.stderr);
        assert_cached(&sandbox, &hub, &["config.json", WEIGHTS, "tokenizer_config.json"]);
        let shown = hub.state().asked.iter().all(|asked| asked.authorization.as_deref() == Some("Bearer hf_secret"));
        assert!(shown, "{:?}", hub.state().asked);
    }
    let asked = storage.state().asked.clone();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(
        asked.iter().all(|asked| asked.authorization.is_none()
            && asked.path == Path::new("/storage").join(WEIGHTS).to_string_lossy()),
        "{asked:?}"
    );
}
