//! The scene against the plan that it is made of, and the markup against what markup must be.

use super::*;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Optimizer, Targets};
use plimsoll_plan::{Budget, Level, LeverRequest, Machine, Rates, Recompute, Request, search, validate};

/// Plans of nano: plain, with two micro-batches, with recomputation, with the optimizer on the host.
fn plans() -> Vec<Plan> {
    let levers = |level, offload| LeverRequest {
        recompute: Some(Recompute::all(level)),
        optimizer_offload: Some(offload),
        ..LeverRequest::default()
    };
    let settings = [
        (32, levers(Level::None, 0.0)),
        (16, levers(Level::Cheap, 0.0)),
        (16, levers(Level::Block, 0.0)),
        (16, levers(Level::Block, 1.0)),
    ];
    settings.map(|(micro_batch, levers)| plan_of(micro_batch, levers, Bytes::gib(1))).to_vec()
}

fn plan_of(micro_batch: usize, levers: LeverRequest, budget: Bytes) -> Plan {
    let model = ModelConfig::preset("nano").expect("a preset");
    let request = Request {
        seq_len: model.max_positions(),
        optimizer: Optimizer::default(),
        global_batch: 32,
        micro_batch: Some(micro_batch),
        budget: Budget::Apart { device: budget, host: Bytes::gib(1) },
        levers,
        evaluates: true,
        sample_prefill: Some(8),
        ..Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)))
    };
    match search(&request).expect("a sensible request") {
        Ok(found) => found.plan,
        Err(misfit) => misfit.plan,
    }
}

#[test]
fn every_tensor_of_a_program_is_in_its_scene_once() {
    for plan in plans() {
        for scene in Scene::of(&plan).programs {
            let used = scene.program.steps.iter().flat_map(|step| step.inputs.iter().chain(&step.outputs)).copied();
            let staying = (0..plan.tensors.len() as u32).map(TensorId);
            let staying = staying.filter(|&id| plan[id].storage == Storage::Persistent);
            let mut expected = used.chain(staying).map(Some).collect::<Vec<_>>();
            expected.extend(scene.program.steps.iter().filter(|step| step.scratch.is_some()).map(|_| None));
            let (mut tensors, scratch): (Vec<_>, Vec<_>) = expected.into_iter().partition(Option::is_some);
            tensors.sort();
            tensors.dedup();
            let rects = || scene.device.rects.iter().chain(&scene.host.rects).map(|rect| rect.tensor);
            let mut drawn = rects().filter(Option::is_some).collect::<Vec<_>>();
            drawn.sort();
            assert_eq!(drawn, tensors, "{}", scene.program.name);
            assert_eq!(rects().filter(Option::is_none).count(), scratch.len());
        }
    }
}

#[test]
fn rectangles_of_a_sound_plan_never_overlap() {
    for plan in plans() {
        assert_eq!(validate(&plan), Ok(()));
        for scene in Scene::of(&plan).programs {
            for map in [&scene.device, &scene.host] {
                for (index, a) in map.rects.iter().enumerate() {
                    assert!(a.first < a.until && a.until <= scene.phases.len(), "{}", a.name);
                    for b in &map.rects[..index] {
                        let in_time = a.first < b.until && b.first < a.until;
                        let in_space = a.region.offset < b.region.end() && b.region.offset < a.region.end();
                        assert!(!(in_time && in_space), "{}: {} and {}", scene.program.name, a.name, b.name);
                    }
                }
            }
        }
    }
}

#[test]
fn the_curve_reaches_up_to_the_lower_bound_at_the_fullest_step() {
    for plan in plans() {
        for scene in Scene::of(&plan).programs {
            let (moment, bytes) = scene.device.fullest();
            let program = scene.program;
            assert!(bytes.abs_diff(program.lower_bound_bytes) <= ALIGNMENT, "{}: {bytes}", program.name);
            assert_eq!(moment.saturating_sub(1), program.fullest_step, "{}", program.name);
        }
    }
}

