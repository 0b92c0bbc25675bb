//! Input threads: keys, samples, and runs. None waits for the screen.

use super::{Options, TopError};
use crate::state::{Input, Key};
use plimsoll_telemetry::{Sample, Sampler, SamplerOptions};
use plimsoll_watch::RunsFollower;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

/// Time between two reads of the runs.
const RUNS_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of runs if none is named.
const RUNS: usize = 50;

/// A message to the loop.
pub(super) enum Message {
    Input(Box<Input>),
    Resized,
    /// SIGTSTP: suspend.
    Suspend,
    /// SIGCONT: resumed.
    Resumed,
    /// A signal to terminate.
    End(i32),
    TerminalGone,
}

/// The threads that sample and follow runs.
pub(super) struct Sources {
    sampler: Option<Sampler>,
}

impl Sources {
    /// Starts the threads; none for a replay.
    pub fn start(options: &Options, send: &SyncSender<Message>) -> Result<Self, TopError> {
        let mut sources = Self { sampler: None };
        if options.replay.is_some() {
            return Ok(sources);
        }
        let follower = RunsFollower::new(options.places.clone(), options.named.clone(), RUNS)?;
        let send_runs = send.clone();
        let follow = move || follow(follower, &send_runs);
        thread::Builder::new().name("runs".to_owned()).spawn(follow).map_err(TopError::Thread)?;
        sources.sample_every(options, send)?;
        Ok(sources)
    }

    /// Restarts sampling with another interval.
    pub fn sample_every(&mut self, options: &Options, send: &SyncSender<Message>) -> Result<(), TopError> {
        self.stop_sampling();
        let send = send.clone();
        // Drop the sample if the screen is slow: a newer one follows.
        let each = move |sample: &Arc<Sample>| {
            let input = Input::Sample(Box::new(Sample::clone(sample)));
            drop(send.try_send(Message::Input(Box::new(input))));
        };
        let every = Duration::from_secs_f64(options.every_s);
        let folder = options.named.first().or(options.places.roots.first()).filter(|folder| folder.is_dir());
        let folder = folder.cloned().or_else(|| Some(PathBuf::from(".")));
        self.sampler = Some(Sampler::start(SamplerOptions { every, folder }, each).map_err(TopError::Thread)?);
        Ok(())
    }

    /// Stops the old sampler in the background: its thread may hang in a driver that does not respond.
    fn stop_sampling(&mut self) {
        if let Some(sampler) = self.sampler.take() {
            drop(thread::Builder::new().spawn(move || drop(sampler)));
        }
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.stop_sampling();
    }
}

fn follow(mut follower: RunsFollower, send: &SyncSender<Message>) {
    let mut is_first = true;
    loop {
        if follower.refresh() || is_first {
            let runs = follower.views().cloned().collect::<Vec<_>>();
            let all = follower.all();
            let more = (all.found.len() + all.more).saturating_sub(runs.len());
            if send.send(Message::Input(Box::new(Input::Runs(runs, more)))).is_err() {
                return;
            }
        }
        is_first = false;
        thread::sleep(RUNS_EVERY);
    }
}

/// Reads keys until the terminal closes.
pub(super) fn read_keys(send: &SyncSender<Message>) -> io::Result<()> {
    let send = send.clone();
    let read = move || {
        loop {
            let message = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    key_of(key).map(|key| Message::Input(Box::new(Input::Key(key))))
                }
                Ok(Event::Resize(..)) => Some(Message::Resized),
                Ok(_) => None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
                Err(_) => Some(Message::TerminalGone),
            };
            let is_last = matches!(message, Some(Message::TerminalGone));
            if message.is_some_and(|message| send.send(message).is_err()) || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".to_owned()).spawn(read)?;
    Ok(())
}

fn key_of(event: KeyEvent) -> Option<Key> {
    Some(match event.code {
        KeyCode::Char(letter) if event.modifiers.contains(KeyModifiers::CONTROL) => {
            Key::Ctrl(letter.to_ascii_lowercase())
        }
        KeyCode::Char(letter) if !event.modifiers.contains(KeyModifiers::ALT) => Key::Char(letter),
        KeyCode::F(number) => Key::F(number),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
