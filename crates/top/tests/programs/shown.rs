//! Test program: shows the runs of a folder in its terminal; or, on request, starts a thread that panics.

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
        // Printing the message takes longer than exiting.
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            thread::sleep(Duration::from_millis(400));
            say(what);
        }));
        // Wait for the first frame; the test fails if the screen is not taken by then.
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(700));
            panic!("requested panic");
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
