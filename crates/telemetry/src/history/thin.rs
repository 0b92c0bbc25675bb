//! Thins records: merges those of several seconds into one. Temperatures and pressure keep the maximum, rates and
//! shares the mean, counters and sizes the last value, throttling reasons their union.

use super::record::{Readings, SampleRecord};
use crate::sample::{CardSample, SystemSample, Throttling};

/// Merges records of one card or of the system: not empty, in time order.
pub(super) fn merged(records: &[SampleRecord]) -> SampleRecord {
    let samples = records.iter().map(|record| u32::from(record.samples)).sum::<u32>().min(u32::from(u16::MAX)) as u16;
    let cards = records.iter().filter_map(|record| match &record.readings {
        Readings::Card(card) => Some((&**card, f64::from(record.samples))),
        Readings::System(_) => None,
    });
    let cards = cards.collect::<Vec<_>>();
    let systems = records.iter().filter_map(|record| match &record.readings {
        Readings::System(system) => Some((system, f64::from(record.samples))),
        Readings::Card(_) => None,
    });
    let systems = systems.collect::<Vec<_>>();
    let readings =
        if cards.is_empty() { Readings::System(system(&systems)) } else { Readings::Card(Box::new(card(&cards))) };
    SampleRecord { time_s: records.first().map_or(0.0, |record| record.time_s), samples, readings }
}

/// The weighted mean of the known readings.
fn mean<T>(all: &[(&T, f64)], reading: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    let known = all.iter().filter_map(|(one, weight)| Some((reading(one)?, *weight)));
    let (sum, weights) = known.fold((0.0, 0.0), |(sum, all), (value, weight)| (sum + value * weight, all + weight));
    (weights > 0.0).then(|| sum / weights)
}

fn most<T>(all: &[(&T, f64)], reading: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    all.iter().filter_map(|(one, _)| reading(one)).reduce(f64::max)
}

fn last<T, U>(all: &[(&T, f64)], reading: impl Fn(&T) -> Option<U>) -> Option<U> {
    all.iter().rev().find_map(|(one, _)| reading(one))
}

fn card(all: &[(&CardSample, f64)]) -> CardSample {
    let part = |reading: fn(&CardSample) -> Option<u32>| {
        mean(all, |card| reading(card).map(f64::from)).map(|mean| mean.round() as u32)
    };
    let reasons = all.iter().filter_map(|(card, _)| card.throttling).reduce(|a, b| Throttling(a.0 | b.0));
    CardSample {
        index: all.first().map_or(0, |(card, _)| card.index),
        // A card counts as lost only if it was lost all the time.
        lost: if all.iter().all(|(card, _)| card.lost.is_some()) { last(all, |card| card.lost.clone()) } else { None },
        temperature_c: most(all, |card| card.temperature_c),
        memory_temperature_c: most(all, |card| card.memory_temperature_c),
        hotspot_temperature_c: most(all, |card| card.hotspot_temperature_c),
        power_w: mean(all, |card| card.power_w),
        power_limit_w: last(all, |card| card.power_limit_w),
        energy_j: last(all, |card| card.energy_j),
        sm_clock_mhz: part(|card| card.sm_clock_mhz),
        memory_clock_mhz: part(|card| card.memory_clock_mhz),
        throttling: reasons,
        performance_state: last(all, |card| card.performance_state),
        fan_percent: part(|card| card.fan_percent),
        busy_percent: part(|card| card.busy_percent),
        memory_busy_percent: part(|card| card.memory_busy_percent),
        encoder_percent: part(|card| card.encoder_percent),
        decoder_percent: part(|card| card.decoder_percent),
        total: last(all, |card| card.total),
        used: last(all, |card| card.used),
        free: last(all, |card| card.free),
        reserved: last(all, |card| card.reserved),
        pcie_generation: last(all, |card| card.pcie_generation),
        pcie_lanes: last(all, |card| card.pcie_lanes),
        pcie_received_bytes_per_s: mean(all, |card| card.pcie_received_bytes_per_s),
        pcie_sent_bytes_per_s: mean(all, |card| card.pcie_sent_bytes_per_s),
        pcie_replays: last(all, |card| card.pcie_replays),
        ecc_corrected: last(all, |card| card.ecc_corrected),
        ecc_uncorrected: last(all, |card| card.ecc_uncorrected),
        retired_pages: last(all, |card| card.retired_pages),
        remapped_rows: last(all, |card| card.remapped_rows),
        xids: last(all, |card| card.xids.last().copied()).into_iter().collect(),
        ..CardSample::default()
    }
}

fn system(all: &[(&SystemSample, f64)]) -> SystemSample {
    SystemSample {
        cpu_percent: mean(all, |system| system.cpu_percent),
        cores: last(all, |system| system.cores),
        memory_total: last(all, |system| system.memory_total),
        memory_available: last(all, |system| system.memory_available),
        swap_used: last(all, |system| system.swap_used),
        process: last(all, |system| system.process),
        cpu_pressure_percent: most(all, |system| system.cpu_pressure_percent),
        memory_pressure_percent: most(all, |system| system.memory_pressure_percent),
        io_pressure_percent: most(all, |system| system.io_pressure_percent),
        group_limit: last(all, |system| system.group_limit),
        group_used: last(all, |system| system.group_used),
        disk_total: last(all, |system| system.disk_total),
        disk_free: last(all, |system| system.disk_free),
    }
}
