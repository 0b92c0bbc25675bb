//! The devices that the driver shows: cards, or one slice of a card in MIG mode, as `CUDA_VISIBLE_DEVICES` selects.
//!
//! Source: NVIDIA's CUDA programming guide, "CUDA environment variables", and its MIG user guide, "CUDA visible devices".

use super::card::{Card, Slice};

/// A device with a CUDA number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its UUID; a slice has one of its own.
    pub uuid: [u8; 16],
    /// Its memory, in bytes.
    pub memory: u64,
}

/// The devices that a process with this `CUDA_VISIBLE_DEVICES` sees (`None`: it is not set).
pub fn visible(card: &Card, variable: Option<&str>) -> Vec<Device> {
    let Some(slices) = &card.slices else {
        let cards = (0..card.count as u8).map(|number| whole(card, number)).collect::<Vec<_>>();
        let names = cards.iter().map(|card| text("GPU", card.uuid)).collect::<Vec<_>>();
        let Some(variable) = variable else { return cards };
        return chosen(&names, variable).into_iter().map(|index| cards[index].clone()).collect();
    };
    // In MIG mode a process sees exactly one slice: the first that is named, or the first of a card.
    let of = |number: u8| slices.iter().zip(0..).map(move |(slice, index)| part(card, number, slice, index));
    let all = (0..card.count as u8).flat_map(of).collect::<Vec<_>>();
    let variable = variable.map(str::trim);
    let index = match variable {
        None => 0,
        Some(named) if named.starts_with("MIG-") => {
            let names = all.iter().map(|slice| text("MIG", slice.uuid)).collect::<Vec<_>>();
            let Some(&index) = chosen(&names, named).first() else { return Vec::new() };
            index
        }
        Some(named) => {
            let names = (0..card.count as u8).map(|number| text("GPU", card_uuid(number))).collect::<Vec<_>>();
            let Some(&number) = chosen(&names, named).first() else { return Vec::new() };
            number * slices.len()
        }
    };
    all.into_iter().skip(index).take(1).collect()
}

/// Indices of the entries up to the first invalid one; empty if a device is named twice.
fn chosen(uuids: &[String], variable: &str) -> Vec<usize> {
    let by_uuid = ["GPU-", "MIG-"].iter().any(|prefix| variable.trim_start().starts_with(prefix));
    let mut found = Vec::new();
    for entry in variable.split(',').map(str::trim) {
        let index = if by_uuid { index_of_uuid(uuids, entry) } else { index_of_number(uuids.len(), entry) };
        match index {
            Some(index) if found.contains(&index) => return Vec::new(),
            Some(index) => found.push(index),
            None => break,
        }
    }
    found
}

fn index_of_uuid(uuids: &[String], entry: &str) -> Option<usize> {
    let mut matching = (0..uuids.len()).filter(|&index| entry.len() > 4 && uuids[index].starts_with(entry));
    matching.next().filter(|_| matching.next().is_none())
}

/// Parses the leading digits.
fn index_of_number(count: usize, entry: &str) -> Option<usize> {
    let digits = entry.bytes().take_while(u8::is_ascii_digit).count();
    entry[..digits].parse().ok().filter(|&index| index < count)
}

fn whole(card: &Card, number: u8) -> Device {
    Device { name: card.name.clone(), uuid: card_uuid(number), memory: card.memory }
}

fn part(card: &Card, number: u8, slice: &Slice, index: u8) -> Device {
    let mut uuid = *b"fake-cuda-mig-00";
    uuid[14] += number;
    uuid[15] += index;
    Device { name: format!("{} MIG {}", card.name, slice.profile), uuid, memory: slice.memory }
}

fn card_uuid(number: u8) -> [u8; 16] {
    let mut uuid = *b"fake-cuda-card-0";
    uuid[15] += number;
    uuid
}

/// A UUID in its text format.
fn text(prefix: &str, uuid: [u8; 16]) -> String {
    let hex = uuid.map(|byte| format!("{byte:02x}")).concat();
    format!("{prefix}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last two characters of the UUIDs of the visible devices.
    fn shown(description: &str, variable: Option<&str>) -> Vec<String> {
        let devices = visible(&Card::parse(description).expect("a description"), variable);
        devices.iter().map(|device| String::from_utf8_lossy(&device.uuid[14..]).into_owned()).collect()
    }

    #[test]
    fn cuda_visible_devices_selects_and_orders_cards() {
        assert_eq!(shown("cards=3", None), ["-0", "-1", "-2"]);
        for (variable, expected) in [
            ("1,0", &["-1", "-0"][..]),
            ("2", &["-2"]),
            (" 2 ,1", &["-2", "-1"]),
            ("", &[]),
            ("-1", &[]),
            ("0,0", &[]),
            ("0,1,0", &[]),
            ("0,7,1", &["-0"]),
            ("7", &[]),
            ("all", &[]),
            ("GPU-66616b65-2d63-7564-612d-636172642d31", &["-1"]),
            ("GPU-66616b65", &[]),
            ("GPU-00000000", &[]),
            ("GPU-", &[]),
            ("MIG-66616b65", &[]),
        ] {
            assert_eq!(shown("cards=3", Some(variable)), expected, "{variable}");
        }
        assert_eq!(shown("", Some("GPU-66616b65")), ["-0"], "a unique prefix");
    }

    #[test]
    fn in_mig_mode_one_slice_is_visible() {
        let cards = "cards=2;mig=1g.5gb:4864,2g.10gb:9728";
        for (variable, expected) in [
            (None, &["00"][..]),
            (Some("1"), &["10"]),
            (Some("0,1"), &["00"]),
            (Some("GPU-66616b65-2d63-7564-612d-636172642d31"), &["10"]),
            (Some("MIG-66616b65-2d63-7564-612d-6d69672d3131"), &["11"]),
            (Some("MIG-66616b65-2d63-7564-612d-6d69672d3031,MIG-66616b65-2d63-7564-612d-6d69672d3131"), &["01"]),
            (Some("MIG-00000000"), &[]),
            (Some(""), &[]),
        ] {
            assert_eq!(shown(cards, variable), expected, "{variable:?}");
        }
        assert_eq!(shown("mig=", None), [""; 0], "MIG mode without slices");
        let slice = visible(&Card::parse("card=a100;mig=1g.5gb:4864").expect("a description"), None).remove(0);
        assert_eq!((&*slice.name, slice.memory), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864 << 20));
    }
}
