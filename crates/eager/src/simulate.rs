//! Replays the events of a process on PyTorch's allocator: its peaks, and the storages live at the peak.
//! Not here: the events (`step.rs`).

use crate::card::{Gpu, Spread};
use crate::estimate::{Estimate, Footprint, Live, Share, Shortfall};
use crate::runtime::{Event, Record};
use crate::sharding::is_parallel;
use crate::step::Steps;
use crate::usage::{Kind, Phase};
use plimsoll_torch_memory::allocator::{Allocator, BlockId, Card, Request};
use plimsoll_torch_memory::snapshot::AllocatorSettings;
use plimsoll_trainers::Run;
use plimsoll_units::Bytes;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Memory of a card without a practical limit.
const ENDLESS: u64 = 1 << 52;

/// The result of a replay.
struct Playback {
    allocated: u64,
    reserved: u64,
    phase: Phase,
    /// Storages live at the peak, with the sizes of their blocks.
    live: Vec<(u32, u64)>,
    /// The refused request, which ended the process.
    refused: Option<(u32, Phase)>,
}

/// The estimate of a run on a card.
pub(crate) fn estimate_of(steps: &Steps, run: &Run, gpu: Gpu) -> Estimate {
    let mut caveats = steps.caveats.clone();
    let mut settings = AllocatorSettings::default();
    let unknown = settings.set(&run.alloc_conf);
    caveats.extend(unknown.iter().map(|setting| format!("The allocator's {setting} is unknown and ignored.")));
    if settings.fills_cards() {
        let fills = "With expandable_segments and max_split_size_mb, PyTorch does not reuse large free blocks and reserves \
                     more until the GPU is full (pytorch/pytorch#123548); leave out max_split_size_mb.";
        caveats.push(fills.to_owned());
    }
    let context = context(run, gpu);
    let played = on_card(steps, run, gpu, context.likely, &[]);
    let shortfall = played.refused.map(|(id, phase)| {
        let Record { bytes, op, module, .. } = &steps.records[id as usize];
        Shortfall {
            request: Bytes(*bytes),
            op,
            module: module.to_string(),
            phase,
            needed: Bytes(played.allocated + context.likely),
            available: gpu.memory,
        }
    });
    let least = if shortfall.is_none() { &played } else { &on_card(steps, run, gpu, context.low, &[]) };
    Estimate {
        likely: footprint(&played, context.likely),
        range: [footprint(least, context.low), footprint(&played, context.high)],
        least_fits: least.refused.is_none(),
        phase: played.phase,
        breakdown: breakdown(&steps.records, &played.live),
        live: live(&steps.records, &played.live),
        shortfall,
        caveats,
    }
}

/// The lower bound of a run's memory without the storages of some kinds, and whether it fits on the card.
pub(crate) fn least(steps: &Steps, run: &Run, gpu: Gpu, missing: &[Kind]) -> (Footprint, bool) {
    let context = context(run, gpu).low;
    let played = on_card(steps, run, gpu, context, missing);
    (footprint(&played, context), played.refused.is_none())
}

/// The upper bound of a run's memory if storages of some kinds need twice their peak.
pub(crate) fn most(steps: &Steps, run: &Run, gpu: Gpu, twice: &[Kind]) -> Footprint {
    let context = context(run, gpu).high;
    let mut most = footprint(&on_card(steps, run, gpu, context, &[]), context);
    most.grow(peak_of(steps, twice));
    most
}

fn footprint(played: &Playback, context: u64) -> Footprint {
    Footprint { allocated: Bytes(played.allocated), reserved: Bytes(played.reserved), context: Bytes(context) }
}

fn context(run: &Run, gpu: Gpu) -> Spread {
    if is_parallel(run) { gpu.context() + gpu.nccl() } else { gpu.context() }
}

/// The sum of the peaks of the bytes in storages of each of these kinds.
pub(crate) fn peak_of(steps: &Steps, kinds: &[Kind]) -> Bytes {
    let of = |kind: &Kind| {
        let (mut live, mut peak) = (0, 0);
        for event in &steps.events {
            let (Event::Allocate(id) | Event::Free(id)) = event else { continue };
            let record = &steps.records[*id as usize];
            match event {
                _ if record.kind != *kind => {}
                Event::Allocate(_) => live += record.bytes,
                _ => live -= record.bytes,
            }
            peak = peak.max(live);
        }
        peak
    };
    Bytes(kinds.iter().map(of).sum())
}

/// Replays a process on a card with a context of this size, without storages of the missing kinds. The peak is that of
/// a card without a limit, and so are the reserved bytes if the card refuses a request.
fn on_card(steps: &Steps, run: &Run, gpu: Gpu, context: u64, missing: &[Kind]) -> Playback {
    let mut settings = AllocatorSettings::default();
    settings.set(&run.alloc_conf);
    let available = gpu.memory.0.saturating_sub(context);
    let fraction = run.memory_fraction.or(settings.memory_fraction);
    let allowed = fraction.map(|fraction| (gpu.memory.as_f64() * fraction) as u64);
    let endless = play(steps, settings.clone(), ENDLESS, None, missing);
    // When the card is nearly full, the allocator frees cached memory, which changes the peak but not whether the run
    // fits.
    if endless.reserved <= available.min(allowed.unwrap_or(available)) {
        return endless;
    }
    let limited = play(steps, settings.clone(), available, allowed, missing);
    let reserved = match &limited.refused {
        _ if settings.fills_cards() => least_capacity(steps, &settings, &endless, missing),
        None => limited.reserved,
        Some(_) => endless.reserved,
    };
    Playback { reserved, refused: limited.refused, ..endless }
}

