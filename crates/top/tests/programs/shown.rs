//! For tests: the screen, in the terminal that it is started in, on the runs of a folder; or, asked to, one that panics.

use plimsoll_top::{Options, Palette, run};
use plimsoll_watch::Places;
use std::panic;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let runs = arguments.next().expect("a folder of runs");
    if arguments.next().is_some_and(|word| word == "panic") {
        // Telling it takes longer than ending does.
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            thread::sleep(Duration::from_millis(400));
            say(what);
        }));
        // Not before the screen is taken: it is drawn within this time, or the test sees what is missing.
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(700));
            panic!("as it was asked to");
        });
    }
    let places = Places { roots: vec![runs.into()], state: None };
    let options = Options { palette: Palette::Color, every_s: 0.1, places, named: vec![], replay: None };
    match run(options) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(signal)) => ExitCode::from(128 + signal as u8),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
