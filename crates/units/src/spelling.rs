//! Which known name a user may have meant by a name that is not known: one metric and one limit for all suggestions.

/// Longest name, in bytes, that is compared: the cost of a comparison grows with the square of the length.
const LENGTH_MAX: usize = 80;
/// Most typing errors between two names that are near.
const EDITS_MAX: usize = 3;
/// Most names in a suggestion of several.
const SUGGESTIONS_MAX: usize = 3;
/// Characters of a name for each typing error in it. The last group may lack one.
const CHARACTERS_PER_EDIT: usize = 4;

/// Typing errors between two names: characters that are missing, added, replaced or swapped with the next one. Case does not
/// count, nor does `_` for `-`. `None` if the names are too different for one to be a misspelling of the other: more than three
/// errors, or more than one for each four characters of `name`.
/// Source of the metric: Damerau 1964, "A technique for computer detection and correction of spelling errors".
pub fn edits(name: &str, known: &str) -> Option<usize> {
    if name.is_empty() || name.len() > LENGTH_MAX {
        return None;
    }
    let (name, known) = (folded(name), folded(known));
    let (length, known_length) = (name.chars().count(), known.chars().count());
    let edits_max = EDITS_MAX.min((length + 1) / CHARACTERS_PER_EDIT);
    if length.abs_diff(known_length) > edits_max {
        return None;
    }
    Some(strsim::damerau_levenshtein(&name, &known)).filter(|edits| *edits <= edits_max)
}

/// What belongs to the known names that are nearest to `name`, if some are near (see [`edits`]): at most three, in the order of
/// `known`. Names that are farther than the nearest are left out.
pub fn nearest_of<S: AsRef<str>, T>(name: &str, known: impl IntoIterator<Item = (S, T)>) -> Vec<T> {
    let near = known.into_iter().filter_map(|(known, item)| Some((edits(name, known.as_ref())?, item)));
    let near = near.collect::<Vec<_>>();
    let least = near.iter().map(|(edits, _)| *edits).min();
    near.into_iter().filter(|(edits, _)| Some(*edits) == least).take(SUGGESTIONS_MAX).map(|(_, item)| item).collect()
}

/// The known name that is nearest to `name`, if one is near (see [`edits`]); of several that are equally near, the first by
/// alphabet.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().filter_map(|known| Some((edits(name, known)?, known)));
    near.min().map(|(_, known)| known)
}

fn folded(name: &str) -> String {
    name.to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_misspellings_are_near() {
        for (name, known, expected) in [
            ("lerning-rate", "learning-rate", Some(1)),
            ("lerning_rate", "Learning-Rate", Some(1)),
            ("gpuz", "gpus", Some(1)),
            ("pln", "plan", Some(1)),
            ("gtp2", "gpt2", Some(1)),
            ("DATA", "data", Some(0)),
            ("größe", "große", Some(1)),
            ("gradient_checkpoint", "gradient_checkpointing", Some(3)),
            ("gradient_check", "gradient_checkpointing", None),
            ("export", "report", None),
            ("detach", "head-chunk", None),
            ("lora", "host-ram", None),
            ("sft", "stop", None),
            ("ab", "ac", None),
            ("", "a", None),
            ("", "", None),
        ] {
            assert_eq!(edits(name, known), expected, "{name} {known}");
        }
        assert_eq!(edits(&"a".repeat(LENGTH_MAX), &"a".repeat(LENGTH_MAX)), Some(0));
        assert_eq!(edits(&"a".repeat(LENGTH_MAX + 1), &"a".repeat(LENGTH_MAX + 1)), None);
    }

    #[test]
    fn the_nearest_is_suggested_in_any_order_of_the_known() {
        for known in [["text.txt", "test.txt", "next.txt"], ["next.txt", "test.txt", "text.txt"]] {
            assert_eq!(nearest("texd.txt", known), Some("text.txt"));
            assert_eq!(nearest("tesd.txt", known), Some("test.txt"));
            assert_eq!(nearest("tezt.txt", known), Some("test.txt"));
            assert_eq!(nearest("image.png", known), None);
        }
    }

    #[test]
    fn of_several_only_the_nearest_are_suggested() {
        let known = ["t5-xl", "t5-base", "t5-bass", "t5-case", "t5-vase"].map(|name| (name, name.len()));
        assert_eq!(nearest_of("t5-base", known), [7]);
        assert_eq!(nearest_of("t5-bxse", known.map(|(name, _)| (name, name))), ["t5-base"]);
        assert_eq!(nearest_of("t5-bas", known.map(|(name, _)| (name, name))), ["t5-base", "t5-bass"]);
        assert_eq!(nearest_of("t5-zase", known), [7, 7, 7]);
        assert_eq!(nearest_of("bert", known), []);
    }

    proptest! {
        #[test]
        fn any_names_can_be_compared(name in "\\PC{0,30}", known in "\\PC{0,30}") {
            prop_assert!(edits(&name, &known).is_none_or(|edits| edits <= EDITS_MAX));
            prop_assert_eq!(edits(&name, &name).is_some(), !name.is_empty() && name.len() <= LENGTH_MAX);
        }
    }
}
