//! A machine with two cards and some runs, and the screen as text.

use plimsoll_telemetry::{CardLimits, CardProcess, CardSample, Level, Sample, SystemSample, Throttling};
use plimsoll_top::{Action, Input, Key, Palette, State, draw};
use plimsoll_units::Bytes;
use plimsoll_watch::{EventLine, HeatAction, Kind, LastStep, RunView, SavedCheckpoint, Standing};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use std::collections::BTreeMap;

/// The current time in tests, in seconds since 1970.
pub const NOW_S: f64 = 1_763_900_000.0;

/// Pid of the run on the card.
pub const OURS: u32 = 4_711;

/// Pid of another user's process.
pub const THEIRS: u32 = 815;

/// Pid of the screen itself.
pub const OWN: u32 = 99;

pub fn card(index: u32) -> CardSample {
    let process = |pid, name: &str, uid, mib| CardProcess {
        pid,
        name: Some(name.to_owned()),
        uid: Some(uid),
        used: Some(Bytes::mib(mib)),
        computes: true,
    };
    let first = CardSample {
        index: 0,
        uuid: "GPU-a".to_owned(),
        name: "NVIDIA GeForce RTX 4090".to_owned(),
        temperature_c: Some(79.0),
        memory_temperature_c: Some(88.0),
        limits: CardLimits {
            slowdown_c: Some(90.0),
            shutdown_c: Some(95.0),
            power_default_w: Some(450.0),
            power_min_w: Some(150.0),
            power_max_w: Some(600.0),
            sm_clock_max_mhz: Some(3_105),
            pcie_generation_max: Some(4),
            pcie_lanes_max: Some(16),
            ..CardLimits::default()
        },
        power_w: Some(312.4),
        power_limit_w: Some(450.0),
        energy_j: Some(7.2e6),
        sm_clock_mhz: Some(2_520),
        memory_clock_mhz: Some(10_501),
        throttling: Some(Throttling(0x24)),
        performance_state: Some(2),
        fan_percent: Some(64),
        busy_percent: Some(98),
        memory_busy_percent: Some(71),
        total: Some(Bytes::mib(24_564)),
        used: Some(Bytes::mib(13_700)),
        free: Some(Bytes::mib(10_464)),
        reserved: Some(Bytes::mib(400)),
        processes: vec![process(OURS, "plimsoll", 1000, 12_500), process(THEIRS, "python3", 1001, 1_200)],
        pcie_generation: Some(4),
        pcie_lanes: Some(16),
        ..CardSample::default()
    };
    // A card with few readings.
    let second = CardSample {
        index: 1,
        uuid: "GPU-b".to_owned(),
        name: "NVIDIA GeForce RTX 3060".to_owned(),
        temperature_c: Some(41.0),
        total: Some(Bytes::mib(12_288)),
        used: Some(Bytes::mib(10)),
        ..CardSample::default()
    };
    if index == 0 { first } else { second }
}

pub fn sample(time_s: f64, cards: Vec<CardSample>) -> Sample {
    let system = SystemSample {
        cpu_percent: Some(35.0),
        cores: Some(16),
        memory_total: Some(Bytes::gib(64)),
        memory_available: Some(Bytes::gib(40)),
        swap_used: Some(Bytes(0)),
        cpu_pressure_percent: Some(1.0),
        memory_pressure_percent: Some(12.0),
        io_pressure_percent: Some(0.0),
        disk_total: Some(Bytes::gib(500)),
        disk_free: Some(Bytes::gib(120)),
        ..SystemSample::default()
    };
    Sample { time_s, cards, system }
}

