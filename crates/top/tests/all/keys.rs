//! Keys and their actions.

use crate::support::{NOW_S, OURS, OWN, THEIRS, busy, card, give, nano, press, sample, text};
use plimsoll_telemetry::{CardProcess, CardSample};
use plimsoll_top::{Action, Input, Key, Palette, Replay, State};
use plimsoll_units::Bytes;
use plimsoll_watch::ProcessInfo;

fn shown(state: &State) -> String {
    text(state, 120, 40)
}

/// The line of the screen that contains these words.
fn line(state: &State, words: &str) -> Option<usize> {
    shown(state).lines().position(|line| line.contains(words))
}

fn info(pid: u32) -> ProcessInfo {
    let (name, command) = (Some("python3".to_owned()), Some("python3 train.py --lr 1e-3".to_owned()));
    ProcessInfo { pid, started: "12".to_owned(), name, command, uid: Some(1001) }
}

#[test]
fn quit_suspend_and_redraw_work_in_every_overlay() {
    for opened in [&[][..], &[Key::F(1)], &[Key::Enter], &[Key::Char('/')]] {
        for (key, action) in
            [(Key::Ctrl('c'), Action::Quit), (Key::Ctrl('z'), Action::Suspend), (Key::Ctrl('l'), Action::Redraw)]
        {
            let (state, _) = press(busy(Palette::Mono), opened);
            assert_eq!(press(state, &[key]).1, [action], "{opened:?}");
        }
    }
    for key in [Key::Char('q'), Key::F(10)] {
        assert_eq!(press(busy(Palette::Mono), &[key]).1, [Action::Quit]);
        // Esc closes the overlay.
        assert_eq!(press(busy(Palette::Mono), &[Key::Enter, key]).1, []);
    }
}

#[test]
fn a_process_is_killed_only_after_a_lookup_and_sigterm() {
    let processes = |keys: &[Key]| press(busy(Palette::Mono), &[&[Key::BackTab][..], keys].concat());
    // The largest process is selected.
    assert_eq!(processes(&[Key::Char('k')]).1, [Action::Find(OURS)]);
    let (state, actions) = processes(&[Key::Down, Key::F(9)]);
    assert_eq!(actions, [Action::Find(THEIRS)]);
    let state = give(state, Input::Found(THEIRS, Some(info(THEIRS))));
    let question = shown(&state);
    for words in ["end this process?", "python3 of blaise, process 815", "python3 train.py --lr 1e-3", "SIGTERM"] {
        assert!(question.contains(words), "{words}: {question}");
    }
    // Every other key cancels.
    for key in [Key::Enter, Key::Esc, Key::Char('n'), Key::Char(' '), Key::Char('q')] {
        let (state, actions) = press(state.clone(), &[key]);
        assert_eq!((actions, shown(&state).contains("process 815 was not signaled")), (vec![], true), "{key:?}");
    }
    let (state, actions) = press(state, &[Key::Char('y')]);
    assert_eq!(actions, [Action::Signal { process: info(THEIRS), is_kill: false }]);
    let state = give(state, Input::Signaled(THEIRS, Ok(())));
    assert!(shown(&state).contains("sent SIGTERM to process"), "{}", shown(&state));
    // The process is still alive.
    let (state, _) = press(state, &[Key::Char('k')]);
    let state = give(state, Input::Found(THEIRS, Some(info(THEIRS))));
    assert!(shown(&state).contains("kill this process?") && shown(&state).contains("SIGKILL"), "{}", shown(&state));
    let (_, actions) = press(state.clone(), &[Key::Char('y')]);
    assert_eq!(actions, [Action::Signal { process: info(THEIRS), is_kill: true }]);
    // Another process with the same pid receives SIGTERM first.
    let other = ProcessInfo { started: "13".to_owned(), ..info(THEIRS) };
    let (state, _) = press(state, &[Key::Esc]);
    let state = give(state, Input::Found(THEIRS, Some(other)));
    assert!(shown(&state).contains("end this process?"), "{}", shown(&state));
}

#[test]
fn processes_that_cannot_be_ended_are_not_looked_up() {
    let with = |pid: u32, is_contained: bool| {
        let process = CardProcess { pid, name: None, uid: None, used: Some(Bytes(1)), computes: true };
        let card = CardSample { processes: vec![process], ..card(0) };
        let state = State::new(Palette::Mono, 1.0, OWN, is_contained);
        let state = give(state, Input::Sample(Box::new(sample(NOW_S, vec![card]))));
        press(state, &[Key::BackTab, Key::Char('k')])
    };
    for (pid, words) in [(0, "first process"), (1, "first process"), (u32::MAX, "first process"), (OWN, "top` itself")]
    {
        let (state, actions) = with(pid, false);
        assert_eq!(actions, [], "{pid}");
        assert!(shown(&state).contains(words), "{pid}: {}", shown(&state));
    }
    assert_eq!(with(THEIRS, false).1, [Action::Find(THEIRS)]);
    let (state, actions) = with(THEIRS, true);
    assert_eq!(actions, [], "in a container this pid is another process's");
    assert!(shown(&state).contains("in a container"), "{}", shown(&state));
    // A run reports a pid of the container.
    let state = State::new(Palette::Mono, 1.0, OWN, true);
    let state = give(state, Input::Runs(vec![nano().into()], 0));
    assert_eq!(press(state, &[Key::BackTab, Key::Char('k')]).1, [Action::Find(OURS)]);
    let (state, actions) = press(State::new(Palette::Mono, 1.0, OWN, false), &[Key::BackTab, Key::Char('k')]);
    assert_eq!((actions, shown(&state).contains("no process is selected")), (vec![], true));
}

