//! A record: the readings of one card, or of the system, over a second or longer, in 96 bytes.
//!
//! ```text
//!    0  checksum of the rest              u32
//!    4  kind: 1 a card, 2 the system      u8
//!    5  index of the card                 u8
//!    6  number of merged samples          u16
//!    8  milliseconds since 1970           u64
//!   16  readings at fixed offsets; the largest number of a type marks a missing reading
//! ```

use crate::sample::{CardLimits, CardSample, SystemSample, Throttling};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of a record.
pub(super) const RECORD: usize = 96;

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SampleRecord {
    /// Seconds since 1970, to the millisecond.
    pub time_s: f64,
    /// Number of samples merged into it.
    pub samples: u16,
    pub readings: Readings,
}

/// A card's name and limits, which its records do not contain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CardName {
    pub uuid: String,
    pub name: String,
    pub limits: CardLimits,
}

/// The source of a record, with its readings.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Readings {
    Card(Box<CardSample>),
    System(SystemSample),
}

/// FNV-1a in 32 bits.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Writes readings one after another.
struct Writer {
    bytes: [u8; RECORD],
    at: usize,
}

impl Writer {
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    fn byte(&mut self, value: Option<u32>) {
        self.put([value.map_or(u8::MAX, |value| value.min(u32::from(u8::MAX) - 1) as u8)]);
    }

    /// A number in units of 1 / `parts`, such as tenths.
    fn short(&mut self, value: Option<f64>, parts: f64) {
        let most = f64::from(u16::MAX) - 1.0;
        let value = value.filter(|value| !value.is_nan()).map(|value| (value * parts).round().clamp(0.0, most) as u16);
        self.put(value.unwrap_or(u16::MAX).to_le_bytes());
    }

    fn word(&mut self, value: Option<u64>) {
        self.put(value.map_or(u32::MAX, |value| value.min(u64::from(u32::MAX) - 1) as u32).to_le_bytes());
    }

    fn kib(&mut self, value: Option<Bytes>) {
        self.word(value.map(|bytes| bytes.0 / 1024));
    }

    fn long(&mut self, value: Option<f64>) {
        let value = value.filter(|value| !value.is_nan()).map_or(u64::MAX, |value| value.max(0.0) as u64);
        self.put(value.to_le_bytes());
    }
}

/// Reads readings one after another.
struct Reader<'a> {
    bytes: &'a [u8; RECORD],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let bytes = &self.bytes[self.at..self.at + N];
        self.at += N;
        bytes.try_into().expect("the slice has this length")
    }

    fn byte(&mut self) -> Option<u32> {
        let [value] = self.take();
        (value != u8::MAX).then_some(u32::from(value))
    }

    fn short(&mut self, parts: f64) -> Option<f64> {
        let value = u16::from_le_bytes(self.take());
        (value != u16::MAX).then_some(f64::from(value) / parts)
    }

    fn whole(&mut self) -> Option<u32> {
        self.short(1.0).map(|value| value as u32)
    }

    fn word(&mut self) -> Option<u64> {
        let value = u32::from_le_bytes(self.take());
        (value != u32::MAX).then_some(u64::from(value))
    }

    fn kib(&mut self) -> Option<Bytes> {
        self.word().map(|kib| Bytes(kib * 1024))
    }

    fn long(&mut self) -> Option<f64> {
        let value = u64::from_le_bytes(self.take());
        (value != u64::MAX).then_some(value as f64)
    }
}

/// A card's record.
pub(super) fn card_record(time_s: f64, samples: u16, card: &CardSample) -> [u8; RECORD] {
    let number = u8::try_from(card.index).unwrap_or(u8::MAX);
    record([1, number], time_s, samples, |writer| encode_card(writer, card))
}

/// The system's record.
pub(super) fn system_record(time_s: f64, samples: u16, system: &SystemSample) -> [u8; RECORD] {
    record([2, 0], time_s, samples, |writer| encode_system(writer, system))
}

fn record(head: [u8; 2], time_s: f64, samples: u16, readings: impl FnOnce(&mut Writer)) -> [u8; RECORD] {
    let mut writer = Writer { bytes: [0; RECORD], at: 4 };
    writer.put(head);
    writer.put(samples.to_le_bytes());
    writer.put(((time_s * 1000.0).round() as u64).to_le_bytes());
    readings(&mut writer);
    let sum = checksum(&writer.bytes[4..]);
    writer.bytes[..4].copy_from_slice(&sum.to_le_bytes());
    writer.bytes
}

impl SampleRecord {
    pub fn encode(&self) -> [u8; RECORD] {
        match &self.readings {
            Readings::Card(card) => card_record(self.time_s, self.samples, card),
            Readings::System(system) => system_record(self.time_s, self.samples, system),
        }
    }

    /// Decodes a record; `None` if it is damaged or not a record.
    pub fn decode(bytes: &[u8; RECORD]) -> Option<Self> {
        let mut reader = Reader { bytes, at: 0 };
        if u32::from_le_bytes(reader.take()) != checksum(&bytes[4..]) {
            return None;
        }
        let [kind, number] = reader.take();
        let samples = u16::from_le_bytes(reader.take());
        let time_s = u64::from_le_bytes(reader.take()) as f64 / 1000.0;
        let readings = match kind {
            1 => Readings::Card(Box::new(decode_card(&mut reader, u32::from(number)))),
            2 => Readings::System(decode_system(&mut reader)),
            _ => return None,
        };
        Some(Self { time_s, samples, readings })
    }
}

