//! The NVML functions that Plimsoll calls, for the machine that `PLIMSOLL_FAKE_GPUS` describes (format: `lib.rs`).
//! Names, arguments and structs follow NVIDIA's `nvml.h`. An invalid description ends the process. `build.rs` compiles
//! this as a library.

#[path = "readings.rs"]
mod readings;
#[path = "script.rs"]
mod script;
#[path = "settings.rs"]
mod settings;

use script::Script;
use std::env;
use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::sync::LazyLock;

type Code = c_uint;
const SUCCESS: Code = 0;
const INVALID_ARGUMENT: Code = 2;
const NOT_SUPPORTED: Code = 3;
const NOT_FOUND: Code = 6;
const INSUFFICIENT_SIZE: Code = 7;
const ARGUMENT_VERSION_MISMATCH: Code = 25;
const MIB: c_ulonglong = 1 << 20;

/// `nvmlMemory_t`, in bytes. `used` includes reserved memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`, in bytes. `used` excludes reserved memory.
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

/// A card: sizes in MiB, codes as NVML returns them.
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
    /// Whether the card is in MIG mode.
    mig: c_uint,
    /// Utilization in percent.
    busy: c_uint,
    /// Pids and the MiB that each process holds.
    holders: Vec<(c_uint, u64)>,
}

/// `nvmlPciInfo_t`
#[repr(C)]
pub struct PciInfo {
    legacy_address: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    address: [u8; 32],
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

/// Parses bytes, not text: names need not be UTF-8.
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
            let pid = match part() as c_uint {
                0 => std::process::id(),
                pid => pid,
            };
            card.holders.push((pid, part()));
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

static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    let read = |file: std::path::PathBuf| {
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    env::var_os("PLIMSOLL_FAKE_NVML_SCRIPT").map_or_else(Script::default, |file| Script::parse(&read(file.into())))
});

/// The card's index of a handle; a handle is the index plus one.
fn index(handle: *mut c_void) -> usize {
    (handle as usize).wrapping_sub(1)
}

/// The card of a handle. Errors: the code that `function` must return for this card.
fn card(handle: *mut c_void, function: &str) -> Result<&'static Card, Code> {
    let card = MACHINE.cards.get(index(handle)).ok_or(INVALID_ARGUMENT)?;
    let scripted = SCRIPT.error(index(handle), function, SCRIPT.now());
    if card.error != SUCCESS {
        return Err(card.error);
    }
    if scripted != SUCCESS { Err(scripted) } else { Ok(card) }
}

/// A reading: a stored setting, else the script's, else the description's. Power stays below the stored limit.
fn reading(handle: *mut c_void, function: &str, name: &str) -> Result<f64, Code> {
    let card = card(handle, function)?;
    if let Some(value) = settings::stored(index(handle), name) {
        return Ok(value);
    }
    let scripted = SCRIPT.value(index(handle), name, SCRIPT.now());
    let said = scripted.map_or_else(|| card.reading(name), Ok)?;
    match name {
        "power" => Ok(settings::stored(index(handle), "power_limit").map_or(said, |limit| said.min(limit))),
        _ => Ok(said),
    }
}

