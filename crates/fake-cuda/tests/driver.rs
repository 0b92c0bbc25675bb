//! The driver's functions as a program calls them: memory, streams, captures, faults, hooks.

mod calls;
mod support;

use calls::{Machine, code};
use plimsoll_fake_cuda::driver::codes;
use std::ffi::c_void;

const KERNEL: &str = "tests/driver.ptx";

#[test]
fn a_machine_follows_its_description() {
    let machine = Machine::of("card=rtx3090;others=100;context=50");
    assert_eq!(machine.attribute(75), Ok(8));
    assert_eq!(machine.attribute(76), Ok(6));
    assert_eq!(machine.attribute(16), Ok(82));
    assert_eq!(machine.attribute(9999), Err(codes::INVALID_VALUE));
    assert_eq!(machine.free(), (24_576 - 150) << 20);
}

#[test]
fn starting_without_cards_or_memory_fails() {
    assert_eq!(Machine::try_of("cards=0").err(), Some(codes::NO_DEVICE));
    assert_eq!(Machine::try_of("others=12288").err(), Some(codes::OUT_OF_MEMORY), "no room for a context");
    assert_eq!(Machine::try_of("stick=cuDevicePrimaryCtxRetain:1:214").err(), Some(codes::ECC_UNCORRECTABLE));
}

#[test]
fn memory_is_counted_and_freed() {
    let machine = Machine::of("memory=1000;others=0;context=0");
    let free = machine.free();
    let address = machine.alloc(1 << 20).unwrap();
    assert_eq!(machine.free(), free - (1 << 20));
    assert_eq!(machine.alloc(1000 << 20), Err(codes::OUT_OF_MEMORY));
    assert_eq!(machine.leaks(), 1);
    assert_eq!(machine.release(address + 256), Err(codes::INVALID_VALUE));
    machine.release(address).unwrap();
    assert_eq!((machine.free(), machine.leaks()), (free, 0));
}

#[test]
fn other_processes_take_memory_during_a_call() {
    let machine = Machine::of("memory=1000;others=0;context=0;growth=100");
    let (first, second) = (machine.free(), machine.free());
    assert_eq!(first - second, 100 << 20);
}

#[test]
fn the_kth_call_fails() {
    let machine = Machine::of("fail=cuMemAlloc_v2:2:2");
    assert!(machine.alloc(64).is_ok());
    assert_eq!(machine.alloc(64), Err(codes::OUT_OF_MEMORY));
    assert!(machine.alloc(64).is_ok());
    assert_eq!(machine.calls("cuMemAlloc_v2"), 3);
    assert!(machine.failure().contains("call 2"), "{}", machine.failure());
}

#[test]
fn a_sticky_error_stays() {
    let machine = Machine::of("stick=cuMemAlloc_v2:1:214");
    assert_eq!(machine.alloc(64), Err(codes::ECC_UNCORRECTABLE));
    assert_eq!(machine.synchronize(), Err(codes::ECC_UNCORRECTABLE));
    assert_eq!(machine.error_name(codes::ECC_UNCORRECTABLE), "CUDA_ERROR_ECC_UNCORRECTABLE");
}

#[test]
fn mapped_memory_moves_between_addresses_and_keeps_its_bytes() {
    const PIECE: usize = 2 << 20;
    let machine = Machine::of("");
    let free = machine.free();
    let base = machine.reserve(4 * PIECE).unwrap();
    let handle = machine.create(PIECE).unwrap();
    assert_eq!(machine.map(base + 17, PIECE, handle), Err(codes::INVALID_VALUE), "not aligned");
    machine.map(base, PIECE, handle).unwrap();
    assert_eq!(machine.map(base + PIECE as u64, PIECE, handle), Err(codes::INVALID_VALUE), "mapped already");
    machine.access(base, PIECE).unwrap();
    machine.write(base + 8, &[1, 2, 3, 4]).unwrap();
    machine.unmap(base, PIECE).unwrap();
    machine.map(base + PIECE as u64, PIECE, handle).unwrap();
    machine.access(base + PIECE as u64, PIECE).unwrap();
    assert_eq!(machine.read(base + PIECE as u64 + 8, 4), Ok(vec![1, 2, 3, 4]));
    // A copy continues from one mapping into the next.
    let second = machine.create(PIECE).unwrap();
    machine.map(base + 2 * PIECE as u64, PIECE, second).unwrap();
    machine.access(base + 2 * PIECE as u64, PIECE).unwrap();
    machine.write(base + 2 * PIECE as u64 - 2, &[5, 6, 7, 8]).unwrap();
    assert_eq!(machine.read(base + 2 * PIECE as u64, 2), Ok(vec![7, 8]));
    for (address, handle) in [(base + PIECE as u64, handle), (base + 2 * PIECE as u64, second)] {
        machine.drop_handle(handle).unwrap();
        machine.unmap(address, PIECE).unwrap();
    }
    machine.unreserve(base, 4 * PIECE).unwrap();
    assert_eq!((machine.free(), machine.leaks()), (free, 0));
}