/// A run at step 412 of 1,000.
pub fn nano() -> RunView {
    let mut run = RunView::new("1".to_owned(), "/runs/nano-1".into(), "nano-1".to_owned(), Kind::Train);
    run.model = Some("nano".to_owned());
    run.parameters = Some(3_277_312);
    (run.standing, run.sessions, run.step, run.last_step) = (Standing::Running, 1, 412, Some(1_000));
    (run.seconds, run.seconds_left) = (206.0, Some(294.0));
    (run.first_s, run.last_s) = (Some(NOW_S - 206.0), Some(NOW_S - 0.5));
    (run.planned_bytes, run.budget_bytes) = (Some(14 << 30), Some(16 << 30));
    run.device = Some("cuda:0".to_owned());
    (run.process, run.processes) = (Some(OURS), vec![OURS]);
    for step in 1..=412_u64 {
        let loss = 2.0 + 6.0 * (-(step as f64) / 80.0).exp() + 0.15 * ((step * 7 % 13) as f64 / 13.0);
        run.losses.push(step, loss);
        run.learning_rate.push(step, 1e-3 * (step as f64 / 1000.0));
        run.tokens_per_s.push(step, 14_000.0 + (step % 9) as f64 * 20.0);
        run.grad_norm.push(step, 0.5);
        run.memory_bytes.push(step, (12_500_u64 << 20) as f64);
        run.times_s.push(step, NOW_S - 206.0 + step as f64 / 2.0);
        if step % 100 == 0 {
            run.held_out.push(step, loss + 0.2);
        }
    }
    run.last = Some(LastStep {
        step: 412,
        time_s: NOW_S - 0.5,
        loss: 2.0342,
        learning_rate: 4.12e-4,
        grad_norm: 0.521,
        step_ms: 497.0,
        tokens_per_s: 14_012.4,
        memory_bytes: 12_500 << 20,
    });
    let event = |before_s, level, text: &str| EventLine { time_s: NOW_S - before_s, level, text: text.to_owned() };
    run.events.extend([
        event(206.0, Level::Info, "started: nano from step 1, 14.0 GiB planned of 16.0 GiB"),
        event(106.0, Level::Info, "step 200: held-out loss 2.8345"),
        event(105.0, Level::Info, "step 200: checkpoint saved, 37.5 MiB in 0.1 s"),
        event(65.0, Level::Warn, "GPU 0 (RTX 4090): slowed to 84 %: its core is at 79 °C"),
        event(6.0, Level::Error, "step 400: checkpoint not saved: No space left on device"),
    ]);
    let what = "slowed to 84 %: its core is at 79 °C".to_owned();
    run.heat.push_back(HeatAction { time_s: NOW_S - 65.0, card: "GPU 0 (RTX 4090)".to_owned(), what });
    run.checkpoints = vec![SavedCheckpoint { step: 200, bytes: 37 << 20, milliseconds: 100.0, is_there: true }];
    run
}

fn finished() -> RunView {
    let mut run = nano();
    (run.id, run.name, run.standing) = ("2".to_owned(), "gpt2-wiki".to_owned(), Standing::Finished);
    (run.step, run.process, run.seconds_left) = (1_000, None, None);
    run.processes.clear();
    run
}

fn supervised() -> RunView {
    let mut run = RunView::new("3".to_owned(), "/runs/train-1".into(), "train-1".to_owned(), Kind::Supervised);
    run.command = ["python", "train.py"].map(str::to_owned).to_vec();
    (run.standing, run.step, run.last_step) = (Standing::Failed, 20, Some(300));
    run
}

/// A state with all panes filled.
pub fn busy(palette: Palette) -> State {
    let mut state = State::new(palette, 1.0, OWN, false);
    for n in 0..120_u32 {
        let mut first = card(0);
        first.temperature_c = Some(60.0 + f64::from(n) / 6.0);
        first.power_w = Some(if n % 10 < 7 { 400.0 } else { 150.0 });
        if n == 119 {
            first = card(0);
        }
        let sample = sample(NOW_S - 119.0 + f64::from(n), vec![first, card(1)]);
        state = give(state, Input::Sample(Box::new(sample)));
    }
    state = give(state, Input::Users(BTreeMap::from([(1000, "ada".to_owned()), (1001, "blaise".to_owned())])));
    state = give(state, Input::Runs([nano(), finished(), supervised()].map(Into::into).to_vec(), 4));
    give(state, Input::Tick(NOW_S))
}

/// The next state after an input that causes no action.
pub fn give(state: State, input: Input) -> State {
    let (state, actions) = state.handle(input);
    assert_eq!(actions, []);
    state
}

/// The state after some keys, and the actions of the last.
pub fn press(mut state: State, keys: &[Key]) -> (State, Vec<Action>) {
    let mut actions = vec![];
    for key in keys {
        (state, actions) = state.handle(Input::Key(*key));
    }
    (state, actions)
}

pub fn cells(state: &State, columns: u16, rows: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test terminal");
    terminal.draw(|frame| draw(state, frame.area(), frame.buffer_mut())).expect("it is drawn");
    terminal.backend().buffer().clone()
}

/// The screen as text, without trailing blanks.
pub fn text(state: &State, columns: u16, rows: u16) -> String {
    let buffer = cells(state, columns, rows);
    let lines = buffer
        .content
        .chunks(usize::from(columns))
        .map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n");
    lines.collect()
}
