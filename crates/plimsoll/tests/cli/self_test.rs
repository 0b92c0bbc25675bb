//! `plimsoll doctor --self-test` with the CUDA stand-in: a correct card passes, and a faulty one is reported with the
//! tests that ran before.

use crate::support::Sandbox;
use plimsoll::graph::Op;
use serde_json::Value;
use std::collections::BTreeSet;

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

#[test]
fn a_correct_card_passes_with_every_op() {
    let library = plimsoll_fake_cuda::library();
    let arguments = format!("doctor --self-test --json --device cuda:0 --cublas {}", library.display());
    let said = Sandbox::new().run_on_card("card=rtx4090", &arguments);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let found = said.json();
    assert_eq!((&found["passed"], list(&found["problems"]).len()), (&Value::Bool(true), 0), "{found}");
    let ops = list(&found["kernels"]).iter().map(|check| check["op"].as_str().expect("a name"));
    assert_eq!(ops.collect::<BTreeSet<_>>(), Op::VARIANTS.iter().copied().collect());
    for check in list(&found["kernels"]) {
        assert!(check["passed"] == true && check["cases"].as_u64() > Some(0), "{check}");
    }
    let in_tf32 = |what: &str| list(&found[what]).iter().filter(|part| part["precision"] == "tf32").count();
    assert!(in_tf32("kernels") >= 6 && in_tf32("speed") > 0, "linear layers and heads, and the rate of products");
    assert_eq!(found["training"]["passed"], true);
    let workloads = list(&found["speed"]).iter().map(|rate| rate["workload"].as_str().expect("a name"));
    let expected = ["attention", "attention_grad", "from_card", "product", "to_card", "within_card"];
    assert_eq!(workloads.collect::<BTreeSet<_>>(), BTreeSet::from(expected));
    for rate in list(&found["speed"]) {
        let (unit, on_paper) = match rate["tflops"].is_number() {
            true => ("tflops", "tflops_on_paper"),
            false => ("gb_per_s", "gb_per_s_on_paper"),
        };
        assert!(rate[unit].as_f64() > Some(0.0) && rate[on_paper].as_f64() > Some(1.0), "{rate}");
    }
    let products = list(&found["cublas_lt"]["kernels"]);
    assert!(products.len() > 20 && products.iter().all(|check| check["passed"] == true), "{products:?}");
    let timed = list(&found["cublas_lt"]["speed"]).iter().map(|rate| rate["precision"].as_str().expect("a name"));
    assert_eq!(timed.collect::<BTreeSet<_>>(), BTreeSet::from(["bf16", "fp16", "fp32", "tf32"]));
    assert_eq!(
        (&found["cublas_lt"]["version"], &found["cublas_lt"]["notes"]),
        (&"13.1.0".into(), &Value::Array(vec![]))
    );
    // The library holds the kernels of its two algorithms, 1 MiB each.
    assert_eq!((&found["memory"]["lost_bytes"], &found["driver"]["stand_in"]), (&(2 << 20).into(), &true.into()));
}

#[test]
fn a_failing_card_is_reported_with_the_tests_that_ran() {
    let sandbox = Sandbox::new();
    // The first two are those of Add in each of three precisions; then comes Attention.
    let card = "stick=cuGraphLaunch:8:719";
    let said = sandbox.run_on_card(card, "doctor --self-test");
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    for words in ["error: the self-test found 2 problems", "Attention in fp32: the GPU failed", "report it as a bug"] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    let text = said.stdout_text();
    // The card has no products in 8 bits.
    let ops = Op::VARIANTS.len() - 1;
    let counts = [format!("1 of {ops} ops are right"), format!("{} ops from AttentionGrad on", ops - 2)];
    for words in
        ["FAILED", "not tested", "problem   Attention in fp32"].into_iter().chain(counts.iter().map(String::as_str))
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let found = sandbox.run_on_card(card, "doctor --self-test --json").json();
    let failed = list(&found["kernels"]).iter().find(|check| check["passed"] == false).expect("one fails");
    assert_eq!((&failed["op"], &failed["precision"]), (&"Attention".into(), &"fp32".into()));
    assert!(failed["failure"]["case"].as_str().is_some_and(|case| case.starts_with("Attention(")), "{failed}");
    assert_eq!((&found["passed"], &found["training"]), (&false.into(), &Value::Null));
    assert_eq!(list(&found["not_tested"]).last(), Some(&"memory".into()));
}

#[test]
fn a_kernel_that_computes_wrongly_is_found_by_its_op() {
    let sandbox = Sandbox::new();
    let card = "wrong=relu_grad_bf16";
    let said = sandbox.run_on_card(card, "doctor --self-test --json");
    assert_eq!(said.code, Some(5), "{}", said.stderr);
    for words in
        ["error: the self-test found a problem: ReluGrad in bf16", "hint: please report it, with the printed block"]
    {
        assert!(said.stderr.contains(words), "{words}: {}", said.stderr);
    }
    let found = said.json();
    let failed = list(&found["kernels"]).iter().filter(|check| check["passed"] == false).collect::<Vec<_>>();
    let [failed] = failed[..] else { panic!("{found}") };
    assert_eq!((&failed["op"], &failed["precision"]), (&"ReluGrad".into(), &"bf16".into()));
    assert!(failed["failure"]["case"].as_str().is_some_and(|case| case.starts_with("ReluGrad")), "{failed}");
    assert_eq!((&found["passed"], list(&found["problems"]).len()), (&false.into(), 1), "{found}");
    // All other ops were tested too.
    assert_eq!((&found["training"]["passed"], list(&found["not_tested"]).len()), (&true.into(), 0), "{found}");
}

#[test]
fn without_a_card_it_has_the_error_of_training() {
    let sandbox = Sandbox::new();
    for (card, code) in [("cards=0", 5), ("capability=6.1", 5), ("others=12200", 3), ("others=12037", 3)] {
        let said = sandbox.run_on_card(card, "doctor --self-test");
        assert_eq!((said.code, said.stdout_text()), (Some(code), ""), "{card}: {}", said.stderr);
        assert!(said.stderr.contains("hint: "), "{card}: {}", said.stderr);
    }
    let [tested, planned] = ["doctor --self-test", "plan --device cuda"].map(|arguments| sandbox.run(arguments));
    assert_eq!((tested.code, &tested.stderr), (Some(5), &planned.stderr));
    let missing = sandbox.run_on_card("", "doctor --self-test --device cuda:3");
    assert!(missing.code == Some(2) && missing.stderr.contains("there is no GPU 3"), "{}", missing.stderr);
    for wrong in ["doctor --self-test --device cpu", "doctor --device cuda"] {
        assert_eq!(sandbox.run_on_card("", wrong).code, Some(2), "{wrong}");
    }
}
