//! Modules that import each other in a circle can't be read, tested or moved separately. This test reads the imports of all
//! sources, except tests. A module may import its submodules and its parents; these imports form no circle.

use crate::rooms::{crates, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A module's names from the root of its crate.
type Path = Vec<String>;

/// The modules of a crate, with their sources without comments and tests.
fn modules(room: &str) -> BTreeMap<Path, String> {
    let source = crates().join(room).join("src");
    let mut modules = BTreeMap::new();
    for (file, text) in sources(room) {
        let file = file.strip_prefix(&source).expect("a file of the crate").with_extension("");
        let mut path = file.iter().map(|name| name.to_string_lossy().into_owned()).collect::<Path>();
        if path.iter().any(|name| name == "tests") {
            continue;
        }
        path.pop_if(|name| ["mod", "lib", "main"].contains(&name.as_str()));
        let modules_of_tests =
            ["mod", "pub(crate) mod", "pub(super) mod"].map(|begin| format!("#[cfg(test)]\n{begin}"));
        let begins = modules_of_tests.iter().map(String::as_str).chain(["#[cfg(all(test"]);
        let tests = begins.filter_map(|begin| text.find(begin)).min();
        let code = &text[..tests.unwrap_or(text.len())];
        let code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
        modules.insert(path, code.collect::<Vec<_>>().join("\n"));
    }
    modules
}

/// The names of a path.
fn parts(text: &str) -> Path {
    text.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// The paths of a tree such as `a::{b, c::{self, d as e}}`, each with the name that it is imported as.
fn expanded(tree: &str, before: &[String], paths: &mut Vec<(Path, String)>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
        let path = before.iter().cloned().chain(parts(path)).collect::<Path>();
        let name = name.or(path.last().map(String::as_str)).unwrap_or_default().trim().to_owned();
        return paths.push((path, name));
    };
    let before = before.iter().cloned().chain(parts(head)).collect::<Path>();
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inner.char_indices().chain([(inner.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    expanded(&inner[start..at], &before, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The paths that a source imports, each with its exported name if the import is a `pub use`.
fn imports(code: &str) -> (Vec<Path>, Vec<(Path, String)>) {
    let (mut used, mut shown) = (vec![], vec![]);
    for statement in code.split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else { continue };
        let qualifier = before.rsplit(['\n', '}']).next().unwrap_or_default().trim();
        let mut paths = vec![];
        expanded(tree, &[], &mut paths);
        if qualifier.starts_with("pub") {
            shown.extend(paths.iter().cloned());
        }
        used.extend(paths.into_iter().map(|(path, _)| path));
    }
    let is_of_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let path = code[at..].split(|letter| !is_of_path(letter)).next().unwrap_or_default();
            used.push(parts(path));
        }
    }
    (used, shown)
}

/// A path from the root of the crate, as a module writes it; `None` if it leads to another crate.
fn absolute(module: &[String], path: &[String], modules: &BTreeMap<Path, String>) -> Option<Path> {
    let mut base = module.to_vec();
    let mut rest = path;
    while let [first, others @ ..] = rest {
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = others;
    }
    let is_relative = rest.len() < path.len();
    let full = [base.as_slice(), rest].concat();
    let is_submodule = || modules.contains_key(&full[..(base.len() + 1).min(full.len())]);
    (is_relative || is_submodule()).then_some(full)
}

/// The module that defines an item, found by following re-exports.
fn owner(path: &[String], modules: &BTreeMap<Path, String>, shown: &BTreeMap<(Path, String), Path>) -> Path {
    let mut path = path.to_vec();
    for _ in 0..8 {
        let count = (0..=path.len()).rev().find(|&count| modules.contains_key(&path[..count])).unwrap_or(0);
        let (module, rest) = path.split_at(count);
        let next = rest.first().and_then(|name| shown.get(&(module.to_vec(), name.clone())));
        match next {
            Some(next) => path = [next.as_slice(), &rest[1..]].concat(),
            None => return module.to_vec(),
        }
    }
    path
}

/// Modules that are part of a circle.
fn in_circles(room: &str) -> BTreeSet<String> {
    let modules = modules(room);
    let mut shown = BTreeMap::new();
    for (module, code) in &modules {
        for (path, name) in imports(code).1 {
            if let Some(path) = absolute(module, &path, &modules) {
                shown.insert((module.clone(), name), path);
            }
        }
    }
    let is_family = |a: &[String], b: &[String]| a.starts_with(b) || b.starts_with(a);
    let mut arrows = BTreeMap::<&Path, BTreeSet<Path>>::new();
    for (module, code) in &modules {
        let used = imports(code).0.into_iter().filter_map(|path| absolute(module, &path, &modules));
        let owners = used.map(|path| owner(&path, &modules, &shown));
        arrows.insert(module, owners.filter(|owner| !is_family(module, owner)).collect());
    }
    let reached = |from: &Path| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            let next = arrows.get(module).into_iter().flatten();
            open.extend(next.filter(|next| reached.insert((*next).clone())));
        }
        reached
    };
    modules.keys().filter(|module| reached(module).contains(*module)).map(|module| module.join("/")).collect()
}

#[test]
fn modules_form_no_circles() {
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(crates()).expect("the folder of crates").flatten() {
        let room = entry.file_name().to_string_lossy().into_owned();
        problems
            .extend(in_circles(&room).into_iter().map(|module| format!("{room}: {module} is in a circle of imports")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_circle_through_re_exports_of_a_parent_is_found() {
    let (used, shown) = imports("pub use self::a::{B as C, d::{self, E}};\nuse crate::F;\nfn g() { super::h::i() }");
    let expected = ["self::a::B", "self::a::d::self", "self::a::d::E", "crate::F", "crate::F", "super::h::i"];
    assert_eq!(used, expected.map(parts));
    assert_eq!(shown[0], (parts("self::a::B"), "C".to_owned()));
    let modules = BTreeMap::from(["", "a", "a::d", "h"].map(|name| (parts(name), String::new())));
    let shown = BTreeMap::from([((vec![], "C".to_owned()), parts("a::B"))]);
    assert_eq!(owner(&parts("C"), &modules, &shown), parts("a"));
    assert_eq!(absolute(&parts("a::d"), &parts("super::super::h::i"), &modules), Some(parts("h::i")));
    assert_eq!(absolute(&parts("a"), &parts("d::E"), &modules), Some(parts("a::d::E")));
    assert_eq!(absolute(&parts("a"), &parts("std::fs"), &modules), None);
}
