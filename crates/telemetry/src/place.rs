//! A card's place in the machine: its link to the host, and whether it drives a display. Plans depend on both.

use crate::driver::Driver;
use nvml_wrapper::Device;

/// A PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcieLink {
    /// Its generation.
    pub generation: u8,
    /// Its lanes.
    pub lanes: u8,
}

/// The place of a card, as far as the driver reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CardPlace {
    /// Its link to the host: the highest generation of both, since an idle card lowers the current one, and the lanes that are
    /// connected now.
    pub link: Option<PcieLink>,
    /// Whether it drives a display.
    pub drives_display: bool,
}

/// The place of the card with this UUID. Nothing is known without NVML, or of a slice of a card.
pub fn card_place(uuid: &str) -> CardPlace {
    let Ok(driver) = Driver::open() else { return CardPlace::default() };
    driver.device_by_uuid(uuid).map_or_else(|_| CardPlace::default(), |device| read(&device))
}

fn read(device: &Device) -> CardPlace {
    let generation = device.max_pcie_link_gen().ok().and_then(|generation| u8::try_from(generation).ok());
    let lanes = device.current_pcie_link_width().ok().and_then(|lanes| u8::try_from(lanes).ok());
    let link = generation.zip(lanes).map(|(generation, lanes)| PcieLink { generation, lanes });
    CardPlace {
        link: link.filter(|link| link.generation > 0 && link.lanes > 0),
        drives_display: device.is_display_active().unwrap_or(false),
    }
}
