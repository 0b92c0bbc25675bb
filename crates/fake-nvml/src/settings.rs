//! Card settings made through NVML: power limit and clock offsets. Part of the stand-in, compiled into it. They are
//! stored in the file that `PLIMSOLL_FAKE_NVML_STATE` names, since a card keeps them when a process ends; without one,
//! in memory.
//! A line is a card, a name and a value (W, MHz); the last one wins. Other processes may write to the file as well.

use super::{ARGUMENT_VERSION_MISMATCH, Code, INVALID_ARGUMENT, SUCCESS, answer, card, index, reading};
use std::env;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::sync::Mutex;

/// Settings in memory.
static STORED: Mutex<String> = Mutex::new(String::new());

/// The last value of a card's setting.
pub fn stored(card: usize, name: &str) -> Option<f64> {
    let text = match env::var_os("PLIMSOLL_FAKE_NVML_STATE") {
        Some(file) => fs::read_to_string(file).unwrap_or_default(),
        None => STORED.lock().expect("no holder panics").clone(),
    };
    text.lines().rev().find_map(|line| match &line.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        [of, what, value] if of.parse() == Ok(card) && *what == name => value.parse().ok(),
        _ => None,
    })
}

fn store(card: usize, name: &str, value: f64) {
    let line = format!("{card} {name} {value}\n");
    match env::var_os("PLIMSOLL_FAKE_NVML_STATE") {
        Some(file) => {
            let opened = OpenOptions::new().append(true).create(true).open(&file);
            let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
            written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        None => STORED.lock().expect("no holder panics").push_str(&line),
    }
}

/// Stores a setting, checked against the card's limits.
fn set(handle: *mut c_void, function: &str, name: &str, value: f64) -> Code {
    if let Err(code) = card(handle, function) {
        return code;
    }
    let [least, most] = bounds_of(name).map(|name| reading(handle, function, name));
    if least.is_ok_and(|least| value < least) || most.is_ok_and(|most| value > most) {
        return INVALID_ARGUMENT;
    }
    store(index(handle), name, value);
    SUCCESS
}

fn bounds_of(name: &str) -> [&'static str; 2] {
    match name {
        "power_limit" => ["power_min", "power_max"],
        "clock_offset" => ["clock_offset_min", "clock_offset_max"],
        _ => ["memory_clock_offset_min", "memory_clock_offset_max"],
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPowerManagementLimit(handle: *mut c_void, milliwatts: c_uint) -> Code {
    set(handle, "nvmlDeviceSetPowerManagementLimit", "power_limit", f64::from(milliwatts) / 1000.0)
}

/// The older functions of a clock offset: its reading, setting and limits.
macro_rules! offsets {
    ($($get:ident, $set:ident, $bounds:ident = $name:literal;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $get(handle: *mut c_void, place: *mut c_int) -> Code {
                let value = reading(handle, stringify!($get), $name).map(|mhz| mhz as c_int);
                // SAFETY: callers of NVML pass valid pointers.
                unsafe { answer(place, value) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn $set(handle: *mut c_void, mhz: c_int) -> Code {
                set(handle, stringify!($set), $name, f64::from(mhz))
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $bounds(handle: *mut c_void, least: *mut c_int, most: *mut c_int) -> Code {
                let bound = |name| reading(handle, stringify!($bounds), name).map(|mhz| mhz as c_int);
                let [of_least, of_most] = bounds_of($name).map(bound);
                // SAFETY: callers of NVML pass valid pointers.
                let codes = unsafe { [answer(least, of_least), answer(most, of_most)] };
                codes[0].max(codes[1])
            }
        )+
    };
}

offsets! {
    nvmlDeviceGetGpcClkVfOffset, nvmlDeviceSetGpcClkVfOffset, nvmlDeviceGetGpcClkMinMaxVfOffset = "clock_offset";
    nvmlDeviceGetMemClkVfOffset, nvmlDeviceSetMemClkVfOffset, nvmlDeviceGetMemClkMinMaxVfOffset = "memory_clock_offset";
}

/// `nvmlClockOffset_v1_t`, in MHz.
#[repr(C)]
struct ClockOffset {
    version: c_uint,
    clock: c_uint,
    state: c_uint,
    offset: c_int,
    least: c_int,
    most: c_int,
}

const CLOCK_OFFSET_V1: c_uint = size_of::<ClockOffset>() as c_uint | 1 << 24;

impl ClockOffset {
    /// The setting's name. Errors: another struct version, another clock, or a performance state other than the fastest.
    fn name(&self) -> Result<&'static str, Code> {
        match (self.version, self.clock, self.state) {
            (CLOCK_OFFSET_V1, 0, 0) => Ok("clock_offset"),
            (CLOCK_OFFSET_V1, 2, 0) => Ok("memory_clock_offset"),
            (CLOCK_OFFSET_V1, ..) => Err(INVALID_ARGUMENT),
            _ => Err(ARGUMENT_VERSION_MISMATCH),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockOffsets(handle: *mut c_void, info: *mut ClockOffset) -> Code {
    // SAFETY: callers of NVML pass the struct with version, clock and state set.
    let info = unsafe { &mut *info };
    let number = |name| reading(handle, "nvmlDeviceGetClockOffsets", name).map(|mhz| mhz as c_int);
    let read = info.name().and_then(|name| {
        let [least, most] = bounds_of(name).map(number);
        Ok((number(name)?, least?, most?))
    });
    match read {
        Ok((offset, least, most)) => {
            (info.offset, info.least, info.most) = (offset, least, most);
            SUCCESS
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetClockOffsets(handle: *mut c_void, info: *mut ClockOffset) -> Code {
    // SAFETY: callers of NVML pass the struct with version, clock, state and offset set.
    let info = unsafe { &*info };
    match info.name() {
        Ok(name) => set(handle, "nvmlDeviceSetClockOffsets", name, f64::from(info.offset)),
        Err(code) => code,
    }
}
