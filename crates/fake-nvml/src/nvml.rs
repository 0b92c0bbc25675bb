//! The functions of NVML that Plimsoll calls, answering for the machine that `PLIMSOLL_FAKE_GPUS` describes (its
//! format: `lib.rs`). Names, arguments and structs are those of NVIDIA's `nvml.h`. Bad descriptions end the process.
//! Compiled by `build.rs` as a library of its own.

use std::env;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::LazyLock;

type Code = c_uint;
const SUCCESS: Code = 0;
const INVALID_ARGUMENT: Code = 2;
const INSUFFICIENT_SIZE: Code = 7;
const ARGUMENT_VERSION_MISMATCH: Code = 25;
const MIB: c_ulonglong = 1 << 20;

/// `nvmlMemory_t`, in bytes. `used` counts what is reserved.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`, in bytes. `used` does not count what is reserved.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

/// Sizes in MiB, codes as NVML returns them.
#[derive(Debug, Default, PartialEq)]
struct Card {
    name: Vec<u8>,
    uuid: Vec<u8>,
    total: u64,
    reserved: u64,
    used: u64,
    error: Code,
    memory_v2: Code,
    sensors: Code,
    /// Whether it is in MIG mode.
    mig: c_uint,
    /// Percent of the time in which it computes.
    busy: c_uint,
    /// Processes, and MiB that each holds.
    holders: Vec<(c_uint, u64)>,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[derive(Debug, Default, PartialEq)]
struct Machine {
    init: Code,
    count: Option<c_uint>,
    cards: Vec<Card>,
}

static MACHINE: LazyLock<Machine> = LazyLock::new(|| {
    let description = env::var_os("PLIMSOLL_FAKE_GPUS").unwrap_or_default();
    parse(description.as_encoded_bytes())
});

/// Bytes and not text, so that names need not be UTF-8.
fn parse(description: &[u8]) -> Machine {
    let mut machine = Machine::default();
    for entry in description.split(|&b| b == b';').filter(|entry| !entry.is_empty()) {
        if let Some(code) = entry.strip_prefix(b"init=") {
            machine.init = number(code) as Code;
        } else if let Some(count) = entry.strip_prefix(b"count=") {
            machine.count = Some(number(count) as c_uint);
        } else {
            machine.cards.push(parse_card(entry));
        }
    }
    machine
}

fn parse_card(entry: &[u8]) -> Card {
    let fields = entry.split(|&b| b == b',').collect::<Vec<_>>();
    let [name, uuid, total, reserved, used, faults @ ..] = &fields[..] else {
        panic!("a fake card is name,uuid,total,reserved,used and not {:?}", String::from_utf8_lossy(entry));
    };
    let (total, reserved, used) = (number(total), number(reserved), number(used));
    let mut card = Card { name: name.to_vec(), uuid: uuid.to_vec(), total, reserved, used, ..Card::default() };
    for fault in faults {
        if let Some(holder) = fault.strip_prefix(b"holder=") {
            let mut parts = holder.split(|&b| b == b'/').map(number);
            let mut part = || parts.next().expect("a holder is PID/MIB");
            card.holders.push((part() as c_uint, part()));
            continue;
        }
        let value = fault.iter().position(|&b| b == b'=').map_or(fault.len(), |sign| sign + 1);
        let code = number(&fault[value..]) as Code;
        match &fault[..value] {
            b"error=" => card.error = code,
            b"memory_v2=" => card.memory_v2 = code,
            b"sensors=" => card.sensors = code,
            b"mig=" => card.mig = code,
            b"busy=" => card.busy = code,
            _ => panic!("a fake card has no fault {:?}", String::from_utf8_lossy(fault)),
        }
    }
    card
}

fn number(text: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(text);
    text.parse().unwrap_or_else(|_| panic!("{text:?} in a fake machine is not a number"))
}

/// The card of a handle, which is its index plus one.
fn card(handle: *mut c_void) -> Result<&'static Card, Code> {
    let card = MACHINE.cards.get((handle as usize).wrapping_sub(1)).ok_or(INVALID_ARGUMENT)?;
    if card.error == SUCCESS { Ok(card) } else { Err(card.error) }
}