#[test]
fn mapped_memory_needs_access_to_be_set() {
    let machine = Machine::of("");
    let base = machine.reserve(2 << 20).unwrap();
    let handle = machine.create(2 << 20).unwrap();
    machine.map(base, 2 << 20, handle).unwrap();
    assert_eq!(machine.write(base, &[1]), Err(codes::INVALID_VALUE));
    assert!(machine.failure().contains("without access"), "{}", machine.failure());
}

#[test]
fn modules_that_driver_or_card_cannot_take_are_refused() {
    let text = support::text(KERNEL);
    let load = |machine: &Machine, text: &str| machine.load(text).err();
    let machine = Machine::of("");
    assert_eq!(load(&machine, &text), None);
    assert_eq!(load(&machine, &text.replace(".version 7.0", ".version 8.8")), Some(codes::UNSUPPORTED_PTX_VERSION));
    assert_eq!(load(&machine, &text.replace("sm_80", "sm_90")), Some(codes::NO_BINARY_FOR_GPU));
    assert_eq!(load(&machine, "int main() {}"), Some(codes::INVALID_PTX));
    // An instruction that the target does not have, though the card may have it.
    let newer = text.replace("shl.b32 \t%r3", "cvt.rn.satfinite.e4m3x2.f32 \t%r3");
    assert_eq!(load(&machine, &newer), Some(codes::INVALID_PTX));
    assert!(machine.failure().contains("needs .version 8.1 and .target sm_89"), "{}", machine.failure());
    let module = machine.load(&text).unwrap();
    assert_eq!(machine.function(module, "nothing").err(), Some(codes::NOT_FOUND));
    assert_eq!(machine.function_attribute(module, "double_it", 4), Err(codes::NOT_SUPPORTED), "registers");
    assert_eq!(machine.function_attribute(module, "double_it", 0), Ok(128));
}

/// A card runs modules for its own compute capability and lower ones.
#[test]
fn modules_for_later_cards_are_refused() {
    let text = support::text(KERNEL).replace(".version 7.0", ".version 8.7");
    let cards = [("rtx2080", 75), ("a100", 80), ("rtx3060", 86), ("rtx4090", 89), ("rtx5090", 120)];
    for (card, capability) in cards {
        let machine = Machine::of(&format!("card={card}"));
        for target in [75, 80, 86, 89, 90, 120] {
            let refused = machine.load(&text.replace("sm_80", &format!("sm_{target}"))).err();
            let expected = (target > capability).then_some(codes::NO_BINARY_FOR_GPU);
            assert_eq!(refused, expected, "sm_{target} on {card}");
        }
    }
}

#[test]
fn a_kernel_runs_and_its_faults_are_sticky() {
    let machine = Machine::of("");
    let (function, address) = (machine.double_it(), machine.alloc(512).unwrap());
    machine.write(address, &7u32.to_le_bytes().repeat(128)).unwrap();
    machine.launch(function, 128, address, 0).unwrap();
    assert_eq!(machine.read(address, 512), Ok(14u32.to_le_bytes().repeat(128)));
    assert_eq!(machine.launch(function, 129, address, 0), Err(codes::LAUNCH_OUT_OF_RESOURCES));
    // The launch succeeds; the next call returns the error.
    machine.launch(function, 128, address + 256, 0).unwrap();
    assert_eq!(machine.synchronize(), Err(codes::ILLEGAL_ADDRESS));
    assert!(machine.failure().contains("out of bounds"), "{}", machine.failure());
}

#[test]
fn only_announced_regions_are_accessible() {
    for (modes, expected) in
        [(&[(0, 1)][..], codes::ILLEGAL_ADDRESS), (&[(0, 3)], 0), (&[(0, 4)], codes::LAUNCH_FAILED)]
    {
        let machine = Machine::of("");
        let (function, address) = (machine.double_it(), machine.alloc(1024).unwrap());
        machine.write(address, &[1; 1024]).unwrap();
        machine.allow(0, 0, 0).unwrap();
        for (offset, mode) in modes {
            machine.allow(address + offset, 512, *mode).unwrap();
        }
        machine.launch(function, 128, address, 0).unwrap();
        assert_eq!(code(machine.synchronize()), expected, "{modes:?}: {}", machine.failure());
    }
}