impl Card {
    /// The description's reading, in the units of scripts.
    fn reading(&self, name: &str) -> Result<f64, Code> {
        let sensor = |value| if self.sensors == SUCCESS { Ok(value) } else { Err(self.sensors) };
        match name {
            "temperature" => sensor(50.0),
            "power_limit" => sensor(170.0),
            "busy" | "memory_busy" => Ok(f64::from(self.busy)),
            "mig" => Ok(f64::from(self.mig)),
            "used" => Ok(self.used as f64),
            "reserved" => Ok(self.reserved as f64),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// Writes an answer to `place`, or returns the error.
///
/// # Safety
/// `place` is valid for writes.
unsafe fn answer<T>(place: *mut T, value: Result<T, Code>) -> Code {
    match value {
        Ok(value) => {
            // SAFETY: the caller promises that `place` is valid for writes.
            unsafe { place.write(value) };
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Writes a string with its final NUL.
///
/// # Safety
/// `place` is valid for writes of `room` bytes.
unsafe fn answer_text(place: *mut c_char, room: c_uint, text: Result<&[u8], Code>) -> Code {
    match text {
        Ok(text) if text.len() < room as usize => {
            // SAFETY: the string with its NUL takes at most `room` bytes, which the caller promises are valid.
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
    // SAFETY: callers of NVML pass a buffer of `room` bytes.
    unsafe { answer_text(version, room, Ok(b"580.95.05")) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> Code {
    SCRIPT.pass();
    let counted = SCRIPT.count(SCRIPT.now()).or(MACHINE.count).unwrap_or(MACHINE.cards.len() as c_uint);
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(count, Ok(counted)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: *mut *mut c_void) -> Code {
    let place = std::ptr::without_provenance_mut(index as usize + 1);
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(handle, card(place, "nvmlDeviceGetHandleByIndex_v2").map(|_| place)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(handle: *mut c_void, name: *mut c_char, room: c_uint) -> Code {
    // SAFETY: callers of NVML pass a buffer of `room` bytes.
    unsafe { answer_text(name, room, card(handle, "nvmlDeviceGetName").map(|card| &card.name[..])) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(handle: *mut c_void, uuid: *mut c_char, room: c_uint) -> Code {
    // SAFETY: callers of NVML pass a buffer of `room` bytes.
    unsafe { answer_text(uuid, room, card(handle, "nvmlDeviceGetUUID").map(|card| &card.uuid[..])) }
}

/// Each card has a bus of its own, numbered from 1 in the order of the cards.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(handle: *mut c_void, info: *mut PciInfo) -> Code {
    let bus = handle.addr() as c_uint;
    let text = |text: String, into: &mut [u8]| into[..text.len()].copy_from_slice(text.as_bytes());
    let info_of_card = card(handle, "nvmlDeviceGetPciInfo_v3").map(|_| {
        let (mut legacy_address, mut address) = ([0; 16], [0; 32]);
        text(format!("0000:{bus:02X}:00.0"), &mut legacy_address);
        text(format!("00000000:{bus:02X}:00.0"), &mut address);
        PciInfo { legacy_address, domain: 0, bus, device: 0, device_id: 0x2684_10DE, subsystem_id: 0, address }
    });
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(info, info_of_card) }
}

/// The card with this UUID.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, handle: *mut *mut c_void) -> Code {
    // SAFETY: callers of NVML pass NUL-terminated strings.
    let wanted = unsafe { CStr::from_ptr(uuid) }.to_bytes();
    let found = MACHINE.cards.iter().position(|card| card.uuid == wanted).ok_or(NOT_FOUND);
    let place = found.map(|index| std::ptr::without_provenance_mut(index + 1));
    let place = place.and_then(|place| card(place, "nvmlDeviceGetHandleByUUID").map(|_| place));
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(handle, place) }
}

/// Total, reserved and used bytes.
fn memory_of(handle: *mut c_void, function: &str) -> Result<[u64; 3], Code> {
    let total = card(handle, function)?.total;
    let mib = |name| reading(handle, function, name).map(|mib| mib as u64);
    Ok([total, mib("reserved")?, mib("used")?].map(|mib| mib * MIB))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(handle: *mut c_void, memory: *mut Memory) -> Code {
    let reading = memory_of(handle, "nvmlDeviceGetMemoryInfo").map(|[total, reserved, used]| {
        let used = used + reserved;
        Memory { total, free: total.saturating_sub(used), used }
    });
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(memory, reading) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: *mut c_void, memory: *mut MemoryV2) -> Code {
    const NAME: &str = "nvmlDeviceGetMemoryInfo_v2";
    // SAFETY: callers of NVML pass the struct with its version set.
    let version = unsafe { (*memory).version };
    let reading = card(handle, NAME).and_then(|card| match card.memory_v2 {
        SUCCESS if version != MEMORY_V2 => Err(ARGUMENT_VERSION_MISMATCH),
        SUCCESS => memory_of(handle, NAME),
        code => Err(code),
    });
    let reading = reading.map(|[total, reserved, used]| {
        let free = total.saturating_sub(reserved + used);
        MemoryV2 { version, total, reserved, free, used }
    });
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(memory, reading) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> Code {
    let mut holders = match card(handle, "nvmlDeviceGetComputeRunningProcesses_v3") {
        Ok(card) => card.holders.clone(),
        Err(code) => return code,
    };
    holders.extend(SCRIPT.processes(index(handle), SCRIPT.now()));
    // SAFETY: callers of NVML pass valid pointers.
    let room = unsafe { count.replace(holders.len() as c_uint) } as usize;
    if room < holders.len() {
        return INSUFFICIENT_SIZE;
    }
    for (index, (pid, mib)) in holders.into_iter().enumerate() {
        let process = ProcessInfo { pid, used: mib * MIB, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX };
        // SAFETY: the caller passes a buffer with room for `count` entries.
        unsafe { processes.add(index).write(process) };
    }
    SUCCESS
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