#[test]
fn parts_of_a_step_are_told_apart() {
    let phases = |plan: &Plan| {
        let scene = Scene::of(plan);
        let mut names = scene.programs[0].runs().into_iter().map(|run| run.0.name()).collect::<Vec<_>>();
        names.sort_unstable();
        names.dedup();
        names
    };
    let [plain, twice, recomputed, offloaded] = &plans()[..] else { panic!("four plans") };
    assert_eq!(phases(plain), ["backward", "forward", "host", "update"]);
    assert_eq!(phases(twice), ["backward", "forward", "host", "recomputed"]);
    assert_eq!(phases(recomputed), ["backward", "forward", "host", "recomputed"]);
    assert_eq!(phases(offloaded), ["backward", "forward", "host", "recomputed", "transfer"]);
}

#[test]
fn markup_is_balanced_and_reaches_out_to_nothing() {
    for plan in plans().into_iter().chain([plan_of(32, LeverRequest::default(), Bytes::mib(1))]) {
        let svg = plan_svg("nano", &plan);
        check_balance(&svg);
        assert!(!svg.replacen("xmlns=\"http://www.w3.org/2000/svg\"", "", 1).contains("://"));
        let html = plan_html("nano", &plan, "1.00 GiB (requested)");
        check_balance(html.strip_prefix("<!DOCTYPE html>").expect("a page"));
        assert!(!html.contains("://") && !html.contains("src=") && !html.contains("@import"));
        let names = plan.programs.iter().map(|program| &program.name);
        names.for_each(|name| assert!(html.contains(&format!(">{name}: ")), "{name} can be chosen"));
    }
}

#[test]
fn a_misfit_shows_how_far_it_is_over_the_budget() {
    let plan = plan_of(32, LeverRequest::default(), Bytes::mib(1));
    for picture in [plan_svg("nano", &plan), plan_html("nano", &plan, "1.00 MiB")] {
        assert!(picture.contains("over the budget of 1.00 MiB"));
    }
    assert!(plan_svg("nano", &plan).contains("<line class=\"budget\""));
}

#[test]
fn names_do_not_break_out_of_the_markup() {
    let hostile = "</script><img src='\"&'>{{data}}]]>\u{0}\u{1b}</title>";
    let mut plan = plans().remove(0);
    plan.tensors.iter_mut().for_each(|tensor| tensor.name = hostile.to_owned());
    plan.programs.iter_mut().for_each(|program| program.name = hostile.to_owned());
    let (svg, html) = (plan_svg(hostile, &plan), plan_html(hostile, &plan, hostile));
    for picture in [&svg, &html] {
        assert!(!picture.contains("<img") && !picture.contains('\u{0}') && !picture.contains('\u{1b}'));
    }
    check_balance(&svg);
    check_balance(html.strip_prefix("<!DOCTYPE html>").expect("a page"));
    let data = html.split("id=\"plan\">").nth(1).and_then(|rest| rest.split("</script>").next()).expect("data");
    let data = serde_json::from_str::<serde_json::Value>(data).expect("JSON");
    assert_eq!(data["tensors"][0][0], hostile);
}

#[test]
fn ticks_are_labelled_as_finely_as_they_stand() {
    for (bytes, step, label) in [
        (0, 1 << 30, "0 GiB"),
        (3 << 29, 1 << 29, "1.5 GiB"),
        (7 << 30, 1 << 28, "7 GiB"),
        (7328 << 20, 32 << 20, "7,328 MiB"),
        (160 << 20, 32 << 20, "160 MiB"),
        (12, 4, "12 B"),
    ] {
        assert_eq!(svg::tick(bytes, step), label);
    }
}

/// Fails if a tag is not closed, or in another order than opened. The insides of scripts and styles are not markup.
fn check_balance(markup: &str) {
    let mut open = Vec::new();
    let mut rest = markup;
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>'), "a bracket outside a tag: {text}");
        let (tag, behind) = tag.split_once('>').expect("a tag ends");
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag}");
        rest = behind;
        let name = tag.trim_matches('/').split_whitespace().next().expect("a tag has a name");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if matches!(name, "script" | "style") {
            let end = rest.find(&format!("</{name}>")).expect("it ends");
            rest = &rest[end + name.len() + 3..];
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}
