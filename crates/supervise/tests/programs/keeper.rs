//! A keeper for tests of this library. In the binary, this is `plimsoll run --keep`.

fn main() -> std::process::ExitCode {
    #[cfg(unix)]
    if let Err(error) = plimsoll_supervise::keep(std::io::stdout()) {
        eprintln!("{error}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}
