//! Pages of folders that are valid, hostile, or larger than a page can show.

use super::*;
use crate::page::chart::check_labels;
use crate::page::check_page;
use crate::picture::tests::plans;
use plimsoll_files::Disk;
use plimsoll_telemetry::{CardLimits, CardSample, Event, History, Record, SCHEMA_VERSION, history, history_span};
use plimsoll_watch::{RunFollower, WatchError};
use std::path::Path;
use std::{fs, iter};

fn folder_with(journal: &[u8]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("journal.jsonl"), journal).expect("written");
    folder
}

fn line(event: Event) -> String {
    let record = Record { v: SCHEMA_VERSION, time_s: 1e9, branch: 0, event };
    format!("{}\n", serde_json::to_string(&record).expect("plain data"))
}

fn started(first_step: u64, last_step: u64) -> String {
    line(Event::RunStarted {
        name: "run".into(),
        model: "nano".into(),
        parameters: 800_000,
        planned_bytes: 64 << 20,
        budget_bytes: 1 << 30,
        first_step,
        last_step: Some(last_step),
    })
}

fn step(step: u64, loss: f64) -> String {
    let (learning_rate, grad_norm, step_ms, tokens_per_s) = (1e-3, 1.0, 10.0, 2000.0 + (step % 7) as f64);
    line(Event::Step { step, loss, learning_rate, grad_norm, step_ms, tokens_per_s, memory_bytes: 66_000_000 })
}

/// The story of a run's folder.
fn read(folder: &Path) -> Result<RunStory, WatchError> {
    let run = RunView::clone(RunFollower::open(folder)?.view());
    let samples = history_span(folder).and_then(|span| history(folder, span).ok()).unwrap_or_default();
    let plan = fs::read(folder.join("plan.json")).unwrap_or_default();
    let attempts = Attempts::read(&folder.join("journal.jsonl"), run.standing == Standing::Running);
    Ok(RunStory::new(run, fs::read_to_string(folder.join("report.json")), &plan, samples.into_iter(), attempts))
}

/// The page, which must be valid and small, with labels that don't overlap.
fn page_of(folder: &Path) -> String {
    let story = read(folder).expect("a run's folder");
    let page = run_html(&story);
    check_page(&page);
    assert!(page.len() < 300_000, "{} bytes", page.len());
    let run = &story.run;
    let of_steps =
        [loss_chart(&story), speed_chart(run), memory_chart(run), learning_rate_chart(run), grad_norm_chart(run)];
    for chart in of_steps.iter().chain(&[temperature_chart(&story), power_chart(&story)]).flatten() {
        check_labels(chart);
    }
    page
}

fn assert_says(page: &str, what: &[&str]) {
    what.iter().for_each(|words| assert!(page.contains(words), "the page lacks `{words}`: {page}"));
}

#[test]
fn a_run_that_was_killed_has_a_page_of_its_journal_alone() {
    let torn = "{\"v\":1,\"time_s\":3,\"event\":\"st";
    let steps = (1..=30).map(|n| step(n, 5.0 - n as f64 / 10.0)).collect::<String>();
    let held_out = line(Event::Evaluated { step: 20, loss: 3.25, average_loss: None, tokens: 100 });
    let saved = line(Event::CheckpointSaved { step: 20, checkpoint: "x".into(), bytes: 3 << 20, milliseconds: 1500.0 });
    let folder = folder_with([&started(1, 50), &steps, &held_out, &saved, torn].map(String::from).concat().as_bytes());
    let page = page_of(folder.path());
    assert_says(
        &page,
        &[
            "<h1>run: cut short, its last session has no end</h1>",
            "<dt>steps</dt><dd>30<small>of 50</small>",
            "<dt>loss</dt><dd>2.0000<small>lowest 2.0000 after step 30</small>",
            "<dt>held-out loss</dt><dd>3.2500<small>",
            // Values that only report.json has are unknown.
            "<th scope=\"row\">touched (the device, by its highest region)</th><td>-</td><td>-</td>",
            "<th scope=\"row\">held while training, at most (the system, else the device)</th><td>62.9 MiB</td><td>66,000,000</td>",
            "<tr><th scope=\"row\">20</th><td>3.00 MiB</td><td>2 s</td><td>no</td></tr>",
            "aria-label=\"training loss: 4.9000 after step 1, 2.0000 after step 30, lowest 2.0000, highest 4.9000; held-out",
            "<h2>Settings</h2>\n<pre class=\"settings\">-</pre>",
            "<tr><th scope=\"row\">failed: cut short</th><td>1</td></tr>",
            "<tr><th scope=\"row\">health findings</th><td>0</td></tr>",
        ],
    );
    fs::write(folder.path().join("lock"), "").expect("written");
    let lock = fs::File::open(folder.path().join("lock")).expect("a file");
    lock.lock().expect("a lock");
    assert_says(&page_of(folder.path()), &["<h1>run: running when this page was made</h1>"]);
}

