//! Pages and pictures of recordings, small and large.

use super::charts::{Colors, map_chart, time_chart};
use super::*;
use crate::page::chart::check_labels;
use crate::page::{check_balance, check_page};
use plimsoll_torch_memory::allocator::Request;
use plimsoll_torch_memory::examine::examine;
use plimsoll_torch_memory::record::Recorder;

/// A recording with this number of owners, names that are markup, and blocks of many sizes, of which a third are freed.
fn recording(conf: &str, owners: u32, blocks: u32) -> Snapshot {
    let mut settings = AllocatorSettings::default();
    assert_eq!(settings.set(conf), []);
    let mut recorder = Recorder::new(settings, 40 << 30, None);
    for block in 0..blocks {
        let owner = block % owners;
        let stack = recorder.stack(&[(&format!("<b>&{owner}"), "/a/\u{1b}[31m.py", owner)]);
        let bytes = u64::from(block * 7919 % 977 + 1) * 5000;
        let made = recorder.allocate(Request { bytes, stream: 0, pool: (0, 0) }, stack).expect("there is room");
        if block % 3 == 0 {
            recorder.free(made);
        }
    }
    recorder.snapshot(usize::MAX)
}

/// Renders all views of a recording: text, page, picture.
fn views(snapshot: &Snapshot) -> [String; 3] {
    let owners = Owners::of(&snapshot.stacks);
    let cards = snapshot.cards.iter().map(|card| examine(snapshot, &owners, card, None)).collect::<Vec<_>>();
    for card in &cards {
        let colors = Colors::of(card, &owners);
        assert!(check_labels(&time_chart(card, &owners, &colors)) > 20);
        check_labels(&map_chart(card, &owners, &colors));
    }
    let report = ReplayReport { name: "<i>.pickle", snapshot, owners: &owners, cards: &cards };
    replay_json(&report, 1.0);
    [replay_text(&report), replay_html(&report), replay_svg(&report)]
}

#[test]
fn pages_are_sound_and_small_whatever_the_recording() {
    for (conf, owners, blocks) in [("", 3, 4), ("", 40, 6000), ("expandable_segments:True", 1, 2000), ("", 9, 1)] {
        let [text, page, picture] = views(&recording(conf, owners, blocks));
        check_page(&page);
        check_balance(&picture);
        for (name, markup) in [("page", &page), ("picture", &picture)] {
            assert!(markup.len() < 300_000, "{name} of {blocks} blocks has {} bytes", markup.len());
            assert!(!markup.contains("<b>") && !markup.contains("<i>.") && !markup.contains('\u{1b}'), "{name}");
            assert!(markup.contains("&lt;b&gt;&amp;"), "{name} names owners");
        }
        assert!(text.contains("segment events"), "{text}");
    }
}

/// In the picture of a recording whose blocks never moved, the colored area equals the bytes in use.
#[test]
fn the_map_has_the_colors_of_what_is_there() {
    let snapshot = recording("", 2, 60);
    let owners = Owners::of(&snapshot.stacks);
    let card = examine(&snapshot, &owners, &snapshot.cards[0], None);
    let colors = Colors::of(&card, &owners);
    let html = map_chart(&card, &owners, &colors).html("");
    let area = |class: &str| {
        let path = html
            .split(&format!("<path class=\"{class}\" d=\""))
            .nth(1)
            .map_or("", |rest| rest.split('"').next().unwrap());
        path.split('h')
            .filter_map(|piece| piece.split('v').next()?.parse::<f64>().ok().filter(|n| *n > 0.0))
            .sum::<f64>()
    };
    let peak = card.at_its_peak();
    let colored = (area("o0") + area("o1")) / (24.0 * 500.0);
    assert!((colored - peak.in_use as f64 / peak.reserved as f64).abs() < 0.01, "{colored} of {peak:?}");
    assert_eq!(area("o2"), 0.0);
}
