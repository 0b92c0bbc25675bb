//! Memory that the processor as a device takes from the system: its arenas, once. This binary's allocator counts the
//! heap, and /proc shows the system's mappings.

use plimsoll_exec::cases::Noise;
use plimsoll_exec::{CpuDevice, Device, run_program};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{MemoryId, Optimizer, ProgramKind, Role, Scalars, Targets, TensorId, TrainShape, build_training};
use plimsoll_plan::{Plan, lay_out, validate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts the bytes that the threads of a test have on the heap, without those of the test harness.
struct CountingHeap;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count(change: i64) {
    if COUNTED.get() {
        let live = LIVE.fetch_add(change, Ordering::Relaxed) + change;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to the system's allocator unchanged; counting accesses only its own memory.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's guarantee about `layout` is the one that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: `pointer` came from `System` with this layout, since all allocations go through it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The tests measure the whole process, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

const MICRO_BATCH: usize = 8;
const SEQ_LEN: usize = 64;

/// A small GPT-2 with every program that a run can have. Its arena is much larger than the allowed slack.
fn plan(threads: usize) -> Plan {
    let model = Gpt2Config {
        vocab_size: 500,
        n_positions: SEQ_LEN,
        n_embd: 128,
        n_layer: 4,
        n_head: 4,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.02,
        bias: true,
    };
    let shape = TrainShape {
        micro_batch: MICRO_BATCH,
        seq_len: SEQ_LEN,
        accumulates: true,
        head_chunk: 100,
        evaluates: true,
        sample_prefill: Some(16),
        ..TrainShape::default()
    };
    let graph = build_training(&ModelConfig::Gpt2(model), &Optimizer::default(), &shape).expect("a valid model");
    let plan = lay_out(&graph, &Targets::cpu(threads));
    assert_eq!(validate(&plan), Ok(()));
    plan
}

/// Loads a plan and fills its weights.
fn load(plan: &Plan) -> CpuDevice {
    let mut device = CpuDevice::new();
    device.load(plan).expect("there is memory for a small arena");
    let mut noise = Noise::new(1);
    for (index, tensor) in plan.tensors.iter().enumerate().filter(|(_, t)| t.role == Role::Weight) {
        let values = (0..tensor.ty.elements()).map(|_| (noise.unit() as f32 - 0.5) / 10.0).collect::<Vec<_>>();
        device.write(plan, TensorId(index as u32), bytemuck::cast_slice(&values)).expect("a weight of this size");
    }
    device
}

/// Feeds a program some tokens, runs it and fetches its results, as the loop of a run would.
fn run(device: &mut CpuDevice, plan: &Plan, program: ProgramKind) {
    let ports = &plan.program(program).expect("a program of the plan").ports;
    for port in ports.fed() {
        let ids = (0..plan[port].ty.elements() as i32).map(|i| i * 7 % 500).collect::<Vec<_>>();
        device.write(plan, port, bytemuck::cast_slice(&ids)).expect("tokens of this shape");
    }
    let scalars = Scalars { loss_scale: 1e-3, learning_rate: 1e-3, ..Scalars::default() };
    run_program(device, plan, program, &scalars).expect("a valid plan runs");
    for port in ports.fetched() {
        let mut values = vec![0f32; plan[port].ty.elements()];
        device.read(plan, port, bytemuck::cast_slice_mut(&mut values)).expect("results of this shape");
        assert!(values.iter().all(|x| x.is_finite()), "{program}: {values:?}");
    }
}

/// The arenas' pages in memory are the plan's bytes, each of the two arenas rounded up to whole pages.
fn assert_resident(device: &CpuDevice, plan: &Plan) {
    const PAGE_BYTES: u64 = 4096;
    match device.resident_bytes() {
        // Elsewhere pages may be larger.
        Some(resident) if cfg!(target_arch = "x86_64") => {
            let pages = plan.peak().0.next_multiple_of(PAGE_BYTES) + plan.host().0.next_multiple_of(PAGE_BYTES);
            assert_eq!(resident, pages, "a plan of {} and {} bytes", plan.peak().0, plan.host().0);
        }
        _ => eprintln!("SKIPPED: this system does not report which pages are in memory"),
    }
}

/// Runs a test alone, inside a pool whose threads are counted.
fn measured(threads: usize, test: impl FnOnce() + Send) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).start_handler(|_| COUNTED.set(true));
    pool.build().expect("a pool").install(test);
}

#[test]
fn invariant_3_exact_after_the_first_step_nothing_is_allocated() {
    // The matrix library's buffers for packed operands, freed within the step.
    const PACKING_BYTES: i64 = 8 << 20;
    for threads in [1, 2] {
        measured(threads, || {
            let plan = plan(threads);
            let mut device = load(&plan);
            assert_resident(&device, &plan);
            let asked = device.memory().allocations;
            let mut step = || {
                for program in [ProgramKind::MicroStep, ProgramKind::MicroStepAdd, ProgramKind::Update] {
                    run(&mut device, &plan, program);
                }
                assert_eq!(device.memory().allocations, asked, "the device requests memory after loading a plan");
                assert_eq!(device.memory().arena(MemoryId::DEVICE).touched_bytes, plan.peak().0);
                assert_resident(&device, &plan);
            };
            step();
            step();
            let live = LIVE.load(Ordering::Relaxed);
            for _ in 0..5 {
                PEAK.store(live, Ordering::Relaxed);
                step();
                let grown = PEAK.load(Ordering::Relaxed) - live;
                assert_eq!(LIVE.load(Ordering::Relaxed), live, "a step leaves bytes on the heap");
                assert!(grown < PACKING_BYTES, "a step takes {grown} bytes of the heap");
            }
        });
    }
}

/// Bytes of private memory that the process has mapped for writing and that no file backs: heap, arenas, stacks.
#[cfg(target_os = "linux")]
fn anonymous_bytes() -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let sizes = maps.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (range, access, _offset, _device, inode) =
            (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let (start, end) = range.split_once('-')?;
        let bytes = u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?;
        (access.starts_with("rw") && inode == "0").then_some(bytes)
    });
    Some(sizes.sum())
}

#[cfg(not(target_os = "linux"))]
fn anonymous_bytes() -> Option<u64> {
    None
}

#[test]
fn invariant_4_whole_every_program_runs_inside_the_one_arena() {
    // Growth of the heap: panels of products, and rounding by the allocator.
    const HEAP_BYTES: u64 = 8 << 20;
    measured(2, || {
        let plan = plan(2);
        let Some(before) = anonymous_bytes() else {
            eprintln!("SKIPPED: this system does not report the process's mappings");
            return;
        };
        let mut device = load(&plan);
        for program in [
            ProgramKind::MicroStep,
            ProgramKind::MicroStepAdd,
            ProgramKind::Update,
            ProgramKind::Evaluate,
            ProgramKind::Prefill,
            ProgramKind::Sample,
            ProgramKind::Sample,
        ] {
            run(&mut device, &plan, program);
            let grown = anonymous_bytes().expect("it was known before") - before;
            assert!(grown >= plan.peak().0, "an arena of {} bytes in {grown}", plan.peak().0);
            assert!(grown - plan.peak().0 < HEAP_BYTES, "{program} took {grown} bytes, the plan {}", plan.peak().0);
        }
    });
}
