//! `replay --json`.

use super::{ReplayReport, line_of, reasons, wasted};
use plimsoll_torch_memory::allocator::{DriverEvent, DriverEventKind};
use plimsoll_torch_memory::examine::Examined;
use plimsoll_torch_memory::findings::{Copies, Owner, Owners};
use plimsoll_torch_memory::replay::{Agreement, Count, Difference, SegmentCount};
use serde_json::{Value, json};

/// All of it. Units are in the keys.
pub fn replay_json(report: &ReplayReport, milliseconds: f64) -> Value {
    let ReplayReport { name, snapshot, cards, .. } = report;
    let mut all = Agreement::default();
    for card in *cards {
        let Agreement { segment_events, addresses, .. } = &card.replay.agreement;
        all.segment_events.recorded += segment_events.recorded;
        all.segment_events.simulated += segment_events.simulated;
        all.segment_events.equal += segment_events.equal;
        all.addresses.events += addresses.events;
        all.addresses.equal += addresses.equal;
    }
    json!({
        "snapshot": name,
        "segment_events": segment_events(all.segment_events),
        "addresses": count(all.addresses),
        "settings": {
            "recorded": snapshot.settings_recorded,
            "conf": snapshot.conf,
            "in_force": snapshot.settings.conf(),
        },
        "unknown": snapshot.unknown,
        "cards": cards.iter().map(|card| card_json(report, card)).collect::<Vec<_>>(),
        "milliseconds": milliseconds,
    })
}

fn segment_events(SegmentCount { recorded, simulated, equal }: SegmentCount) -> Value {
    json!({ "recorded": recorded, "simulated": simulated, "equal": equal })
}

fn count(Count { events, equal }: Count) -> Value {
    json!({ "events": events, "equal": equal })
}

fn card_json(report: &ReplayReport, card: &Examined) -> Value {
    let (agreement, start, peak) = (&card.replay.agreement, &card.replay.start, card.at_its_peak());
    let blocks_at_end = agreement.blocks_at_end;
    let outcomes = card.outcomes.iter().map(|outcome| {
        json!({
            "conf": outcome.settings.conf(),
            "peak_reserved_bytes": outcome.peak_reserved,
            "wasted_bytes": wasted(card, outcome),
            "driver_calls": outcome.driver_calls,
            "refused_requests": outcome.refused,
        })
    });
    let recommended = card.outcomes.first().zip(card.outcomes.get(card.best)).map(|(recorded, best)| {
        json!({
            "line": line_of(&best.settings),
            "conf": best.settings.conf(),
            "is_recorded": card.best == 0,
            "saved_bytes": recorded.peak_reserved.saturating_sub(best.peak_reserved),
        })
    });
    let owned = card.at_peak.iter().map(|owned| {
        let mut value = owner(report.owners.get(owned.owner));
        value["bytes"] = json!(owned.bytes);
        value["blocks"] = json!(owned.blocks);
        value
    });
    let growth = card.growth.iter().map(|growth| {
        let mut value = owner(report.owners.get(growth.owner));
        value["bytes"] = json!(growth.bytes);
        value["steps"] = json!(growth.steps);
        value
    });
    json!({
        "card": card.record.card,
        "events": card.record.events.len(),
        "has_history": card.has_history(),
        "segment_events": segment_events(agreement.segment_events),
        "addresses": count(agreement.addresses),
        "blocks_at_end": { "recorded": blocks_at_end.events, "equal": blocks_at_end.equal },
        "contradictions": agreement.contradictions,
        "differences": agreement.first.iter().map(difference).collect::<Vec<_>>(),
        "reasons": reasons(report, card),
        "start": {
            "segments": start.ranges.len(),
            "reserved_bytes": start.ranges.iter().map(|range| range.bytes).sum::<u64>(),
            "blocks": start.blocks.len(),
            "allocated_bytes": start.blocks.iter().map(|block| block.bytes).sum::<u64>(),
        },
        "peak": {
            "after_events": card.peak,
            "allocated_bytes": peak.in_use,
            "requested_bytes": peak.requested,
            "reserved_bytes": peak.reserved,
            "owners": owned.collect::<Vec<_>>(),
        },
        "peak_reserved_bytes": card.peak_reserved(),
        "out_of_memory": card.replay.out_of_memory.iter().map(|(event, free)| {
            json!({ "event": event, "requested_bytes": card.record.events[*event].bytes, "card_free_bytes": free })
        }).collect::<Vec<_>>(),
        "capacity_bytes": card.capacity,
        "settings": outcomes.collect::<Vec<_>>(),
        "recommended": recommended,
        "least": card.least.map(|least| json!({ "bound_bytes": least.bound, "arena_bytes": least.packed })),
        "growth": {
            "steps": card.steps.ends.len(),
            "annotated": card.steps.annotated,
            "enough_steps": card.steps.are_enough(),
            "owners": growth.collect::<Vec<_>>(),
        },
        "copies": card.copies.iter().map(|copies| copies_json(report.owners, copies)).collect::<Vec<_>>(),
    })
}

fn owner(owner: &Owner) -> Value {
    let mut value = json!({ "owner": owner.to_string() });
    if let Owner::Line { function, file, line } = owner {
        value["function"] = json!(function);
        value["file"] = json!(file);
        value["line"] = json!(line);
    }
    value
}

fn copies_json(owners: &Owners, copies: &Copies) -> Value {
    let each = copies.copies.iter().map(|copy| {
        let mut value = owner(owners.get(copy.owner));
        value["bytes"] = json!(copy.bytes);
        value["first_event"] = json!(copy.from);
        value
    });
    json!({ "tensors": copies.tensors, "wasted_bytes": copies.wasted, "copies": each.collect::<Vec<_>>() })
}

fn difference(difference: &Difference) -> Value {
    let events = |events: &[DriverEvent]| {
        let one = |event: &DriverEvent| {
            let action = match event.kind {
                DriverEventKind::Take => "segment_alloc",
                DriverEventKind::GiveBack => "segment_free",
                DriverEventKind::Map => "segment_map",
                DriverEventKind::Unmap => "segment_unmap",
            };
            json!({ "action": action, "address": event.address, "bytes": event.bytes })
        };
        events.iter().map(one).collect::<Vec<_>>()
    };
    match difference {
        Difference::Address { event, recorded, simulated } => {
            json!({ "event": event, "recorded_address": recorded, "simulated_address": simulated })
        }
        Difference::Segments { event, recorded, simulated } => {
            json!({ "event": event, "recorded_segments": events(recorded), "simulated_segments": events(simulated) })
        }
    }
}
