//! Writes a snapshot in PyTorch's format: a pickle of lists and dictionaries.

use crate::snapshot::{Action, BlockState, Segment, Snapshot, StackId, Stacks, TraceEvent};
use rustc_hash::FxHashMap;

/// The output of `torch.cuda.memory._dump_snapshot` for this snapshot.
pub fn write(snapshot: &Snapshot) -> Vec<u8> {
    let mut pickle = Pickle { bytes: vec![0x80, 2], memo: FxHashMap::default() };
    let cards = snapshot.cards.iter().map(|card| card.card as usize + 1).max().unwrap_or(0);
    pickle.dict(|pickle| {
        pickle.text("segments");
        pickle.list(|pickle| {
            for card in &snapshot.cards {
                for segment in &card.segments {
                    pickle.segment(card.card, segment, &snapshot.stacks);
                }
            }
        });
        pickle.text("device_traces");
        pickle.list(|pickle| {
            for index in 0..cards {
                let card = snapshot.cards.iter().find(|card| card.card as usize == index);
                pickle.list(|pickle| {
                    for event in card.map(|card| card.events.as_slice()).unwrap_or_default() {
                        pickle.event(event, &snapshot.stacks);
                    }
                });
            }
        });
        pickle.text("allocator_settings");
        pickle.dict(|pickle| {
            pickle.text("PYTORCH_CUDA_ALLOC_CONF");
            pickle.text(&snapshot.conf);
            pickle.text("max_split_size");
            pickle.int(snapshot.settings.max_split_bytes.map_or(-1, |bytes| bytes as i64));
            pickle.text("garbage_collection_threshold");
            pickle.float(snapshot.settings.garbage_collection_threshold);
            pickle.text("expandable_segments");
            pickle.truth(snapshot.settings.expandable_segments);
            pickle.text("roundup_power2_divisions");
            pickle.dict(|pickle| {
                for (power, count) in snapshot.settings.roundup_divisions.iter().enumerate() {
                    pickle.text(&(1u64 << power).to_string());
                    pickle.int(i64::from(*count));
                }
            });
        });
        pickle.text("external_annotations");
        pickle.list(|pickle| {
            for annotation in &snapshot.annotations {
                pickle.dict(|pickle| {
                    pickle.field_text("stage", if annotation.starts { "START" } else { "END" });
                    pickle.field_text("name", &annotation.name);
                    pickle.field("device", u64::from(annotation.card));
                    pickle.field("time_us", annotation.time_us);
                });
            }
        });
    });
    pickle.bytes.push(b'.');
    pickle.bytes
}

/// The output so far, and the memo indices of texts and stacks.
struct Pickle {
    bytes: Vec<u8>,
    memo: FxHashMap<Known, u32>,
}

#[derive(PartialEq, Eq, Hash)]
enum Known {
    Text(String),
    Stack(StackId),
}

impl Pickle {
    fn segment(&mut self, card: u32, segment: &Segment, stacks: &Stacks) {
        self.dict(|pickle| {
            pickle.field("device", u64::from(card));
            pickle.field("address", segment.address);
            pickle.field("total_size", segment.bytes);
            pickle.field("stream", segment.stream);
            pickle.field_text("segment_type", if segment.small { "small" } else { "large" });
            pickle.text("segment_pool_id");
            pickle.int(segment.pool.0 as i64);
            pickle.int(segment.pool.1 as i64);
            pickle.bytes.push(0x86);
            pickle.text("is_expandable");
            pickle.truth(segment.expandable);
            pickle.text("frames");
            pickle.stack(segment.stack, stacks);
            pickle.text("blocks");
            pickle.list(|pickle| {
                for block in &segment.blocks {
                    pickle.dict(|pickle| {
                        pickle.field("address", block.address);
                        pickle.field("size", block.bytes);
                        pickle.field("requested_size", block.requested);
                        let state = match block.state {
                            BlockState::Allocated => "active_allocated",
                            BlockState::PendingFree => "active_pending_free",
                            BlockState::Inactive => "inactive",
                        };
                        pickle.field_text("state", state);
                        pickle.text("frames");
                        pickle.stack(block.stack, stacks);
                    });
                }
            });
        });
    }

    fn event(&mut self, event: &TraceEvent, stacks: &Stacks) {
        let action = match event.action {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::OutOfMemory => "oom",
            Action::Other => "user_defined",
        };
        self.dict(|pickle| {
            pickle.field_text("action", action);
            pickle.field(if event.action == Action::OutOfMemory { "device_free" } else { "addr" }, event.address);
            pickle.field("size", event.bytes);
            pickle.field("stream", event.stream);
            pickle.field("time_us", event.time_us);
            pickle.text("frames");
            pickle.stack(event.stack, stacks);
        });
    }

    fn stack(&mut self, stack: StackId, stacks: &Stacks) {
        if let Some(index) = self.memo.get(&Known::Stack(stack)) {
            return self.fetch(*index);
        }
        self.list(|pickle| {
            for frame in stacks.frames(stack) {
                pickle.dict(|pickle| {
                    pickle.field_text("name", &frame.name);
                    pickle.field_text("filename", &frame.file);
                    pickle.field("line", u64::from(frame.line));
                });
            }
        });
        self.store(Known::Stack(stack));
    }

    fn field(&mut self, key: &str, value: u64) {
        self.text(key);
        self.int(value as i64);
    }

    fn field_text(&mut self, key: &str, value: &str) {
        self.text(key);
        self.text(value);
    }

    fn dict(&mut self, fill: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"}(");
        fill(self);
        self.bytes.push(b'u');
    }

    fn list(&mut self, fill: impl FnOnce(&mut Self)) {
        self.bytes.extend(b"](");
        fill(self);
        self.bytes.push(b'e');
    }

    fn text(&mut self, text: &str) {
        if let Some(index) = self.memo.get(&Known::Text(text.to_owned())) {
            return self.fetch(*index);
        }
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
        self.store(Known::Text(text.to_owned()));
    }

    fn int(&mut self, value: i64) {
        self.bytes.extend([0x8a, 8]);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, value: f64) {
        self.bytes.push(b'G');
        self.bytes.extend(value.to_be_bytes());
    }

    fn truth(&mut self, value: bool) {
        self.bytes.push(if value { 0x88 } else { 0x89 });
    }

    fn fetch(&mut self, index: u32) {
        self.bytes.push(b'j');
        self.bytes.extend(index.to_le_bytes());
    }

    fn store(&mut self, known: Known) {
        let index = u32::try_from(self.memo.len()).expect("fewer texts and stacks than bytes");
        self.bytes.push(b'r');
        self.bytes.extend(index.to_le_bytes());
        self.memo.insert(known, index);
    }
}
