//! A plan has a memory for each row of its table: a third one gets an arena, a limit and waits of its own.

use plimsoll_graph::ops::{Add, Transfer};
use plimsoll_graph::{
    Graph, Link, Memory, MemoryId, MemoryKind, Node, Op, Pass, Ports, Program, ProgramKind, Role, Storage, Targets,
    TensorId, TensorType,
};
use plimsoll_plan::{Limit, Machine, Plan, PlanViolation, Queue, Rates, card, lay_out, validate};
use plimsoll_units::Bytes;
use smallvec::smallvec;

const PAGE: u64 = 4096;

/// Elements of every tensor: 10,000 bytes, which are not a whole number of pages.
const ELEMENTS: usize = 2500;

/// What rests in a third memory comes to the device, is doubled there, and goes back; the processor then doubles it where
/// it is. It adds a persistent tensor of the same memory.
fn graph() -> (Graph, MemoryId) {
    let mut graph = Graph::default();
    let third = graph.memories.add(Memory { kind: MemoryKind::Host, alignment: PAGE });
    for (from, to) in [(third, MemoryId::DEVICE), (MemoryId::DEVICE, third)] {
        graph.memories.connect(Link { from, to, bytes_per_s: Some(1e9) });
    }
    let tensor = |graph: &mut Graph, name: &str, storage, memory| {
        let id = graph.tensor(name, TensorType::f32(&[ELEMENTS]), Role::Activation, storage);
        graph[id].memory = memory;
        id
    };
    let kept = tensor(&mut graph, "kept", Storage::Persistent, third);
    let also_kept = tensor(&mut graph, "also kept", Storage::Persistent, third);
    let [fetched, doubled] =
        ["fetched", "doubled"].map(|name| tensor(&mut graph, name, Storage::Transient, MemoryId::DEVICE));
    let [sent, again] = ["sent", "again"].map(|name| tensor(&mut graph, name, Storage::Transient, third));
    let nodes = vec![
        node(Transfer, &[kept], fetched),
        node(Add, &[fetched, fetched], doubled),
        node(Transfer, &[doubled], sent),
        node(Add, &[sent, also_kept], again),
    ];
    let ports = Ports { loss: Some(again), ..Ports::default() };
    graph.programs.push(Program { name: ProgramKind::MicroStep.into(), nodes, ports });
    (graph, third)
}

fn node(op: impl Into<Op>, inputs: &[TensorId], output: TensorId) -> Node {
    let (op, inputs, outputs) = (op.into(), inputs.iter().copied().collect(), smallvec![output]);
    Node { op, inputs, outputs, block: None, pass: Pass::Forward }
}

fn plan() -> (Plan, MemoryId) {
    let (graph, third) = graph();
    (lay_out(&graph, &Targets::cuda((8, 6), 2)), third)
}

#[test]
fn a_third_memory_has_an_arena_by_its_own_alignment() {
    let (plan, third) = plan();
    assert_eq!(validate(&plan), Ok(()));
    let offsets = |memory| {
        let tensors = plan.tensors.iter().filter(move |tensor| tensor.memory == memory);
        tensors.map(|tensor| tensor.offset).collect::<Vec<_>>()
    };
    // Two that stay, and one place for what is sent and what is made of it: an addition may write over an operand.
    assert_eq!(offsets(third), [0, 3 * PAGE, 6 * PAGE, 6 * PAGE]);
    assert_eq!(plan.memories[third].peak_bytes, 6 * PAGE + 4 * ELEMENTS as u64);
    assert_eq!(plan.memories[MemoryId::HOST].peak_bytes, 0);
    assert_eq!(plan.programs[0].peaks, plan.arenas());
}