#[test]
fn steps_that_were_made_again_count_once() {
    let first = (1..=30).map(|n| step(n, 9.0)).collect::<String>();
    let again = (11..=20).map(|n| step(n, 1.0)).collect::<String>();
    let finished = line(Event::Finished { step: 20, seconds: 1.0 });
    let folder = folder_with([started(1, 30), first, started(11, 20), again, finished].concat().as_bytes());
    let run = read(folder.path()).expect("a run's folder").run;
    let whole = run.losses.whole().expect("losses");
    assert_eq!((run.step, run.sessions, run.standing), (20, 2, Standing::Finished));
    assert_eq!((whole.count, whole.last.value, whole.mean.round()), (20, 1.0, 5.0));
    assert_says(&page_of(folder.path()), &["<h1>run: finished</h1>", "in 2 sessions", "<dd>20<small>of 20</small>"]);
}

#[test]
fn a_journal_of_any_length_makes_a_small_page_that_keeps_its_extremes() {
    let steps = (1..=60_000).map(|n| step(n, if n == 31_234 { 87.5 } else { 2.0 + (n % 13) as f64 / 100.0 }));
    let held_out =
        (1..=600).map(|n| line(Event::Evaluated { step: n * 100, loss: 3.0, average_loss: Some(2.5), tokens: 1 }));
    let saved = (1..=500)
        .map(|n| line(Event::CheckpointSaved { step: n * 100, checkpoint: "x".into(), bytes: 1, milliseconds: 1.0 }));
    let journal = iter::once(started(1, 60_000)).chain(steps).chain(held_out).chain(saved).collect::<String>();
    let folder = folder_with(journal.as_bytes());
    fs::write(folder.path().join("config.yaml"), "key: value\n".repeat(50_000)).expect("written");
    let page = page_of(folder.path());
    assert_says(
        &page,
        &["highest 87.5000", "<td>87.5000</td>", "and 470 earlier ones", "averaged weights", "key: value\nke…"],
    );
    assert!(page.matches("<tr>").count() < 160, "tables are short");
}

#[test]
fn nothing_of_a_hostile_folder_gets_out_of_its_place() {
    let hostile = "</pre></script><img src=x onerror='\"&'>{{data}}]]>\u{0}\u{1b}\u{202e}</title>";
    let start = Event::RunStarted {
        name: hostile.repeat(100),
        model: hostile.into(),
        parameters: u64::MAX,
        planned_bytes: u64::MAX,
        budget_bytes: u64::MAX,
        first_step: 0,
        last_step: Some(u64::MAX),
    };
    let lost = |n| Event::EventsLost { events: n, reason: hostile.repeat(9) };
    let saved =
        |step| Event::CheckpointSaved { step, checkpoint: hostile.into(), bytes: u64::MAX, milliseconds: 1e308 };
    let mut journal = line(start);
    for n in [0, 1, 7, 1 << 35, u64::MAX] {
        journal += &step(n, 1e308);
        journal += &step(n, -(n as f64));
        journal += &line(Event::Evaluated { step: n, loss: 1e-300, average_loss: Some(-1e99), tokens: n });
        journal += &line(saved(n));
        journal += &line(lost(n));
    }
    journal += "\u{0}\n[[[[\n{\"v\":1,\"event\":\"step\"}\n";
    let folder = folder_with(journal.as_bytes());
    let sample = Sample { step: u64::MAX, prompt: hostile.repeat(200), text: hostile.repeat(200) };
    fs::write(folder.path().join("sample.json"), serde_json::to_string(&sample).expect("plain data")).expect("written");
    fs::write(folder.path().join("config.yaml"), hostile.repeat(1000)).expect("written");
    fs::create_dir_all(folder.path().join("checkpoints")).expect("a folder");
    fs::write(folder.path().join("checkpoints/branches.json"), hostile).expect("written");
    let page = page_of(folder.path());
    assert!(!page.contains("<img") && !page.contains('\u{202e}'));
    assert_says(&page, &["its branches cannot be read", "the journal lost 7 events", "&lt;img src=x onerror="]);
    // Damaged files and files that are not text are reported and skipped.
    fs::write(folder.path().join("config.yaml"), b"\xff\xfe").expect("written");
    fs::write(folder.path().join("sample.json"), "{").expect("written");
    assert_says(&page_of(folder.path()), &["config.yaml can&#39;t be read", "sample.json is damaged"]);
}

