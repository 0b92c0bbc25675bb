//! The walls between the crates, checked on the source tree: which crate imports which, and which APIs it may use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that each crate may import, from ARCHITECTURE.md.
const ROOMS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("files", &["units"]),
    ("fake-blas", &[]),
    ("fake-cuda", &[]),
    ("fake-disk", &["files"]),
    ("fake-nvml", &[]),
    ("graph", &["units"]),
    ("heat", &["units"]),
    ("arena", &[]),
    ("plan", &["units", "graph", "arena"]),
    ("exec", &["units", "files", "graph", "plan"]),
    ("jinja", &[]),
    ("data", &["units", "files", "jinja"]),
    ("telemetry", &["units", "files"]),
    ("health", &["units", "telemetry"]),
    ("power", &["units", "files", "telemetry"]),
    ("secrets", &["files"]),
    ("notify", &["units", "files", "telemetry", "secrets"]),
    ("trackers", &["units", "files", "telemetry", "secrets"]),
    ("orders", &["units", "files"]),
    ("torch-memory", &["units", "arena"]),
    ("trainers", &["units"]),
    ("registry", &["units", "files", "telemetry"]),
    ("supervise", &["units", "files", "heat", "telemetry", "trainers", "registry"]),
    ("eager", &["units", "graph", "torch-memory", "trainers"]),
    ("train", &["units", "files", "graph", "plan", "exec", "data", "telemetry"]),
    (
        "session",
        &["units", "files", "graph", "plan", "exec", "data", "telemetry", "health", "heat", "power", "orders", "train"],
    ),
    ("stress", &["units", "graph", "plan", "exec", "telemetry", "heat", "train", "session"]),
    ("gguf", &["units", "files", "graph", "train"]),
    ("hub", &["units", "files", "graph", "data", "train", "secrets"]),
    ("watch", &["units", "files", "telemetry", "registry"]),
    ("serve", &["units", "files", "graph", "plan", "telemetry", "watch", "orders", "registry"]),
    ("top", &["units", "heat", "telemetry", "watch"]),
    (
        "render",
        &[
            "units",
            "graph",
            "plan",
            "exec",
            "telemetry",
            "health",
            "torch-memory",
            "trainers",
            "eager",
            "registry",
            "train",
            "stress",
            "watch",
        ],
    ),
    (
        "plimsoll",
        &[
            "units",
            "files",
            "graph",
            "arena",
            "plan",
            "exec",
            "data",
            "telemetry",
            "torch-memory",
            "trackers",
            "trainers",
            "eager",
            "gguf",
            "health",
            "heat",
            "notify",
            "orders",
            "serve",
            "hub",
            "secrets",
            "session",
            "stress",
            "power",
            "render",
            "registry",
            "supervise",
            "train",
            "watch",
            "top",
        ],
    ),
];

pub(crate) fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate has a parent folder").to_owned()
}

/// Dependencies of a crate, also those on one system only; our own without their prefix.
fn dependencies(name: &str) -> Vec<String> {
    dependencies_in(&fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("every crate has a manifest"))
}

/// Names in `[dependencies]` and `[target.….dependencies]` of a manifest.
fn dependencies_in(manifest: &str) -> Vec<String> {
    let mut is_inside = false;
    let lines = manifest.lines().filter(|line| {
        let is_header = line.starts_with('[');
        if is_header {
            is_inside = *line == "[dependencies]" || line.ends_with(".dependencies]");
        }
        is_inside && !is_header
    });
    let names = lines.filter_map(|line| line.split(['.', ' ', '=', '#']).next()).filter(|name| !name.is_empty());
    names.map(|name| name.strip_prefix("plimsoll-").unwrap_or(name).to_owned()).collect()
}

/// All Rust sources of a crate, without its `tests` folder.
pub(crate) fn sources(name: &str) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![crates().join(name).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                files.insert(path, text);
            }
        }
    }
    assert!(!files.is_empty(), "{name} has no sources");
    files
}

/// Fails if the code of a crate, except its tests, contains one of these words.
fn assert_free_of(rooms: &[&str], forbidden: &[&str]) {
    for room in rooms {
        for (path, text) in sources(room) {
            let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
            let code = text.split("#[cfg(test)]\nmod").next().filter(|_| !is_test).unwrap_or_default();
            for word in forbidden {
                assert!(!code.contains(word), "{} uses {word}", path.display());
            }
        }
    }
}

#[test]
fn dependencies_on_one_system_are_dependencies() {
    let manifest = "[dependencies]\nplimsoll-units.workspace = true\n\n[target.'cfg(unix)'.dependencies]\n# Signals.\n\
        plimsoll-registry.workspace = true\n[dev-dependencies]\ntempfile.workspace = true\n\
        [target.'cfg(unix)'.dev-dependencies]\nlibc.workspace = true\n";
    assert_eq!(dependencies_in(manifest), ["units", "registry"]);
}

