//! A keeper for tests of the library: what `plimsoll run --keep` is to the binary.

fn main() -> std::process::ExitCode {
    #[cfg(unix)]
    if let Err(error) = plimsoll_supervise::keep(std::io::stdout()) {
        eprintln!("{error}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}