fn encode_card(writer: &mut Writer, card: &CardSample) {
    for celsius in [card.temperature_c, card.memory_temperature_c, card.hotspot_temperature_c] {
        writer.short(celsius, 10.0);
    }
    writer.short(card.power_w, 10.0);
    writer.short(card.power_limit_w, 10.0);
    writer.short(card.sm_clock_mhz.map(f64::from), 1.0);
    writer.short(card.memory_clock_mhz.map(f64::from), 1.0);
    writer.short(card.throttling.map(|reasons| (reasons.0 & 0x7fff) as f64), 1.0);
    for part in [card.performance_state, card.fan_percent, card.busy_percent, card.memory_busy_percent] {
        writer.byte(part);
    }
    for part in [card.encoder_percent, card.decoder_percent, card.pcie_generation, card.pcie_lanes] {
        writer.byte(part);
    }
    for bytes in [card.used, card.free, card.reserved] {
        writer.kib(bytes);
    }
    for rate in [card.pcie_received_bytes_per_s, card.pcie_sent_bytes_per_s] {
        writer.word(rate.map(|rate| (rate / 1024.0) as u64));
    }
    for count in [card.pcie_replays, card.ecc_corrected, card.ecc_uncorrected, card.retired_pages, card.remapped_rows] {
        writer.word(count);
    }
    writer.long(card.energy_j);
    writer.short(card.xids.last().map(|number| *number as f64), 1.0);
    // 0: the card responded; 1: it did not.
    writer.byte(Some(u32::from(card.lost.is_some())));
}

fn decode_card(reader: &mut Reader, index: u32) -> CardSample {
    let [temperature_c, memory_temperature_c, hotspot_temperature_c] = [(); 3].map(|()| reader.short(10.0));
    let [power_w, power_limit_w] = [(); 2].map(|()| reader.short(10.0));
    let [sm_clock_mhz, memory_clock_mhz] = [(); 2].map(|()| reader.whole());
    let throttling = reader.whole().map(|bits| Throttling(u64::from(bits)));
    let [performance_state, fan_percent, busy_percent, memory_busy_percent] = [(); 4].map(|()| reader.byte());
    let [encoder_percent, decoder_percent, pcie_generation, pcie_lanes] = [(); 4].map(|()| reader.byte());
    let [used, free, reserved] = [(); 3].map(|()| reader.kib());
    let total = used.zip(free).map(|(used, free)| used + free + reserved.unwrap_or_default());
    let [received, sent] = [(); 2].map(|()| reader.word().map(|kib| kib as f64 * 1024.0));
    let [pcie_replays, ecc_corrected, ecc_uncorrected, retired_pages, remapped_rows] = [(); 5].map(|()| reader.word());
    let energy_j = reader.long();
    let xids = reader.whole().map(u64::from).into_iter().collect();
    let lost = (reader.byte() == Some(1)).then(|| "it did not respond".to_owned());
    CardSample {
        index,
        lost,
        temperature_c,
        memory_temperature_c,
        hotspot_temperature_c,
        power_w,
        power_limit_w,
        energy_j,
        sm_clock_mhz,
        memory_clock_mhz,
        throttling,
        performance_state,
        fan_percent,
        busy_percent,
        memory_busy_percent,
        encoder_percent,
        decoder_percent,
        total,
        used,
        free,
        reserved,
        pcie_generation,
        pcie_lanes,
        pcie_received_bytes_per_s: received,
        pcie_sent_bytes_per_s: sent,
        pcie_replays,
        ecc_corrected,
        ecc_uncorrected,
        retired_pages,
        remapped_rows,
        xids,
        ..CardSample::default()
    }
}

fn encode_system(writer: &mut Writer, system: &SystemSample) {
    let pressures = [system.cpu_pressure_percent, system.memory_pressure_percent, system.io_pressure_percent];
    writer.short(system.cpu_percent, 100.0);
    pressures.into_iter().for_each(|part| writer.short(part, 100.0));
    writer.short(system.cores.map(f64::from), 1.0);
    let sizes = [system.memory_total, system.memory_available, system.swap_used, system.process];
    let others = [system.group_limit, system.group_used, system.disk_total, system.disk_free];
    for bytes in sizes.into_iter().chain(others) {
        writer.long(bytes.map(|bytes| bytes.0 as f64));
    }
}

fn decode_system(reader: &mut Reader) -> SystemSample {
    let [cpu_percent, cpu_pressure_percent, memory_pressure_percent, io_pressure_percent] =
        [(); 4].map(|()| reader.short(100.0));
    let cores = reader.whole();
    let [memory_total, memory_available, swap_used, process, group_limit, group_used, disk_total, disk_free] =
        [(); 8].map(|()| reader.long().map(|bytes| Bytes(bytes as u64)));
    SystemSample {
        cpu_percent,
        cores,
        memory_total,
        memory_available,
        swap_used,
        process,
        cpu_pressure_percent,
        memory_pressure_percent,
        io_pressure_percent,
        group_limit,
        group_used,
        disk_total,
        disk_free,
    }
}