#[test]
fn a_run_without_a_step_has_no_figures_that_were_not_measured() {
    for journal in [String::new(), started(1, 5), started(1, 5) + &line(Event::Interrupted { step: 0 })] {
        let folder = folder_with(journal.as_bytes());
        let page = page_of(folder.path());
        assert_says(&page, &["<dt>loss</dt><dd>-</dd>", "<dt>tokens/s</dt><dd>-</dd>", "training loss: none"]);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
    // A single step makes a curve too.
    let folder = folder_with((started(1, 5) + &step(1, 0.0)).as_bytes());
    assert_says(&page_of(folder.path()), &["<dt>loss</dt><dd>0.0000", "class=\"points first\""]);
}

#[test]
fn what_was_noted_of_heat_and_health_is_on_the_page_and_a_flood_of_it_is_cut() {
    let heat = line(Event::Heat { card: "GPU 0".into(), what: "slowed to 80 % of the time".into() });
    let health = line(Event::Health {
        card: Some("<b>GPU</b>".into()),
        kind: "xid".into(),
        what: "Xid 79: the GPU fell off the bus".into(),
        advice: Some("restart the machine".into()),
        level: plimsoll_telemetry::Level::Error,
    });
    let energy = |currency: &str| {
        let by = plimsoll_telemetry::EnergySource::Counter;
        let currency = Some(currency.to_owned());
        line(Event::Energy(plimsoll_telemetry::EnergyUse {
            energy_j: 7.2e6,
            by,
            missed_s: 0.0,
            cost: Some(0.6),
            currency,
        }))
    };
    let averted = line(Event::OutOfMemoryAverted { what: "a micro-batch of 4".into() });
    let short = line(Event::MemoryPressure { step: 1, what: "1 GiB is left".into(), waits: false });
    let journal = [started(1, 50), heat.clone(), health, averted, short, step(1, 5.0), energy("EUR")].concat();
    let page = page_of(folder_with(journal.as_bytes()).path());
    assert_says(
        &page,
        &[
            "Warnings and findings",
            "slowed to 80 % of the time",
            "&lt;b&gt;GPU&lt;/b&gt;: Xid 79",
            "(restart the machine)",
        ],
    );
    assert_says(
        &page,
        &["out of memory averted: a micro-batch of 4", "memory pressure: 1 GiB is left", "2.000 kWh (0.60 EUR)"],
    );
    let flood = started(1, 50) + &heat.repeat(5000) + &energy(&"x".repeat(100_000));
    let page = page_of(folder_with(flood.as_bytes()).path());
    assert_says(&page, &["and 4970 earlier ones", "2.000 kWh (costs 0.60)"]);
}

/// A sample of two cards, of which the second reports no power.
fn sample_at(time_s: f64, celsius: f64, watts: f64) -> plimsoll_telemetry::Sample {
    let limits = CardLimits { slowdown_c: Some(93.0), ..CardLimits::default() };
    let card = |index: u32, power_w| CardSample {
        index,
        uuid: format!("GPU-{index}"),
        name: "<b>RTX".to_owned(),
        temperature_c: Some(celsius - f64::from(index)),
        power_w,
        limits: limits.clone(),
        ..CardSample::default()
    };
    plimsoll_telemetry::Sample { time_s, cards: vec![card(0, Some(watts)), card(1, None)], ..Default::default() }
}

#[test]
fn the_page_has_what_the_cards_did_the_plan_as_a_picture_and_what_happened() {
    let steps = (1..=30).map(|n| step(n, 5.0 - n as f64 / 10.0)).collect::<String>();
    let heat = line(Event::Heat { card: "GPU 0".into(), what: "slowed to 50 % <of> the time".into() });
    let folder = folder_with((started(1, 50) + &steps + &heat).as_bytes());
    let bare = page_of(folder.path());
    for heading in ["Heat and power", "The plan"] {
        assert!(!bare.contains(heading), "the page has a heading without data");
    }
    let mut history = History::open(folder.path(), Disk::default()).expect("a history");
    for second in 0..1800 {
        let celsius = if second == 900 { 81.0 } else { 60.0 };
        history.append(&sample_at(1.7e9 + f64::from(second), celsius, 360.0)).expect("kept");
    }
    for plan in plans() {
        fs::write(folder.path().join("plan.json"), serde_json::to_vec(&plan).expect("plain data")).expect("written");
        let page = page_of(folder.path());
        let hours = 0.36 * 1799.0 / 3600.0;
        assert_says(
            &page,
            &[
                &format!("<dt>energy</dt><dd>{hours:.4} kWh<small>all GPUs</small>"),
                &format!("<th scope=\"row\">GPU 0, &lt;b&gt;RTX</th><td>81 of 93</td><td>360</td><td>{hours:.4}</td>"),
                "<th scope=\"row\">GPU 1, &lt;b&gt;RTX</th><td>80 of 93</td><td>-</td><td>-</td>",
                "°C, over minutes",
                "<h2>The plan</h2>",
                "aria-label=\"program ",
                "learning rate: 0.0010 after step 1",
                "norm of the gradient",
                "<td>warning</td><td>GPU 0: slowed to 50 % &lt;of&gt; the time</td>",
            ],
        );
    }
    let story = read(folder.path()).expect("a run's folder");
    assert!(
        (story.energy_j().expect("the energy was measured") - 360.0 * 1799.0).abs() < 400.0,
        "{:?}",
        story.energy_j()
    );
}

/// A plan with arbitrarily changed numbers is drawn or skipped.
#[test]
fn a_damaged_plan_costs_its_picture_and_nothing_else() {
    let folder = folder_with((started(1, 5) + &step(1, 1.0)).as_bytes());
    let plan = plans().swap_remove(0);
    let text = serde_json::to_string(&plan).expect("plain data");
    let numbers = text.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect::<Vec<_>>();
    for n in 0..60 {
        let at = numbers[n * 7919 % numbers.len()];
        let digit = ["9999999999", "18446744073709551615", "0", "-1"][n % 4];
        let damaged = format!("{}{digit}{}", &text[..at], &text[at + 1..]);
        fs::write(folder.path().join("plan.json"), damaged).expect("written");
        assert_says(&page_of(folder.path()), &["<dt>loss</dt><dd>1.0000"]);
    }
}

#[test]
fn the_report_in_markdown_says_what_the_page_says_and_nothing_in_it_is_markup() {
    let hostile = "a|b<img src=x>`*_[x](y)\n# z";
    let start = Event::RunStarted {
        name: hostile.into(),
        model: "nano".into(),
        parameters: 800_000,
        planned_bytes: 64 << 20,
        budget_bytes: 1 << 30,
        first_step: 1,
        last_step: Some(2),
    };
    let held_out = line(Event::Evaluated { step: 2, loss: 3.25, average_loss: None, tokens: 100 });
    let saved = line(Event::CheckpointSaved { step: 2, checkpoint: "x".into(), bytes: 3 << 20, milliseconds: 1500.0 });
    let journal = [line(start), step(1, 4.0), step(2, 3.5), held_out, saved].concat();
    let folder = folder_with(journal.as_bytes());
    fs::write(folder.path().join("config.yaml"), "key: ```\n# no heading\n").expect("written");
    let text = run_markdown(&read(folder.path()).expect("a run's folder"));
    let title = "# a\\|b&lt;img src=x>\\`\\*\\_\\[x\\](y) \\# z: cut short";
    for part in [
        title,
        "| steps | 2 | of 2 |",
        "| loss | 3.5000 | lowest 3.5000 after step 2 |",
        "| planned peak | 64.0 MiB | 67,108,864 |",
        "## Held-out loss\n\n| after step | nats per token |\n| --- | ---: |\n| 2 | 3.2500 |",
        "| 2 | 3.00 MiB | 2 s | no |",
        "held-out loss 3.2500 |",
        "\n````yaml\nkey: ```\n# no heading\n````\n",
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    let tables = text.split("\n\n").filter(|part| part.starts_with('|'));
    for table in tables {
        let counts = table.lines().map(columns).collect::<Vec<_>>();
        assert!(counts.iter().all(|count| *count == counts[0]), "{table}");
    }
}