/// The memory of the smallest card that the process runs on, to 32 MiB: for settings that reserve all available memory.
fn least_capacity(steps: &Steps, settings: &AllocatorSettings, endless: &Playback, missing: &[Kind]) -> u64 {
    const STEP: u64 = 32 << 20;
    let (mut refused, mut enough) = (endless.allocated.saturating_sub(1), endless.reserved);
    while enough - refused > STEP {
        let middle = refused.midpoint(enough);
        match play(steps, settings.clone(), middle, None, missing).refused {
            Some(_) => refused = middle,
            None => enough = middle,
        }
    }
    enough
}

/// Replays events on an allocator with `capacity` bytes.
fn play(steps: &Steps, settings: AllocatorSettings, capacity: u64, allowed: Option<u64>, missing: &[Kind]) -> Playback {
    let mut allocator = Allocator::new(settings, allowed);
    let mut card = Card::new(capacity);
    let mut blocks: FxHashMap<u32, BlockId> = FxHashMap::default();
    let mut played = Playback { allocated: 0, reserved: 0, phase: Phase::Load, live: vec![], refused: None };
    let mut phase = Phase::Load;
    let mut peak_at = 0;
    for (at, event) in steps.events.iter().enumerate() {
        match event {
            Event::Enter(next) => phase = *next,
            Event::Free(id) => {
                if let Some(block) = blocks.remove(id) {
                    allocator.free(block);
                }
            }
            Event::Allocate(id) => {
                let Record { bytes, kind, .. } = steps.records[*id as usize];
                // PyTorch allocates no block for an empty tensor.
                if bytes == 0 || missing.contains(&kind) {
                    continue;
                }
                match allocator.allocate(Request { bytes, stream: 0, pool: (0, 0) }, &mut card) {
                    Ok(block) => blocks.insert(*id, block),
                    Err(_) => {
                        played.refused = Some((*id, phase));
                        return played;
                    }
                };
                if allocator.in_use() > played.allocated {
                    (played.allocated, played.phase, peak_at) = (allocator.in_use(), phase, at);
                }
                played.reserved = played.reserved.max(allocator.reserved());
            }
        }
    }
    played.live = live_at(steps, peak_at);
    played
}

/// The storages live after an event, with their sizes as the allocator rounds them.
fn live_at(steps: &Steps, at: usize) -> Vec<(u32, u64)> {
    let mut live = rustc_hash::FxHashSet::default();
    for event in &steps.events[..=at.min(steps.events.len().saturating_sub(1))] {
        match event {
            Event::Allocate(id) => drop(live.insert(*id)),
            Event::Free(id) => drop(live.remove(id)),
            Event::Enter(_) => {}
        }
    }
    let rounded = |id: u32| (id, AllocatorSettings::default().rounded(steps.records[id as usize].bytes));
    let mut live =
        live.into_iter().map(rounded).filter(|(id, _)| steps.records[*id as usize].bytes > 0).collect::<Vec<_>>();
    live.sort_unstable();
    live
}

fn breakdown(records: &[Record], live: &[(u32, u64)]) -> Vec<Share> {
    let mut shares: FxHashMap<(Kind, &'static str), (u64, u64)> = FxHashMap::default();
    for (id, bytes) in live {
        let record = &records[*id as usize];
        let share = shares.entry((record.kind, record.op)).or_default();
        *share = (share.0 + bytes, share.1 + 1);
    }
    let share = |((kind, op), (bytes, count))| Share { kind, op, bytes: Bytes(bytes), count };
    let mut shares = shares.into_iter().map(share).collect::<Vec<_>>();
    shares.sort_by_key(|share| (Reverse(share.bytes), share.kind, share.op));
    shares
}

fn live(records: &[Record], live: &[(u32, u64)]) -> Vec<Live> {
    let mut entries: FxHashMap<(u64, &'static str, Kind, String), (u64, u32)> = FxHashMap::default();
    for (id, _) in live {
        let Record { bytes, shape, dtype, op, kind, .. } = &records[*id as usize];
        let shape = format!("{shape:?} {dtype:?}").to_lowercase();
        let entry = entries.entry((*bytes, op, *kind, shape)).or_insert((0, *id));
        *entry = (entry.0 + 1, entry.1.min(*id));
    }
    let entry = |((bytes, op, kind, shape), (count, first)): ((u64, &'static str, Kind, String), (u64, u32))| Live {
        bytes: Bytes(bytes),
        count,
        shape,
        kind,
        op,
        module: records[first as usize].module.to_string(),
    };
    let mut entries = entries.into_iter().map(entry).collect::<Vec<_>>();
    entries.sort_by(|a, b| {
        let key = |live: &Live| (Reverse(live.bytes.0 * live.count), live.kind, live.op);
        key(a).cmp(&key(b)).then_with(|| a.shape.cmp(&b.shape))
    });
    entries
}