#[test]
fn scratch_is_unwritten_for_the_next_operation() {
    let machine = Machine::of("");
    let (fill, double_it, address) = (machine.kernel("fill_it"), machine.double_it(), machine.alloc(1024).unwrap());
    machine.allow(0, 0, 0).unwrap();
    machine.allow(address, 512, 4).unwrap();
    machine.launch(fill, 128, address, 0).unwrap();
    machine.launch(double_it, 128, address, 0).unwrap();
    machine.synchronize().expect("an operation can read its own scratch");
    machine.allow(0, 0, 0).unwrap();
    machine.allow(address, 512, 3).unwrap();
    machine.launch(double_it, 128, address, 0).unwrap();
    assert_eq!(machine.synchronize(), Err(codes::LAUNCH_FAILED));
    assert!(machine.failure().contains("unwritten bytes"), "{}", machine.failure());
}

#[test]
fn bytes_that_another_stream_writes_to_former_scratch_stay_written() {
    let machine = Machine::of("");
    let (fill, double_it, address) = (machine.kernel("fill_it"), machine.double_it(), machine.alloc(512).unwrap());
    let (compute, copies, event) = (machine.stream(), machine.stream(), machine.event());
    let pinned = machine.pinned(512);
    // SAFETY: 512 bytes were just allocated, and no other code uses them.
    unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 512) }
        .copy_from_slice(&3u32.to_le_bytes().repeat(128));
    for (mode, stream, other) in [(4, compute, copies), (2, copies, compute), (3, compute, copies)] {
        machine.allow(0, 0, 0).unwrap();
        machine.allow(address, 512, mode).unwrap();
        match mode {
            4 => machine.launch(fill, 128, address, stream).unwrap(),
            2 => machine.copy_to(address, pinned.cast(), 512, stream).unwrap(),
            _ => machine.launch(double_it, 128, address, stream).unwrap(),
        }
        machine.record(event, stream).unwrap();
        machine.wait(other, event).unwrap();
    }
    machine.synchronize().expect("the copy is ordered after the scratch and before its reader");
}

/// Enqueues a copy on one stream and a kernel on another, ordered or not.
fn overlapped(description: &str, ordered: bool) -> Result<Vec<u8>, u32> {
    let machine = Machine::of(description);
    let (function, address) = (machine.double_it(), machine.alloc(512).unwrap());
    let (copies, compute) = (machine.stream(), machine.stream());
    let pinned = machine.pinned(512);
    // SAFETY: 512 bytes were just allocated, and no other code uses them.
    unsafe { std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 512) }
        .copy_from_slice(&3u32.to_le_bytes().repeat(128));
    machine.copy_to(address, pinned.cast(), 512, copies)?;
    if ordered {
        let event = machine.event();
        machine.record(event, copies)?;
        machine.wait(compute, event)?;
    }
    machine.launch(function, 128, address, compute)?;
    machine.synchronize_stream(compute)?;
    machine.read(address, 512)
}

#[test]
fn a_missing_wait_between_streams_is_found_in_every_execution_mode() {
    for execution in ["execution=eager", "execution=late"] {
        assert_eq!(overlapped(execution, true), Ok(6u32.to_le_bytes().repeat(128)), "{execution}");
        assert_eq!(overlapped(execution, false), Err(codes::LAUNCH_FAILED), "{execution}");
    }
}

#[test]
fn late_copies_read_pinned_memory_when_they_run() {
    for (execution, expected) in [("execution=eager", 1), ("execution=late", 2)] {
        let machine = Machine::of(execution);
        let (stream, address, pinned) = (machine.stream(), machine.alloc(4).unwrap(), machine.pinned(4));
        // SAFETY: 4 bytes were just allocated, and no other code uses them.
        unsafe { pinned.cast::<u8>().write_bytes(1, 4) };
        machine.copy_to(address, pinned.cast(), 4, stream).unwrap();
        // SAFETY: as above; in a real program this write would be a bug.
        unsafe { pinned.cast::<u8>().write_bytes(2, 4) };
        machine.synchronize_stream(stream).unwrap();
        assert_eq!(machine.read(address, 4), Ok(vec![expected; 4]), "{execution}");
    }
}

#[test]
fn a_late_event_is_not_ready_the_first_time() {
    let machine = Machine::of("execution=late");
    let (stream, event) = (machine.stream(), machine.event());
    machine.record(event, stream).unwrap();
    assert_eq!(machine.query(event), Err(codes::NOT_READY));
    assert_eq!(machine.query(event), Ok(()));
}

