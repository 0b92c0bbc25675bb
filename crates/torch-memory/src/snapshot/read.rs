//! Converts a pickle's values to a snapshot.

use super::settings::AllocatorSettings;
use super::stacks::{Frame, StackId, Stacks};
use super::{Action, Annotation, Block, BlockState, CardRecord, Segment, Snapshot, SnapshotError, TraceEvent};
use crate::pickle::{self, Document, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// More than any machine has: a file with more is not a snapshot.
const MAX_CARDS: usize = 1024;

pub(super) fn snapshot(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    let document = pickle::read(bytes)?;
    let mut reader = Reader {
        document: &document,
        stacks: Stacks::default(),
        by_list: FxHashMap::default(),
        unknown: BTreeSet::new(),
        seen: 0,
    };
    reader.snapshot()
}

struct Reader<'a> {
    document: &'a Document<'a>,
    stacks: Stacks,
    /// Stacks by the list they were read from: many events share one list.
    by_list: FxHashMap<u32, StackId>,
    unknown: BTreeSet<String>,
    /// Number of events and blocks read; it can't exceed the pickle's values.
    seen: usize,
}

/// A dictionary of the snapshot, and its position for errors.
struct Dictionary<'a> {
    document: &'a Document<'a>,
    value: Value,
    place: String,
}

impl<'a> Dictionary<'a> {
    fn damaged(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Damaged { place: self.place.clone(), what }
    }

    fn get(&self, key: &str) -> Option<Value> {
        self.document.get(self.value, key)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.document.text(self.get(key)?)
    }

    fn truth(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Value::Bool(true) | Value::Int(1)))
    }

    /// A non-negative integer; streams and addresses above 2^63 do not occur.
    fn number(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Int(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }

    /// A size or an address, limited so that the sum of two fits in 64 bits.
    fn size(&self, key: &str, missing: &'static str) -> Result<u64, SnapshotError> {
        self.number(key).filter(|number| *number < 1 << 62).ok_or_else(|| self.damaged(missing))
    }
}

impl<'a> Reader<'a> {
    fn snapshot(&mut self) -> Result<Snapshot, SnapshotError> {
        let root = self.record(self.document.root(), || "top level".to_owned());
        let foreign = |what: &str| SnapshotError::Foreign { what: what.to_owned() };
        if self.document.entries(root.value).is_none() {
            return Err(foreign("its top level is not a dictionary"));
        }
        let list = |key: &str| root.get(key).and_then(|value| self.document.items(value));
        let segments = list("segments").ok_or_else(|| foreign("it has no `segments`"))?;
        let traces = list("device_traces").ok_or_else(|| foreign("it has no `device_traces`"))?;
        if traces.len() > MAX_CARDS {
            return Err(root.damaged("lists more GPUs than any machine has"));
        }
        self.note_unknown(
            &root,
            &["segments", "device_traces", "allocator_settings", "external_annotations", "version"],
            "field",
        );
        let (settings, conf) = self.settings(&root)?;
        let mut cards: Vec<CardRecord> = vec![];
        for (card, trace) in traces.iter().enumerate() {
            let card = u32::try_from(card).expect("fewer than MAX_CARDS");
            cards.push(CardRecord { card, segments: vec![], events: self.events(card, *trace)? });
        }
        for (index, value) in segments.iter().enumerate() {
            let record = self.record(*value, || format!("segment {index}"));
            let card = record.number("device").unwrap_or(0);
            let segment = self.segment(&record)?;
            let card = usize::try_from(card).ok().filter(|card| *card < MAX_CARDS);
            let card = card.ok_or_else(|| record.damaged("has an invalid GPU number"))?;
            while cards.len() <= card {
                cards.push(CardRecord { card: cards.len() as u32, ..CardRecord::default() });
            }
            cards[card].segments.push(segment);
        }
        for card in &mut cards {
            card.segments.sort_by_key(|segment| segment.address);
            if card.segments.windows(2).any(|pair| pair[0].address + pair[0].bytes > pair[1].address) {
                return Err(SnapshotError::Damaged { place: "segments".to_owned(), what: "overlap" });
            }
        }
        cards.retain(|card| !card.segments.is_empty() || !card.events.is_empty());
        Ok(Snapshot {
            cards,
            settings,
            settings_recorded: root.get("allocator_settings").is_some(),
            conf,
            annotations: self.annotations(&root),
            stacks: std::mem::take(&mut self.stacks),
            unknown: std::mem::take(&mut self.unknown).into_iter().collect(),
        })
    }

