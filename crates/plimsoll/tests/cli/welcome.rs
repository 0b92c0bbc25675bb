//! `plimsoll` without arguments, and the page of the manual that answers the same questions at length.

use crate::support::Sandbox;
use std::fs;
use std::path::Path;

/// The commands of the output, without the program's name.
fn commands(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|line| line.starts_with("  "));
    let commands = lines.filter_map(|line| line.split_once("plimsoll "));
    commands.map(|(_, command)| command.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn without_arguments_it_names_this_machine_and_a_command_for_each_aim() {
    let sandbox = Sandbox::new();
    let said = sandbox.run("");
    // A script that loses its arguments must not pass.
    assert_eq!((said.code, said.stdout_text()), (Some(2), ""));
    let text = &*said.stderr;
    assert!(text.contains("this machine: no NVIDIA GPU"), "{text}");
    assert!(text.lines().all(|line| line.len() <= 110), "{text}");
    let commands = commands(text);
    assert_eq!(commands.len(), 8, "{text}");
    for mut command in commands {
        // Help is printed once all flags before it are known.
        let end = command.iter().position(|argument| argument == "--").unwrap_or(command.len());
        command.insert(end, "-h".to_owned());
        let said = sandbox.command(&command).output().expect("the binary runs");
        assert_eq!(said.status.code(), Some(0), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
    }
    let said = sandbox.run_on_card("card=rtx3060", "");
    assert!(said.stderr.contains("this machine: NVIDIA GeForce RTX 3060, 12.0 GiB; "), "{}", said.stderr);
}

/// The models that the manual names for a GPU fit it.
#[test]
fn models_in_the_manual_fit_the_memory_that_they_are_listed_for() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/which.md");
    let page = fs::read_to_string(page).expect("a page of the manual");
    let models = Sandbox::new().run("models --json").json();
    let models = models["models"].as_array().expect("models");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" GB |"));
    let mut compared = 0;
    for (memory, row) in rows {
        let bytes = (memory.parse::<u64>().expect("a size") - 1) << 30;
        for (method, name) in ["lora", "qlora"].into_iter().zip(row.split('`').skip(1).step_by(2)) {
            let model = models.iter().find(|model| model["name"] == name).expect("a preset");
            let (needs, on_host) = (model[method]["least_bytes"].as_u64(), model[method]["least_host_bytes"].as_u64());
            assert!(needs.is_some_and(|needs| needs <= bytes), "{name} by {method} in {memory} GB: {needs:?}");
            assert_eq!(on_host, Some(0), "{name} by {method}");
            compared += 1;
        }
    }
    assert_eq!(compared, 12);
}