/// Captures a step on two streams: doubles on one, then doubles on the other.
fn captured(machine: &Machine, joins: (bool, bool)) -> Result<u64, u32> {
    let (function, address) = (machine.double_it(), machine.alloc(512).unwrap());
    machine.write(address, &1u32.to_le_bytes().repeat(128))?;
    let (first, second) = (machine.stream(), machine.stream());
    machine.begin_capture(first)?;
    machine.launch(function, 128, address, first)?;
    assert_eq!(machine.synchronize_stream(first), Err(codes::STREAM_CAPTURE_UNSUPPORTED));
    assert_eq!(machine.alloc(64), Err(codes::STREAM_CAPTURE_UNSUPPORTED));
    let (forth, back) = (machine.event(), machine.event());
    machine.record(forth, first)?;
    machine.wait(second, forth)?;
    if !joins.0 {
        // A second node that depends only on the start.
        machine.launch(function, 128, address, first)?;
    }
    machine.launch(function, 128, address, second)?;
    machine.record(back, second)?;
    if joins.1 {
        machine.wait(first, back)?;
    }
    let graph = machine.end_capture(first)?;
    let executable = machine.instantiate(graph)?;
    for _ in 0..3 {
        machine.launch_graph(executable, first)?;
    }
    machine.synchronize_stream(first)?;
    let bytes = machine.read(address, 512)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into())
}

#[test]
fn a_captured_step_keeps_its_order() {
    for execution in ["execution=eager", "execution=late"] {
        assert_eq!(captured(&Machine::of(execution), (true, true)), Ok(64), "{execution}");
        assert_eq!(captured(&Machine::of(execution), (true, false)), Err(codes::STREAM_CAPTURE_UNJOINED));
        assert_eq!(
            captured(&Machine::of(execution), (false, true)),
            Err(codes::LAUNCH_FAILED),
            "a hazard: {execution}"
        );
    }
}

#[test]
fn a_graph_without_nodes_keeps_streams_ordered() {
    let machine = Machine::of("execution=late");
    let (function, address, stream) = (machine.double_it(), machine.alloc(512).unwrap(), machine.stream());
    machine.write(address, &1u32.to_le_bytes().repeat(128)).unwrap();
    machine.begin_capture(stream).unwrap();
    let graph = machine.end_capture(stream).unwrap();
    let empty = machine.instantiate(graph).unwrap();
    machine.launch(function, 128, address, stream).unwrap();
    machine.launch_graph(empty, stream).unwrap();
    machine.launch(function, 128, address, stream).unwrap();
    machine.synchronize_stream(stream).expect("the second launch is ordered after the first");
    assert_eq!(machine.read(address, 512), Ok(4u32.to_le_bytes().repeat(128)));
}

#[test]
fn a_captured_stream_cannot_wait_for_an_event_outside_the_capture() {
    let machine = Machine::of("");
    let (stream, other, event) = (machine.stream(), machine.stream(), machine.event());
    machine.record(event, other).unwrap();
    machine.begin_capture(stream).unwrap();
    assert_eq!(machine.wait(stream, event), Err(codes::STREAM_CAPTURE_ISOLATION));
}

#[test]
fn reading_back_unwritten_bytes_is_a_fault() {
    let machine = Machine::of("");
    let address = machine.alloc(64).unwrap();
    machine.write(address, &[1; 32]).unwrap();
    assert_eq!(machine.read(address, 64), Err(codes::LAUNCH_FAILED));
}

#[test]
fn the_trace_names_every_kernel() {
    let machine = Machine::of("");
    let (function, address) = (machine.double_it(), machine.alloc(512).unwrap());
    machine.write(address, &[1; 512]).unwrap();
    machine.launch(function, 128, address, 0).unwrap();
    let path = std::env::temp_dir().join(format!("fake-cuda-trace-{}.csv", std::process::id()));
    machine.trace(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>();
    let at = |column: &str| rows[0].iter().position(|name| *name == column).unwrap();
    assert_eq!(rows[1][0], "double_it");
    for (column, expected) in [("launches", "1"), ("read_bytes", "512"), ("sectors", "32"), ("fewest_sectors", "32")] {
        assert_eq!(rows[1][at(column)], expected, "{column}");
    }
}

#[test]
fn null_pointers_for_results_are_refused() {
    let machine = Machine::of("");
    assert_eq!(machine.alloc_into(std::ptr::null_mut(), 64), Err(codes::INVALID_VALUE));
    assert_eq!(machine.copy_to(0, std::ptr::null::<c_void>(), 1, 0), Err(codes::INVALID_VALUE));
}