#[test]
fn each_memory_stays_within_its_own_limit() {
    let (plan, third) = plan();
    for memory in [MemoryId::DEVICE, third] {
        let mut limited = plan.clone();
        limited.memories[memory].limit = Limit::Own(Bytes(plan.memories[memory].peak_bytes));
        assert_eq!(validate(&limited), Ok(()), "{memory}");
        limited.memories[memory].limit = Limit::Own(Bytes(plan.memories[memory].peak_bytes - 1));
        let refused = validate(&limited);
        assert!(matches!(refused, Err(PlanViolation::OverBudget { memory: of, .. }) if of == memory), "{refused:?}");
        assert_eq!(limited.budget().lacking(&limited.arenas())[memory], Bytes(1));
    }
    // One that shares the host's limit counts with the host's arena.
    let mut shared = plan.clone();
    shared.memories[third].limit = Limit::SharedWith(MemoryId::HOST);
    shared.memories[MemoryId::HOST].limit = Limit::Own(Bytes(plan.memories[third].peak_bytes - 1));
    assert!(matches!(validate(&shared), Err(PlanViolation::OverBudget { memory: MemoryId::HOST, .. })));
}

#[test]
fn damage_in_a_third_memory_is_found() {
    let (plan, third) = plan();
    let first = plan.tensors.iter().position(|tensor| tensor.memory == third).expect("a tensor");
    let damaged = |damage: &dyn Fn(&mut Plan)| {
        let mut plan = plan.clone();
        damage(&mut plan);
        validate(&plan).expect_err("it is damaged")
    };
    let moved = |by: u64| move |plan: &mut Plan| plan.tensors[first].offset += by;
    assert!(matches!(damaged(&moved(256)), PlanViolation::Misaligned { alignment: PAGE, .. }));
    assert!(matches!(damaged(&moved(3 * PAGE)), PlanViolation::Overlap { .. }));
    assert!(matches!(damaged(&moved(30 * PAGE)), PlanViolation::OutOfBounds { .. }));
    assert!(matches!(damaged(&|plan| plan.programs[0].steps[3].waits.clear()), PlanViolation::Unordered { .. }));
    let unknown = "memory-5".parse::<MemoryId>().expect("the name of a memory");
    assert!(matches!(damaged(&|plan| plan.tensors[0].memory = unknown), PlanViolation::UnknownMemory { .. }));
    assert!(matches!(damaged(&|plan| plan.programs[0].steps[1].memory = unknown), PlanViolation::UnknownMemory { .. }));
}

#[test]
fn the_processor_works_in_a_third_memory_of_the_host_and_waits_for_what_is_sent() {
    let (plan, _) = plan();
    let steps = &plan.programs[0].steps;
    let queues = steps.iter().map(|step| plan.queue(step)).collect::<Vec<_>>();
    assert_eq!(queues, [Queue::ToDevice, Queue::Device, Queue::ToHost, Queue::Host]);
    assert_eq!(steps.iter().map(|step| &step.waits[..]).collect::<Vec<_>>(), [&[][..], &[0], &[1], &[2]]);
}

#[test]
fn a_link_of_its_own_has_its_own_rate() {
    let (graph, _) = graph();
    let rates = Rates::of_card(card("3060").expect("a known card"));
    let step = |graph: &Graph| Machine::of_rates(rates).step(graph, 1, &Targets::cuda((8, 6), 2)).0;
    let transfers = 2.0 * (4.0 * ELEMENTS as f64) / 1e9;
    assert!(step(&graph) > transfers, "{} s, with transfers of {transfers} s", step(&graph));
    let mut faster = graph.clone();
    faster.memories = Default::default();
    faster.memories.add(Memory { kind: MemoryKind::Host, alignment: PAGE });
    let saved = transfers * (1.0 - 1e9 / rates.transfer_bytes_per_s);
    assert!((step(&graph) - step(&faster) - saved).abs() < 1e-9, "{} and {}", step(&graph), step(&faster));
}

#[test]
fn files_keep_all_memories_and_name_the_first_two() {
    let (plan, third) = plan();
    let json = serde_json::to_value(&plan).expect("a plan is plain data");
    assert_eq!(json["peak_bytes"], plan.peak().0);
    assert_eq!(json["host_bytes"], 0);
    assert_eq!(json["further_memories"][0]["peak_bytes"], plan.memories[third].peak_bytes);
    assert_eq!(json["tensors"][0]["place"], "memory-2");
    assert_eq!(serde_json::from_value::<Plan>(json.clone()).expect("what was written can be read"), plan);
    let mut crowded = json;
    crowded["further_memories"] = vec![crowded["further_memories"][0].clone(); 7].into();
    let error = serde_json::from_value::<Plan>(crowded).expect_err("a table has eight rows");
    assert!(error.to_string().contains("9 memories"), "{error}");
}