#[test]
fn the_result_of_a_signal_is_shown() {
    let reason = "it belongs to another user; try `sudo kill 815`".to_owned();
    let state = give(busy(Palette::Mono), Input::Signaled(THEIRS, Err(reason)));
    assert!(shown(&state).contains("!! process 815: it belongs to another user; try `sudo kill 815`"));
    let state = give(state, Input::Found(THEIRS, None));
    assert!(shown(&state).contains("process 815 not found; it may have ended"));
}

#[test]
fn rows_are_filtered_and_sorted() {
    let state = busy(Palette::Mono);
    let (state, _) = press(state, &"/bLaI".chars().map(Key::Char).collect::<Vec<_>>());
    assert!(shown(&state).contains("filter: bLaI"), "{}", shown(&state));
    assert!(line(&state, "815").is_some() && line(&state, "4711").is_none() && line(&state, "gpt2-wiki").is_none());
    // Keys of commands are letters of the filter here.
    let (state, actions) = press(state, &[Key::Char('q'), Key::Backspace, Key::Enter]);
    assert_eq!(actions, []);
    assert!(shown(&state).contains("filter: bLaI (Esc clears)"), "{}", shown(&state));
    let (state, _) = press(state, &[Key::Esc]);
    assert!(line(&state, "4711") < line(&state, " 815"), "by memory");
    let (state, _) = press(state, &[Key::Char('s'), Key::F(6)]);
    assert!(line(&state, "4711") > line(&state, " 815"), "by number: {}", shown(&state));
}

#[test]
fn a_frozen_view_does_not_change_and_then_catches_up() {
    let (state, _) = press(busy(Palette::Mono), &[Key::Char(' ')]);
    let mut run = nano();
    run.step = 999;
    let state = give(state, Input::Runs(vec![run.into()], 0));
    let state = give(state, Input::Sample(Box::new(sample(NOW_S + 1.0, vec![]))));
    assert!(
        shown(&state).contains("PAUSED") && shown(&state).contains("412/1000") && shown(&state).contains("312/450 W")
    );
    let (state, _) = press(state, &[Key::Char(' ')]);
    assert!(shown(&state).contains("999/1000") && !shown(&state).contains("312/450 W"), "{}", shown(&state));
}

#[test]
fn the_interval_goes_up_and_down() {
    let (mut state, mut seen) = (busy(Palette::Mono), vec![]);
    for key in [Key::Char('+'), Key::Char('+'), Key::Char('-'), Key::Char('-'), Key::Char('-')] {
        let (next, actions) = press(state, &[key]);
        (state, seen) = (next, [seen, actions].concat());
    }
    assert_eq!(seen, [2.0, 5.0, 2.0, 1.0, 0.5].map(Action::SetInterval));
    assert_eq!(press(state, &[Key::Char('-'); 10]).1, [], "there is a minimum");
}

#[test]
fn selections_move_and_follow_their_rows() {
    let (state, _) = press(busy(Palette::Mono), &[Key::Char('j')]);
    assert!(shown(&state).contains("gpt2-wiki: nano"), "the second run is selected: {}", shown(&state));
    let mut other = nano();
    (other.id, other.name) = ("9".to_owned(), "newer".to_owned());
    let mut second = nano();
    (second.id, second.name) = ("2".to_owned(), "gpt2-wiki".to_owned());
    let state = give(state, Input::Runs([other, nano(), second].map(Into::into).to_vec(), 0));
    assert!(shown(&state).contains("gpt2-wiki: nano"), "it is now the third");
    let (state, _) = press(state, &[Key::Char('k'), Key::Up, Key::Up]);
    assert!(shown(&state).contains("newer: nano"));
    let (state, _) = press(state, &[Key::End]);
    assert!(shown(&state).contains("gpt2-wiki: nano"));
}

#[test]
fn a_replay_moves_and_plays() {
    let mut run = nano();
    (run.first_s, run.last_s) = (Some(1_000.0), Some(1_000.0 + 6_000.0));
    let state = State::replaying(Palette::Mono, Replay::new(run));
    let at = |keys: &[Key]| match &press(state.clone(), keys).1[..] {
        [Action::Load(at_s)] => *at_s,
        other => panic!("{other:?}"),
    };
    assert_eq!(at(&[Key::Home]), 1_000.0);
    assert_eq!(at(&[Key::Left]), 6_940.0);
    assert_eq!(at(&[Key::Home, Key::Right, Key::Right]), 1_120.0);
    assert_eq!(at(&[Key::Right]), 7_000.0, "the end is the limit");
    // Playing takes a minute from the start; a clock jump moves it by at most a second's worth.
    let (playing, _) = press(state.clone(), &[Key::Char(' ')]);
    let (playing, _) = playing.handle(Input::Tick(50.0));
    let (playing, actions) = playing.handle(Input::Tick(50.5));
    assert_eq!(actions, [Action::Load(1_050.0)]);
    let (playing, actions) = playing.handle(Input::Tick(99_999.0));
    assert_eq!(actions, [Action::Load(1_150.0)]);
    let (stopped, _) = press(playing, &[Key::Char(' ')]);
    assert_eq!(stopped.handle(Input::Tick(100_000.0)).1, []);
    // A replay neither ends processes nor samples.
    let (_, actions) = press(state, &[Key::BackTab, Key::Char('k'), Key::Char('+')]);
    assert_eq!(actions, []);
}