#[test]
fn every_crate_imports_only_what_it_may() {
    let mut folders = fs::read_dir(crates()).expect("the folder of crates").flatten().map(|e| e.file_name());
    assert!(folders.all(|f| ROOMS.iter().any(|(room, _)| f == *room)), "a crate is missing in the table");
    for (room, allowed) in ROOMS {
        let ours =
            dependencies(room).into_iter().filter(|d| ROOMS.iter().any(|(room, _)| room == d)).collect::<Vec<_>>();
        assert_eq!(ours.is_empty(), allowed.is_empty(), "{room} imports {ours:?}");
        for dependency in ours {
            assert!(allowed.contains(&dependency.as_str()), "{room} imports {dependency}");
        }
    }
}

#[test]
fn invariant_1_pure_graph_and_plan_reach_no_clock_file_or_environment() {
    let forbidden = ["std::fs", "std::time", "std::thread", "std::env", "std::net", "SystemTime", "Instant"];
    assert_free_of(&["units", "graph", "arena", "plan", "torch-memory", "heat", "health"], &forbidden);
    // The search uses all threads; a test runs it to show that its result does not depend on them
    // (`plan/tests/planner/search.rs`). This test excludes APIs that could make it depend on threads or their order.
    let of_threads = ["current_num_threads", "current_thread_index", "find_any", "find_map_any", "mpsc", "reduce("];
    assert_free_of(&["units", "graph", "arena", "plan"], &of_threads);
    assert_free_of(&["units", "graph", "torch-memory"], &["rayon", "std::sync::Mutex"]);
    for room in ["units", "graph", "arena", "plan", "torch-memory", "heat"] {
        let known: &[&str] = match room {
            "arena" => &["rayon", "serde", "thiserror"],
            "plan" => &["units", "arena", "graph", "rayon", "rustc-hash", "serde", "smallvec", "thiserror"],
            "torch-memory" => &["units", "arena", "rustc-hash", "thiserror"],
            _ => &["units", "serde", "serde_json", "smallvec", "strsim", "thiserror"],
        };
        for dependency in dependencies(room) {
            assert!(known.contains(&dependency.as_str()), "{room} depends on {dependency}");
        }
    }
}

#[test]
fn invariant_8_only_plimsoll_knows_terminals_html_or_http_and_notify_its_services() {
    let below = [
        "units",
        "files",
        "graph",
        "heat",
        "health",
        "power",
        "arena",
        "plan",
        "exec",
        "data",
        "telemetry",
        "torch-memory",
        "registry",
        "supervise",
        "train",
        "session",
        "stress",
        "orders",
        "secrets",
        "watch",
    ];
    assert_free_of(&below, &["println!", "print!(", "stdout()", "stderr()", "<html", "http::", "\\x1b["]);
    let terminals = ["clap", "comfy-table", "ctrlc", "crossterm", "hyper", "axum", "tiny_http", "ureq"];
    for room in below {
        for dependency in dependencies(room) {
            assert!(!terminals.contains(&dependency.as_str()), "{room} depends on {dependency}");
        }
    }
    // Messages go to other machines: they do not print to this terminal, and do not read input.
    assert_free_of(&["notify"], &["println!", "print!(", "stdout()", "stderr()", "<html", "\\x1b[", "TcpListener"]);
    for dependency in dependencies("notify") {
        assert!(dependency == "ureq" || !terminals.contains(&dependency.as_str()), "notify depends on {dependency}");
    }
    assert_free_of(
        &["hub", "trackers"],
        &["println!", "print!(", "stdout()", "stderr()", "<html", "\\x1b[", "TcpListener"],
    );
    for dependency in dependencies("trackers").into_iter().chain(dependencies("hub")) {
        assert!(dependency == "ureq" || !terminals.contains(&dependency.as_str()), "it depends on {dependency}");
    }
}

/// The page is HTML over HTTP, and has no terminal output.
#[test]
fn invariant_8_the_server_knows_no_terminal_and_fetches_nothing() {
    assert_free_of(&["serve"], &["println!", "print!(", "stdout()", "stderr()", "\\x1b[", "TcpStream::connect"]);
    for dependency in dependencies("serve") {
        assert!(!["clap", "ratatui", "crossterm", "ureq", "lettre"].contains(&dependency.as_str()), "{dependency}");
    }
}

/// Views are values; callers print, write or send them.
#[test]
fn views_touch_no_file_network_clock_or_terminal() {
    let forbidden = ["std::fs", "std::env", "std::time", "std::thread", "std::net", "println!", "stdout()", "stderr()"];
    assert_free_of(&["render"], &forbidden);
    for dependency in dependencies("render") {
        assert!(!["files", "clap", "console", "crossterm", "ureq"].contains(&dependency.as_str()), "{dependency}");
    }
}

/// A library returns values; the command line says which flag to use.
#[test]
fn libraries_name_no_flags() {
    assert_free_of(
        &[
            "units",
            "files",
            "data",
            "heat",
            "health",
            "power",
            "secrets",
            "session",
            "stress",
            "telemetry",
            "torch-memory",
            "notify",
            "orders",
            "serve",
            "trackers",
        ],
        &["`--", " --", "\"--"],
    );
}
