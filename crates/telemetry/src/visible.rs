//! Which cards CUDA sees and how it numbers them: the rules of `CUDA_VISIBLE_DEVICES`. Pure.
//!
//! Source: the chapter "CUDA environment variables" of NVIDIA's programming guide; for cases that it leaves open
//! (mixed, repeated and ambiguous entries), `torch.cuda._parse_visible_devices`, which mimics the driver.

/// The cards that `CUDA_VISIBLE_DEVICES` leaves visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// Each card's number in CUDA; `None` if the variable hides it.
    pub cuda_indices: Vec<Option<usize>>,
    /// Whether the numbers assume that CUDA orders the cards as given here. UUIDs assume nothing.
    pub assumes_order: bool,
    /// The entry that hides itself and all later ones. `None` for `-1` and empty entries, which are meant to do that.
    pub stopped_at: Option<BadEntry>,
}

/// An entry of `CUDA_VISIBLE_DEVICES` that hides more than its author may have intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadEntry {
    /// It matches no card or several, or mixes indices and UUIDs: hides itself and all later entries.
    Invalid(String),
    /// A MIG instance, which is not a whole card; CUDA shows only the instance.
    Mig(String),
    /// It repeats a card of an earlier entry: hides all cards.
    Repeated(String),
}

/// Numbers the cards with these UUIDs as CUDA does under `CUDA_VISIBLE_DEVICES=variable` (`None`: not set). An index in
/// the variable refers to the order of `uuids`; a UUID may be abbreviated while it is unique.
pub fn visible(uuids: &[&str], variable: Option<&str>) -> Visible {
    let Some(variable) = variable else {
        return Visible { cuda_indices: (0..uuids.len()).map(Some).collect(), assumes_order: true, stopped_at: None };
    };
    let by_uuid = variable.trim_start().starts_with("GPU-");
    let mut cuda_indices = vec![None; uuids.len()];
    let mut stopped_at = None;
    for (number, entry) in variable.split(',').map(str::trim).enumerate() {
        if entry.is_empty() || entry.starts_with('-') {
            break;
        }
        let place = if by_uuid { place_of_uuid(uuids, entry) } else { place_of_index(uuids, entry) };
        stopped_at = match place {
            _ if entry.starts_with("MIG-") => Some(BadEntry::Mig(entry.to_owned())),
            None => Some(BadEntry::Invalid(entry.to_owned())),
            Some(place) if cuda_indices[place].is_some() => {
                cuda_indices.fill(None);
                Some(BadEntry::Repeated(entry.to_owned()))
            }
            Some(place) => {
                cuda_indices[place] = Some(number);
                continue;
            }
        };
        break;
    }
    let assumes_order = !by_uuid && cuda_indices.iter().any(Option::is_some);
    Visible { cuda_indices, assumes_order, stopped_at }
}

/// CUDA reads the digits at the start of an entry and ignores the rest.
fn place_of_index(uuids: &[&str], entry: &str) -> Option<usize> {
    let digits = entry.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|&index| index < uuids.len())
}

fn place_of_uuid(uuids: &[&str], entry: &str) -> Option<usize> {
    let mut matching = (0..uuids.len()).filter(|&place| entry.starts_with("GPU-") && uuids[place].starts_with(entry));
    matching.next().filter(|_| matching.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: [&str; 3] = ["GPU-8932f937-d72c", "GPU-89aa0000-0000", "GPU-c0ffee00-0000"];

    fn check(variable: &str, expected: [Option<usize>; 3], stopped_at: Option<BadEntry>) {
        let seen = visible(&CARDS, Some(variable));
        assert_eq!((seen.cuda_indices, seen.stopped_at), (expected.to_vec(), stopped_at), "{variable:?}");
    }

    #[test]
    fn without_the_variable_every_card_is_seen() {
        let all = Visible { cuda_indices: vec![Some(0), Some(1), Some(2)], assumes_order: true, stopped_at: None };
        assert_eq!(visible(&CARDS, None), all);
        assert_eq!(visible(&[], None).cuda_indices, vec![]);
    }

    #[test]
    fn indices_and_uuids_number_cards_in_the_order_of_the_variable() {
        check("2,1", [None, Some(1), Some(0)], None);
        check(" 0 , 2 ", [Some(0), None, Some(1)], None);
        check("1gpu,0", [Some(1), Some(0), None], None);
        check("GPU-c0ffee00-0000,GPU-8932f937", [Some(1), None, Some(0)], None);
    }

    #[test]
    fn an_empty_entry_and_minus_one_hide_the_rest() {
        for hides_all in ["", " ", "-1", ",0"] {
            check(hides_all, [None; 3], None);
        }
        check("0,2,-1,1", [Some(0), None, Some(1)], None);
        check("1,", [None, Some(0), None], None);
    }

    #[test]
    fn an_invalid_entry_hides_itself_and_those_after_it() {
        let invalid = |entry: &str| Some(BadEntry::Invalid(entry.to_owned()));
        check("1,3,0", [None, Some(0), None], invalid("3"));
        check("99999999999999999999", [None; 3], invalid("99999999999999999999"));
        check("all", [None; 3], invalid("all"));
        check("GPU-89,0", [None; 3], invalid("GPU-89"));
        check("GPU-8932,GPU-dead,GPU-c0", [Some(0), None, None], invalid("GPU-dead"));
        check("GPU-c0,1", [None, None, Some(0)], invalid("1"));
        check("1,GPU-c0", [None, Some(0), None], invalid("GPU-c0"));
        check("é", [None; 3], invalid("é"));
    }

    #[test]
    fn a_repeated_card_hides_all_and_mig_instances_are_reported() {
        check("0,1,0", [None; 3], Some(BadEntry::Repeated("0".to_owned())));
        check("GPU-c0,GPU-c0ff", [None; 3], Some(BadEntry::Repeated("GPU-c0ff".to_owned())));
        check("MIG-8932f937/1/2,0", [None; 3], Some(BadEntry::Mig("MIG-8932f937/1/2".to_owned())));
    }

    #[test]
    fn only_indices_assume_an_order() {
        let supposes = |variable| visible(&CARDS, Some(variable)).assumes_order;
        assert_eq!([supposes("1"), supposes("GPU-c0"), supposes(""), supposes("7")], [true, false, false, false]);
    }
}
