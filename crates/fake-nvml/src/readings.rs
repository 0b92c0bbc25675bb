//! Readings of cards from the script. Part of the stand-in, compiled into it.

use super::script::Script;
use super::{Code, INVALID_ARGUMENT, NOT_SUPPORTED, SCRIPT, SUCCESS, answer, card, index, reading};
use std::ffi::{c_int, c_longlong, c_uint, c_ulonglong, c_void};
use std::sync::Mutex;

/// NVML's code for a wait that ended without an event.
const TIMEOUT: Code = 10;

/// Functions with a handle and an output for one number: the reading's name, and its factor from the script's unit to
/// NVML's.
macro_rules! numbers {
    ($($function:ident $(($($extra:ty),+))? -> $number:ty = $name:literal * $units:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function(handle: *mut c_void, $($(_: $extra,)+)? place: *mut $number) -> Code {
                let value = reading(handle, stringify!($function), $name).map(|value| (value * $units) as $number);
                // SAFETY: callers of NVML pass valid pointers.
                unsafe { answer(place, value) }
            }
        )+
    };
}

numbers! {
    nvmlDeviceGetTemperature(c_int) -> c_uint = "temperature" * 1.0;
    nvmlDeviceGetPowerUsage -> c_uint = "power" * 1000.0;
    nvmlDeviceGetEnforcedPowerLimit -> c_uint = "power_limit" * 1000.0;
    nvmlDeviceGetPowerManagementLimit -> c_uint = "power_limit" * 1000.0;
    nvmlDeviceGetPowerManagementDefaultLimit -> c_uint = "power_default" * 1000.0;
    nvmlDeviceGetTotalEnergyConsumption -> c_ulonglong = "energy" * 1000.0;
    nvmlDeviceGetCurrentClocksThrottleReasons -> c_ulonglong = "throttling" * 1.0;
    nvmlDeviceGetPerformanceState -> c_uint = "performance_state" * 1.0;
    nvmlDeviceGetNumFans -> c_uint = "fans" * 1.0;
    nvmlDeviceGetFanSpeed_v2(c_uint) -> c_uint = "fan" * 1.0;
    nvmlDeviceGetCurrPcieLinkGeneration -> c_uint = "pcie_generation" * 1.0;
    nvmlDeviceGetCurrPcieLinkWidth -> c_uint = "pcie_lanes" * 1.0;
    nvmlDeviceGetMaxPcieLinkGeneration -> c_uint = "pcie_generation_max" * 1.0;
    nvmlDeviceGetMaxPcieLinkWidth -> c_uint = "pcie_lanes_max" * 1.0;
    nvmlDeviceGetPcieReplayCounter -> c_uint = "replays" * 1.0;
    nvmlDeviceGetDisplayActive -> c_uint = "display_active" * 1.0;
    nvmlDeviceGetComputeMode -> c_uint = "compute_mode" * 1.0;
}

/// Functions with a handle, a kind and an output for one number: the readings' names by NVML's number of the kind.
macro_rules! kinds {
    ($($function:ident($kind:ty $(, $extra:ty)*) -> $number:ty = $($of:literal $name:literal),+;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function(handle: *mut c_void, kind: $kind, $(_: $extra,)* place: *mut $number) -> Code {
                let name = match kind {
                    $($of => Ok($name),)+
                    _ => Err(NOT_SUPPORTED),
                };
                let value = name.and_then(|name| reading(handle, stringify!($function), name));
                // SAFETY: callers of NVML pass valid pointers.
                unsafe { answer(place, value.map(|value| value as $number)) }
            }
        )+
    };
}

kinds! {
    nvmlDeviceGetTemperatureThreshold(c_uint) -> c_uint =
        0 "shutdown", 1 "slowdown", 2 "memory_slowdown", 3 "operating";
    nvmlDeviceGetClockInfo(c_uint) -> c_uint = 0 "sm_clock", 1 "sm_clock", 2 "memory_clock";
    nvmlDeviceGetMaxClockInfo(c_uint) -> c_uint = 0 "sm_clock_max", 1 "sm_clock_max", 2 "memory_clock_max";
    nvmlDeviceGetPcieThroughput(c_uint) -> c_uint = 0 "pcie_sent", 1 "pcie_received";
    nvmlDeviceGetTotalEccErrors(c_uint, c_uint) -> c_ulonglong = 0 "ecc_corrected", 1 "ecc_uncorrected";
}