    fn record(&self, value: Value, place: impl FnOnce() -> String) -> Dictionary<'a> {
        Dictionary { document: self.document, value, place: place() }
    }

    /// Notes the unknown keys of a dictionary.
    fn note_unknown(&mut self, record: &Dictionary, known: &[&str], what: &str) {
        for (key, _) in self.document.entries(record.value).unwrap_or_default() {
            if let Some(key) = self.document.text(*key).filter(|key| !known.contains(key)) {
                self.note(format!("{what} `{}`", key.chars().take(60).collect::<String>()));
            }
        }
    }

    fn note(&mut self, what: String) {
        // A normal snapshot has a few; the limit stops hostile ones.
        if self.unknown.len() < 100 {
            self.unknown.insert(what);
        }
    }

    /// Counts what is read against the size of the pickle, since shared lists could be read repeatedly.
    fn count(&mut self, more: usize, place: &Dictionary) -> Result<(), SnapshotError> {
        self.seen += more;
        match self.seen <= self.document.len() {
            true => Ok(()),
            false => Err(place.damaged("repeats the same values too often")),
        }
    }

    fn settings(&mut self, root: &Dictionary<'a>) -> Result<(AllocatorSettings, String), SnapshotError> {
        let mut settings = AllocatorSettings::default();
        let Some(value) = root.get("allocator_settings") else { return Ok((settings, String::new())) };
        let record = self.record(value, || "`allocator_settings`".to_owned());
        let conf = record.text("PYTORCH_CUDA_ALLOC_CONF").or(record.text("PYTORCH_ALLOC_CONF")).unwrap_or_default();
        if conf.contains("cudaMallocAsync") {
            return Err(SnapshotError::OtherBackend);
        }
        // The text first: the fields have the final values, but not of all settings.
        for unknown in settings.set(conf) {
            self.note(unknown.to_string());
        }
        if let Some(Value::Int(bytes)) = record.get("max_split_size") {
            settings.max_split_bytes = u64::try_from(bytes).ok();
        }
        if let Some(bytes) = record.number("max_non_split_rounding_size") {
            settings.max_non_split_rounding_bytes = bytes;
        }
        if let Some(Value::Float(part)) = record.get("garbage_collection_threshold") {
            settings.garbage_collection_threshold = part;
        }
        if let Some(Value::Float(part)) = record.get("per_process_memory_fraction") {
            settings.memory_fraction = Some(part).filter(|part| *part < 1.0);
        }
        if record.get("expandable_segments").is_some() {
            settings.expandable_segments = record.truth("expandable_segments");
        }
        let divisions = record.get("roundup_power2_divisions").and_then(|value| self.document.entries(value));
        for (mib, count) in divisions.unwrap_or_default() {
            let mib = self.document.text(*mib).and_then(|text| text.parse().ok());
            if let (Some(mib), Value::Int(count)) = (mib, count) {
                let count = u32::try_from(*count).ok().filter(|count| *count == 0 || count.is_power_of_two());
                settings.set_divisions(
                    mib,
                    count.ok_or_else(|| record.damaged("has `roundup_power2_divisions` that are not powers of two"))?,
                );
            }
        }
        let known = [
            "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_ALLOC_CONF",
            "max_split_size",
            "max_non_split_rounding_size",
            "garbage_collection_threshold",
            "per_process_memory_fraction",
            "expandable_segments",
            "roundup_power2_divisions",
            "pinned_num_register_threads",
            "pinned_use_cuda_host_register",
            "release_lock_on_cudamalloc",
            "graph_capture_record_stream_reuse",
            "throw_on_cudamalloc_oom",
        ];
        self.note_unknown(&record, &known, "setting");
        Ok((settings, conf.to_owned()))
    }

    fn events(&mut self, card: u32, trace: Value) -> Result<Vec<TraceEvent>, SnapshotError> {
        let record = self.record(trace, || format!("trace of GPU {card}"));
        let items = self.document.items(trace).ok_or_else(|| record.damaged("is not a list"))?;
        self.count(items.len(), &record)?;
        items.iter().enumerate().map(|(index, value)| self.event(card, index, *value)).collect()
    }

    fn event(&mut self, card: u32, index: usize, value: Value) -> Result<TraceEvent, SnapshotError> {
        let mut event =
            TraceEvent { action: Action::Other, address: 0, bytes: 0, stream: 0, time_us: 0, stack: StackId(0) };
        let (mut name, mut address, mut bytes) = (None, None, None);
        let damaged = |what| SnapshotError::Damaged { place: format!("event {index} of GPU {card}"), what };
        // A single pass over the entries, since there are some 100,000 events.
        for (key, value) in self.document.entries(value).ok_or(damaged("is not a dictionary"))? {
            let number = match value {
                Value::Int(number) => u64::try_from(*number).ok().filter(|number| *number < 1 << 62),
                _ => None,
            };
            match self.document.text(*key).unwrap_or_default() {
                "action" => name = self.document.text(*value),
                "addr" | "device_free" => address = number,
                "size" => bytes = number,
                "stream" => event.stream = number.unwrap_or(0),
                "time_us" => event.time_us = number.unwrap_or(0),
                "frames" => event.stack = self.stack(*value),
                "compile_context" | "user_metadata" | "pool_id" | "segment_pool_id" | "forward_frames" => {}
                other => self.note(format!("field `{}` of events", other.chars().take(60).collect::<String>())),
            }
        }
        event.action = match name.ok_or(damaged("has no `action`"))? {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" | "free" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::OutOfMemory,
            "user_defined" | "workspace_snapshot" => Action::Other,
            other => {
                self.note(format!("action `{}`", other.chars().take(60).collect::<String>()));
                Action::Other
            }
        };
        let counts = !matches!(event.action, Action::Snapshot | Action::Other);
        event.address = address.or((!counts).then_some(0)).ok_or(damaged("has no address"))?;
        event.bytes = bytes.or((!counts).then_some(0)).ok_or(damaged("has no size"))?;
        Ok(event)
    }

    fn segment(&mut self, record: &Dictionary<'a>) -> Result<Segment, SnapshotError> {
        let address = record.size("address", "has no address")?;
        let bytes = record.size("total_size", "has no size")?;
        let pool = record.get("segment_pool_id").and_then(|value| self.document.items(value));
        let pool = match pool {
            Some([Value::Int(first), Value::Int(second)]) => (*first as u64, *second as u64),
            _ => (0, 0),
        };
        let values = record.get("blocks").and_then(|value| self.document.items(value));
        let values = values.ok_or_else(|| record.damaged("has no blocks"))?;
        self.count(values.len(), record)?;
        let mut blocks = Vec::with_capacity(values.len());
        let mut next = address;
        for (index, value) in values.iter().enumerate() {
            let block = self.record(*value, || format!("{}, block {index},", record.place));
            let block = self.block(&block, next)?;
            next += block.bytes;
            if next > address + bytes {
                return Err(record.damaged("is smaller than its blocks"));
            }
            blocks.push(block);
        }
        if next != address + bytes {
            return Err(record.damaged("is larger than its blocks"));
        }
        self.note_unknown(
            record,
            &[
                "device",
                "address",
                "total_size",
                "allocated_size",
                "active_size",
                "requested_size",
                "stream",
                "segment_type",
                "segment_pool_id",
                "is_expandable",
                "frames",
                "blocks",
                "version",
            ],
            "field of segments",
        );
        let small = match record.text("segment_type") {
            Some(kind) => kind == "small",
            None => bytes <= 1 << 21,
        };
        Ok(Segment {
            address,
            bytes,
            stream: record.number("stream").unwrap_or(0),
            small,
            expandable: record.truth("is_expandable"),
            pool,
            blocks,
            stack: record.get("frames").map_or(StackId(0), |frames| self.stack(frames)),
        })
    }

    fn block(&mut self, record: &Dictionary<'a>, address: u64) -> Result<Block, SnapshotError> {
        let bytes = record.size("size", "has no size")?;
        if bytes == 0 {
            return Err(record.damaged("is empty"));
        }
        if record.number("address").is_some_and(|stated| stated != address) {
            return Err(record.damaged("does not begin where the one before it ends"));
        }
        let state = match record.text("state") {
            Some("active_allocated") => BlockState::Allocated,
            Some("active_pending_free" | "active_awaiting_free") => BlockState::PendingFree,
            Some("inactive") => BlockState::Inactive,
            _ => return Err(record.damaged("has an unknown state")),
        };
        // PyTorch 2.0 stores size and stack in a list with the block's history.
        let history = record.get("history").and_then(|value| self.document.items(value)?.first().copied());
        let history = self.record(history.unwrap_or(Value::None), String::new);
        let frames = record.get("frames").or(history.get("frames"));
        let requested = record.number("requested_size").or(history.number("real_size")).unwrap_or(bytes);
        Ok(Block {
            address,
            bytes,
            requested: requested.min(bytes),
            state,
            stack: frames.map_or(StackId(0), |frames| self.stack(frames)),
        })
    }

    /// A list of frames, each a dictionary of `name`, `filename` and `line`. Skips other items.
    fn stack(&mut self, value: Value) -> StackId {
        let (Value::List(list) | Value::Tuple(list)) = value else { return StackId(0) };
        if let Some(known) = self.by_list.get(&list) {
            return *known;
        }
        let document = self.document;
        let frames = document.items(value).unwrap_or_default().iter().filter_map(|value| {
            document.entries(*value)?;
            let record = Dictionary { document, value: *value, place: String::new() };
            let text = |key| record.text(key).unwrap_or_default().to_owned();
            let line = record.number("line").and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
            Some(self.stacks.frame(Frame { name: text("name"), file: text("filename"), line }))
        });
        let frames = frames.collect();
        let id = self.stacks.stack(frames);
        self.by_list.insert(list, id);
        id
    }

    /// The annotations; skips entries without a time or a name.
    fn annotations(&self, root: &Dictionary<'a>) -> Vec<Annotation> {
        let values = root.get("external_annotations").and_then(|value| self.document.items(value)).unwrap_or_default();
        let read = values.iter().filter_map(|value| {
            let record = self.record(*value, String::new);
            Some(Annotation {
                name: record.text("name")?.to_owned(),
                starts: record.text("stage")? == "START",
                card: record.number("device").and_then(|card| u32::try_from(card).ok()).unwrap_or(0),
                time_us: record.number("time_us")?,
            })
        });
        read.collect()
    }
}
