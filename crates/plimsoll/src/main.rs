//! The `plimsoll` binary: reads its arguments and leaves with the documented exit code.

fn main() -> std::process::ExitCode {
    plimsoll::cli::run(std::env::args_os().collect())
}