/// Functions with a handle and outputs for two numbers.
macro_rules! pairs {
    ($($function:ident = $first:literal, $second:literal, $units:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function(handle: *mut c_void, first: *mut c_uint, second: *mut c_uint) -> Code {
                let number = |name| reading(handle, stringify!($function), name).map(|value| (value * $units) as c_uint);
                // SAFETY: callers of NVML pass valid pointers.
                let codes = unsafe { [answer(first, number($first)), answer(second, number($second))] };
                codes[0].max(codes[1])
            }
        )+
    };
}

pairs! {
    nvmlDeviceGetPowerManagementLimitConstraints = "power_min", "power_max", 1000.0;
    nvmlDeviceGetMigMode = "mig", "mig", 1.0;
    nvmlDeviceGetEncoderUtilization = "encoder", "encoder", 1.0;
    nvmlDeviceGetDecoderUtilization = "decoder", "decoder", 1.0;
}

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: *mut c_void, utilization: *mut Utilization) -> Code {
    let part = |name| reading(handle, "nvmlDeviceGetUtilizationRates", name).map(|part| part as c_uint);
    let parts = part("busy").and_then(|gpu| Ok(Utilization { gpu, memory: part("memory_busy")? }));
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(utilization, parts) }
}

/// `nvmlFieldValue_t`.
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: c_longlong,
    latency_us: c_longlong,
    value_type: c_uint,
    code: Code,
    value: c_ulonglong,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(handle: *mut c_void, count: c_int, values: *mut FieldValue) -> Code {
    /// `NVML_VALUE_TYPE_UNSIGNED_INT`
    const UNSIGNED: c_uint = 1;
    const NAME: &str = "nvmlDeviceGetFieldValues";
    if let Err(code) = card(handle, NAME) {
        return code;
    }
    for at in 0..count as usize {
        // SAFETY: callers of NVML pass `count` values with their field ids set.
        let value = unsafe { &mut *values.add(at) };
        let reading = match value.field {
            82 => reading(handle, NAME, "memory_temperature"),
            29 => reading(handle, NAME, "retired"),
            142 => reading(handle, NAME, "remapped"),
            _ => Err(NOT_SUPPORTED),
        };
        value.value_type = UNSIGNED;
        value.code = reading.err().unwrap_or(SUCCESS);
        value.value = reading.unwrap_or_default() as c_ulonglong;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    _: *mut c_void,
) -> Code {
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(count, card(handle, "nvmlDeviceGetGraphicsRunningProcesses_v3").map(|_| 0)) }
}

/// An event set: its cards, each with the number of errors already reported.
#[derive(Default)]
struct EventSet(Mutex<Vec<(usize, usize)>>);

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(set: *mut *mut EventSet) -> Code {
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(set, Ok(Box::into_raw(Box::default()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetFree(set: *mut EventSet) -> Code {
    // SAFETY: callers of NVML pass a set that was created above, and free it once.
    drop(unsafe { Box::from_raw(set) });
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceRegisterEvents(handle: *mut c_void, _: c_ulonglong, set: *mut EventSet) -> Code {
    if let Err(code) = card(handle, "nvmlDeviceRegisterEvents") {
        return code;
    }
    // SAFETY: callers of NVML pass a set that was created above.
    let mut cards = unsafe { &*set }.0.lock().expect("no holder panics");
    cards.push((index(handle), 0));
    SUCCESS
}

/// `nvmlEventData_t`.
#[repr(C)]
struct EventData {
    handle: *mut c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The next error of a card in the set. Never waits.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(set: *mut EventSet, data: *mut EventData, _: c_uint) -> Code {
    /// `nvmlEventTypeXidCriticalError`
    const XID: c_ulonglong = 8;
    if set.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: callers of NVML pass a set that was created above.
    let mut cards = unsafe { &*set }.0.lock().expect("no holder panics");
    let script: &Script = &SCRIPT;
    let next = cards.iter_mut().find_map(|(card, reported)| {
        let number = *script.xids(*card, script.now()).get(*reported)?;
        *reported += 1;
        Some((*card, number))
    });
    let next = next.map(|(card, data)| EventData {
        handle: std::ptr::without_provenance_mut(card + 1),
        kind: XID,
        data,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    });
    // SAFETY: callers of NVML pass valid pointers.
    unsafe { answer(data, next.ok_or(TIMEOUT)) }
}