/// Writes an answer to where the caller wants it, or returns why there is none.
///
/// # Safety
/// `place` can be written.
unsafe fn answer<T>(place: *mut T, value: Result<T, Code>) -> Code {
    match value {
        Ok(value) => {
            // SAFETY: the caller says that `place` can be written.
            unsafe { place.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Writes a text and its final zero.
///
/// # Safety
/// `room` bytes from `place` can be written.
unsafe fn answer_text(place: *mut c_char, room: c_uint, text: Result<&[u8], Code>) -> Code {
    match text {
        Ok(text) if text.len() < room as usize => {
            // SAFETY: the text and its zero take at most the `room` bytes that the caller grants.
            unsafe {
                place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
                place.add(text.len()).write(0);
            }
            SUCCESS
        }
        Ok(_) => INSUFFICIENT_SIZE,
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    MACHINE.init
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) -> Code {
    // SAFETY: NVML's callers grant `room` bytes.
    unsafe { answer_text(version, room, Ok(b"580.95.05")) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Code {
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(count, Ok(MACHINE.count.unwrap_or(MACHINE.cards.len() as c_uint))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut *mut c_void) -> Code {
    let place = std::ptr::without_provenance_mut(index as usize + 1);
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(handle, card(place).map(|_| place)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(handle: *mut c_void, name: *mut c_char, room: c_uint) -> Code {
    // SAFETY: NVML's callers grant `room` bytes.
    unsafe { answer_text(name, room, card(handle).map(|card| &card.name[..])) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(handle: *mut c_void, uuid: *mut c_char, room: c_uint) -> Code {
    // SAFETY: NVML's callers grant `room` bytes.
    unsafe { answer_text(uuid, room, card(handle).map(|card| &card.uuid[..])) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: *mut c_void, memory: *mut Memory) -> Code {
    let reading = card(handle).map(|card| {
        let used = card.used + card.reserved;
        Memory { total: card.total * MIB, free: card.total.saturating_sub(used) * MIB, used: used * MIB }
    });
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(memory, reading) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: *mut c_void, memory: *mut MemoryV2) -> Code {
    // SAFETY: NVML's callers give the struct with its version set.
    let version = unsafe { (*memory).version };
    let reading = card(handle).and_then(|card| match card.memory_v2 {
        SUCCESS if version != MEMORY_V2 => Err(ARGUMENT_VERSION_MISMATCH),
        SUCCESS => Ok(MemoryV2 {
            version,
            total: card.total * MIB,
            reserved: card.reserved * MIB,
            free: card.total.saturating_sub(card.reserved + card.used) * MIB,
            used: card.used * MIB,
        }),
        code => Err(code),
    });
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(memory, reading) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> Code {
    let holders = match card(handle) {
        Ok(card) => &card.holders,
        Err(code) => return code,
    };
    // SAFETY: NVML's callers give places that can be written.
    let room = unsafe { count.replace(holders.len() as c_uint) } as usize;
    if room < holders.len() {
        return INSUFFICIENT_SIZE;
    }
    for (index, &(pid, mib)) in holders.iter().enumerate() {
        let process = ProcessInfo { pid, used: mib * MIB, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        // SAFETY: the caller says that there is room for so many.
        unsafe { processes.add(index).write(process) };
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(handle: *mut c_void, current: *mut c_uint, pending: *mut c_uint) -> Code {
    let mode = card(handle).map(|card| card.mig);
    // SAFETY: NVML's callers give places that can be written.
    unsafe {
        answer(pending, mode);
        answer(current, mode)
    }
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: *mut c_void, utilization: *mut Utilization) -> Code {
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(utilization, card(handle).map(|card| Utilization { gpu: card.busy, memory: card.busy })) }
}

/// What a card's sensors say, unless they fail.
fn sensor(handle: *mut c_void, reading: c_uint) -> Result<c_uint, Code> {
    card(handle).and_then(|card| if card.sensors == SUCCESS { Ok(reading) } else { Err(card.sensors) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(handle: *mut c_void, _sensor: c_int, celsius: *mut c_uint) -> Code {
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(celsius, sensor(handle, 50)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(handle: *mut c_void, milliwatts: *mut c_uint) -> Code {
    // SAFETY: NVML's callers give places that can be written.
    unsafe { answer(milliwatts, sensor(handle, 170_000)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_with_cards_and_faults() {
        let machine = parse(b"init=9;count=3;A\xff,GPU-a,12288,350,1200;B,GPU-b,1,0,0,error=15,sensors=3;");
        let a = Card { name: b"A\xff".into(), uuid: b"GPU-a".into(), total: 12288, ..Card::default() };
        let b = Card { name: b"B".into(), uuid: b"GPU-b".into(), total: 1, ..Card::default() };
        let cards = vec![Card { reserved: 350, used: 1200, ..a }, Card { error: 15, sensors: 3, ..b }];
        assert_eq!(machine, Machine { init: 9, count: Some(3), cards });
        assert_eq!(parse(b""), Machine::default());
    }

    #[test]
    #[should_panic(expected = "no fault")]
    fn unknown_faults_are_refused() {
        parse(b"A,GPU-a,1,0,0,fault=1");
    }
}
