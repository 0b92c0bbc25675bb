//! Compares the scene with its plan, and checks that the markup is valid.

use super::program::{Detail, program_chart};
use super::*;
use crate::page::chart::{Place, check_labels};
use crate::page::{check_balance, check_page};
use crate::plan_table::{levers_table, plan_table};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Optimizer, PerMemory, Targets};
use plimsoll_plan::{
    Budget, Level, LeverRequest, Levers, Machine, Misfit, Precision, Rates, Recompute, Request, Settings,
    lever_effects, plan_settings, search, validate,
};

/// Plans of nano: plain, with two micro-batches, with recomputation, with the optimizer on the host.
pub(crate) fn plans() -> Vec<Plan> {
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
    match search(&request(micro_batch, levers, budget)).expect("a sensible request") {
        Ok(found) => found.plan,
        Err(misfit) => misfit.plan,
    }
}

fn request(micro_batch: usize, levers: LeverRequest, budget: Bytes) -> Request {
    let model = ModelConfig::preset("nano").expect("a preset");
    Request {
        seq_len: model.max_positions(),
        optimizer: Optimizer::default(),
        global_batch: 32,
        micro_batch: Some(micro_batch),
        budget: Budget::apart(budget, Bytes::gib(1)),
        levers,
        evaluates: true,
        sample_prefill: Some(8),
        ..Request::new(model, Targets::cpu(2), Machine::of_rates(Rates::guess(2)))
    }
}

/// The page of a plan that does not fit, without any further data.
fn page_of(model: &str, plan: Plan) -> String {
    let misfit =
        Misfit { plan, short: PerMemory::of_device_and_host(Bytes(1), Bytes::ZERO), nearest: vec![], candidates: 1 };
    plan_html(&PlanPage {
        model,
        device: model,
        budget: model,
        times: model,
        result: &Err(Box::new(misfit)),
        levers: &[],
        ways_out: &[model.to_owned()],
        answers: &[model],
    })
}

/// Deterministic pseudorandom numbers. Source: SplitMix64, Steele et al. 2014.
fn random(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % bound
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
        let html = page_of("nano", plan.clone());
        check_page(&html);
        let names = plan.programs.iter().map(|program| program.name);
        names.for_each(|name| assert!(html.contains(&format!("<b>{name}</b>: ")), "{name} is shown"));
    }
}

#[test]
fn a_misfit_shows_how_far_it_is_over_the_budget() {
    let plan = plan_of(32, LeverRequest::default(), Bytes::mib(1));
    for picture in [plan_svg("nano", &plan), page_of("nano", plan.clone())] {
        assert!(picture.contains("over the budget of 1.00 MiB"));
    }
    assert!(plan_svg("nano", &plan).contains("<line class=\"budget\""));
}

#[test]
fn names_do_not_break_out_of_the_markup() {
    let hostile = "</script><img src='\"&'>{{data}}]]>\u{0}\u{1b}</title>";
    let mut plan = plans().remove(0);
    plan.tensors.iter_mut().for_each(|tensor| tensor.name = hostile.to_owned());
    let (svg, html) = (plan_svg(hostile, &plan), page_of(hostile, plan));
    for picture in [&svg, &html] {
        assert!(!picture.contains("<img") && !picture.contains('\u{0}') && !picture.contains('\u{1b}'));
        assert!(picture.contains("&lt;/script&gt;&lt;img"));
    }
    check_balance(&svg);
    check_page(&html);
}

#[test]
fn the_page_says_what_the_table_says() {
    let levers = LeverRequest { recompute: Some(Recompute::all(Level::Block)), ..LeverRequest::default() };
    let request = request(16, levers, Bytes::gib(1));
    let found = search(&request).expect("a sensible request").expect("it fits");
    let effects = lever_effects(&request, &found).expect("a sensible request");
    let table = format!("{}\n{}", plan_table("nano", "CPU", &found, "", "measured here"), levers_table(&effects));
    let result = Ok(found);
    let html = plan_html(&PlanPage {
        model: "nano",
        device: "CPU",
        budget: "",
        times: "measured here",
        result: &result,
        levers: &effects,
        ways_out: &[],
        answers: &["8 runs share the device"],
    });
    check_page(&html);
    for cell in table.lines().flat_map(|line| line.split(['│', '═', '╞', '╡'])).flat_map(|line| line.split("  "))
    {
        let cell = escape(cell.trim().trim_end_matches(':'));
        assert!(
            html.contains(&cell) || cell.starts_with("nano: ") || cell.contains(['┌', '└']),
            "the page lacks `{cell}`"
        );
    }
    assert!(html.contains("<p>8 runs share the device</p>"));
    // Equal tensors of all blocks are one line, in tooltips too.
    assert!(html.contains("\n4 × transformer.h.*."), "{html}");
    assert!(html.contains("<th scope=\"row\">4 × ") && !html.contains("<th scope=\"row\">h0/"), "{html}");
}

