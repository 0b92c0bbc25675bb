//! The files that run the program in containers and on clusters: their commands are accepted, and their variables are
//! those of the manual. `scripts/check_packaging.sh` checks the files with other projects' tools.

use crate::support::{Said, Sandbox};
use std::fs;
use std::path::Path;

fn text(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).expect(name)
}

/// The commands of a file: YAML lists after one of these keys, or lines of a script.
fn commands(name: &str) -> Vec<Vec<String>> {
    let text = text(name);
    let lists = text.lines().filter_map(|line| {
        let line = line.trim();
        let list = line.strip_prefix("command: [").or_else(|| line.strip_prefix("args: ["))?.strip_suffix(']')?;
        Some(list.split(", ").map(|word| word.trim_matches('"').replace("${RUN:-night}", "night")).collect())
    });
    let scripts = text.lines().filter_map(|line| {
        let line = line.strip_prefix("plimsoll ")?.trim_end_matches(" &");
        let line = line.replace("\"${SLURM_CPUS_PER_TASK:-1}\"", "1").replace("\"$DATA\"", "data");
        Some(line.split(' ').map(|word| word.trim_matches(['"', '$']).to_owned()).collect())
    });
    lists.chain(scripts).collect()
}

#[test]
fn commands_of_containers_and_clusters_are_accepted() {
    let sandbox = Sandbox::new();
    let mut seen = 0;
    for file in ["compose.yaml", "packaging/slurm/train.sbatch", "packaging/kubernetes/job.yaml"] {
        for command in commands(file) {
            // Prints a unit, for which it parses the command and runs nothing.
            let own = ["install-service", "it", "--print", "--"].map(str::to_owned);
            let said = Said::of(sandbox.command(own.iter().chain(&command)).output().expect("the binary runs"));
            assert_eq!(said.code, Some(0), "{file}: {}: {}", command.join(" "), said.stderr);
            seen += 1;
        }
    }
    assert_eq!(seen, 4, "a file lost its command");
}

#[test]
fn the_variables_of_the_example_are_in_the_manual() {
    let manual = ["environment", "notify", "trackers"].map(|page| text(&format!("docs/src/{page}.md"))).concat();
    let example = text(".env.example");
    let names = example.lines().filter_map(|line| Some(line.trim_start_matches('#').split_once('=')?.0));
    let names = names.filter(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_')).collect::<Vec<_>>();
    assert!(names.len() >= 5, "{names:?}");
    for name in names.iter().filter(|name| **name != "RUN") {
        assert!(manual.contains(&format!("`{name}`")), "{name} is not in the manual");
    }
    let ignored = [".gitignore", ".dockerignore"].map(text);
    assert!(
        ignored.iter().all(|text| text.lines().any(|line| line == ".env")),
        "secrets stay out of git and the image"
    );
}
