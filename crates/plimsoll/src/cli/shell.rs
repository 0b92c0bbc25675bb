//! `plimsoll completions` and `plimsoll man`: generate shell completions and manual pages from the flags.

use super::failure::io_failure;
use super::{Failure, help};
use crate::streams::{talk, write_data};
use clap::Args;
use clap_complete::Shell;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// Shell to write completions for
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the shell's script to stdout.
pub(super) fn complete(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut help::command(), "plimsoll", &mut script);
    write_data(String::from_utf8_lossy(&script).trim_end())?;
    Ok(0)
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Folder for the pages; created if missing
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes a page for the program and one for each command.
pub(super) fn write_pages(args: &ManArgs) -> Result<u8, Failure> {
    std::fs::create_dir_all(&args.folder).map_err(io_failure(args.folder.display()))?;
    clap_mangen::generate_to(help::command(), &args.folder).map_err(io_failure(args.folder.display()))?;
    talk(format!("manual pages are in {}; `man -l` shows one", args.folder.display()));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_flags() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut help::command(), "plimsoll", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("optimizer-offload"), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        write_pages(&ManArgs { folder: folder.path().join("man1") }).unwrap_or_else(|_| panic!("pages are written"));
        for page in ["plimsoll.1", "plimsoll-train.1", "plimsoll-tokenizer-train.1"] {
            let text = std::fs::read_to_string(folder.path().join("man1").join(page)).expect(page);
            assert!(text.contains(".SH SYNOPSIS") || text.contains(".SH NAME"), "{page}: {text}");
        }
    }
}