#[test]
fn labels_never_overlap() {
    let detail = Detail { columns: 1000, pointed: 500 };
    let (mut state, mut shown) = (1, 0);
    let mut plans = plans();
    for _ in 0..8 {
        let levers = LeverRequest {
            recompute: Some(Recompute::all([Level::None, Level::Cheap, Level::Block][random(&mut state, 3) as usize])),
            optimizer_offload: Some(random(&mut state, 5) as f64 / 4.0),
            ..LeverRequest::default()
        };
        plans.push(plan_of(1 << random(&mut state, 6), levers, Bytes::gib(1)));
    }
    for mut plan in plans {
        for round in 0..10 {
            // Budgets from far below to far above the peak, alone and combined.
            let peak = plan.peak().0;
            let device = Bytes(peak / 4 + (random(&mut state, peak) << random(&mut state, 12)));
            plan = plan.clone().within(&match round % 3 > 0 {
                true => Budget::apart(device, Bytes(random(&mut state, 4 * plan.host().0 + 1000))),
                false => Budget::shared(device),
            });
            if round % 10 == 9 {
                let longer = |name: &str, n: usize| format!("{name}{}", "Ω/long".repeat(n));
                plan.tensors.iter_mut().for_each(|t| t.name = longer(&t.name, random(&mut state, 6) as usize));
            }
            let scene = Scene::of(&plan);
            for program in &scene.programs {
                shown += check_labels(&program_chart(&scene, program, detail));
            }
        }
    }
    assert!(shown > 20_000, "only {shown} labels were compared");
}

#[test]
fn a_budget_that_dwarfs_the_plan_breaks_the_axis() {
    for (times, breaks) in [(1, false), (2, true), (1000, true)] {
        let plan = plan_of(32, LeverRequest::default(), Bytes::gib(1));
        let budget = Bytes(plan.peak().0 * times + 1000);
        let plan = plan.within(&Budget::apart(budget, budget));
        let scene = Scene::of(&plan);
        let chart = program_chart(&scene, &scene.programs[0], Detail { columns: 100, pointed: 10 });
        assert_eq!(chart.html("").contains("class=\"break\""), breaks, "{times} times the peak");
        let budget = format!("budget {}", plan.budget().device());
        assert!(chart.labels().iter().any(|label| label.text == budget), "{budget}");
        // The plan still fills most of the height.
        let ticks = chart.labels().iter().filter(|label| label.place == Place::Gutter && label.top < 165.0);
        assert!(ticks.count() >= 3, "{times} times the peak");
    }
}

#[test]
fn pages_of_large_models_stay_small() {
    for (preset, positions) in [("gpt2-xl", 1024), ("t5-xl", 512), ("llama-3.2-1b", 2048)] {
        for (level, offload) in [(Level::None, 0.0), (Level::Block, 1.0)] {
            let model = ModelConfig::preset(preset).expect("a preset");
            let request = Request {
                seq_len: positions,
                target_len: model.decoder_start().map(|_| positions),
                global_batch: 8,
                evaluates: true,
                sample_prefill: Some(32),
                budget: Budget::apart(Bytes::gib(24), Bytes::gib(64)),
                ..Request::new(model, Targets::cuda((8, 9), 4), Machine::of_rates(Rates::guess(4)))
            };
            let levers = Levers {
                precision: Precision::Bf16,
                recompute: Recompute::all(level),
                optimizer_offload: offload,
                ..Levers::default()
            };
            let settings = Settings { micro_batch: 4, head_chunk: 512, levers };
            let (_, plan) = plan_settings(&request, settings).expect("a sensible request");
            let page = page_of(preset, plan);
            check_page(&page);
            assert!(page.len() < 300_000, "{preset}: {} bytes", page.len());
            assert!(page.contains("<title>"));
        }
    }
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
        assert_eq!(crate::page::axis::tick(bytes, step), label);
    }
}
